// What a slab_resource knows of its blocks where frees are checked: which granules are its own, and which
// blocks are in use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/granules.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A granule's head has a byte for each place: 1 while its block is in use.
///
/// @threads thread-safe, but for room_for, which excludes itself
class slab_checks {
 public:
  struct faults {
    index_t in_use = 0, foreign = 0, twice = 0;
    status first;
  };

  /// @param marks_at  where these bytes begin in the head
  slab_checks(index_t marks_at, std::pmr::memory_resource* memory) : marks_at_(marks_at), begins_(memory) {}

  /// Makes room for the begins of so many granules; throws std::bad_alloc.
  void room_for(index_t granules) {
    const std::lock_guard lock(mutex_);
    const auto needed = static_cast<std::size_t>(granules);
    if (begins_.capacity() < needed) begins_.reserve((std::max)(needed, 2 * begins_.capacity()));
  }
  /// @pre there is room
  void add(std::byte* granule) noexcept {
    const std::lock_guard lock(mutex_);
    begins_.insert(std::upper_bound(begins_.begin(), begins_.end(), granule), granule);
  }
  void taken(const granules& all, const std::byte* block) noexcept {
    const std::lock_guard lock(mutex_);
    byte_of(all, block) = std::byte{1};
    ++faults_.in_use;
  }
  /// Marks a block as free. False, and a fault is counted, where the address is no block in use, or where the
  /// block is said to have more bytes than a block has.
  [[nodiscard]] bool freed(const granules& all, const std::byte* block, bool fits) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_block(all, block) || !fits) {
      ++faults_.foreign;
      note("slab_resource: what is freed must be one of its blocks (another address, or another size)",
           block);
      return false;
    }
    std::byte& mark = byte_of(all, block);
    if (mark == std::byte{0}) {
      ++faults_.twice;
      note("slab_resource: what is freed must be a block in use (it is free)", block);
      return false;
    }
    mark = std::byte{0};
    --faults_.in_use;
    return true;
  }
  /// Whether an address lies in a granule.
  [[nodiscard]] bool owns(const granules& all, const std::byte* address) const noexcept {
    const std::lock_guard lock(mutex_);
    return is_within(all, address);
  }
  [[nodiscard]] faults found() const noexcept {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return begins_.capacity() * sizeof(std::byte*);
  }

 private:
  std::byte& byte_of(const granules& all, const std::byte* block) const noexcept {
    return granules::head_of(all.begin_of(block))[marks_at_ + all.place_of(block)];
  }
  [[nodiscard]] bool is_within(const granules& all, const std::byte* address) const noexcept {
    return std::binary_search(begins_.begin(), begins_.end(), all.begin_of(address));
  }
  [[nodiscard]] bool is_block(const granules& all, const std::byte* address) const noexcept {
    if (!is_within(all, address)) return false;
    const index_t offset = address - all.begin_of(address) - all.first_at();
    return offset >= 0 && offset % all.stride() == 0 && offset / all.stride() < all.places();
  }
  void note(const char* why, const std::byte* address) noexcept {
    if (!faults_.first.ok()) return;
    faults_.first = {errc::invalid_value,
                     why,
                     {.value = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address))}};
  }

  index_t marks_at_;
  mutable std::mutex mutex_;
  std::pmr::vector<std::byte*> begins_;  // ascending
  faults faults_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
