// Row sources: what a lookup and an update can read rows from.
//
//   ids ──row source──> addresses of rows
//
//   DirectRowSource      row i at data() + i * stride: table views
//   ResolvingRowSource   ids in [0, rows()); resolve() writes their addresses: partitioned_table
//   KeyedRowSource       any key; find() writes the addresses of those it holds: growing tables
//
// A source is a view: it is copied, and owns no rows. Members that a keyed source may have:
//
//   insert(keys, n)      admits keys that it does not hold (GrowingRowSource)
//   insert(ctx, keys, n, addresses)   the same, where rows never move (StableGrowingRowSource)
//   before_step(rows, occurrences, n) what update calls before it steps rows (ObservedRowSource)
//   before_write(rows, n)  what files call before they fill rows
//   hold(rows, n)        an object during whose lifetime these rows are not erased (EvictingRowSource)
//   row_number(row), row_numbers()    numbers of rows, by which updates sort (NumberedRowSource)
//   default_row()        the row that is read for an absent key, and never trained
//   identity()           an address: sources with the same one have the same rows (feature_group)
//   guard()              an object during whose lifetime no row moves (GuardedRowSource)
//   for_each_row(f)      calls f(key, address of its row) for every row, for files (EnumerableRowSource)
//
// A source that is made of others may have validate(), a status of shape_mismatch where they don't fit.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// `space` is the memory space of the rows.
template <class S>
concept RowSource = std::copyable<S> && requires(const S& source) {
  requires RowFormat<typename S::format_type>;
  requires MemorySpace<typename S::space>;
  { source.format() } -> std::convertible_to<typename S::format_type>;
};

/// Ids are valid in [0, rows()).
template <class S>
concept BoundedRowSource = RowSource<S> && requires(const S& source) {
  { source.rows() } -> std::convertible_to<index_t>;
};

/// A source whose row i is at data() + i * stride.
template <class S>
concept DirectRowSource = BoundedRowSource<S> && requires(const S& source) {
  { source.data() } -> std::convertible_to<const std::byte*>;
};

/// A source that resolves batches of ids: resolve(ids, n, addresses) writes n row addresses, none of them
/// null. Called from several threads at once.
template <class S, class Id>
concept ResolvingRowSource =
    BoundedRowSource<S> && requires(const S& source, const Id* ids, index_t n, const std::byte** addresses) {
      source.resolve(ids, n, addresses);
    };

/// A source of rows with keys: find(keys, n, addresses) writes n row addresses, null for a key that it does
/// not hold, and returns nothing, or a status where a row may be out of reach (a tier whose disk fails): the
/// verb returns it, and nothing is inserted or trained. Called from several threads at once. Every key is
/// valid. Different keys must have different rows, apart from default_row(), unless the source numbers its
/// rows (NumberedRowSource): update steps the row of each key, on several threads; DEEPREC_CONTRACTS checks.
template <class S, class Key>
concept KeyedRowSource = RowSource<S> && !BoundedRowSource<S> &&
                         requires(const S& source, const Key* keys, index_t n, const std::byte** addresses) {
                           source.find(keys, n, addresses);
                         };

/// insert(keys, n) admits keys; their rows are initialised. It may refuse some of them (an admission filter):
/// these stay absent. Keys may repeat. Called by one thread, which holds no guard of the source.
template <class S, class Key>
concept GrowingRowSource = KeyedRowSource<S, Key> && requires(const S& source, const Key* keys, index_t n) {
  { source.insert(keys, n) } -> std::convertible_to<status>;
};

/// A source whose rows never move: insert(ctx, keys, n, addresses) admits keys and writes the addresses of
/// their rows, null for those it refuses. `keys` are those of all absent positions of a batch in order, so a
/// key comes as often as the batch has it: admission by frequency counts them. Called by one thread, which
/// may hold guards of the source; work inside is spread over ctx. It is preferred to insert(keys, n): nothing
/// is found again.
template <class S, class Key>
concept StableGrowingRowSource =
    KeyedRowSource<S, Key> && requires(const S& source, const context<executor_ref>& ctx, const Key* keys,
                                       index_t n, const std::byte** addresses) {
      { source.insert(ctx, keys, n, addresses) } -> std::convertible_to<status>;
    };
/// A source that admits keys, in one of the two ways.
template <class S, class Key>
concept AdmittingRowSource = GrowingRowSource<S, Key> || StableGrowingRowSource<S, Key>;

/// A source that sees which rows are trained: before an update steps rows[i], it calls
/// before_step(rows, occurrences, n), where occurrences[i] positions of the batch have that row. Each row of
/// an update once, some hundred of them in a call, on the thread that steps them next; from several threads
/// at once, noexcept. Lookups call nothing.
template <class S>
concept ObservedRowSource =
    RowSource<S> && requires(const S& source, std::byte* const* rows, const index_t* occurrences, index_t n) {
      { source.before_step(rows, occurrences, n) } noexcept;
    };

/// A source that may erase rows to make room for others: while an object that hold(rows, n) returned exists,
/// none of these rows is. A batch holds the rows that it found, null where there is none, while it inserts.
template <class S>
concept EvictingRowSource =
    RowSource<S> && requires(const S& source, const std::byte* const* rows, index_t n) {
      { source.hold(rows, n) } -> std::move_constructible;
    };

/// A source that numbers its rows: row_number(address of a row) is in [0, row_numbers()), and differs for
/// different rows. Updates sort by it, which is faster than numbering keys, and step each row once, whatever
/// its keys. Called from several threads at once.
template <class S>
concept NumberedRowSource = RowSource<S> && requires(const S& source, const std::byte* row) {
  { source.row_number(row) } noexcept -> std::convertible_to<index_t>;
  { source.row_numbers() } noexcept -> std::convertible_to<index_t>;
};

/// While an object that guard() returned exists, addresses stay valid. One thread may hold several of them.
template <class S>
concept GuardedRowSource = RowSource<S> && requires(const S& source) {
  { source.guard() } -> std::movable;
};

/// A source whose rows may be written through their addresses: byte_type is std::byte.
template <class S>
concept WritableRowSource = RowSource<S> && std::same_as<typename S::byte_type, std::byte>;

/// A source that can list its rows: for_each_row(f) calls f(key, address) once for each.
template <class S, class Key>
concept EnumerableRowSource =
    KeyedRowSource<S, Key> && requires(const S& source, void (*f)(Key, const std::byte*)) {
      source.for_each_row(f);
      { source.size() } -> std::convertible_to<index_t>;
    };

namespace detail {

/// Whether a table of that many rows of that width has memory.
constexpr bool has_table_memory(const void* data, index_t rows, index_t width) noexcept {
  return rows >= 0 && (data != nullptr || rows == 0 || width == 0);
}
/// The status of a table that has none.
DEEPREC_APART inline status table_memory_fault(index_t rows) {
  if (rows < 0) return {errc::shape_mismatch, "table: rows() must not be negative", {.value = rows}};
  return {errc::shape_mismatch, "table: data() must not be null"};
}

/// Checks the rows of a source. Every verb that reads or writes rows calls it first.
template <RowSource Source>
DEEPREC_INLINE status check_source(const Source& source) {
  if constexpr (requires {
                  { source.validate() } -> std::convertible_to<status>;
                }) {
    return source.validate();
  } else if constexpr (DirectRowSource<Source>) {
    if (!has_table_memory(source.data(), source.rows(), source.format().width())) [[unlikely]]
      return table_memory_fault(source.rows());
  } else if constexpr (BoundedRowSource<Source>) {
    if (source.rows() < 0) [[unlikely]]
      return table_memory_fault(source.rows());
  }
  return {};
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
