// Which session of a group serves a request.
//
//   round_robin   request k: session k mod N                       requests of equal cost
//   by_thread     the k-th thread that came: session k mod N       caches of a session stay with its thread
//   least_busy    the one with the fewest requests                 requests of different costs
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace session_choice {

/// Sessions in turn: of any number of requests, each session gets as many as another, or one more. A request
/// has its turn when it asks, whether the session is busy or not.
struct round_robin_t {};
inline constexpr round_robin_t round_robin{};

/// Always the same session for a thread. Threads are numbered in the order in which they first ask the group;
/// one that has ended may leave its number to one that begins.
struct by_thread_t {};
inline constexpr by_thread_t by_thread{};

/// The session that the fewest requests have or wait for; of equal ones that which comes next in turn.
struct least_busy_t {};
inline constexpr least_busy_t least_busy{};

}}}  // namespace deeprec::DEEPREC_ABI::session_choice
