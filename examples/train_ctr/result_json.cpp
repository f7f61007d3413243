#include "result_json.hpp"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <deeprec/core/isa.hpp>

#include "memory_limit.hpp"
#include "output_file.hpp"
#include "report.hpp"
#include "spread.hpp"

namespace ctr {

std::string hex_of(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void write_result(const std::vector<score>& scores, const data_facts& data, const options& o,
                  bool interrupted) {
  nlohmann::json out = {{"data", !o.evaluate.empty() ? o.evaluate
                                 : o.data.empty()    ? "synthetic"
                                                     : o.data},
                        {"rows", data.rows},
                        {"train_rows", data.train_rows},
                        {"valid_rows", data.valid_rows},
                        {"test_rows", data.test_rows},
                        {"rows_skipped", data.skipped.count},
                        {"skipped", data.skipped.first},
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
                        {"optimizer", o.optimizer},
                        {"l2", o.l2},
                        {"schedule", o.schedule},
                        {"keys", o.keys},
                        {"math", o.math},
                        {"last_layer_f32", o.last_layer_f32},
                        {"isa", to_string(deeprec::active_isa())},
                        {"gemm", gemm_words(o)},
                        {"interrupted", interrupted},
                        {"models", nlohmann::json::array()}};
  for (const score& s : scores) {
    nlohmann::json one = {{"model", s.name}, {"seed", s.seed}, {"auc", number_of(s.auc)}};
    if (!std::isnan(s.log_loss)) one["logloss"] = number_of(s.log_loss);
    if (!std::isnan(s.user_auc)) one["user_auc"] = number_of(s.user_auc);
    if (!std::isnan(s.calibration)) one["calibration"] = number_of(s.calibration);
    if (s.groups + s.groups_left_out > 0) {
      one["group_auc"] = number_of(s.group_auc);
      one["groups"] = s.groups;
      one["groups_left_out"] = s.groups_left_out;
    }
    if (*s.no_auc != '\0') one["auc_undefined"] = s.no_auc;
    for (const evaluation& pass : s.passes) {
      nlohmann::json of = json_of(pass);
      of["of"] = pass.of;
      one["passes"].push_back(of);
    }
    if (s.kept_step > 0) one["kept_step"] = s.kept_step;
    for (const slot_importance& of : s.importance) one["importance"][of.slot] = number_of(of.rise);
    for (const layer_units& of : s.layers)
      one["dead_units"][of.name] = {{"units", of.units}, {"dead", of.dead}};
    if (s.samples > 0) {
      one["samples"] = s.samples;
      one["samples_per_second"] = s.samples_per_second;
      one["checksum"] = hex_of(s.checksum);
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
  if (!o.evaluate.empty()) {  // what only a training has
    for (const char* const name :
         {"train_rows",  "valid_rows",  "window",     "kept",     "table_rows",   "step",
          "executor",    "smart_stage", "fusion",     "prefetch", "stale_window", "async_embedding",
          "micro_batch", "memory_plan", "batch_size", "epochs",   "seed",         "optimizer",
          "l2",          "schedule"}) {
      out.erase(name);
    }
    for (nlohmann::json& of : out["models"]) of.erase("seed");
  }
  for (const spread& of : o.repeat > 1 ? spreads_of(scores, interrupted) : std::vector<spread>()) {
    const auto both = [](const mean_and_deviation& m) {
      return nlohmann::json{{"mean", number_of(m.mean)}, {"deviation", number_of(m.deviation)}};
    };
    out["repeat"][of.name] = {{"seeds", of.seeds},
                              {"auc", both(of.auc)},
                              {"logloss", both(of.log_loss)},
                              {"calibration", both(of.calibration)}};
    if (std::isfinite(of.group_auc.mean)) out["repeat"][of.name]["group_auc"] = both(of.group_auc);
  }
  write_file(o.json, out.dump(2) + '\n');
}

}  // namespace ctr
