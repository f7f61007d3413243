// One pooled lookup in phases: opened once, checked and pooled in pieces that any thread may run, closed.
// lookup runs one job; table_group runs many as one piece of work.
//
//   open       checks shapes, offsets, the default row
//   check      positions [begin, end): bad ids and weights; fault() reports the smallest position
//   plan       resolves addresses, where the table is a row source; chooses the units of work
//   fetch      prefetches the first rows of a piece; pool prefetches those after them
//   pool       units [begin, end) of units(): bags, or positions where every bag is a copy of one row
//   close      pools the bags that are too long for a piece; counts skipped ids
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/lookup_kernels.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
// Loops that compilers may vectorise have the compiler flags of their unit in their names, as kernels do.
inline namespace DEEPREC_UNIT {

/// The id that counts as absent; -1, which is never valid, when there is none.
template <class Pooling>
constexpr std::int64_t padding_of(const Pooling& pooling) {
  if constexpr (std::is_same_v<typename Pooling::padding_mode, padding::id>) {
    return pooling.template get<padding::id>().id;
  } else {
    return -1;
  }
}

template <class Pooling>
inline constexpr bool prunes = std::is_same_v<typename Pooling::padding_mode, padding::prune_t>;
/// With sum TensorFlow keeps every weight.
template <class Pooling>
inline constexpr bool prunes_weights =
    prunes<Pooling> && !std::is_same_v<typename Pooling::combiner, combiner::sum_t>;
template <class Pooling>
inline constexpr bool skips = std::is_same_v<typename Pooling::bounds_mode, bounds::skip_t>;
/// Whether empty bags become a row of the table.
template <class Pooling>
inline constexpr bool fills = std::is_same_v<typename Pooling::empty_mode, empty_bag::default_row>;

/// The counter of skipped ids; null when there is none.
template <class Pooling>
index_t* skip_counter_of(const Pooling& pooling) noexcept {
  if constexpr (skips<Pooling>) {
    return pooling.template get<bounds::skip_t>().skipped;
  } else {
    return nullptr;
  }
}

/// Checks that the default row, if there is one, is a row of the table.
template <class Pooling>
status check_default_row(const Pooling& pooling, index_t rows) {
  if constexpr (fills<Pooling>) {
    const std::int64_t id = pooling.template get<empty_bag::default_row>().id;
    if (is_bad_id(id, rows))
      return {errc::id_out_of_range, "pooling: default_row must be a row of the table", {.value = id}};
  }
  return {};
}

/// Checks that the cap on norms, if there is one, is above 0.
template <class Pooling>
status check_max_norm(const Pooling& pooling) {
  if constexpr (std::is_same_v<typename Pooling::norm_mode, max_norm>) {
    if (!(pooling.template get<max_norm>().cap > 0.0F))
      return {errc::invalid_value, "pooling: max_norm must be above 0"};
  }
  return {};
}

/// True for an id that is a fault, or is counted as skipped: neither in [0, rows) nor padding.
template <class Pooling, class Id>
bool is_stray_id(Id id, index_t rows, std::int64_t padding) noexcept {
  if (!is_bad_id(id, rows)) return false;
  if constexpr (prunes<Pooling> && std::is_signed_v<Id>) return id >= 0;
  if constexpr (std::is_same_v<typename Pooling::padding_mode, padding::id>) {
    return static_cast<std::int64_t>(id) != padding;
  }
  return true;
}

/// Counts the skipped ids of a batch, if the pooling has a counter.
template <class Bags, class Pooling>
void count_skipped(const Bags& bags, index_t rows, const Pooling& pooling) noexcept {
  index_t* const counter = skip_counter_of(pooling);
  for (index_t k = bags.first_position(); counter != nullptr && k < bags.end_position(); ++k) {
    *counter += is_stray_id<Pooling>(bags.ids()[k], rows, padding_of(pooling)) ? 1 : 0;
  }
}

/// The first position in [begin, end) with a stray id, or with an id that is not absent and a NaN weight; end
/// when there is none.
template <class Pooling, class Id>
index_t first_bad_position(isa which, const Id* ids, const float* weights, index_t begin, index_t end,
                           index_t rows, std::int64_t padding) noexcept {
  if constexpr (prunes_weights<Pooling>) weights = nullptr;  // weights not above 0 are pruned, NaN as well
  bool bad =
      with_isa_up_to_avx512(which, [&](auto region) { return any_bad_id(region, ids, begin, end, rows); });
  if (weights != nullptr) {
    for (index_t k = begin; k < end; ++k) bad |= is_nan(weights[k]);
  }
  if (!bad) [[likely]]
    return end;
  for (index_t k = begin; k < end; ++k) {
    if (is_stray_id<Pooling>(ids[k], rows, padding)) return k;
    // An id that is out of range and not stray is absent.
    if (weights != nullptr && is_nan(weights[k]) && !is_absent(ids[k], rows, padding)) return k;
  }
  return end;
}

/// The bag that holds a position: the last one that begins at or before it.
template <class Borders>
index_t bag_of_position(const Borders& ranges, index_t bags, index_t position) noexcept {
  index_t low = 0;
  for (index_t high = bags; high - low > 1;) {
    const index_t middle = low + (high - low) / 2;
    (ranges.begin(middle) <= position ? low : high) = middle;
  }
  return low;
}

/// The cap on a row's norm; 0 when there is none.
template <class Pooling>
constexpr float max_norm_of(const Pooling& pooling) {
  if constexpr (std::is_same_v<typename Pooling::norm_mode, max_norm>) {
    return pooling.template get<max_norm>().cap;
  } else {
    return 0.0F;
  }
}

/// The minimum of the numbers that several threads pass to see().
class smallest_seen {
 public:
  static constexpr index_t none = (std::numeric_limits<index_t>::max)();

  void see(index_t number) noexcept {
    index_t seen = value_.load(std::memory_order_relaxed);
    while (number < seen && !value_.compare_exchange_weak(seen, number, std::memory_order_relaxed)) {
    }
  }
  [[nodiscard]] index_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<index_t> value_{none};
};

/// The error reported for a bad position.
template <class Pooling, class Bags>
status position_fault(const Bags& bags, index_t rows, std::int64_t padding, index_t position) {
  const auto id = bags.ids()[position];
  return {is_stray_id<Pooling>(id, rows, padding) ? errc::id_out_of_range : errc::weight_is_nan,
          {.bag = bag_of_position(bags.ranges(), bags.bags(), position),
           .position = position,
           .value = static_cast<std::int64_t>(id)}};
}

/// Positions per piece of a check.
inline constexpr index_t check_positions_at_once = index_t{1} << 16;

/// Checks every id and weight of a batch; reports the smallest bad position.
template <class Pooling, class Context, class Bags>
status check_positions(const Context& ctx, const Bags& bags, index_t rows, const Pooling& pooling) {
  const std::int64_t padding = padding_of(pooling);
  const index_t first = bags.first_position();
  smallest_seen smallest;
  ctx.executor->parallel_for(
      bags.end_position() - first, check_positions_at_once, [&](index_t from, index_t to, int) {
        const index_t bad = first_bad_position<Pooling>(ctx.instruction_set, bags.ids(), bags.weights(),
                                                        first + from, first + to, rows, padding);
        if (bad != first + to) smallest.see(bad);
      });
  if (smallest.value() == smallest_seen::none) return {};
  return position_fault<Pooling>(bags, rows, padding, smallest.value());
}

/// Scratch of pool_long_bag. The caller allocates it before the first row is written.
struct long_bag_room {
  std::span<float> folded;     // D for each chunk
  std::span<index_t> offsets;  // (chunks + 1)

  static constexpr index_t chunks_of(index_t positions) noexcept {
    return (positions + chunk_positions - 1) / chunk_positions;
  }
};

/// Pools a bag that pool_bags leaves out: its chunks as separate bags, then a balanced tree over them.
template <class Element, class Policy, class Context, class Rows, class Id, class Out>
index_t pool_long_bag(const Context& ctx, const pool_args<Rows, Id, Out>& args, index_t bag,
                      const long_bag_room& room) {
  const index_t begin = args.ranges.begin(bag);
  const index_t end = args.ranges.end(bag);
  const index_t chunks = long_bag_room::chunks_of(end - begin);
  const std::span<float> folded = room.folded;
  const std::span<index_t> offsets = room.offsets;
  for (index_t c = 0; c <= chunks; ++c) {
    offsets[static_cast<std::size_t>(c)] = (std::min)(end, begin + c * chunk_positions);
  }
  pool_args<Rows, Id, float> part{};
  part.row_of = args.row_of;
  part.ids = args.ids;
  part.ranges = detail::offset_ranges<index_t>{offsets.data(), -1, -1};
  part.weights = args.weights;
  part.positive_weights = args.positive_weights;
  part.rows = args.rows;
  part.padding = args.padding;
  part.width = args.width;
  part.parts = args.parts;
  part.end_position = args.end_position;
  part.max_norm = args.max_norm;
  part.out = folded.data();
  part.out_stride = args.width;
  part.divide = divide_by::one;
  // A chunk of absent ids only must not change a maximum.
  part.empty = Policy::folding == fold::maximum ? when_empty::identity : when_empty::zeros;
  part.stored = when_stored::overwrite;
  ctx.executor->parallel_for(chunks, 1, [&](index_t first, index_t last, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      return pool_bags<Element>(region, Policy{}, part, first, last);
    });
  });
  for (index_t step = 1; step < chunks; step *= 2) {
    for (index_t c = 0; c + step < chunks; c += 2 * step) {
      float* left = folded.data() + c * args.width;
      const float* right = folded.data() + (c + step) * args.width;
      for (index_t j = 0; j < args.width; ++j) {
        if constexpr (Policy::folding == fold::maximum) {
          left[j] = is_nan(left[j]) || left[j] > right[j] ? left[j] : right[j];
        } else {
          left[j] += right[j];
        }
      }
    }
  }
  pool_counts counts;
  for (index_t position = begin; position < end; ++position) {
    if (Policy::ids == ids_are::filtered && args.absent(position)) continue;
    counts.add(args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[position]));
  }
  Out* const out = args.out + bag * args.out_stride;
  if (counts.used == 0 && args.empty == when_empty::keep) return 0;
  if (counts.used == 0 && args.empty == when_empty::default_row) {
    const index_t one_position[] = {0, 1};
    const Id first_row{};
    part.row_of = Rows::only(&args.default_row, &first_row);
    part.ids = &first_row;
    part.ranges = detail::offset_ranges<index_t>{one_position, -1, -1};
    part.weights = nullptr;
    part.positive_weights = false;
    part.rows = 1;
    part.padding = -1;
    part.end_position = 1;
    with_isa_up_to_avx512(ctx.instruction_set,
                          [&](auto region) { return pool_bags<Element>(region, Policy{}, part, 0, 1); });
  }
  const double divisor = counts.used == 0 ? 1.0 : counts.divisor(args.divide);
  const bool to_zero = divisor == 0.0 || (counts.used == 0 && args.empty == when_empty::zeros);
  for (index_t j = 0; j < args.width; ++j) {
    const float total = folded[static_cast<std::size_t>(j)];
    float pooled = to_zero ? 0.0F : total / static_cast<float>(divisor);
    if (args.stored == when_stored::accumulate) pooled = static_cast<float>(out[j]) + pooled;
    out[j] = static_cast<Out>(pooled);
  }
  return counts.used;
}

