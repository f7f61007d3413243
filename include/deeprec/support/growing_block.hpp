// A block of memory that grows to the largest size that was asked of it, and keeps its memory.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <optional>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// It begins at a multiple of 64 bytes.
class growing_block {
 public:
  explicit growing_block(std::pmr::memory_resource* memory) noexcept : memory_(memory) {}

  /// What was in it is lost where it grows. Throws what the resource throws, and is empty then.
  std::byte* make(index_t bytes) {
    if (bytes > capacity_) {
      block_.reset();
      capacity_ = 0;
      block_.emplace(memory_, bytes);
      capacity_ = bytes;
    }
    return data();
  }
  [[nodiscard]] std::byte* data() const noexcept { return block_.has_value() ? block_->data() : nullptr; }

 private:
  std::pmr::memory_resource* memory_;
  std::optional<scratch_block> block_;
  index_t capacity_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
