// What happens in a run, as it happens: --log, a line of JSON for each event, and --tensorboard, an event
// file for each model. And what --report draws of the steps.
//
//   run_journal journal(o);
//   journal.begin("dlrm", 1);   if (journal.is_due(step)) journal.step(facts);   journal.pass(evaluation);
//
// A file that can't be written ends the writing, not the training: fault() has the reason.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "evaluation.hpp"
#include "models/ctr_data.hpp"

namespace ctr {

struct options;

struct layer_norms {
  std::string name;
  double weights = 0;
  double gradient = undefined;  ///< of a step, the root of the mean square since the last event
};

/// A step that is due, with what came since the one before it.
struct step_facts {
  index_t step = 0, epoch = 0;  ///< both from 1
  index_t rows = 0;             ///< trained in all epochs
  double seconds = 0;           ///< since begin()
  double loss = undefined;      ///< of the samples of these steps
  double stack_rate = 0, row_rate = 0;
  std::vector<layer_norms> layers{};
};

class event_file;

/// @threads one at a time
class run_journal {
 public:
  /// Throws a failure where a file can't be opened.
  explicit run_journal(const options& o);
  ~run_journal();
  run_journal(const run_journal&) = delete;
  run_journal& operator=(const run_journal&) = delete;

  /// Whether steps are wanted at all, so that their loss is taken.
  [[nodiscard]] bool wants_steps() const { return every_ > 0; }
  [[nodiscard]] bool is_due(index_t step) const { return every_ > 0 && step % every_ == 0; }

  void begin(const std::string& model, std::uint64_t seed);
  void step(step_facts facts);
  void pass(const evaluation& of);
  /// The steps of the model that was begun last.
  [[nodiscard]] std::vector<step_facts> take_steps() { return std::move(steps_); }
  /// Why a file could not be written; empty: all were.
  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  void line(const std::string& text);
  void scalar(const char* tag, double value, index_t step);

  index_t every_ = 0;
  bool keeps_steps_ = false;
  std::string log_path_, event_folder_, model_, fault_;
  std::uint64_t seed_ = 0;
  std::FILE* log_ = nullptr;
  std::unique_ptr<event_file> events_;
  std::vector<step_facts> steps_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace ctr