/// A lookup whose shapes have been checked (lookup_shapes).
///
/// check and pool run on several threads at once; open and close on one.
template <class Source, class Bags, class Pooling, class Out>
class lookup_job {
  using id_type = typename Bags::id_type;
  using element = typename Source::format_type::element;
  using policy = kernel_policy<Pooling>;
  static constexpr bool is_direct = DirectRowSource<Source>;
  static_assert(is_direct || ResolvingRowSource<Source, id_type>,
                "deeprec::lookup: not a row source. Fix: give it data(), or resolve(ids, n, addresses) "
                "(see deeprec/embedding/tables/table_view.hpp).");
  static_assert(reachable_as<typename Bags::space, host_space> &&
                    reachable_as<typename Source::space, host_space>,
                "deeprec::lookup: device memory given to a host context. Fix: copy it, or pass a device "
                "context.");

 public:
  /// Whether ids and weights are checked.
  static constexpr bool checks = std::is_same_v<typename Pooling::bounds_mode, bounds::check_t>;

  lookup_job(const Source& table, const Bags& bags, const Pooling& pooling, matrix_view<Out> out,
             std::pmr::memory_resource* memory)
      : table_(table),
        bags_(bags),
        pooling_(pooling),
        out_(out),
        addresses_(memory),
        folded_(memory),
        offsets_of_chunks_(memory) {}

