// Memory of one message: room for its header and the payload behind it.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <span>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/growing_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A block that grows to the largest message that it held, and keeps its memory. Blocks and payloads begin at
/// a multiple of 64 bytes.
///
/// @threads one thread at a time
class message_room {
 public:
  explicit message_room(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) noexcept
      : memory_(memory) {}
  message_room(const message_room&) = delete;
  message_room& operator=(const message_room&) = delete;
  message_room(message_room&& other) noexcept = default;

  /// The block of a message with this payload. What was in it is lost.
  ///
  /// @pre     payload_bytes >= 0
  /// @cost    O(1); allocates where no earlier block was as large
  /// @threads as the room
  /// @error   throws what the resource throws; the room is empty then
  std::span<std::byte> make(index_t payload_bytes) {
    DEEPREC_EXPECTS(payload_bytes >= 0);
    const index_t bytes = capped_sum(payload_bytes, index_t{sizeof(message_header)});
    size_ = 0;
    memory_.make(bytes);
    size_ = bytes;
    return block();
  }
  /// The block that make() returned last; empty before.
  [[nodiscard]] std::span<std::byte> block() const noexcept {
    return {memory_.data(), static_cast<std::size_t>(size_)};
  }

 private:
  detail::growing_block memory_;
  index_t size_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
