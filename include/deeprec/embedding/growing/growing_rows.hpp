// The rows of a growing table as a row source.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/insertion.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <RowFormat Format>
class growing_table;

/// A view of a growing table, to train (byte_type std::byte) or to read (const std::byte). Keys of any
/// integer type, or classes with id_value(id).
///
/// @pre     the table outlives it
/// @threads find, hold, before_step and guard: thread-safe. insert takes turns with what changes the table
template <RowFormat Format, class Byte = std::byte>
class growing_rows {
 public:
  using format_type = Format;
  using space = host_space;
  using byte_type = Byte;

  [[nodiscard]] const Format& format() const noexcept { return state_->format; }
  [[nodiscard]] const void* identity() const noexcept { return state_; }
  /// The number of rows.
  [[nodiscard]] index_t size() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->rows.rows();
  }
  /// Null where the table has none.
  [[nodiscard]] const std::byte* default_row() const noexcept { return state_->default_row; }
  /// While it exists, no row that is found moves or gets another key.
  [[nodiscard]] reclaimer::pin guard() const noexcept { return state_->readers.enter(); }

  /// Addresses of rows; null for keys without one.
  ///
  /// @pre     the caller holds a guard
  /// @cost    1.1 cache lines of the index a key, by the kernels of active_isa()
  /// @threads wait-free, beside everything
  /// @error   none
  template <class Id>
  void find(const Id* keys, index_t n, const std::byte** addresses) const noexcept {
    state_->find(keys, n, addresses);
  }

  /// Rows for keys by the table's filter and capacity; addresses of all, null for those without. Keys may
  /// repeat: each time is an occurrence.
  ///
  /// @cost    O(n); scratch of about 55 bytes a key from the context's resource. Where the table is full and
  ///          evicts, sweeps over all facts, about once in 1/32 of its rows
  /// @threads beside finds; insertions take turns
  /// @error   out_of_memory: nothing changed
  template <class Context, class Id>
  status insert(const Context& ctx, const Id* keys, index_t n, const std::byte** addresses) const {
    return insert_with(ctx, keys, n, true, addresses);
  }
  /// Rows for keys, whatever the filter: those of a file, which were admitted before. Capacity holds.
  template <class Id>
  status insert(const Id* keys, index_t n) const {
    inline_executor here;
    return insert_with(context(here), keys, n, false, nullptr);
  }

  /// While the object exists, insertions into a full table that evicts erase none of these rows, null where
  /// a batch found none. A batch holds what it found while it inserts, or else that might make room.
  ///
  /// @shape   rows (N), which the object refers to
  /// @pre     the caller holds a guard since before they were found; rows stay as they are
  /// @cost    O(1), and O(N) for an insertion that evicts meanwhile; no allocation
  /// @threads thread-safe; waits for an insertion that goes on
  /// @error   none
  [[nodiscard]] detail::held_rows::entry hold(const std::byte* const* rows, index_t n) const {
    if (state_->options.full == when_full::refuse) return {};
    return {state_->held, state_->mutex, rows, n};
  }
  /// What is called before the values of rows are written otherwise than by update: a checkpoint_folder has
  /// to know of it.
  ///
  /// @pre     the caller holds a guard
  /// @threads as before_step
  void before_write(const std::byte* const* rows, index_t n) const noexcept {
    if (state_->changes != nullptr) state_->changes->before_write(rows, n);
  }
  /// What update calls for rows that it steps: their step is the table's, their frequency grows.
  void before_step(std::byte* const* rows, const index_t* occurrences, index_t n) const noexcept {
    before_write(rows, n);
    constexpr index_t ahead = 16;
    const detail::row_store& store = state_->rows;
    const std::uint32_t step = state_->step.load(std::memory_order_relaxed);
    for (index_t i = 0; i < n; ++i) {
      if (i + ahead < n) __builtin_prefetch(&store.facts_of(rows[i + ahead]), 1);
      detail::row_facts& facts = store.facts_of(rows[i]);
      const std::uint32_t rest = facts.rest.load(std::memory_order_relaxed);
      if ((rest & detail::row_facts::live) == 0) continue;  // erased since it was resolved: this step is lost
      facts.step.store(step, std::memory_order_relaxed);
      const index_t room = detail::row_facts::most_frequency - detail::row_facts::frequency_of(rest);
      // An addition: an eviction may clear the flags at the same time.
      facts.rest.fetch_add(static_cast<std::uint32_t>((std::min)(occurrences[i], room)),
                           std::memory_order_relaxed);
    }
  }
  /// The number of a row: below row_numbers(), other rows have others. Used again after an erasure.
  [[nodiscard]] index_t row_number(const std::byte* row) const noexcept {
    return state_->rows.number_of(row);
  }
  [[nodiscard]] static constexpr index_t row_numbers() noexcept {
    return index_t{detail::row_store::most_number} + 1;
  }

  /// Calls f(key, address) for every row, in the order of row numbers. f must not use the table.
  ///
  /// @threads not beside erasures; rows that are inserted meanwhile may be left out
  template <class F>
  void for_each_row(F&& f) const {
    const std::lock_guard lock(state_->mutex);
    detail::sweep_granules(state_->rows, 0, state_->rows.granule_count(),
                           [&](const detail::swept_row& row, detail::row_facts&, index_t) {
                             f(row.key, static_cast<const std::byte*>(state_->rows.address(row.number)));
                           });
  }

 private:
  friend growing_table<Format>;
  explicit growing_rows(detail::growing_state<Format>& state) noexcept : state_(&state) {}

  template <class Context, class Id>
  status insert_with(const Context& ctx, const Id* keys, index_t n, bool asks_filter,
                     const std::byte** addresses) const {
    if (n == 0) return {};
    return detail::or_out_of_memory("growing_rows::insert", [&]() -> status {
      const std::lock_guard lock(state_->mutex);
      detail::insertion<Context, Format> batch(ctx, *state_, n);
      if (const status s = batch.run(keys, asks_filter); !s) return s;
      if (addresses != nullptr) batch.write_addresses(addresses);
      return {};
    });
  }

  detail::growing_state<Format>* state_;
};

}}  // namespace deeprec::DEEPREC_ABI
