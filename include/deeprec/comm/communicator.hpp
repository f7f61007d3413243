// What an engine between ranks promises: an exchange that is begun, polled and waited for, under a limit.
//
//   begin(x) ──> poll(x) ... wait(x, limit) ──> ended: x.outcome      the n-th exchange of each rank's
//   begin(y) ────────────> ...                                        communicator is one exchange
//
// A communicator is a sequence: its exchanges are begun in the same order by all ranks, one thread at a time,
// and several may be in flight. A thread that exchanges beside another one has a communicator of its own
// (duplicate). Not here: what messages mean.
#pragma once

#include <concepts>
#include <new>
#include <span>
#include <utility>

#include <deeprec/comm/exchange.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// C is the end of an engine at one rank.
///
///   rank(), size()     which of how many ranks
///   most_in_flight()   exchanges that may have begun and not ended
///   begin(x)           sends and receives are on their way. Refused: shape_mismatch of blocks, would_block
///                      for more in flight, out_of_memory, closed after the end. Then nothing was sent, and
///                      it may be called again
///   poll(x)            ok, or failed with x.outcome: it has ended. not_now: it has not
///   wait(x, limit)     polls until it ends; timed_out or stopped: it is in flight still
///   awaited(x)         the ranks whose messages have not come
///   abandon(s)         ends the communicator: exchanges in flight fail at this rank, with s; those of other
///                      ranks fail with `closed` and this rank, where the engine can tell them. Blocks are
///                      the caller's again with thread_rank; MPI keeps them until the process ends
///   duplicate()        another communicator of the same ranks; all ranks call it
///   split(color, key,  one of the ranks with the same color, numbered by key, then by rank; all ranks call
///         limit)       it, those with a negative color get none: unsupported
template <class C>
concept Communicator = requires(C& c, const C& k, exchange& x, const wait_limit& limit) {
  typename C::space;  ///< of the memory that messages lie in
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  { k.most_in_flight() } -> std::same_as<int>;
  { c.begin(x) } -> std::same_as<status>;
  { c.poll(x) } -> std::same_as<queue_result>;
  { c.wait(x, limit) } -> std::same_as<queue_result>;
  { k.awaited(x) } -> std::same_as<rank_list>;
  { c.abandon(status{}) };
  { c.duplicate() } -> std::same_as<result<C>>;
  { c.split(0, 0, limit) } -> std::same_as<result<C>>;
};

/// A communicator with a sum of its own.
///
///   sum(values, limit)  values become their sums over all ranks, the same bits at each; of as many at every
///                       rank. All ranks call it, in the order of their exchanges. On an error values are of
///                       no use, and the communicator has ended
template <class C>
concept SummingCommunicator =
    Communicator<C> && requires(C& c, std::span<float> values, const wait_limit& limit) {
      { c.sum(values, limit) } -> std::same_as<status>;
    };

/// Waits for the end of an exchange that has begun.
///
/// @post    where the limit ended it, the communicator is abandoned
/// @cost    the rest of the exchange
/// @threads one at a time for each communicator
/// @error   x.outcome; timed_out, with the first of the silent ranks; stopped
template <class C>
[[nodiscard]] status wait_for_end(C& comm, exchange& x, const wait_limit& limit = {}) {
  const queue_result ended = comm.wait(x, limit);
  if (ended == queue_result::ok || ended == queue_result::failed) return x.outcome;
  fault_place place{};
  place.operation = "exchange";
#if DEEPREC_EXCEPTIONS
  try {
#endif
    const rank_list silent = comm.awaited(x);
    if (!silent.empty()) place.rank = silent.front();
#if DEEPREC_EXCEPTIONS
  } catch (const std::bad_alloc&) {  // nobody is named
  }
#endif
  const status s = ended == queue_result::stopped
                       ? status(errc::stopped, "exchange: stopped while it waited for messages", place)
                       : status(errc::timed_out, "exchange: a message must come within the limit", place);
  comm.abandon(s);
  return s;
}

/// Begins an exchange and waits for its end.
///
/// @post    where the limit ended it, the communicator is abandoned
/// @cost    a message to each other rank, and one from each
/// @threads one at a time for each communicator
/// @error   x.outcome; what begin() refuses; timed_out, with the first of the silent ranks; stopped
template <class C>
[[nodiscard]] status complete(C& comm, exchange& x, const wait_limit& limit = {}) {
  static_assert(Communicator<C>,
                "deeprec::complete: not a communicator. Fix: a thread_rank, mpi_ranks, or a class with the "
                "members that deeprec/comm/communicator.hpp names.");
  if (const status s = comm.begin(x); !s) return s;
  return wait_for_end(comm, x, limit);
}

}}  // namespace deeprec::DEEPREC_ABI
