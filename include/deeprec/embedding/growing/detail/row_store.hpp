// Rows that never move, and facts about each, in granules of memory.
//
//   granule   | first number | facts of its rows, 16 bytes each | rows, one stride each |     2 MB by default
//   number    granule << k | place, 32 bits; a code of the key index is a number + 1
//
// From a number to its address: a multiplication. From an address to its granule: granules are aligned to
// their size. Not here: which key has which row.
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
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/free_numbers.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/memory/reclaimer.hpp>

#if defined(__SANITIZE_ADDRESS__)
#  include <sanitizer/asan_interface.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What a table knows of a row. Read and written without locks, each part for itself.
struct row_facts {
  std::atomic<std::uint64_t> key;
  std::atomic<std::uint32_t> step;  ///< of its last update or its birth, after the table's first step
  std::atomic<std::uint32_t> rest;  ///< positions that trained it, 24 bits, saturating; 8 flags

  static constexpr std::uint32_t most_frequency = (std::uint32_t{1} << 24) - 1;
  static constexpr std::uint32_t live = 1U << 24;
  static constexpr std::uint32_t chosen = 1U << 25;  ///< by a sweep that is going on
  static constexpr std::uint32_t held = 1U << 26;    ///< by a batch, while a sweep makes room
  // Of cuts (row_changes.hpp).
  static constexpr std::uint32_t copying = 1U << 27;  ///< by one thread, before it changes
  static constexpr std::uint32_t saved = 1U << 28;    ///< by the last whole cut, or the one before, in turn
  static constexpr std::uint32_t touched = 1U << 29;  ///< and the next bit: in the interval of each parity

  static constexpr std::uint32_t frequency_of(std::uint32_t rest) noexcept { return rest & most_frequency; }
};
static_assert(sizeof(row_facts) == 16);

/// Rows of one stride, by number.
///
/// @threads address, facts and number_of: thread-safe, for numbers that the caller got from a code. The rest:
///          exclusive
class row_store {
 public:
  /// The largest number, so that number + 1 is a code of a row.
  static constexpr std::uint32_t most_number = 0xfeff'fffeU;

