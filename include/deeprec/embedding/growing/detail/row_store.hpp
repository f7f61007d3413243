// Rows that never move, and facts about each, in granules of memory.
//
//   granule   | first number | facts of its rows, 16 bytes each | rows, one stride each |     2 MB by default
//   number    granule << k | place, 32 bits; a code of the key index is a number + 1
//
// Numbers and addresses: granules.hpp. Not here: which key has which row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/free_numbers.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/granules.hpp>

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
      : granules_(stride, granule_bytes, head, memory), free_(memory) {}
  row_store(const row_store&) = delete;
  row_store& operator=(const row_store&) = delete;

  /// Whether rows of a stride fit granules of a size.
  static status fault_of(index_t stride, index_t granule_bytes) noexcept {
    if (stride <= 0)
      return {errc::invalid_value, "growing_table: stride_bytes must be at least 1", {.value = stride}};
    if (!granules::is_size(granule_bytes))
      return {errc::invalid_value,
              "growing_table: granule_bytes must be a power of two from 4096 to 64 MB",
              {.value = granule_bytes}};
    if (granules::places_in(stride, granule_bytes, head) < 1)
      return {errc::invalid_value,
              "growing_table: granule_bytes must be enough for one row",
              {.value = granule_bytes}};
    return {};
  }

  [[nodiscard]] index_t stride() const noexcept { return granules_.stride(); }
  /// More than the largest number of a row, when `more` rows are taken.
  [[nodiscard]] index_t numbers_with(index_t more) const noexcept {
    return (granules_.count() + more / granules_.places() + 1) << granules_.place_bits();
  }
  /// The number of a place in a granule.
  [[nodiscard]] std::uint32_t number_at(index_t granule, index_t place) const noexcept {
    return granules_.number_at(granule, place);
  }
  [[nodiscard]] index_t rows_per_granule() const noexcept { return granules_.places(); }
  /// The most rows that numbers reach.
  [[nodiscard]] index_t most_rows() const noexcept {
    return ((index_t{most_number} + 1) >> granules_.place_bits()) * granules_.places();
  }

  /// Addresses of rows. A thread that got numbers from codes calls it after it got them.
  [[nodiscard]] granules::addresses addresses() const noexcept { return granules_.all(); }
  [[nodiscard]] std::byte* address(std::uint32_t number) const noexcept { return granules_.address(number); }
  [[nodiscard]] row_facts& facts(std::uint32_t number) const noexcept {
    return facts_in(granules_.begin(number >> granules_.place_bits()))[number & granules_.place_mask()];
  }
  /// Of the row at an address.
  [[nodiscard]] DEEPREC_INLINE row_facts& facts_of(const std::byte* row) const noexcept {
    return facts_in(granules_.begin_of(row))[granules_.place_of(row)];
  }
  [[nodiscard]] DEEPREC_INLINE std::uint32_t number_of(const std::byte* row) const noexcept {
    return granules_.number_of(row);
  }

  /// Makes sure that n rows can be taken; throws std::bad_alloc where the resource refuses. False: numbers
  /// end.
  bool reserve(index_t n) {
    const index_t missing = n - free_.size() - fresh_left();
    if (missing <= 0) return true;
    const index_t more = (missing + granules_.places() - 1) / granules_.places();
    if (granules_.count() + more > index_t{most_number >> granules_.place_bits()}) return false;
    granules_.grow(more);
    return true;
  }
  /// A row that was reserved, the one with the smallest free number; its bytes are those of the row before.
  std::uint32_t take() noexcept {
    ++taken_;
    if (!free_.empty()) {
      const std::uint32_t number = free_.take();
      granules_.unpoison(granules_.address(number));
      return number;
    }
    const std::uint32_t number = granules_.number_at(fresh_granule_, fresh_place_);
    if (++fresh_place_ == granules_.places()) {
      fresh_place_ = 0;
      ++fresh_granule_;
    }
    return number;
  }
  /// Gives back granules that no row was taken from, but for one.
  void trim() noexcept { granules_.shrink(granule_count() + 1); }
  /// Room to retire n rows; throws std::bad_alloc.
  void reserve_retired(index_t n) { free_.reserve(n); }
  void retire(std::uint32_t number, std::uint64_t epoch) noexcept {
    free_.retire(number, epoch);
    --taken_;
  }
  /// Frees the rows that no reader can hold.
  void reclaim(const reclaimer& readers) noexcept {
    free_.reclaim(readers, [&all = granules_](std::uint32_t number) { all.poison(all.address(number)); });
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
    return {facts_in(granules_.begin(g)), g == fresh_granule_ ? fresh_place_ : granules_.places(),
            granules_.number_at(g, 0)};
  }
  /// The bytes that it has from its resource.
  [[nodiscard]] index_t bytes() const noexcept { return granules_.bytes() + free_.bytes(); }

 private:
  static constexpr granules::head head{.bytes = 0, .of_place = sizeof(row_facts)};

  static row_facts* facts_in(std::byte* granule) noexcept {
    return reinterpret_cast<row_facts*>(granules::head_of(granule));
  }
  [[nodiscard]] index_t fresh_left() const noexcept {
    return (granules_.count() - fresh_granule_) * granules_.places() - fresh_place_;
  }

  granules granules_;
  index_t fresh_granule_ = 0;  // the next row that was never taken
  index_t fresh_place_ = 0;
  index_t taken_ = 0;
  free_numbers free_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
