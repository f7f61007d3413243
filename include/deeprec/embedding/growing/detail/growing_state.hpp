// What a growing table is made of, shared by its verbs: index, rows, filter, step.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/detail/held_rows.hpp>
#include <deeprec/embedding/growing/detail/row_changes.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>
#include <deeprec/embedding/growing/key_index.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Codes of the index: numbers of rows + 1, then how often a key has come that waits for its row.
inline constexpr std::uint32_t first_candidate = 0xff00'0000U;
static_assert(row_store::most_number + 1 < first_candidate);
constexpr bool is_row_code(std::uint32_t code) noexcept { return code - 1 < first_candidate - 1; }
constexpr bool is_candidate_code(std::uint32_t code) noexcept { return code >= first_candidate; }

/// The key of an id: numbers of 32 bits are sign-extended.
template <class Id>
std::uint64_t key_of(const Id& id) noexcept {
  const auto number = id_number(id);
  if constexpr (std::is_signed_v<std::remove_const_t<decltype(number)>>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
  } else {
    return static_cast<std::uint64_t>(number);
  }
}
/// Keys of ids: 64-bit numbers as they are, others written to `converted`.
template <class Id>
const std::uint64_t* keys_of(const Id* ids, index_t n, std::uint64_t* converted) noexcept {
  if constexpr (std::is_same_v<Id, std::uint64_t>) {
    return ids;
  } else if constexpr (std::is_same_v<Id, std::int64_t>) {
    return reinterpret_cast<const std::uint64_t*>(ids);  // signed and unsigned: the same object
  } else {
    for (index_t k = 0; k < n; ++k) converted[k] = key_of(ids[k]);
    return converted;
  }
}

template <RowFormat Format>
struct growing_state {
  growing_state(const Format& of_rows, initial_row first_values, const growing_options& given,
                const key_seed& seed)
      : format(of_rows),
        options(given),
        initialise(std::move(first_values)),
        index(readers, given.memory, seed),
        rows(of_rows.stride_bytes(), given.granule_bytes, given.memory) {
    options.most_rows = (std::min)(options.most_rows, rows.most_rows());
  }
  growing_state(const growing_state&) = delete;
  growing_state& operator=(const growing_state&) = delete;
  ~growing_state() {
    if (changes != nullptr) changes->detach();
    if (default_row != nullptr) options.memory->deallocate(default_row, default_bytes(), 64);
  }

  [[nodiscard]] std::size_t default_bytes() const noexcept {
    return static_cast<std::size_t>(capped_round_up(format.stride_bytes(), 64));
  }

  /// Addresses of the rows of keys, null for keys without one. Under a pin.
  template <class Id>
  void find(const Id* ids, index_t n, const std::byte** addresses) const noexcept {
    constexpr index_t block = 512;
    std::array<std::uint32_t, block> codes;
    std::array<std::uint64_t, block> converted;
    for (index_t from = 0; from < n; from += block) {
      const index_t count = (std::min)(block, n - from);
      index.find(active_isa(), keys_of(ids + from, count, converted.data()), count, codes.data());
      const granules::addresses places = rows.addresses();  // after the codes: their granules are in it
      for (index_t k = 0; k < count; ++k) {
        const std::uint32_t code = codes[static_cast<std::size_t>(k)];
        addresses[from + k] = is_row_code(code) ? places.address(code - 1) : nullptr;
      }
    }
  }

  /// Erases keys; returns how many had rows. Under the mutex; all or nothing: throws where memory is refused.
  template <class Context>
  index_t erase(const Context& ctx, const std::uint64_t* keys, index_t n) {
    if (n == 0) return 0;
    scratch_block scratch(ctx.memory, scratch_block::bytes_of<std::uint32_t>(n));
    const auto codes = scratch.take<std::uint32_t>(n);
    rows.reserve_retired(n);
    index.erase(ctx, keys, n, codes.data());
    return retire(codes);
  }
  /// Rows that no code of the index names any more, by their codes; returns how many of these are of rows.
  /// Under the mutex.
  ///
  /// @param keys_stay the keys have other rows now
  /// @pre room to retire them is reserved
  index_t retire(std::span<const std::uint32_t> codes, bool keys_stay = false) noexcept {
    const std::uint64_t epoch = readers.unlinked();
    index_t retired = 0;
    for (const std::uint32_t code : codes) {
      if (!is_row_code(code)) continue;
      const std::byte* const row = rows.address(code - 1);
      row_facts& facts = rows.facts(code - 1);
      if (changes != nullptr) changes->before_erase(row);
      const std::uint32_t flags = facts.rest.exchange(0, std::memory_order_relaxed);  // no longer live
      if (changes != nullptr) changes->retired(facts.key.load(std::memory_order_relaxed), flags, keys_stay);
      rows.retire(code - 1, epoch);
      ++retired;
    }
    return retired;
  }
  /// The flags of a row that is born.
  [[nodiscard]] std::uint32_t birth_flags() const noexcept {
    return changes != nullptr ? changes->birth_flags() : row_facts::live;
  }

  Format format;
  growing_options options;
  initial_row initialise;
  mutable reclaimer readers;
  key_index index;
  row_store rows;
  held_rows held;
  std::unique_ptr<admission_filter> filter;
  std::uint32_t count_to = 1;      // occurrences that filters::counter wants; 1: every key
  row_changes* changes = nullptr;  // of a checkpoint_folder
  std::byte* default_row = nullptr;
  std::uint64_t first_step = 0;
  bool began = false;
  std::atomic<std::uint32_t> step{0};  // after the first one
  index_t refused = 0;
  index_t evicted = 0;
  mutable std::mutex mutex;  // of everything but find and before_step
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
