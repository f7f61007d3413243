// How a thread polls for work.
#pragma once

#include <sched.h>

#include <deeprec/core/config.hpp>
#include <deeprec/exec/detail/affinity.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Polls without a system call for some microseconds, then lets other threads run between looks: a thread
/// that polls on a processor that somebody else needs gives it away.
struct polling {
  static constexpr unsigned between_clocks = 32, between_yields = 64, before_yields = 1024;

  /// The processor that this thread runs on.
  static int processor() noexcept { return sched_getcpu(); }
  static void leave(int processor) noexcept { leave_processor(processor); }

  /// Until ready() or, looked at now and then, over().
  template <class Atomics, class Ready, class Over>
  static bool until(const Ready& ready, const Over& over) {
    for (unsigned n = 1;; ++n) {
      if (ready()) return true;
      Atomics::relax();
      if (n % between_clocks == 0 && over()) return ready();
      if (n >= before_yields && n % between_yields == 0) Atomics::yield();
    }
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
