// Records of a file put into a table that others read: a key gets a new row, and its old one is retired. No
// row is written in place, so a find under a pin sees each row old or new.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <mutex>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/distinct_keys.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/row_record.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a file does to a table. A record: key 8 bytes, step 8, frequency 4, zero 4, row, state.
///
/// @threads one at a time; takes turns with what changes the table, beside finds. Nothing else inserts
/// @error   memory that is refused is thrown, or out_of_memory: what was put until then stays, and the same
///          records again complete it
template <RowFormat Format>
class row_replacement {
 public:
  static constexpr index_t most_records = 4096;

  explicit row_replacement(growing_table<Format>& table,
                           std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : row_replacement(table.state(), memory) {}
  row_replacement(detail::growing_state<Format>& state, std::pmr::memory_resource* memory)
      : state_(state), memory_(memory), record_(state.format), put_(memory) {}

  /// Rows for the keys of records; where a key comes again, the last one counts.
  status put(const std::byte* records, index_t n) {
    for (index_t i = 0; i < n; i += most_records) {
      const index_t some = (std::min)(most_records, n - i);
      if (const status s = put_some(records + static_cast<std::size_t>(i) * record_.bytes(), some); !s)
        return s;
    }
    return {};
  }
  /// Erases the rows of keys, but for those that were put.
  void erase(std::span<const std::uint64_t> keys) {
    std::pmr::vector<std::uint32_t> codes(keys.size(), memory_);
    std::pmr::vector<std::uint64_t> gone(memory_);
    gone.reserve(keys.size());
    const std::lock_guard lock(state_.mutex);
    state_.index.find(context_.instruction_set, keys.data(), static_cast<index_t>(keys.size()), codes.data());
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (codes[k] == key_index::none || (detail::is_row_code(codes[k]) && was_put(codes[k] - 1))) continue;
      gone.push_back(keys[k]);
    }
    state_.rows.reclaim(state_.readers);
    state_.erase(context_, gone.data(), static_cast<index_t>(gone.size()));
  }
  /// Gives keys without rows other codes: what filters::counter counts of them.
  status put_candidates(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> codes) {
    const auto n = static_cast<index_t>(keys.size());
    std::pmr::vector<std::uint32_t> before(keys.size(), memory_), wanted(codes.begin(), codes.end(), memory_);
    const std::lock_guard lock(state_.mutex);
    state_.index.find(context_.instruction_set, keys.data(), n, before.data());
    for (std::size_t k = 0; k < keys.size(); ++k)
      if (detail::is_row_code(before[k])) wanted[k] = key_index::none;  // put() passes over it
    const auto places = state_.index.reserve(context_, keys.data(), before.data(), n);
    if (!places) return places.fault();
    state_.index.put(context_, places.value(), wanted.data());
    return {};
  }
  /// Erases all keys that have no row.
  void erase_candidates() {
    std::pmr::vector<std::uint64_t> gone(memory_);
    const std::lock_guard lock(state_.mutex);
    if (state_.index.size() == state_.rows.rows()) return;
    state_.index.for_each([&](std::uint64_t key, std::uint32_t code) {
      if (detail::is_candidate_code(code)) gone.push_back(key);
    });
    state_.erase(context_, gone.data(), static_cast<index_t>(gone.size()));
  }
  /// Erases all rows that were not put.
  void erase_others() {
    std::pmr::vector<std::uint64_t> gone(memory_);
    gone.reserve(static_cast<std::size_t>(state_.rows.rows_per_granule()));
    for (index_t g = 0; g < state_.rows.granule_count(); ++g) {
      const std::lock_guard lock(state_.mutex);
      const auto all = state_.rows.facts_of_granule(g);
      gone.clear();
      for (index_t i = 0; i < all.count; ++i) {
        const detail::row_facts& facts = all.facts[i];
        if ((facts.rest.load(std::memory_order_relaxed) & detail::row_facts::live) == 0) continue;
        if (was_put(all.first + static_cast<std::uint32_t>(i))) continue;
        gone.push_back(facts.key.load(std::memory_order_relaxed));
      }
      state_.erase(context_, gone.data(), static_cast<index_t>(gone.size()));
    }
  }

