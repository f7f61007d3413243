// The features of a model whose tables lie at many ranks: the part of each that this rank holds, and the
// pooling.
//
//   sharded_group<rowwise_adagrad, mpi_ranks> group(std::move(comm), {.patience = 5min});
//   group.add(my_part.view(), combiner::sum, placement::rows{R});
//   auto rows = resolve(ctx, group, bags);              message 1: ids           all ranks call this,
//   lookup(ctx, rows.value(), out);                     message 2: rows          each with its own batch
//   update(ctx, rows.value(), gradient, optimizer);     message 3: gradients
//
//   bags ─> distinct ids of each owner ──> resolved there ──> their rows ─> a table; pooled as any other
//   gradient ─> of each distinct row ─────────────────────> update, in the order of the ranks
//   pooled_at::owner: sums of bags, and their gradients, in the place of rows
//
// All features go in one message to each rank. What an owner does is a feature_group in which each feature
// comes once for every rank; what comes back is one over the received bytes. The verbs: sharded_verbs.hpp.
// Not here: dense parameters, and bytes that move (comm/).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/received_rows.hpp>
#include <deeprec/sharding/detail/sharded_step.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_options.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
struct sharded_access;
}  // namespace detail

/// Features of tables of many ranks, any row formats, widths and poolings. All ranks add the same ones, in
/// one order, and call the verbs in one order. It has buffers for one step, which grow to its largest size.
///
/// @dtype   Optimizer: trains the rows, or lookups_only; Bags: jagged_view of ids of 64 bits; Wire: the
///          elements of messages
/// @threads one verb at a time
template <class Optimizer, class Comm, BagBatch Bags = jagged_view<>, class Wire = wire<>>
class sharded_group {
  static_assert(Communicator<Comm>,
                "deeprec::sharded_group: not a communicator. Fix: sharded_group<Optimizer, mpi_ranks>, or a "
                "class with the members that deeprec/comm/communicator.hpp names.");
  static_assert(std::is_same_v<typename Bags::id_type, std::int64_t>,
                "deeprec::sharded_group: ids have 64 bits. Fix: jagged_view<std::int64_t, Offset>.");
  static constexpr bool trains = !std::is_same_v<Optimizer, lookups_only>;
  static constexpr bool rounds_gradients = !std::is_same_v<typename Wire::gradient_type, float>;

 public:
  using optimizer_type = Optimizer;
  using bags_type = Bags;
  using comm_type = Comm;
  using wire_type = Wire;

