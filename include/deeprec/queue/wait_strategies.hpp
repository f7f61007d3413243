// Wait strategies of blocked threads.
//
//   spin_wait       polls without pause                     one thread per core, latency above all
//   yield_wait      polls, and lets other threads run       more threads than cores
//   adaptive_wait   polls 5 to 50 us, by recent waits,      the default: as fast as the others while
//                   then sleeps                             busy, and no CPU time while idle
//   patient_wait    the same, up to 200 us                  stages of a pipeline: a sleep of one costs
//                                                           its neighbour the system call that ends it
//   park_wait       sleeps at once                          rare events
//
// Only rings whose strategy sleeps pay for notifying. Not here: sleeping itself (event_count.hpp),
// limits of waits (queue_result.hpp).
#pragma once

#include <cstdint>
#include <limits>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/detail/polling_waits.hpp>
#include <deeprec/queue/queue_result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

// A strategy's busy() polls while that costs other threads nothing; its look() polls up to the strategy's
// limit.

struct spin_wait : detail::looking_wait<(std::numeric_limits<unsigned>::max)(), 256> {};
struct yield_wait : detail::looking_wait<16, 64> {};

struct park_wait {
  static constexpr bool parks = true;
  static constexpr bool timed = false;
  template <class Atomics, class Look>
  static queue_result busy(Look&) {
    return queue_result::not_now;
  }
  template <class Atomics, class Look, class Expired>
  static queue_result look(Look& look, Expired&, std::uint64_t) {
    return look();
  }
};

struct adaptive_wait : detail::learning_wait<50'000> {};
struct patient_wait : detail::learning_wait<200'000> {};

}}  // namespace deeprec::DEEPREC_ABI