 private:
  status put_some(const std::byte* records, index_t n) {
    detail::growing_state<Format>& s = state_;
    detail::scratch_block scratch(memory_, 2 * detail::scratch_block::bytes_of<std::uint64_t>(n) +
                                               5 * detail::scratch_block::bytes_of<std::uint32_t>(n) +
                                               detail::scratch_block::bytes_of<std::uint32_t>(
                                                   static_cast<index_t>(detail::key_entries(n))));
    const auto keys = scratch.take<std::uint64_t>(n), distinct = scratch.take<std::uint64_t>(n);
    const auto occurrences = scratch.take<std::uint32_t>(n), number_of = scratch.take<std::uint32_t>(n),
               last = scratch.take<std::uint32_t>(n), before = scratch.take<std::uint32_t>(n),
               codes = scratch.take<std::uint32_t>(n);
    const auto entries = scratch.take<std::uint32_t>(static_cast<index_t>(detail::key_entries(n)));
    const auto record = [&](std::size_t k) { return records + k * record_.bytes(); };
    for (std::size_t k = 0; k < keys.size(); ++k) keys[k] = detail::record_head::of(record(k)).key;
    std::fill(entries.begin(), entries.end(), 0U);
    detail::distinct_keys numbered{detail::process_key_seed(), keys.data(), distinct.data(),
                                   occurrences.data()};
    detail::number_keys(entries, n, numbered, number_of.data());
    const index_t count = numbered.known;
    for (std::size_t k = 0; k < keys.size(); ++k) last[number_of[k]] = static_cast<std::uint32_t>(k);

    const std::lock_guard lock(s.mutex);
    s.rows.reclaim(s.readers);
    s.index.find(context_.instruction_set, distinct.data(), count, before.data());
    const auto places = s.index.reserve(context_, distinct.data(), before.data(), count);
    if (!places) return places.fault();
    if (!s.rows.reserve(count))
      return {errc::out_of_memory, "growing_table: rows must be fewer than their 32-bit numbers"};
    s.rows.reserve_retired(count);
    room_for_put(count);
    const std::uint32_t flags = s.birth_flags();
    for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
      const std::uint32_t number = s.rows.take();
      codes[k] = number + 1;
      put_[number / 64] |= std::uint64_t{1} << number % 64;
      if (s.changes != nullptr) s.changes->born(number);
      const std::byte* const from = record(last[k]);
      const detail::record_head head = detail::record_head::of(from);
      std::byte* const row = s.rows.address(number);
      std::memset(row, 0, static_cast<std::size_t>(s.format.stride_bytes()));
      record_.unpack_row(from, row);
      detail::row_facts& facts = s.rows.facts(number);
      facts.key.store(head.key, std::memory_order_relaxed);
      facts.step.store(static_cast<std::uint32_t>(head.step - s.first_step), std::memory_order_relaxed);
      facts.rest.store(flags | head.frequency, std::memory_order_relaxed);
    }
    s.index.put(context_, places.value(), codes.data());
    s.retire(before.first(static_cast<std::size_t>(count)), true);
    return {};
  }
  void room_for_put(index_t more) {
    const std::size_t words = static_cast<std::size_t>(state_.rows.numbers_with(more)) / 64 + 1;
    if (put_.size() < words) put_.resize((std::max)(words, 2 * put_.size()));
  }
  [[nodiscard]] bool was_put(std::uint32_t number) const noexcept {
    return number / 64 < put_.size() && (put_[number / 64] >> number % 64 & 1) != 0;
  }

  detail::growing_state<Format>& state_;
  std::pmr::memory_resource* memory_;
  detail::row_record record_;
  std::pmr::vector<std::uint64_t> put_;  // a bit for each number
  inline_executor here_;
  context<inline_executor> context_{here_, environment{.memory = memory_}};
};

}}  // namespace deeprec::DEEPREC_ABI
