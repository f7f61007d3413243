// Places of one size that never move, by number, in granules of a memory resource.
//
//   granule   | first number | a head, of some bytes and some more for each place | places, one stride each |
//   number    granule << k | place, 32 bits
//
// From a number to its address: a multiplication. From an address to its granule: granules are aligned to
// their size. Not here: which places are free.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/address_poison.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads address, begin, number_of and place_of: thread-safe, for numbers and addresses that the caller
///          got after the call that made their granule. The rest: exclusive
class granules {
 public:
  static constexpr index_t most_bytes = index_t{64} << 20;

  /// The bytes of a head: some, and some more for each place. They are zero at first.
  struct head {
    index_t bytes = 0;
    index_t of_place = 0;
  };

  /// @pre is_size(granule_bytes), places_in(...) > 0
  granules(index_t stride, index_t granule_bytes, head size, std::pmr::memory_resource* memory)
      : stride_(stride),
        granule_bytes_(granule_bytes),
        places_(places_in(stride, granule_bytes, size)),
        first_at_(end_of(size, places_)),
        place_bits_(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(places_ - 1)))),
        reciprocal_((std::uint64_t{1} << reciprocal_bits) / static_cast<std::uint64_t>(stride) + 1),
        memory_(memory),
        lists_(memory) {}
  granules(const granules&) = delete;
  granules& operator=(const granules&) = delete;
  ~granules() { shrink(0); }

  /// Whether granules can have this size: a power of two from 4096 to 64 MB.
  static constexpr bool is_size(index_t granule_bytes) noexcept {
    return granule_bytes >= 4096 && granule_bytes <= most_bytes &&
           std::has_single_bit(static_cast<std::uint64_t>(granule_bytes));
  }
  /// How many places a granule has; 0 where it is too small.
  static constexpr index_t places_in(index_t stride, index_t granule_bytes, head size) noexcept {
    if (stride > granule_bytes || size.bytes > granule_bytes) return 0;
    index_t places = (granule_bytes - header_bytes) / (stride + size.of_place);
    while (places > 0 && end_of(size, places) + places * stride > granule_bytes) --places;
    return places;
  }

  [[nodiscard]] index_t stride() const noexcept { return stride_; }
  [[nodiscard]] index_t granule_bytes() const noexcept { return granule_bytes_; }
  [[nodiscard]] index_t places() const noexcept { return places_; }
  /// Where the first place of a granule lies in it; a multiple of 64.
  [[nodiscard]] index_t first_at() const noexcept { return first_at_; }
  [[nodiscard]] int place_bits() const noexcept { return place_bits_; }
  [[nodiscard]] std::uint32_t place_mask() const noexcept { return (std::uint32_t{1} << place_bits_) - 1; }
  [[nodiscard]] index_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint32_t number_at(index_t granule, index_t place) const noexcept {
    return static_cast<std::uint32_t>((granule << place_bits_) + place);
  }

  /// Addresses of places. A thread makes it after it got the numbers.
  class addresses {
   public:
    [[nodiscard]] DEEPREC_INLINE std::byte* address(std::uint32_t number) const noexcept {
      return granules_[number >> bits_] + first_at_ + index_t{number & mask_} * stride_;
    }

   private:
    friend granules;
    std::byte* const* granules_;
    index_t first_at_;
    index_t stride_;
    int bits_;
    std::uint32_t mask_;
  };
  [[nodiscard]] addresses all() const noexcept {
    addresses found;
    found.granules_ = list();
    found.first_at_ = first_at_;
    found.stride_ = stride_;
    found.bits_ = place_bits_;
    found.mask_ = place_mask();
    return found;
  }
  [[nodiscard]] std::byte* address(std::uint32_t number) const noexcept { return all().address(number); }
  [[nodiscard]] std::byte* begin(index_t granule) const noexcept { return list()[granule]; }
  [[nodiscard]] std::byte* begin_of(const std::byte* place) const noexcept {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(place) &
                                        ~static_cast<std::uintptr_t>(granule_bytes_ - 1));
  }
  /// The head of a granule.
  [[nodiscard]] static std::byte* head_of(std::byte* granule) noexcept { return granule + header_bytes; }
  /// The place, in its granule, of an address in it.
  [[nodiscard]] DEEPREC_INLINE std::uint32_t place_of(const std::byte* address) const noexcept {
    const auto offset = static_cast<std::uint64_t>(address - begin_of(address) - first_at_);
    return static_cast<std::uint32_t>(offset * reciprocal_ >> reciprocal_bits);
  }
  [[nodiscard]] DEEPREC_INLINE std::uint32_t number_of(const std::byte* address) const noexcept {
    std::uint32_t first = 0;
    std::memcpy(&first, begin_of(address), sizeof(first));
    return first + place_of(address);
  }

  /// More granules, whose heads are zero; throws std::bad_alloc where the resource refuses, and keeps those
  /// that it has. Places have the bytes that the resource gave.
  void grow(index_t more) {
    if (count_ + more > room_) {
      const index_t room = (std::max)(count_ + more, 2 * room_);
      lists_.emplace_back(static_cast<std::size_t>(room), nullptr);
      std::copy_n(list(), count_, lists_.back().begin());
      room_ = room;
      // release: the addresses come before the list. Lists stay: together they are not longer than the last
      // one.
      list_.store(lists_.back().data(), std::memory_order_release);
    }
    for (index_t g = 0; g < more; ++g) {
      auto* const granule = static_cast<std::byte*>(memory_->allocate(
          static_cast<std::size_t>(granule_bytes_), static_cast<std::size_t>(granule_bytes_)));
      std::memset(granule, 0, static_cast<std::size_t>(first_at_));
      const std::uint32_t first = number_at(count_, 0);
      std::memcpy(granule, &first, sizeof(first));
      lists_.back()[static_cast<std::size_t>(count_)] = granule;
      ++count_;
    }
  }
  /// Gives the granules from `left` on back.
  void shrink(index_t left) noexcept {
    while (count_ > left) {
      --count_;
      std::byte* const granule = lists_.back()[static_cast<std::size_t>(count_)];
      unpoison_addresses(granule, static_cast<std::size_t>(granule_bytes_));
      memory_->deallocate(granule, static_cast<std::size_t>(granule_bytes_),
                          static_cast<std::size_t>(granule_bytes_));
    }
  }
  /// Nobody may read a place that is free. Does something only under the address sanitizer.
  void poison(std::byte* place) const noexcept { poison_addresses(place, static_cast<std::size_t>(stride_)); }
  void unpoison(std::byte* place) const noexcept {
    unpoison_addresses(place, static_cast<std::size_t>(stride_));
  }
  /// The bytes that it has from its resource.
  [[nodiscard]] index_t bytes() const noexcept {
    index_t all = count_ * granule_bytes_ +
                  static_cast<index_t>(lists_.capacity() * sizeof(std::pmr::vector<std::byte*>));
    for (const auto& one : lists_) all += static_cast<index_t>(one.capacity() * sizeof(std::byte*));
    return all;
  }

 private:
  static constexpr index_t header_bytes = 64;
  static constexpr int reciprocal_bits = 37;  // with offsets below 2^26: exact

  static constexpr index_t end_of(head size, index_t places) noexcept {
    return (header_bytes + size.bytes + places * size.of_place + 63) / 64 * 64;
  }
  // acquire: the addresses come before the list.
  [[nodiscard]] std::byte* const* list() const noexcept { return list_.load(std::memory_order_acquire); }

  index_t stride_;
  index_t granule_bytes_;
  index_t places_;
  index_t first_at_;
  int place_bits_;
  std::uint64_t reciprocal_;
  std::pmr::memory_resource* memory_;
  std::pmr::vector<std::pmr::vector<std::byte*>> lists_;
  std::atomic<std::byte* const*> list_{nullptr};  // the last of lists_
  index_t room_ = 0;                              // of the last list
  index_t count_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
