#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <deeprec/core/isa.hpp>
#include <deeprec/dense/gemm/gemm.hpp>

#include "memory_limit.hpp"
#include "model_options.hpp"
#include "output_file.hpp"

namespace ctr {

namespace {

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

std::string gemm_words(const options& o) {
  std::string words = to_string(deeprec::host_gemm_backends{});
  const deeprec::gemm_math math = precision_of(o).math;
  if (math != deeprec::gemm_math::bf16 && math != deeprec::gemm_math::tf32) return words;
  constexpr index_t width = 256;
  std::vector<float> layer(static_cast<std::size_t>(width * width));
  const matrix_view<float> any(layer.data(), width, width);  // its values are not read
  const std::string why = explain_gemm({.b = deeprec::gemm_operand::transposed, .math = math}, any, any, any);
  const std::size_t begin = why.find(std::string("; ") + to_string(math) + " is permitted");
  if (begin == std::string::npos) return words;
  return words + why.substr(begin, why.find(';', begin + 1) - begin);
}

std::string order_of(const ctr_rows& rows) {
  const std::string read = rows.is_kept() ? "kept" : "read in each epoch";
  return read + (rows.window() == 0 ? "" : ", shuffled in windows of " + std::to_string(rows.window()));
}

namespace {

void print(const table_counts& of) {
  const auto count = [](index_t number) { return static_cast<long long>(number); };
  std::printf(
      "         %lld keys have rows, %lld wait; %lld were admitted, %lld refused, %lld evicted; %.1f MB of "
      "rows, "
      "%.1f of index, %.1f of filter\n",
      count(of.keys), count(of.candidates), count(of.admitted), count(of.refused), count(of.evicted),
      1e-6 * static_cast<double>(of.row_bytes), 1e-6 * static_cast<double>(of.index_bytes),
      1e-6 * static_cast<double>(of.filter_bytes));
}

void print(const memory_use& of) {
  const auto megabytes = [](std::size_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  std::printf("         scratch of %lld of %lld steps from an arena of %.2f MB (%.2f live at once)",
              static_cast<long long>(of.served_steps), static_cast<long long>(of.steps), megabytes(of.arena),
              megabytes(of.live));
  if (of.values > 0)
    std::printf("; values in %.2f MB, %.2f apart", megabytes(of.values), megabytes(of.values_apart));
  std::printf("; %.2f page faults a step\n", of.faults);
}

void print(const std::vector<score>& scores, const options& o) {
  const bool by_user =
      std::any_of(scores.begin(), scores.end(), [](const score& s) { return !std::isnan(s.user_auc); });
  std::printf("%-8s %8s", "model", "auc");
  if (by_user) std::printf(" %8s", "user auc");
  std::printf(" %9s %11s", "logloss", "samples/s");
  for (const char* name : part_names) std::printf(" %9s", name);
  std::printf("\n");
  for (const score& s : scores) {
    std::printf("%-8s ", s.name.c_str());
    if (std::isnan(s.auc)) {
      std::printf("%8s", "-");
    } else {
      std::printf("%8.4f", s.auc);
    }
    if (by_user) std::printf(" %8.4f", s.user_auc);
    if (std::isnan(s.log_loss)) {
      std::printf(" %9s", "-");
    } else {
      std::printf(" %9.4f", s.log_loss);
    }
    if (s.samples > 0) {
      std::printf(" %11.0f", s.samples_per_second);
      for (std::size_t p = 0; p < part_names.size(); ++p) {
        std::printf(" %7.0f %%", 100 * s.watch.seconds(p) / s.watch.total());
      }
    }
    std::printf("\n");
    if (*s.no_auc != '\0') std::printf("         AUC undefined: %s among the rows that test\n", s.no_auc);
    if (o.verbose > 0 && s.samples > 0) {
      std::printf("         checksum of the weights %s\n", hex(s.checksum).c_str());
      std::fputs(s.graph.c_str(), stdout);
    }
    if (s.has_raw_keys) print(*s.tables);
    if (o.memory_plan && s.samples > 0) print(s.memory);
  }
  for (const score& s : scores) {
    if (s.stages.stages.empty()) continue;
    // What the others wait for: of the training its longest part, of what runs ahead how long it waits.
    std::string slowest = s.stages.bottleneck();
    if (slowest == "train") {
      std::size_t longest = static_cast<std::size_t>(part::lookup);
      for (std::size_t p = longest; p < part_names.size(); ++p) {
        if (s.watch.seconds(p) > s.watch.seconds(longest)) longest = p;
      }
      slowest += std::string(", most of all ") + part_names[longest];
    } else if (s.samples > 0 && (slowest == "read" || slowest == "source" || slowest == "staged")) {
      char share[64];
      const double waits = s.watch.seconds(static_cast<std::size_t>(part::read)) / s.watch.total();
      std::snprintf(share, sizeof share, ", for which training waits %.0f %% of its time", 100 * waits);
      slowest += share;
    }
    std::printf("%s: %.1f s; busy:", s.name.c_str(), std::chrono::duration<double>(s.stages.elapsed).count());
    for (const deeprec::stage_statistics& stage : s.stages.stages) {
      std::printf(" %s %.0f %%,", stage.name, 100 * stage.occupancy);
    }
    std::printf(" bottleneck: %s; %lld MB of memory at most\n", slowest.c_str(),
                static_cast<long long>(peak_megabytes()));
  }
  std::fflush(stdout);
}

/// To the file that the options name.
void write_json(const std::vector<score>& scores, const data_facts& data, const options& o,
                bool interrupted) {
  nlohmann::json out = {{"data", o.data.empty() ? "synthetic" : o.data},
                        {"rows", data.rows},
                        {"train_rows", data.train_rows},
                        {"test_rows", data.test_rows},
                        {"window", data.window},
                        {"kept", data.is_kept},
                        {"peak_megabytes", peak_megabytes()},
                        {"table_rows", data.table_rows},
                        {"step", o.is_graph() ? "graph" : "direct"},
                        {"executor", o.executor.empty() ? "inline" : o.executor},
                        {"smart_stage", o.smart_stage},
                        {"fusion", o.fusion},
                        {"prefetch", o.prefetch},
                        {"stale_window", o.stale_window},
                        {"async_embedding", o.async_embedding},
                        {"micro_batch", o.micro_batch},
                        {"memory_plan", o.memory_plan},
                        {"batch_size", o.batch_size},
                        {"epochs", o.epochs},
                        {"threads", o.threads},
                        {"seed", o.seed},
                        {"keys", o.keys},
                        {"math", o.math},
                        {"last_layer_f32", o.last_layer_f32},
                        {"isa", to_string(deeprec::active_isa())},
                        {"gemm", gemm_words(o)},
                        {"interrupted", interrupted},
                        {"models", nlohmann::json::array()}};
  for (const score& s : scores) {
    nlohmann::json one = {{"model", s.name}, {"auc", s.auc}};
    if (!std::isnan(s.log_loss)) one["logloss"] = s.log_loss;
    if (!std::isnan(s.user_auc)) one["user_auc"] = s.user_auc;
    if (s.samples > 0) {
      one["samples"] = s.samples;
      one["samples_per_second"] = s.samples_per_second;
      one["checksum"] = hex(s.checksum);
      if (s.tables) {
        const table_counts& of = *s.tables;
        one["bytes"] = {{"rows", of.row_bytes}, {"index", of.index_bytes}, {"filter", of.filter_bytes}};
        if (s.has_raw_keys) {
          one["keys"] = {{"held", of.keys},
                         {"candidates", of.candidates},
                         {"admitted", of.admitted},
                         {"refused", of.refused},
                         {"evicted", of.evicted}};
        }
      }
      for (std::size_t p = 0; p < part_names.size(); ++p) {
        one["share"][part_names[p]] = s.watch.seconds(p) / s.watch.total();
      }
    }
    if (s.samples > 0) {
      one["memory"] = {{"steps", s.memory.steps},
                       {"served_steps", s.memory.served_steps},
                       {"missed_steps", s.memory.missed_steps},
                       {"arena_bytes", s.memory.arena},
                       {"live_bytes", s.memory.live},
                       {"value_bytes", s.memory.values},
                       {"value_bytes_apart", s.memory.values_apart},
                       {"faults_per_step", s.memory.faults}};
    }
    out["models"].push_back(one);
  }
  write_file(o.json, out.dump(2) + '\n');
}

}  // namespace

void report(const std::vector<score>& scores, const data_facts& data, const options& o, bool interrupted) {
  print(scores, o);
  score all;
  if (std::ferror(stdout) != 0) all.unwritten = "cannot write the standard output";
  if (!o.json.empty()) all.write([&] { write_json(scores, data, o, interrupted); });
  for (const score& s : scores) {
    if (!s.unwritten.empty()) throw failure(s.unwritten);
  }
  if (!all.unwritten.empty()) throw failure(all.unwritten);
}

}  // namespace ctr