  /// @pre fault_of(stride, granule_bytes) is ok
  row_store(index_t stride, index_t granule_bytes, std::pmr::memory_resource* memory)
      : stride_(stride),
        granule_bytes_(granule_bytes),
        per_granule_(rows_in(stride, granule_bytes)),
        rows_at_(rows_begin(per_granule_)),
        place_bits_(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(per_granule_ - 1)))),
        reciprocal_((std::uint64_t{1} << reciprocal_bits) / static_cast<std::uint64_t>(stride) + 1),
        memory_(memory),
        lists_(memory),
        free_(memory) {}
  row_store(const row_store&) = delete;
  row_store& operator=(const row_store&) = delete;
  ~row_store() {
    for (index_t g = 0; g < granules_; ++g) {
      std::byte* const granule = granules()[g];
#if defined(__SANITIZE_ADDRESS__)
      __asan_unpoison_memory_region(granule, static_cast<std::size_t>(granule_bytes_));
#endif
      deallocate(granule);
    }
  }

  /// Whether rows of a stride fit granules of a size.
  static status fault_of(index_t stride, index_t granule_bytes) noexcept {
    if (stride <= 0)
      return {errc::invalid_value, "growing_table: stride_bytes must be at least 1", {.value = stride}};
    if (granule_bytes < 4096 || granule_bytes > most_granule ||
        !std::has_single_bit(static_cast<std::uint64_t>(granule_bytes)))
      return {errc::invalid_value,
              "growing_table: granule_bytes must be a power of two from 4096 to 64 MB",
              {.value = granule_bytes}};
    if (stride > granule_bytes || rows_in(stride, granule_bytes) < 1)
      return {errc::invalid_value,
              "growing_table: granule_bytes must be enough for one row",
              {.value = granule_bytes}};
    return {};
  }

  [[nodiscard]] index_t stride() const noexcept { return stride_; }
  /// More than the largest number of a row, when `more` rows are taken.
  [[nodiscard]] index_t numbers_with(index_t more) const noexcept {
    return (granules_ + more / per_granule_ + 1) << place_bits_;
  }
  /// The number of a place in a granule.
  [[nodiscard]] std::uint32_t number_at(index_t granule, index_t place) const noexcept {
    return static_cast<std::uint32_t>((granule << place_bits_) + place);
  }
  [[nodiscard]] index_t rows_per_granule() const noexcept { return per_granule_; }
  /// The most rows that numbers reach.
  [[nodiscard]] index_t most_rows() const noexcept {
    return ((index_t{most_number} + 1) >> place_bits_) * per_granule_;
  }

  /// Addresses of rows. A thread that got numbers from codes calls it after it got them.
  class places {
   public:
    [[nodiscard]] DEEPREC_INLINE std::byte* address(std::uint32_t number) const noexcept {
      return granules_[number >> bits_] + rows_at_ + index_t{number & mask_} * stride_;
    }

   private:
    friend row_store;
    std::byte* const* granules_;
    index_t rows_at_;
    index_t stride_;
    int bits_;
    std::uint32_t mask_;
  };
  [[nodiscard]] places addresses() const noexcept {
    places found;
    found.granules_ = granules();
    found.rows_at_ = rows_at_;
    found.stride_ = stride_;
    found.bits_ = place_bits_;
    found.mask_ = (std::uint32_t{1} << place_bits_) - 1;
    return found;
  }
  [[nodiscard]] std::byte* address(std::uint32_t number) const noexcept {
    return addresses().address(number);
  }
  [[nodiscard]] row_facts& facts(std::uint32_t number) const noexcept {
    return facts_in(granules()[number >> place_bits_])[number & ((std::uint32_t{1} << place_bits_) - 1)];
  }
  /// Of the row at an address.
  [[nodiscard]] DEEPREC_INLINE row_facts& facts_of(const std::byte* row) const noexcept {
    return facts_in(granule_of(row))[place_of(row)];
  }
  [[nodiscard]] DEEPREC_INLINE std::uint32_t number_of(const std::byte* row) const noexcept {
    std::uint32_t first = 0;
    std::memcpy(&first, granule_of(row), sizeof(first));
    return first + place_of(row);
  }

  /// Makes sure that n rows can be taken; throws std::bad_alloc where the resource refuses. False: numbers
  /// end.
  bool reserve(index_t n) {
    const index_t missing = n - free_.size() - fresh_left();
    if (missing <= 0) return true;
    const index_t more = (missing + per_granule_ - 1) / per_granule_;
    if (granules_ + more > index_t{most_number >> place_bits_}) return false;
    if (granules_ + more > room_) {
      const index_t room = (std::max)(granules_ + more, 2 * room_);
      lists_.emplace_back(static_cast<std::size_t>(room), nullptr);
      std::copy_n(granules(), granules_, lists_.back().begin());
      room_ = room;
      // release: the addresses come before the list. Lists stay: together they are not longer than the last
      // one.
      list_.store(lists_.back().data(), std::memory_order_release);
    }
    for (index_t g = 0; g < more; ++g) {
      auto* const granule = static_cast<std::byte*>(memory_->allocate(
          static_cast<std::size_t>(granule_bytes_), static_cast<std::size_t>(granule_bytes_)));
      std::memset(granule, 0, static_cast<std::size_t>(rows_at_));
      const auto first = static_cast<std::uint32_t>(granules_ << place_bits_);
      std::memcpy(granule, &first, sizeof(first));
      lists_.back()[static_cast<std::size_t>(granules_)] = granule;
      ++granules_;
    }
    return true;
  }
  /// A row that was reserved, the one with the smallest free number; its bytes are those of the row before.
  std::uint32_t take() noexcept {
    ++taken_;
    if (!free_.empty()) {
      const std::uint32_t number = free_.take();
#if defined(__SANITIZE_ADDRESS__)
      __asan_unpoison_memory_region(address(number), static_cast<std::size_t>(stride_));
#endif
      return number;
    }
    const auto number = static_cast<std::uint32_t>((fresh_granule_ << place_bits_) + fresh_place_);
    if (++fresh_place_ == per_granule_) {
      fresh_place_ = 0;
      ++fresh_granule_;
    }
    return number;
  }
  /// Gives back granules that no row was taken from, but for one.
  void trim() noexcept {
    const index_t used = fresh_granule_ + (fresh_place_ > 0 ? 1 : 0);
    while (granules_ > used + 1) {
      --granules_;
      deallocate(lists_.back()[static_cast<std::size_t>(granules_)]);
    }
  }
  /// Room to retire n rows; throws std::bad_alloc.
  void reserve_retired(index_t n) { free_.reserve(n); }
  void retire(std::uint32_t number, std::uint64_t epoch) noexcept {
    free_.retire(number, epoch);
    --taken_;
  }
  /// Frees the rows that no reader can hold.
  void reclaim(const reclaimer& readers) noexcept {
    free_.reclaim(readers, [&store = *this](std::uint32_t number) { store.poison(number); });
  }

  /// Rows that are taken.
  [[nodiscard]] index_t rows() const noexcept { return taken_; }
  /// Rows that were retired and may still be read.
  [[nodiscard]] index_t waiting() const noexcept { return free_.waiting(); }
  [[nodiscard]] index_t granule_count() const noexcept { return fresh_granule_ + (fresh_place_ > 0 ? 1 : 0); }
  /// The facts of the rows of a granule that were ever taken, and the number of the first.
  struct granule_facts {
    row_facts* facts;
    index_t count;
    std::uint32_t first;
  };
  [[nodiscard]] granule_facts facts_of_granule(index_t g) const noexcept {
    return {facts_in(granules()[g]), g == fresh_granule_ ? fresh_place_ : per_granule_,
            static_cast<std::uint32_t>(g << place_bits_)};
  }
  /// The bytes that it has from its resource.
  [[nodiscard]] index_t bytes() const noexcept {
    index_t all = granules_ * granule_bytes_ + free_.bytes() +
                  static_cast<index_t>(lists_.capacity() * sizeof(std::pmr::vector<std::byte*>));
    for (const auto& one : lists_) all += static_cast<index_t>(one.capacity() * sizeof(std::byte*));
    return all;
  }

 private:
  static constexpr index_t header_bytes = 64;
  static constexpr index_t most_granule = index_t{64} << 20;
  static constexpr int reciprocal_bits = 37;  // with offsets below 2^26: exact

  static constexpr index_t rows_begin(index_t rows) noexcept {
    return (header_bytes + rows * index_t{sizeof(row_facts)} + 63) / 64 * 64;
  }
  static constexpr index_t rows_in(index_t stride, index_t granule_bytes) noexcept {
    index_t rows = (granule_bytes - header_bytes) / (stride + index_t{sizeof(row_facts)});
    while (rows > 0 && rows_begin(rows) + rows * stride > granule_bytes) --rows;
    return rows;
  }
  static row_facts* facts_in(std::byte* granule) noexcept {
    return reinterpret_cast<row_facts*>(granule + header_bytes);
  }
  [[nodiscard]] std::byte* granule_of(const std::byte* row) const noexcept {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(row) &
                                        ~static_cast<std::uintptr_t>(granule_bytes_ - 1));
  }
  [[nodiscard]] std::uint32_t place_of(const std::byte* row) const noexcept {
    const auto offset = static_cast<std::uint64_t>(row - granule_of(row) - rows_at_);
    return static_cast<std::uint32_t>(offset * reciprocal_ >> reciprocal_bits);
  }
  // acquire: the addresses come before the list.
  [[nodiscard]] std::byte* const* granules() const noexcept { return list_.load(std::memory_order_acquire); }
  [[nodiscard]] index_t fresh_left() const noexcept {
    return (granules_ - fresh_granule_) * per_granule_ - fresh_place_;
  }
  // Nobody may read a row that is free.
  void poison([[maybe_unused]] std::uint32_t number) const noexcept {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(address(number), static_cast<std::size_t>(stride_));
#endif
  }
  void deallocate(std::byte* granule) noexcept {
    memory_->deallocate(granule, static_cast<std::size_t>(granule_bytes_),
                        static_cast<std::size_t>(granule_bytes_));
  }

  index_t stride_;
  index_t granule_bytes_;
  index_t per_granule_;
  index_t rows_at_;
  int place_bits_;
  std::uint64_t reciprocal_;
  std::pmr::memory_resource* memory_;
  std::pmr::vector<std::pmr::vector<std::byte*>> lists_;  // of granules
  std::atomic<std::byte* const*> list_{nullptr};          // the last of lists_
  index_t room_ = 0;                                      // of the last list
  index_t granules_ = 0;
  index_t fresh_granule_ = 0;  // the next row that was never taken
  index_t fresh_place_ = 0;
  index_t taken_ = 0;
  free_numbers free_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