  /// @param memory  of the buffers and of what is kept for each feature
  explicit sharded_group(Comm comm, const sharded_options& options = {},
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : patience_(options.patience),
        comm_(std::move(comm)),
        in_order_(trains && options.sums == row_sums::in_order && (comm_.size() > 1 || rounds_gradients)),
        cuts_(trains && !in_order_ && options.parts > comm_.size() ? options.parts / comm_.size() : 1),
        steps_apart_(in_order_ || cuts_ > 1),
        step_(std::make_unique<detail::sharded_step<Bags, Wire>>(comm_.rank(), comm_.size(), memory)) {
    if (options.parts < 0 || options.parts % comm_.size() != 0)
      note({errc::invalid_value,
            "resolve: parts must be a multiple of the number of ranks",
            {.is = options.parts, .must_be = comm_.size()}});
  }

  sharded_group(const sharded_group&) = delete;  // rows of a step refer to it
  sharded_group& operator=(const sharded_group&) = delete;

  /// Adds a feature and returns its number; the part is copied (a view, not the rows). Several features may
  /// have one table.
  ///
  /// @shape    the part of this rank: part_rows(rank, where.count, n) rows of width D
  /// @dtype    rows of any format; of a group that trains f32, f16, bf16 or split. They are sent as Wire's
  /// @error    does not compile: a pooling that needs rows which are elsewhere (default_row, max_norm), or
  ///           that leaves ids out. Reported by resolve: a part of another number of rows; sums of owners
  ///           for max. Throws std::bad_alloc, and the group is of no use then
  template <RowSource Source, class Pooling>
  index_t add(const Source& part, const Pooling& pooling, const placement::rows& where) {
    static_assert(DirectRowSource<Source>,
                  "deeprec::sharded_group: rows by number are those of a table. Fix: placement::keys{} for a "
                  "source of keys.");
    const index_t expected = part_rows(rank(), where.count, size());
    if (part.rows() != expected) {
      note({errc::shape_mismatch,
            "resolve: a part must have part_rows(rank, count, n) rows",
            {.is = part.rows(), .must_be = expected}});
    }
    return add_distinct(part, pooling, detail::placed::by_modulo, where.count, where.pooled);
  }
  /// A table at every rank, with all of its rows: where lookups of other ranks' rows cost more than the
  /// gradients of all.
  ///
  /// @pre   the same rows at all ranks
  /// @error as for rows
  template <RowSource Source, class Pooling>
  index_t add(const Source& table, const Pooling& pooling, const placement::replicated& where) {
    static_assert(DirectRowSource<Source>,
                  "deeprec::sharded_group: replicated tables have rows by number. Fix: placement::keys{}.");
    if (table.rows() != where.count) {
      note({errc::shape_mismatch,
            "resolve: a replicated table must have all of its rows at every rank",
            {.is = table.rows(), .must_be = where.count}});
    }
    return add_distinct(table, pooling, detail::placed::replicated, where.count);
  }
  /// A table of keys, which any integers are.
  template <RowSource Source, class Pooling>
  index_t add(const Source& part, const Pooling& pooling, const placement::keys& where) {
    static_assert(!DirectRowSource<Source>,
                  "deeprec::sharded_group: a table has no keys. Fix: placement::rows{count}.");
    return add_distinct(part, pooling, detail::placed::by_slot, -1, where.pooled);
  }
  /// A table at one rank; `part` has no rows at the others. Any pooling of a feature_group.
  template <RowSource Source, class Pooling>
  index_t add(const Source& part, const Pooling& pooling, const placement::whole& where) {
    static_assert(DirectRowSource<Source>,
                  "deeprec::sharded_group: whole tables have rows by number. Fix: placement::keys{}.");
    const index_t expected = rank() == where.rank ? where.count : 0;
    if (where.rank < 0 || where.rank >= size()) {
      note({errc::invalid_value,
            "resolve: the rank of a whole table must be one of the ranks",
            {.value = where.rank, .at_most = size() - 1}});
    } else if (part.rows() != expected) {
      note({errc::shape_mismatch,
            "resolve: a table must have all of its rows at its rank, and none elsewhere",
            {.is = part.rows(), .must_be = expected}});
    }
    add_whole(part, pooling, where.rank, where.count, part.format().width());
    return append(detail::placed::whole, where.count, pooling);
  }
  /// A table whose columns lie at several ranks; `part` has the slice of this one, or no rows. Any pooling of
  /// a feature_group but max_norm, and optimizers that step each element by itself.
  ///
  /// @shape part (where.count, where.slice_width(i)) at rank where.ranks[i]
  /// @error does not compile: max_norm, and optimizers that read the whole row. Reported by resolve: ranks
  ///        that are none, or come twice; a part of another size
  template <RowSource Source, class Pooling>
  index_t add(const Source& part, const Pooling& pooling, const placement::columns& where) {
    using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
    static_assert(DirectRowSource<Source>,
                  "deeprec::sharded_group: tables by columns have rows by number. Fix: placement::keys{}.");
    static_assert(std::is_same_v<typename policies::norm_mode, detail::any_norm_t>,
                  "deeprec::sharded_group: no rank has the norm of a row whose columns lie at several. Fix: "
                  "placement::whole or rows, or no max_norm.");
    if constexpr (trains) {
      static_assert(!reads_whole_row<Optimizer>,
                    "deeprec::sharded_group: this optimizer reads the whole row (needs_mean_square, or a "
                    "norm), and no rank has it. Fix: placement::rows, or an optimizer of elements: sgd, "
                    "adagrad, adam.");
    }
    check_columns(part.rows(), part.format().width(), where);
    for (std::size_t i = 0; i < where.ranks.size(); ++i)
      add_whole(part, pooling, where.ranks[i], where.count, where.slice_width(i));
    return append(detail::placed::whole, where.count, pooling);
  }

  [[nodiscard]] int rank() const noexcept { return comm_.rank(); }
  /// n, the number of ranks.
  [[nodiscard]] int size() const noexcept { return comm_.size(); }
  /// T
  [[nodiscard]] index_t features() const noexcept { return checked_.features(); }
  /// D of a feature.
  [[nodiscard]] index_t width(index_t feature) const noexcept { return checked_.width(feature); }
  /// The first column of a feature in the joint output and gradient.
  [[nodiscard]] index_t offset(index_t feature) const noexcept { return checked_.offset(feature); }
  [[nodiscard]] index_t total_width() const noexcept { return total_width_; }
  /// Bytes that this rank has sent, and messages, since construction; those to itself are none.
  [[nodiscard]] const sharded_traffic& traffic() const noexcept { return traffic_; }
  /// Ends the steps of all ranks, where the engine can tell them.
  void abandon(const status& why) { comm_.abandon(why); }

 private:
  friend struct detail::sharded_access;

  void note(const status& found) {
    if (fault_) fault_ = found.in_table(features());
  }
  template <class Source, class Pooling>
  index_t add_distinct(const Source& part, const Pooling& pooling, detail::placed how, index_t count,
                       pooled_at pool = pooled_at::bag) {
    using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
    static_assert(
        std::is_same_v<typename policies::bounds_mode, bounds::check_t> &&
            std::is_same_v<typename policies::padding_mode, padding::none_t> &&
            !detail::is_default_row<typename policies::empty_mode> &&
            std::is_same_v<typename policies::norm_mode, detail::any_norm_t>,
        "deeprec::sharded_group: rows of other ranks are asked for by valid ids, and change there: no "
        "bounds::skip, padding, default_row or max_norm. Fix: placement::whole, or prune_invalid and "
        "fill_empty_bags before.");
    detail::feature_place<Bags> place{how, features(), -1, count, part.format().width()};
    serve(place, part, combiner::sum);
    steps_apart_ = steps_apart_ || (trains && how == detail::placed::replicated);
    place.pool = pool;
    if constexpr (DirectRowSource<Source>) {
      if (how == detail::placed::replicated) pool_received<typename policies::combiner, policies>(part);
    }
    if (how != detail::placed::replicated) {
      const detail::received_rows<typename Wire::row_type> received{step_->received(), place.width};
      pool_received<typename policies::combiner, policies>(received);
      constexpr bool has_max = std::is_same_v<typename policies::combiner, combiner::max_t>;
      if (pool != pooled_at::bag && has_max) {
        note({errc::unsupported, "resolve: max must be taken where the bag is, not at the owners of rows"});
      } else if (pool != pooled_at::bag) {
        place.has_sums = true;
        pool_received<combiner::sum_t, policies>(received);
      }
    }
    place.in_order = in_order_;
    place.cuts = static_cast<std::size_t>(cuts_);
    place.divide = detail::divisor_of<typename policies::combiner>();
    if constexpr (trains) place.sum = &detail::sum_slot_gradients<typename policies::combiner, Bags>;
    add_place(place);
    return append(how, count, pooling);
  }
  template <class Source, class Pooling>
  void add_whole(const Source& part, const Pooling& pooling, int rank_of_rows, index_t count, index_t width) {
    detail::feature_place<Bags> place{detail::placed::whole, features(), rank_of_rows, count, width};
    if (rank() == rank_of_rows) serve(place, part, pooling);
    add_place(place);
  }
  // What the ranks of bags make of what came.
  template <class Combiner, class Policies, class Source>
  void pool_received(const Source& rows) {
    using of_slots = deeprec::pooling<Combiner, bounds::assume_valid_t, typename Policies::empty_mode,
                                      typename Policies::output_mode>;
    pooled_.add(rows, of_slots(Combiner(), bounds::assume_valid, {}, {}));
  }
  void check_columns(index_t rows, index_t width, const placement::columns& where) {
    std::size_t mine = where.ranks.size();
    for (std::size_t i = 0; i < where.ranks.size(); ++i) {
      const int r = where.ranks[i];
      if (r < 0 || r >= size())
        note({errc::invalid_value,
              "resolve: the ranks of columns must be some of the ranks",
              {.value = r, .at_most = size() - 1}});
      if (std::find(where.ranks.begin(), where.ranks.begin() + static_cast<std::ptrdiff_t>(i), r) !=
          where.ranks.begin() + static_cast<std::ptrdiff_t>(i))
        note({errc::invalid_value, "resolve: the ranks of columns must differ", {.value = r}});
      if (r == rank()) mine = i;
    }
    const bool holds = mine < where.ranks.size();
    if (where.ranks.empty())
      note({errc::invalid_value, "resolve: columns must lie at a rank at least"});
    else if (rows != (holds ? where.count : 0))
      note({errc::shape_mismatch,
            "resolve: a slice of columns must have all of the rows at its rank, and none elsewhere",
            {.is = rows, .must_be = holds ? where.count : 0}});
    else if (holds && width != where.slice_width(mine))
      note({errc::shape_mismatch,
            "resolve: a slice must have part_rows(i, width, ranks) columns",
            {.is = width, .must_be = where.slice_width(mine)}});
  }
  // The owner's side: the feature for each rank that asks.
  template <class Source, class Pooling>
  void serve(detail::feature_place<Bags>& place, const Source& part, const Pooling& pooling) {
    place.served = served_.features();
    for (int r = 0; r < size(); ++r) {
      served_.add(part, pooling);
      if constexpr (trains) stepped_.add(part, detail::uncounted(detail::as_pooling(pooling)));
    }
  }
  void add_place(detail::feature_place<Bags>& place) {
    place.column = total_width_;
    place.row_bytes = place.width * index_t{sizeof(typename Wire::row_type)};
    place.gradient_row_bytes = trains ? place.width * index_t{sizeof(typename Wire::gradient_type)} : 0;
    total_width_ = capped_sum(total_width_, place.width);
    for (const index_t word :
         {static_cast<index_t>(place.how), place.feature, index_t{place.rank}, place.count, place.width,
          index_t{place.in_order ? 1 : 0}, static_cast<index_t>(place.cuts), static_cast<index_t>(place.pool),
          place.row_bytes, place.gradient_row_bytes})
      model_ = mix64(model_ ^ mix64(static_cast<std::uint64_t>(word)));
    places_.push_back(place);
  }
  // The feature whose places were added last.
  template <class Pooling>
  index_t append(detail::placed how, index_t count, const Pooling& pooling) {
    using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
    const index_t width = total_width_ - checked_.total_width();
    if (how != detail::placed::by_slot) return checked_.add(detail::logical_rows{count, width}, pooling);
    using any_key = deeprec::pooling<typename policies::combiner, bounds::assume_valid_t>;
    return checked_.add(detail::logical_rows{1, width},  // any integer is a key
                        any_key(typename policies::combiner(), bounds::assume_valid));
  }

  std::chrono::nanoseconds patience_;
  Comm comm_;
  bool in_order_;     // of one rank both orders are one
  int cuts_;          // parts of this rank's batch
  bool steps_apart_;  // what is stepped are not the rows that are looked up
  std::unique_ptr<detail::sharded_step<Bags, Wire>> step_;  // sources refer to it
  using served_group = feature_group<Optimizer, jagged_view<>, typename Wire::row_type>;
  served_group served_;
  feature_group<Optimizer> stepped_;  // the same features, with other bags
  feature_group<lookups_only, Bags> checked_, pooled_;
  std::vector<detail::feature_place<Bags>> places_;
  index_t total_width_ = 0;
  std::uint64_t model_ = 0;
  status fault_;
  // Of the step
  index_t number_ = -1;
  std::optional<resolved_features<served_group>> served_rows_;
  std::optional<resolved_features<feature_group<Optimizer>>> stepped_rows_;
  status pending_;     // of this rank, sent with its next message
  status step_fault_;  // of all ranks: the step has ended
  sharded_traffic traffic_;
};

}}  // namespace deeprec::DEEPREC_ABI