  /// Checks batch and default row; nothing is written. Offsets are read once.
  status open() {
    one_each_ = bags_.is_one_hot();
    if (!one_each_) {
      if (const status s = bags_.validate(); !s) return s;
    }
    positions_ = bags_.end_position() - bags_.first_position();
    if (is_concat) {
      if (const status s =
              expect_size(out_.extent(0), positions_, "lookup: out.extent(0) must be the number of ids N");
          !s) {
        return s;
      }
    }
    if (const status s = check_default_row(pooling_, table_.rows()); !s) return s;
    if (out_.empty()) positions_ = 0;
    return {};
  }

  [[nodiscard]] index_t positions() const noexcept { return positions_; }
  /// Checks the positions [begin, end) of positions().
  void check(isa which, index_t begin, index_t end) noexcept {
    const index_t first = bags_.first_position();
    const index_t bad = first_bad_position<Pooling>(which, bags_.ids(), bags_.weights(), first + begin,
                                                    first + end, table_.rows(), padding_of(pooling_));
    if (bad != first + end) smallest_.see(bad);
  }
  [[nodiscard]] status fault() const {
    if (smallest_.value() == smallest_seen::none) return {};
    return position_fault<Pooling>(bags_, table_.rows(), padding_of(pooling_), smallest_.value());
  }

