// The layout of a step's messages.
//
//   ids        header | model | entries of the features that the receiver serves | arrays, each at 8 bytes
//   rows       header | regions of these features: their rows, or pooled rows
//   gradients  header | the same regions
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
  std::int64_t ids = 0;
  std::int64_t bags = 0;      ///< of a table that is whole at the receiver; else there are no offsets
  std::int64_t weighted = 0;  ///< 1: weights come with the ids
  std::int64_t at = 0;        ///< of its region in the block of the reply
};

/// The beginning of a request.
struct request_head {
  std::uint64_t model = 0;  ///< equal where all ranks have the same features in one order
  std::int64_t bags = 0;    ///< of the sender's batch
  std::int64_t reply = 0;   ///< bytes of the block of the reply
};

/// Of the arrays of an entry; capped, so that a count that no memory holds is larger than any message.
constexpr index_t array_bytes(const request_entry& e, bool pooled) noexcept {
  constexpr index_t word = sizeof(std::int64_t);
  index_t bytes = capped_product(e.ids, word);
  if (pooled) bytes = capped_sum(bytes, capped_product(capped_sum(e.bags, 1), word));
  if (e.weighted == 0) return bytes;
  return capped_sum(bytes, capped_round_up(capped_product(e.ids, index_t{sizeof(float)}), word));
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
