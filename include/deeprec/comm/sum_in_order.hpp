// Sums over ranks, of any communicator, in the order of the ranks.
//
//   rank r    values of its slice <── from all ranks      added as rank 0's, 1's, 2's ...
//             their sums          ──> to all ranks
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/slice_blocks.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Keeps the blocks of its messages, of the size of the largest sum.
///
/// @threads one thread at a time
class sum_in_order {
 public:
  explicit sum_in_order(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : borders_(memory), blocks_(memory) {}

  /// Values become their sums over all ranks; all ranks call it.
  ///
  /// @shape    values (N), N the same at all ranks
  /// @numerics float, rank after rank: the same bits at all ranks, for any timing
  /// @cost     two exchanges; 8 N (n - 1) / n bytes are sent. Allocates where no earlier sum was as large
  /// @threads  as the communicator
  /// @error    as complete(): invalid_value for another N; out_of_memory at this rank. The communicator has
  ///           ended, and values are of no use
  template <class Comm>
  [[nodiscard]] status run(Comm& comm, std::span<float> values, const wait_limit& limit = {}) {
    const int n = comm.size(), me = comm.rank();
    const status room = detail::or_out_of_memory("sum", [&] {
      borders_.clear();
      for (int r = 0; r <= n; ++r) borders_.push_back(static_cast<index_t>(values.size()) * r / n);
      blocks_.make(borders_, me);
      return status();
    });
    if (!room) {
      comm.abandon(room);
      return room;
    }
    for (int r = 0; r < n; ++r) copy(values, r, blocks_.slice(r), true);
    exchange slices{
        .kind = message_kind::slices, .step = number_, .to = blocks_.slices(), .from = blocks_.parts()};
    if (const status s = complete(comm, slices, limit); !s) return ended(comm, slices, s);
    const std::span<const float> sums = blocks_.sum();
    for (int r = 0; r < n; ++r) copy(blocks_.part(r), sums);
    copy(blocks_.slice(me), sums);
    exchange back{
        .kind = message_kind::slices, .step = number_, .to = blocks_.parts(), .from = blocks_.slices()};
    if (const status s = complete(comm, back, limit); !s) return ended(comm, back, s);
    for (int r = 0; r < n; ++r) copy(values, r, blocks_.slice(r), false);
    ++number_;
    return {};
  }

 private:
  void copy(std::span<float> values, int rank, std::span<float> slice, bool out) const {
    const std::span<float> own =
        values.subspan(static_cast<std::size_t>(borders_[static_cast<std::size_t>(rank)]), slice.size());
    out ? copy(slice, own) : copy(own, slice);
  }
  static void copy(std::span<float> to, std::span<const float> from) {
    if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size_bytes());
  }
  template <class Comm>
  static status ended(Comm& comm, const exchange& x, const status& s) {
    if (x.outcome.ok()) comm.abandon(s);  // it has not begun, and the others wait
    return s.in_operation("sum");
  }

  std::pmr::vector<index_t> borders_;
  slice_blocks blocks_;
  index_t number_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