  /// Resolves the addresses of a row source, after the ids were checked, and decides how the work is divided.
  template <class Context>
  void plan(const Context& ctx) {
    args_.ids = bags_.ids();
    args_.ranges = bags_.ranges();
    args_.weights = bags_.weights();
    args_.positive_weights = prunes_weights<Pooling> && args_.weights != nullptr;
    args_.rows = table_.rows();
    args_.padding = padding_of(pooling_);
    args_.width = table_.format().width();
    args_.parts = parts_of(table_.format());
    args_.end_position = bags_.end_position();
    args_.out = out_.data_handle();
    args_.out_stride = out_.stride(0);
    args_.divide = divisor_of<typename Pooling::combiner>();
    args_.sums = !is_concat;
    args_.empty = empty_of<Pooling>();
    args_.stored = stored_of<Pooling>();
    args_.max_norm = max_norm_of(pooling_);
    const index_t first = bags_.first_position();
    if constexpr (is_direct) {
      args_.row_of = {table_.data(), table_.format().stride_bytes(), bags_.ids()};
    } else {
      addresses_.resize(static_cast<std::size_t>(positions_));
      ctx.executor->parallel_for(positions_, chunk_positions, [&](index_t begin, index_t end, int) {
        resolve_present(first + begin, first + end, addresses_.data() + begin);
      });
      args_.row_of = {addresses_.data(), first};
    }
    if constexpr (fills<Pooling>) {
      const std::int64_t id = pooling_.template get<empty_bag::default_row>().id;
      if constexpr (is_direct) {
        args_.default_row = table_.data() + id * table_.format().stride_bytes();
      } else {
        const auto as_id = static_cast<id_type>(id);
        table_.resolve(&as_id, 1, &args_.default_row);
      }
    }
    // A mean or sqrtn of one weighted id is not a copy; any other pooling of one id is.
    copies_ = is_concat || (one_each_ && (args_.weights == nullptr || args_.divide == divide_by::one));
    make_room_for_long_bags();
  }

