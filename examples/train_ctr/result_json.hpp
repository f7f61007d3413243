// Figures and results as JSON, which has no NaN: null stands for what is not defined.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluation.hpp"

namespace ctr {

inline nlohmann::ordered_json number_of(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

/// Group AUC only where rows had groups.
inline nlohmann::ordered_json json_of(const figures& of) {
  nlohmann::ordered_json all = {{"rows", of.rows},
                                {"auc", number_of(of.auc)},
                                {"logloss", number_of(of.log_loss)},
                                {"calibration", number_of(of.calibration)}};
  if (of.groups + of.groups_left_out > 0) {
    all["group_auc"] = number_of(of.group_auc);
    all["groups"] = of.groups;
    all["groups_left_out"] = of.groups_left_out;
  }
  if (*of.no_auc != '\0') all["auc_undefined"] = of.no_auc;
  return all;
}

inline nlohmann::ordered_json json_of(const evaluation& of) {
  nlohmann::ordered_json all = {{"epoch", of.epoch}, {"step", of.step}, {"ends_epoch", of.ends_epoch}};
  all["train_loss"] = number_of(of.train_loss);
  all.update(json_of(of.found));
  return all;
}

struct data_facts;
struct options;
struct score;

/// 16 digits.
std::string hex_of(std::uint64_t value);
/// To the file of --json. Throws a failure.
void write_result(const std::vector<score>& scores, const data_facts& data, const options& o,
                  bool interrupted);

}  // namespace ctr
