// A small value of each rank, at all ranks: what they must agree on.
//
//   rank_values<double> times(comm.size());
//   status s = times.trade(comm, step, mine, fault, within(30s));     a fault is that of all ranks
//   ... times.of(r)
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/growing_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Has the blocks of its messages from the beginning, so a trade allocates nothing.
///
/// @threads one thread at a time
template <class T>
class rank_values {
  static_assert(std::is_trivially_copyable_v<T>, "deeprec::rank_values: values are sent as bytes.");
  static constexpr index_t stride = capped_round_up(sizeof(message_header) + sizeof(T), 64);

 public:
  /// @cost    O(ranks)
  /// @threads reentrant
  /// @error   throws what the resource throws
  explicit rank_values(int ranks, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : blocks_(memory), to_(memory), from_(memory) {
    std::byte* at = blocks_.make(2 * ranks * stride);
    for (auto* const side : {&to_, &from_}) {
      for (int r = 0; r < ranks; ++r, at += stride)
        side->emplace_back(at, sizeof(message_header) + sizeof(T));
    }
  }

  /// Sends this rank's value, or its fault, and takes those of the others; all ranks call it, at one step.
  ///
  /// @pre     a communicator of as many ranks
  /// @cost    an exchange of messages of 64 bytes and the value
  /// @threads as the communicator
  /// @error   the fault of the smallest rank that has one, at all ranks; as complete()
  template <class Comm>
  [[nodiscard]] status trade(Comm& comm, index_t step, const T& mine, const status& fault,
                             const wait_limit& limit) {
    if (const status s = begin(comm, step, mine, fault); !s) return s;
    return end(comm, limit);
  }
  /// The first half of a trade: the values are on their way.
  ///
  /// @post    this stays where it is until end()
  /// @cost    as trade()
  /// @threads as the communicator
  /// @error   what Communicator::begin refuses
  template <class Comm>
  [[nodiscard]] status begin(Comm& comm, index_t step, const T& mine, const status& fault) {
    for (int r = 0; r < comm.size(); ++r)
      std::memcpy(payload_of(to_[static_cast<std::size_t>(r)]).data(), &mine, sizeof(T));
    const auto own = static_cast<std::size_t>(comm.rank());
    std::memcpy(payload_of(from_[own]).data(), &mine, sizeof(T));
    trade_ = {.kind = message_kind::agreement, .step = step, .fault = fault, .to = to_, .from = from_};
    return comm.begin(trade_);
  }
  /// The second half.
  ///
  /// @pre     begin() was ok
  /// @cost    the rest of the exchange
  /// @threads as the communicator
  /// @error   as trade()
  template <class Comm>
  [[nodiscard]] status end(Comm& comm, const wait_limit& limit) {
    return wait_for_end(comm, trade_, limit);
  }
  /// Whether the last trade ended with a fault that a rank sent: then all ranks have it, and may trade again.
  [[nodiscard]] bool is_agreed() const noexcept { return !trade_.agreed.ok(); }
  /// Of a rank, in the last trade that was ok.
  [[nodiscard]] T of(int rank) const noexcept {
    T value;
    std::memcpy(&value, payload_of(from_[static_cast<std::size_t>(rank)]).data(), sizeof(T));
    return value;
  }

 private:
  detail::growing_block blocks_;
  std::pmr::vector<std::span<std::byte>> to_, from_;
  exchange trade_;
};

}}  // namespace deeprec::DEEPREC_ABI
