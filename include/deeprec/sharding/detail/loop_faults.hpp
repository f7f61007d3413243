// What a rank of a sharded_loop knows of faults, and which verbs it calls from then on.
//
//   own         of this rank alone: the others hear of it with the next step's agreement
//   of a verb   all ranks know it, of the same step
//
// All ranks must call the same verbs, whenever each learns of a fault. Numbers of steps, which are the same
// at all ranks, determine which:
//
//   steps begin     until an agreement in which a rank knows a fault
//   lookups         of all steps that began: they may fail
//   computes        of all, but from the first failed lookup on; behind a compute of this rank that failed
//   updates         of all, but from the first failed lookup on, and behind the first failed update
#pragma once

#include <algorithm>
#include <limits>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class loop_verb : unsigned char { resolve, lookup, update };

/// Whether a verb's communicator has ended, or is taken for it: the other ranks may call nothing any more.
inline bool ends_ranks(const status& s) noexcept {
  return s.code() == errc::timed_out || s.code() == errc::closed || s.code() == errc::io_error;
}

/// @threads thread-safe
class loop_faults {
 public:
  void restart() {
    const std::lock_guard lock(mutex_);
    own_ = of_verb_ = {};
    step_ = failed_lookup_ = failed_update_ = failed_compute_ = endless;
  }

  void note_own(const status& s) {
    const std::lock_guard lock(mutex_);
    if (own_.ok()) own_ = s;
  }
  void note_compute(index_t step, const status& s) {
    const std::lock_guard lock(mutex_);
    failed_compute_ = (std::min)(failed_compute_, step);
    if (own_.ok()) own_ = s;
  }
  void note_verb(loop_verb verb, index_t step, const status& s) {
    const std::lock_guard lock(mutex_);
    if (of_verb_.ok() || step < step_ || (step == step_ && verb < verb_)) {
      of_verb_ = s;
      step_ = step;
      verb_ = verb;
    }
    if (verb == loop_verb::lookup) failed_lookup_ = (std::min)(failed_lookup_, step);
    if (verb == loop_verb::update) failed_update_ = (std::min)(failed_update_, step);
  }

  [[nodiscard]] status own() const {
    const std::lock_guard lock(mutex_);
    return own_;
  }
  /// Of the first step that a verb failed in.
  [[nodiscard]] status of_verb() const {
    const std::lock_guard lock(mutex_);
    return of_verb_;
  }
  [[nodiscard]] bool computes(index_t step) const {
    const std::lock_guard lock(mutex_);
    return step < failed_lookup_ && step <= failed_compute_;
  }
  [[nodiscard]] bool updates(index_t step) const {
    const std::lock_guard lock(mutex_);
    return step < failed_lookup_ && step <= failed_update_;
  }
  /// Whether this rank has a gradient for the update.
  [[nodiscard]] bool has_computed(index_t step) const {
    const std::lock_guard lock(mutex_);
    return step < failed_compute_;
  }

 private:
  static constexpr index_t endless = (std::numeric_limits<index_t>::max)();

  mutable std::mutex mutex_;
  status own_, of_verb_;
  loop_verb verb_ = loop_verb::resolve;  // of of_verb_, and its step
  index_t step_ = endless;
  index_t failed_lookup_ = endless, failed_update_ = endless, failed_compute_ = endless;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
