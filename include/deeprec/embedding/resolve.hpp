// Resolved rows: a batch whose ids were checked once and whose rows are known, for several verbs.
//
//   auto rows = resolve(ctx, table, bags, combiner::mean, keys::find_or_insert);
//   if (!rows) return rows.fault();
//   lookup(ctx, rows.value(), out);                no id is checked or located again
//   update(ctx, rows.value(), gradient, adagrad{}); grouped by row at the first update, once
//
//   direct tables    base, stride and ids: nothing is stored for an id
//   other sources    an address for each id, and the source's guard: no row moves while `rows` exists
#pragma once

#include <cstddef>
#include <memory_resource>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/kernels/host/resolve_batch.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/support/containers.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What resolve does with keys that the source does not hold.
namespace keys {

struct find_t {};
struct find_or_insert_t {};
/// They get the source's default_row(). Where it has none they are faults, or left out, as ids out of range.
inline constexpr find_t find{};
/// The source admits them (GrowingRowSource); for those that it refuses, as find.
inline constexpr find_or_insert_t find_or_insert{};

}  // namespace keys

/// A checked batch and where its rows are. Refers to the batch and to the rows; its own memory comes from the
/// context that resolve was given. Movable; one that is assigned takes over the other's memory and resource.
///
/// @pre     batch, source and resource outlive it; the batch is not changed
/// @threads lookups are concurrent readers; update and row_gradients group its rows and need exclusive access
template <RowSource Source, BagBatch Bags, class Pooling, class = detail::unit>
class resolved_rows {
 public:
  using source_type = Source;
  using bags_type = Bags;
  using pooling_type = Pooling;

  [[nodiscard]] const Source& source() const noexcept { return resolution_.source(); }
  [[nodiscard]] const Bags& bags() const noexcept { return resolution_.bags(); }
  [[nodiscard]] const Pooling& pooling() const noexcept { return resolution_.pooling(); }
  /// Number of ids of the batch.
  [[nodiscard]] index_t positions() const noexcept { return resolution_.positions(); }

  /// For verbs.
  [[nodiscard]] const auto& resolution() const noexcept { return resolution_; }
  /// For verbs: the positions grouped by row; made at the first call, in the order that it names.
  template <class Context>
  const detail::batch_groups& groups(const Context& ctx, detail::group_order order) const {
    if (groups_.empty()) {
      groups_.reserve(1);
      detail::batch_groups made(groups_.get_allocator().resource(), detail::groups_size(resolution_));
      made.add(ctx, resolution_);
      made.group(ctx, order);
      groups_.push_back(std::move(made));
    }
    return groups_.front();
  }

  /// For resolve.
  resolved_rows(const Source& source, const Bags& bags, const Pooling& pooling,
                std::pmr::memory_resource* memory)
      : resolution_(source, bags, pooling), addresses_(memory), groups_(memory) {}
  resolved_rows(resolved_rows&&) noexcept(
      std::is_nothrow_move_constructible_v<detail::resolution<Source, Bags, Pooling>>) = default;
  resolved_rows& operator=(resolved_rows&& other) noexcept(
      std::is_nothrow_move_assignable_v<detail::resolution<Source, Bags, Pooling>>) {
    if (this == &other) return *this;
    resolution_ = std::move(other.resolution_);  // points into addresses_
    detail::replace(addresses_, std::move(other.addresses_));
    detail::replace(groups_, std::move(other.groups_));
    return *this;
  }
  ~resolved_rows() = default;
  template <class Context>
  status resolve_on(const Context& ctx, bool admits) {
    if (const status s = resolution_.open(admits); !s) return s;
    addresses_.resize(static_cast<std::size_t>(resolution_.addresses()));
    resolution_.place_addresses(addresses_.data());
    const status s = detail::resolve_opened(ctx, resolution_);
    if (s) resolution_.count_skipped_once();
    return s;
  }

 private:
  detail::resolution<Source, Bags, Pooling> resolution_;
  std::pmr::vector<const std::byte*> addresses_;
  mutable std::pmr::vector<detail::batch_groups> groups_;  // one, once they are made
};

namespace detail {
template <class Source, class Bags, class Pooling>
inline constexpr bool is_resolved<resolved_rows<Source, Bags, Pooling>> = true;
}  // namespace detail

/// Checks the ids of a batch and locates their rows.
///
/// @shape   source of rows of width D · bags {offsets (B+1), ids (N), weights (N) or none}
/// @dtype   ids of 32 or 64 bits, or a class with id_value(id) (concept BagId)
/// @space   host
/// @pre     with find_or_insert the caller holds no guard of the source, as other resolved rows do, unless
///          its rows never move (StableGrowingRowSource)
/// @post    the result keeps the source's guard, where it has one: rows don't move until it is destroyed.
///          On an error, keys that find_or_insert has inserted stay in the source
/// @cost    reads each id once, and once more to count those that skip(counter) leaves out. Direct tables: no
///          allocation. Others: 8 bytes an id from the context's resource, and a second pass where keys were
///          inserted
/// @threads reentrant; with find_or_insert as the source's insert()
/// @error   as lookup; with find, a key that the source does not hold and that has no default row is
///          id_out_of_range where ids are checked; the status of find() and of insert(); out_of_memory
/// @example @snippet tests/embedding/resolve_test.cpp resolve
template <class Context, RowSource Source, BagBatch Bags, class Pooling, class Mode = keys::find_t>
DEEPREC_PER_UNIT [[nodiscard]] auto resolve(Context&& context_or_executor, const Source& source,
                                            const Bags& bags, const Pooling& pooling, Mode = {}) {
  static_assert(std::is_same_v<Mode, keys::find_t> || std::is_same_v<Mode, keys::find_or_insert_t>,
                "deeprec::resolve: unknown mode. Fix: keys::find or keys::find_or_insert.");
  constexpr bool admits = std::is_same_v<Mode, keys::find_or_insert_t>;
  static_assert(!admits || AdmittingRowSource<Source, typename Bags::id_type>,
                "deeprec::resolve: this row source admits no keys. Fix: keys::find, or give it "
                "insert(keys, n) (concept GrowingRowSource in embedding/tables/row_source.hpp).");
  const auto ctx = detail::as_context(context_or_executor);
  const auto policies = detail::as_pooling(pooling);
  using rows_type = resolved_rows<Source, Bags, std::remove_const_t<decltype(policies)>>;
  using result_type = result<rows_type>;
  const detail::host_call call(ctx, "resolve",
                               detail::in_spaces<typename Source::space, typename Bags::space>);
  if (!call) return result_type(call.stopped());
  if (const status s = detail::check_max_norm(policies); !s) return result_type(s.in_operation("resolve"));
  rows_type rows(source, bags, policies, ctx.memory);
  const status s = detail::or_out_of_memory("resolve", [&] { return rows.resolve_on(ctx, admits); });
  return s ? result_type(std::move(rows)) : result_type(s);
}

}}  // namespace deeprec::DEEPREC_ABI
