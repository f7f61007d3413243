// The layout of a step's messages.
//
//   ids        header | model | entries of the features that the receiver serves | arrays, each at 8 bytes
//   rows       header | regions of these features: their rows, or sums of the rows of bags
//   gradients  header | regions of these features: gradients of their rows, or of bags
//
//   received   | rows from rank 0 | rows from rank 1 | ...    one buffer, and for each feature a table
//
// Rows of a feature lie at multiples of its stride from the beginning of the buffer, so that slots are row
// numbers; the request tells the sender where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What a rank asks for of a feature.
struct request_entry {
  std::int64_t ids = 0;       ///< distinct ones; those of the bags of a whole table
  std::int64_t bags = 0;      ///< of a whole table; where uses are sent, those that use the receiver
  std::int64_t uses = 0;      ///< ids of these bags, as numbers of distinct ones: sums in order, or pooled
  std::int64_t weighted = 0;  ///< 1: there are weights of ids, or factors of uses
  std::int64_t pooled = 0;    ///< 1: the receiver adds the rows of a bag
  std::int64_t reply_at = 0;  ///< of its region in the block of the reply
  std::int64_t gradients_at = 0;
};

/// The beginning of a request.
struct request_head {
  std::uint64_t model = 0;     ///< equal where all ranks have the same features in one order
  std::int64_t bags = 0;       ///< of the sender's batch
  std::int64_t reply = 0;      ///< bytes of the block of the reply
  std::int64_t gradients = 0;  ///< bytes of the block of gradients
};

/// Of the arrays of an entry, which has offsets where there are bags; capped, so that a count that no memory
/// holds is larger than any message.
constexpr index_t array_bytes(const request_entry& e, bool has_bags, bool is_whole) noexcept {
  constexpr index_t word = sizeof(std::int64_t);
  constexpr index_t half = sizeof(float);
  index_t bytes = capped_product(e.ids, word);
  if (has_bags) bytes = capped_sum(bytes, capped_product(capped_sum(e.bags, 1), word));
  const index_t halves = capped_round_up(capped_product(is_whole ? e.ids : e.uses, half), word);
  if (!is_whole) bytes = capped_sum(bytes, halves);
  return e.weighted == 0 ? bytes : capped_sum(bytes, halves);
}

/// Writes a request, or reads one, from front to back.
class request_cursor {
 public:
  explicit request_cursor(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] bool has(index_t bytes) const noexcept {
    return bytes >= 0 && static_cast<std::size_t>(bytes) <= bytes_.size();
  }
  /// @pre has(count * sizeof(T)), count >= 0
  template <class T>
  std::span<T> take(index_t count) noexcept {
    auto* const first = reinterpret_cast<T*>(bytes_.data());
    const index_t size = capped_round_up(count * index_t{sizeof(T)}, index_t{sizeof(std::int64_t)});
    bytes_ = bytes_.subspan(static_cast<std::size_t>(size));
    return {first, static_cast<std::size_t>(count)};
  }

 private:
  std::span<std::byte> bytes_;
};

/// Places the regions of a reply, one feature after the other.
class reply_layout {
 public:
  /// @param at  of the block in the buffer of all replies, a multiple of 64
  explicit reply_layout(index_t at) noexcept : block_(at), next_(at + index_t{sizeof(message_header)}) {}

  /// Bytes from the block's beginning to a region, which begins at a multiple of `multiple` bytes from the
  /// beginning of the buffer.
  index_t place(index_t bytes, index_t multiple) noexcept {
    const index_t from = capped_round_up(next_, multiple);
    next_ = from + bytes;
    return from - block_;
  }
  /// Of the block.
  [[nodiscard]] index_t bytes() const noexcept { return next_ - block_; }
  /// Where the next block may lie.
  [[nodiscard]] index_t end() const noexcept { return capped_round_up(next_, 64); }

 private:
  index_t block_, next_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
