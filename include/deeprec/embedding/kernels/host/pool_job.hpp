// The pooling of one resolved batch, in pieces that any thread may run. lookup runs one job; a group runs
// many as one piece of work.
//
//   plan       chooses the kernel and the units of work; takes the room for long bags
//   fetch      prefetches the first rows of a piece; pool prefetches those after them
//   pool       units [begin, end) of units(): bags, or positions where every bag is a copy of one row
//   close      pools the bags that are too long for a piece; counts skipped ids
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Scratch of pool_long_bag. The caller allocates it before the first row is written.
struct long_bag_room {
  std::span<float> folded;     // D for each chunk
  std::span<index_t> offsets;  // (chunks + 1)

  static constexpr index_t chunks_of(index_t positions) noexcept {
    return (positions + chunk_positions - 1) / chunk_positions;
  }
};

/// The kernel that pools rows of an Element on an instruction set.
template <class Element, class Policy, class Args>
auto pool_kernel(isa which, const Args& args) {
  return with_isa_up_to_avx512(which, [&](auto region) {
    using kernels = decltype(lookup_kernels_of<Element>(region, args));
    if constexpr (Policy::folding == fold::maximum) {
      return &kernels::pool_maximum;
    } else {
      return &kernels::pool;
    }
  });
}

/// Pools a bag that pool_bags leaves out: its chunks as separate bags, then a balanced tree over them.
template <class Element, class Policy, class Context, class Rows, class Out>
index_t pool_long_bag(const Context& ctx, const pool_args<Out, Rows>& args, index_t bag,
                      const long_bag_room& room) {
  const index_t begin = args.ranges.begin(bag);
  const index_t end = args.ranges.end(bag);
  const index_t chunks = long_bag_room::chunks_of(end - begin);
  const std::span<float> folded = room.folded;
  const std::span<index_t> offsets = room.offsets;
  for (index_t c = 0; c <= chunks; ++c) {
    offsets[static_cast<std::size_t>(c)] = (std::min)(end, begin + c * chunk_positions);
  }
  pool_args<float, Rows> part{};
  part.row_of = args.row_of;
  part.ranges = detail::offset_ranges<index_t>{offsets.data(), -1, -1};
  part.weights = args.weights;
  part.table_rows = args.table_rows;
  part.width = args.width;
  part.parts = args.parts;
  part.end_position = args.end_position;
  part.tuning = args.tuning;
  part.max_norm = args.max_norm;
  part.filters = args.filters;
  part.out = folded.data();
  part.out_stride = args.width;
  part.divide = divide_by::one;
  // A chunk of absent ids only must not change a maximum.
  part.empty = Policy::folding == fold::maximum ? when_empty::identity : when_empty::zeros;
  part.stored = when_stored::overwrite;
  const double ns =
      ns_of_row(*ctx.tuning, args.table_rows, args.width * index_t{4}) * static_cast<double>(end - begin);
  const auto pool = pool_kernel<Element, Policy>(ctx.instruction_set, part);
  run_bulk(ctx, {chunks, 1, ns},
           [&](index_t first, index_t last, int) { pool(part, first, last, 0, false); });
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
  const pool_counts counts = counts_of_bag(args, bag);
  Out* const out = args.out + bag * args.out_stride;
  if (counts.used == 0 && args.empty == when_empty::keep) return 0;
  if (counts.used == 0 && args.empty == when_empty::default_row) {
    const index_t one_position[] = {0, 1};
    part.row_of = Rows::only(&args.default_row);
    part.ranges = detail::offset_ranges<index_t>{one_position, -1, -1};
    part.weights = nullptr;
    part.end_position = 1;
    pool(part, 0, 1, 0, false);
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

/// pool runs on several threads at once; plan and close on one. The resolution outlives the job.
template <class Resolution, class Out>
class pool_job {
  using pooling_type = typename Resolution::pooling_type;
  using element = typename Resolution::source_type::format_type::element;
  using policy = kernel_policy<pooling_type>;
  using args_type = pool_args<Out, typename Resolution::rows_type>;
  static constexpr bool is_concat = std::is_same_v<typename pooling_type::combiner, combiner::concat_t>;

 public:
  pool_job(const Resolution& rows, matrix_view<Out> out) : rows_(rows), out_(out) {}

  /// Checks what depends on the offsets of the batch.
  status open() const {
    if constexpr (is_concat) {
      return expect_size(out_.extent(0), rows_.positions(),
                         "lookup: out.extent(0) must be the number of ids N");
    }
    return {};
  }

  /// Bytes of scratch for bags of at most that many positions.
  [[nodiscard]] static index_t bytes_for(index_t longest, index_t width) noexcept {
    if (longest <= chunk_positions) return 0;
    const index_t chunks = long_bag_room::chunks_of(longest);
    return capped_sum(scratch_block::bytes_of<float>(capped_product(chunks, width)),
                      scratch_block::bytes_of<index_t>(chunks + 1));
  }
  /// Scratch that plan() takes.
  [[nodiscard]] index_t scratch_bytes() const noexcept {
    return is_copy() || out_.empty() ? 0
                                     : bytes_for(longest_bag(rows_.bags()), rows_.source().format().width());
  }

  void plan(const environment& given, scratch_block& scratch) {
    const auto& source = rows_.source();
    const auto& bags = rows_.bags();
    copies_ = is_copy();
    args_.row_of = rows_.rows();
    args_.ranges = bags.ranges();
    args_.weights = bags.weights();
    args_.table_rows = rows_.table_rows();
    args_.width = source.format().width();
    args_.parts = parts_of(source.format());
    args_.end_position = bags.end_position();
    args_.default_row = rows_.default_row();
    args_.out = out_.data_handle();
    args_.out_stride = out_.stride(0);
    args_.out_ahead = out_rows_ahead(*given.tuning);
    args_.divide = divisor_of<typename pooling_type::combiner>();
    args_.filters = policy::ids == ids_are::filtered;
    args_.sums = !is_concat && policy::folding == fold::add;
    args_.empty = empty_of<pooling_type>();
    args_.stored = stored_of<pooling_type>();
    args_.max_norm = max_norm_of(rows_.pooling());
    args_.tuning = given.tuning;
    with_isa_up_to_avx512(given.instruction_set, [&](auto region) {
      using kernels = decltype(lookup_kernels_of<element>(region, args_));
      fetch_ = &kernels::fetch;
      if (copies_) {
        run_ = &kernels::gather;
      } else if constexpr (policy::folding == fold::maximum) {
        run_ = &kernels::pool_maximum;
      } else {
        run_ = &kernels::pool;
      }
    });
    if (copies_ || out_.empty() || scratch.left() == 0) return;  // scratch is left for long bags only
    const index_t longest = longest_bag(bags);
    if (longest <= chunk_positions) return;
    const index_t chunks = long_bag_room::chunks_of(longest);
    room_ = {scratch.take<float>(capped_product(chunks, args_.width)), scratch.take<index_t>(chunks + 1)};
  }

  [[nodiscard]] index_t units() const noexcept {
    return out_.empty() ? 0 : copies_ ? rows_.positions() : rows_.bags().bags();
  }
  /// The time of all units, about.
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept { return rows_.ns_of_rows(tuning); }
  /// Units of a piece of work, which takes about `ns` in all. Nothing hides the first fetches of a piece: it
  /// has many rows, but each thread has some pieces.
  [[nodiscard]] index_t grain(const kernel_tuning& tuning, int threads, double ns) const noexcept {
    constexpr index_t rows = 1024, pieces_of_thread = 4;
    const index_t wanted = grain_for(tuning, units(), ns);
    if (wanted >= units() || threads < 2) return wanted;
    const index_t large = capped_product(units(), rows) / (std::max)(rows_.positions(), index_t{1});
    return (std::max)(wanted, (std::min)(large, units() / (pieces_of_thread * threads)));
  }
  /// Prefetches the first rows of the units from `begin` on.
  void fetch(index_t begin) const noexcept {
    fetch_(args_, copies_ ? rows_.bags().first_position() + begin : args_.ranges.begin(begin));
  }
  /// `fetches`: as if fetch(begin) were called before.
  DEEPREC_INLINE void pool(index_t begin, index_t end, bool fetches = false) noexcept {
    const index_t first = copies_ ? rows_.bags().first_position() : 0;
    const index_t used = run_(args_, first + begin, first + end, first, fetches);
    if constexpr (skips<pooling_type>) used_.fetch_add(used, std::memory_order_relaxed);
  }

  /// Whether close() has work; known after plan().
  [[nodiscard]] bool has_close() const noexcept {
    return !out_.empty() && (skips<pooling_type> || !room_.offsets.empty());
  }
  template <class Context>
  void close(const Context& ctx) {
    if (out_.empty()) return;
    if (!room_.offsets.empty()) {
      for (index_t bag = 0; bag < rows_.bags().bags(); ++bag) {
        if (args_.ranges.end(bag) - args_.ranges.begin(bag) > chunk_positions) {
          used_ += pool_long_bag<element, policy>(ctx, args_, bag, room_);
        }
      }
    }
    if (skips<pooling_type> && rows_.positions() != used_.load()) rows_.count_skipped();
  }

 private:
  // A mean or sqrtn of one weighted id is not a copy; any other pooling of one id is.
  [[nodiscard]] bool is_copy() const noexcept {
    return is_concat ||
           (rows_.is_one_hot() && (rows_.bags().weights() == nullptr ||
                                   divisor_of<typename pooling_type::combiner>() == divide_by::one));
  }
  // The hardware fetches lines that are written one after another, but not the columns of a wider matrix. A
  // matrix that the second-level cache holds is not fetched.
  [[nodiscard]] std::int32_t out_rows_ahead(const kernel_tuning& tuning) const noexcept {
    const index_t width = out_.extent(1);
    if (out_.stride(0) == width) [[likely]]
      return 0;
    constexpr index_t lines_ahead = 32, line = 64 / index_t{sizeof(Out)};
    const index_t span = capped_product(out_.extent(0), out_.stride(0));
    if (span <= tuning.own_cache_bytes / index_t{sizeof(Out)}) return 0;
    return static_cast<std::int32_t>((std::max)(index_t{1}, lines_ahead / ((width + line - 1) / line)));
  }

  const Resolution& rows_;
  matrix_view<Out> out_;
  args_type args_;  // set by plan()
  index_t (*run_)(const args_type&, index_t, index_t, index_t, bool) = nullptr;
  void (*fetch_)(const args_type&, index_t) = nullptr;
  long_bag_room room_;
  bool copies_ = false;
  std::atomic<index_t> used_{0};
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
