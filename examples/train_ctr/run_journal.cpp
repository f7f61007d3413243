#include "run_journal.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "event_file.hpp"
#include "options.hpp"
#include "result_json.hpp"

namespace ctr {

run_journal::run_journal(const options& o)
    : every_(o.log.empty() && o.report.empty() && o.tensorboard.empty() ? 0 : o.log_every),
      keeps_steps_(!o.report.empty()),
      log_path_(o.log),
      event_folder_(o.tensorboard) {
  if (log_path_.empty()) return;
  // What goes on has the lines of before.
  const bool goes_on = !o.load.empty() && !o.new_data;
  log_ = std::fopen(log_path_.c_str(), goes_on ? "ae" : "we");
  if (log_ == nullptr) throw failure("cannot write " + log_path_ + ": " + std::strerror(errno));
}
run_journal::~run_journal() {
  if (log_ != nullptr) std::fclose(log_);
}

void run_journal::begin(const std::string& model, std::uint64_t seed) {
  model_ = model;
  seed_ = seed;
  begun_ = std::chrono::steady_clock::now();
  steps_.clear();
  if (event_folder_.empty() || !fault_.empty()) return;
  try {
    events_ = std::make_unique<event_file>(
        (std::filesystem::path(event_folder_) / (model + "_seed_" + std::to_string(seed))).native());
  } catch (const failure& wrong) {
    fault_ = wrong.what();
  }
}

void run_journal::step(step_facts facts) {
  facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  if (log_ != nullptr) {
    nlohmann::ordered_json norms = nlohmann::ordered_json::object();
    for (const layer_norms& layer : facts.layers) {
      norms[layer.name] = {{"weights", number_of(layer.weights)}, {"gradient", number_of(layer.gradient)}};
    }
    line(nlohmann::ordered_json{{"event", "step"},
                                {"model", model_},
                                {"seed", seed_},
                                {"step", facts.step},
                                {"epoch", facts.epoch},
                                {"rows", facts.rows},
                                {"seconds", facts.seconds},
                                {"loss", number_of(facts.loss)},
                                {"learning_rate", facts.stack_rate},
                                {"row_learning_rate", facts.row_rate},
                                {"norms", norms}}
             .dump());
  }
  scalar("train/loss", facts.loss, facts.step);
  scalar("train/learning_rate", facts.stack_rate, facts.step);
  scalar("train/row_learning_rate", facts.row_rate, facts.step);
  for (const layer_norms& layer : facts.layers) {
    scalar(("weights/" + layer.name).c_str(), layer.weights, facts.step);
    scalar(("gradient/" + layer.name).c_str(), layer.gradient, facts.step);
  }
  if (keeps_steps_) steps_.push_back(std::move(facts));
}

void run_journal::pass(const evaluation& of) {
  if (log_ != nullptr) {
    nlohmann::ordered_json all = {{"event", of.of}, {"model", model_}, {"seed", seed_}};
    all.update(json_of(of));
    all["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    line(all.dump());
  }
  const std::string of_rows = std::string(of.of) + '/';
  for (const auto& [name, value] :
       {std::pair("auc", of.found.auc), std::pair("log_loss", of.found.log_loss),
        std::pair("calibration", of.found.calibration), std::pair("group_auc", of.found.group_auc)}) {
    scalar((of_rows + name).c_str(), value, of.step);
  }
}

void run_journal::line(const std::string& text) {
  if (!fault_.empty()) return;
  if (std::fprintf(log_, "%s\n", text.c_str()) < 0 || std::fflush(log_) != 0) {
    fault_ = "cannot write " + log_path_ + ": " + std::strerror(errno);
  }
}
void run_journal::scalar(const char* tag, double value, index_t step) {
  if (events_ == nullptr || !fault_.empty() || std::isnan(value)) return;
  try {
    events_->scalar(tag, value, step);
  } catch (const failure& wrong) {
    fault_ = wrong.what();
  }
}

}  // namespace ctr
