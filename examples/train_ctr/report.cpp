#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <deeprec/dense/gemm/gemm.hpp>

#include "memory_limit.hpp"
#include "model_options.hpp"
#include "output_file.hpp"
#include "report_page.hpp"
#include "result_json.hpp"
#include "spread.hpp"

namespace ctr {

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

/// Four places; what is not defined is -.
std::string number_words(double value) {
  if (!std::isfinite(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

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

/// With the seed where there are several.
std::string label_of(const score& s, const options& o) {
  return s.name + (o.repeat > 1 ? "/" + std::to_string(s.seed) : "");
}

void print(const std::vector<score>& scores, const options& o) {
  const auto any = [&](const auto& of) { return std::any_of(scores.begin(), scores.end(), of); };
  const bool by_user = any([](const score& s) { return !std::isnan(s.user_auc); });
  const bool by_group = any([](const score& s) { return s.groups + s.groups_left_out > 0; });
  const bool calibrated = any([](const score& s) { return !std::isnan(s.calibration); });
  std::printf("%-8s %8s", "model", "auc");
  if (by_user) std::printf(" %8s", "user auc");
  if (by_group) std::printf(" %9s", "group auc");
  std::printf(" %9s", "logloss");
  if (calibrated) std::printf(" %11s", "calibration");
  if (any([](const score& s) { return s.samples > 0; })) {
    std::printf(" %11s", "samples/s");
    for (const char* name : part_names) std::printf(" %9s", name);
  }
  std::printf("\n");
  for (const score& s : scores) {
    std::printf("%-8s %8s", label_of(s, o).c_str(), number_words(s.auc).c_str());
    if (by_user) std::printf(" %8s", number_words(s.user_auc).c_str());
    if (by_group) std::printf(" %9s", number_words(s.group_auc).c_str());
    std::printf(" %9s", number_words(s.log_loss).c_str());
    if (calibrated) std::printf(" %11s", number_words(s.calibration).c_str());
    if (s.samples > 0) {
      std::printf(" %11.0f", s.samples_per_second);
      for (std::size_t p = 0; p < part_names.size(); ++p) {
        std::printf(" %7.0f %%", 100 * s.watch.seconds(p) / s.watch.total());
      }
    }
    std::printf("\n");
    if (*s.no_auc != '\0') std::printf("         AUC undefined: %s among the rows that test\n", s.no_auc);
    if (o.verbose > 0 && s.samples > 0) {
      std::printf("         checksum of the weights %s\n", hex_of(s.checksum).c_str());
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
}

/// Of a model that was looked at between its steps.
void print_passes(const score& s, const std::string& name) {
  if (s.passes.size() > 1 || s.kept_step > 0) {
    const bool by_group = s.passes.front().found.groups + s.passes.front().found.groups_left_out > 0;
    std::printf("%s: %5s %8s %10s %9s %9s %11s%s\n", name.c_str(), "epoch", "step", "train loss",
                (std::string(s.passes.front().of) + " auc").c_str(), "logloss", "calibration",
                by_group ? " group auc" : "");
    for (const evaluation& pass : s.passes) {
      std::printf("%*s %6lld %8lld %10s %9s %9s %11s", static_cast<int>(name.size()), "",
                  static_cast<long long>(pass.epoch), static_cast<long long>(pass.step),
                  number_words(pass.train_loss).c_str(), number_words(pass.found.auc).c_str(),
                  number_words(pass.found.log_loss).c_str(), number_words(pass.found.calibration).c_str());
      if (by_group) std::printf(" %9s", number_words(pass.found.group_auc).c_str());
      std::printf("\n");
    }
  }
  if (s.kept_step > 0) {
    std::printf("%s: tested and saved as after step %lld, the best validation\n", name.c_str(),
                static_cast<long long>(s.kept_step));
  } else if (is_overfit(s.passes)) {
    std::printf(
        "%s: warning: the last epoch is worse than the first: fewer --epochs, or --valid and --patience\n",
        name.c_str());
  }
  for (const slot_importance& of : s.importance) {
    std::printf("%s: log loss %+.5f with %s shuffled\n", name.c_str(), of.rise, of.slot.c_str());
  }
}

void print_spreads(const std::vector<spread>& all) {
  for (const spread& of : all) {
    std::printf("%-8s of %zu seeds: auc %s +- %s, logloss %s +- %s, calibration %s +- %s\n", of.name.c_str(),
                of.seeds, number_words(of.auc.mean).c_str(), number_words(of.auc.deviation).c_str(),
                number_words(of.log_loss.mean).c_str(), number_words(of.log_loss.deviation).c_str(),
                number_words(of.calibration.mean).c_str(), number_words(of.calibration.deviation).c_str());
    if (std::isfinite(of.group_auc.mean)) {
      std::printf("%-8s group auc %s +- %s\n", "", number_words(of.group_auc.mean).c_str(),
                  number_words(of.group_auc.deviation).c_str());
    }
  }
}

}  // namespace

void report(const std::vector<score>& scores, const data_facts& data, const options& o, bool interrupted,
            const std::string& unwritten) {
  print(scores, o);
  for (const score& s : scores) print_passes(s, label_of(s, o));
  if (o.repeat > 1) print_spreads(spreads_of(scores, interrupted));
  std::fflush(stdout);
  score all;
  all.unwritten = unwritten;
  if (std::ferror(stdout) != 0 && unwritten.empty()) all.unwritten = "cannot write the standard output";
  if (!o.json.empty()) all.write([&] { write_result(scores, data, o, interrupted); });
  if (!o.report.empty()) all.write([&] { write_report_page(scores, data, o, interrupted); });
  for (const score& s : scores) {
    if (!s.unwritten.empty()) throw failure(s.unwritten);
  }
  if (!all.unwritten.empty()) throw failure(all.unwritten);
}

}  // namespace ctr
