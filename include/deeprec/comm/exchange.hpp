// One message to each other rank and one from each of them.
//
//   exchange x{.kind = message_kind::rows, .step = t, .to = blocks, .from = places};
//   status s = complete(comm, x, within(30s));       its fault is that of all ranks
//
//   rank 0   to[1] ──────────────> from[0]   rank 1        to[r] and from[r] of the own rank are not sent:
//            from[1] <──────────── to[0]                   they are the caller's, or one block
//
// A rank with a fault sends it in the place of its payloads, so after an exchange all ranks know the faults
// of all, and stop alike. Nothing is copied but by the engine. Not here: engines, which move the bytes
// (thread_ranks.hpp, mpi_ranks.hpp), and what they promise (communicator.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Numbers of ranks, ascending.
using rank_list = std::vector<int>;

/// What a rank sends in an exchange, what it receives, and how the exchange ended. It stays where it is, and
/// so do its blocks, until it has ended.
///
/// @threads one thread at a time
struct exchange {
  message_kind kind = message_kind::user;
  index_t step = 0;
  /// Of this rank: it is sent, and no payload.
  status fault{};
  /// (n): blocks, each with room for a header in front of its payload. With a fault they may be empty.
  std::span<const std::span<std::byte>> to{};
  /// (n): where messages go, header included. Without rooms each is as large as what comes; with rooms they
  /// are set to what came, and that of the own rank to to[rank].
  std::span<std::span<std::byte>> from{};
  /// (n), for messages whose sizes the receiver does not know; or none.
  std::span<message_room> rooms{};

  /// The fault of the smallest rank that sent one: the same at all ranks.
  status agreed{};
  /// `agreed`, or else what went wrong at this rank alone: no memory for a message, which it sends as its
  /// fault with its next exchange; a message of another kind, step or size, or the end of the communicator,
  /// after which this communicator is of no use.
  status outcome{};
  /// A message that does not belong to this exchange.
  struct stranger {
    int rank = -1;
    message_kind kind = message_kind::user;
    index_t step = 0;
  } mismatch{};
  /// Of the exchange among those of its communicator, from 0: an engine sets it.
  std::uint64_t number = 0;
};

/// An exchange in words: who has not sent, and whose message does not belong to it.
///
/// @param   missing  Communicator::awaited()
/// @cost    O(ranks)
/// @threads as the exchange
/// @error   throws std::bad_alloc
/// @example "exchange: gradients of step 17 from rank 3, rows of step 16 at this one"
[[nodiscard]] inline std::string explain(const exchange& x, const rank_list& missing = {}) {
  const auto words = [](message_kind kind, index_t step) {
    std::string text = to_string(kind);
    if (kind >= message_kind::user) text += " of kind " + std::to_string(static_cast<int>(kind));
    return text + " of step " + std::to_string(step);
  };
  std::string text = "exchange: ";
  if (x.mismatch.rank >= 0) {
    return text + words(x.mismatch.kind, x.mismatch.step) + " from rank " + std::to_string(x.mismatch.rank) +
           ", " + words(x.kind, x.step) + " at this one";
  }
  text += words(x.kind, x.step);
  if (missing.empty()) return text + ": " + (x.outcome.ok() ? "complete" : x.outcome.message());
  text += missing.size() == 1 ? ": nothing from rank " : ": nothing from ranks ";
  for (std::size_t i = 0; i < missing.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  return text;
}

}}  // namespace deeprec::DEEPREC_ABI
