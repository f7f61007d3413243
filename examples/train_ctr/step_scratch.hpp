// --memory-plan: the scratch memory of training steps from arenas that are planned after some steps, and what
// that saves.
//
//   step_scratch scratch(o);
//   on.memory = scratch.memory();            null without the option: on.memory stays
//   scratch.begin(rows);  ... a step ...  scratch.end();
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>
#include <vector>

#include <deeprec/memory/planned_resource.hpp>

namespace ctr {

using deeprec::index_t;

/// What --memory-plan did.
struct memory_use {
  index_t steps = 0, served_steps = 0;       ///< of the training; of these, with all scratch from the arena
  index_t missed_steps = 0;                  ///< of these, that left their plan
  std::size_t arena = 0, live = 0;           ///< bytes of scratch: the arena; the most that lives at once
  std::size_t values = 0, values_apart = 0;  ///< bytes of values: in their block; each for itself
  double faults = 0;  ///< minor page faults of a step of the process, without the first steps
};

/// @threads one step at a time; chunks as those of planned_resource
class step_scratch {
 public:
  /// @param plans   whether there is a plan at all
  /// @param chunks, lanes  as planned_options
  step_scratch(bool plans, std::size_t chunks, int lanes) {
    if (!plans) return;
    deeprec::planned_options options;
    options.chunks.resize(chunks);
    options.lanes = lanes;
    memory_ = std::make_unique<deeprec::planned_resource>(std::move(options));
  }
  /// Null without --memory-plan.
  [[nodiscard]] deeprec::planned_resource* memory() const { return memory_.get(); }
  /// The memory of a context: `memory()`, or the default.
  [[nodiscard]] std::pmr::memory_resource* resource() const {
    return memory_ == nullptr ? std::pmr::get_default_resource() : memory_.get();
  }
  void begin(index_t rows) {
    if (steps_ == next_mark_) {  // the last one is at half of all steps or before
      mark_ = steps_;
      next_mark_ = 2 * steps_ + 8;
      faults_at_mark_ = faults();
    }
    ++steps_;
    if (memory_ == nullptr) return;
    step_.reset();
    step_.emplace(memory_->begin(rows));
  }
  void end() { step_.reset(); }

  void add_to(memory_use& use) const {
    if (steps_ > mark_) {
      use.faults = static_cast<double>(faults() - faults_at_mark_) / static_cast<double>(steps_ - mark_);
    }
    if (memory_ == nullptr) return;
    const deeprec::planned_report report = memory_->report();
    use.steps += report.steps;
    use.served_steps += report.served_steps;
    use.missed_steps += report.missed_steps;
    use.arena += report.arena_bytes;
    use.live += report.live_bytes;
  }

 private:
  static long faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  }

  index_t steps_ = 0, mark_ = 0, next_mark_ = 8;
  long faults_at_mark_ = 0;
  std::unique_ptr<deeprec::planned_resource> memory_;
  std::optional<deeprec::planned_resource::step> step_;  // ends before the memory
};

}  // namespace ctr