  [[nodiscard]] index_t units() const noexcept {
    return out_.empty() ? 0 : copies_ ? positions_ : bags_.bags();
  }
  /// Units per piece: about 4096 ids. The bits of a bag don't depend on the piece that it is in.
  [[nodiscard]] index_t grain() const noexcept {
    if (copies_) return chunk_positions;
    const index_t bags = bags_.bags();
    return std::clamp<index_t>(positions_ > 0 ? bags * chunk_positions / positions_ : bags, 1,
                               chunk_positions);
  }
  /// Prefetches the first rows of the units from `begin` on.
  void fetch(isa which, index_t begin) const noexcept {
    const index_t position = copies_ ? bags_.first_position() + begin : args_.ranges.begin(begin);
    with_isa_up_to_avx512(which,
                          [&](auto region) { fetch_first_rows<element>(region, policy{}, args_, position); });
  }
  void pool(isa which, index_t begin, index_t end) noexcept {
    const index_t first = bags_.first_position();
    const index_t used = with_isa_up_to_avx512(which, [&](auto region) {
      return copies_ ? gather_positions<element>(region, policy{}, args_, first + begin, first + end, first)
                     : pool_bags<element>(region, policy{}, args_, begin, end);
    });
    if constexpr (skips<Pooling>) used_.fetch_add(used, std::memory_order_relaxed);
  }

  template <class Context>
  void close(const Context& ctx) {
    if (out_.empty()) return;
    if (!offsets_of_chunks_.empty()) {
      for (index_t bag = 0; bag < bags_.bags(); ++bag) {
        if (args_.ranges.end(bag) - args_.ranges.begin(bag) > chunk_positions) {
          used_ += pool_long_bag<element, policy>(ctx, args_, bag, {folded_, offsets_of_chunks_});
        }
      }
    }
    if (skips<Pooling> && positions_ != used_.load()) count_skipped(bags_, args_.rows, pooling_);
  }

 private:
  static constexpr bool is_concat = std::is_same_v<typename Pooling::combiner, combiner::concat_t>;
  using rows_type = std::conditional_t<is_direct, direct_rows<id_type>, resolved_rows>;

  void make_room_for_long_bags() {
    if (copies_ || positions_ <= chunk_positions) return;
    index_t longest = 0;
    for (index_t bag = 0; bag < bags_.bags(); ++bag) {
      longest = (std::max)(longest, args_.ranges.end(bag) - args_.ranges.begin(bag));
    }
    if (longest <= chunk_positions) return;
    const index_t chunks = long_bag_room::chunks_of(longest);
    folded_.resize(static_cast<std::size_t>(capped_product(chunks, args_.width)));
    offsets_of_chunks_.resize(static_cast<std::size_t>(chunks) + 1);
  }

  // Absent ids are not resolved; the kernels don't read their addresses.
  void resolve_present(index_t begin, index_t end, const std::byte** addresses) const {
    for (index_t from = begin; from < end;) {
      index_t to = from;
      if constexpr (policy::ids == ids_are::filtered) {
        while (to < end && !args_.absent(to)) ++to;
      } else {
        to = end;
      }
      if (to > from) table_.resolve(bags_.ids() + from, to - from, addresses + (from - begin));
      from = to + 1;
    }
  }

  const Source& table_;
  Bags bags_;
  Pooling pooling_;
  matrix_view<Out> out_;
  pool_args<rows_type, id_type, Out> args_{};
  std::pmr::vector<const std::byte*> addresses_;
  std::pmr::vector<float> folded_;  // of the longest bag; empty when no bag is long
  std::pmr::vector<index_t> offsets_of_chunks_;
  index_t positions_ = 0;
  bool one_each_ = false;
  bool copies_ = false;
  smallest_seen smallest_;
  std::atomic<index_t> used_{0};
};

}  // namespace DEEPREC_UNIT
}}}  // namespace deeprec::DEEPREC_ABI::detail
