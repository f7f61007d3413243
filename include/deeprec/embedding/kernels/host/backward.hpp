// The gradients of a backward pass in the order of its groups: for each sorted index of a row's positions,
// the row of the gradient that is added, and its factor.
//
//   groups         0         1              2             row of a group; its sorted indices from starts[g]
//   sorted index   0    1    2    3    4    5
//   gradient       &g2  &g7  &g0  &g1  &g2  &g9           address of the gradient (D) of the position's bag
//   scale          w/d  w/d  ...                          its factor; none where all are 1
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/update_args.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The sizes that determine the scratch of a backward pass: positions of all its batches together, default
/// rows included; width of the rows; and number of workers that sum gradients of a row (0: they are summed
/// elsewhere).
struct backward_size {
  index_t positions = 0;
  index_t width = 0;
  index_t workers = 0;

  [[nodiscard]] index_t chunks() const noexcept {
    return positions > chunk_positions ? long_bag_room::chunks_of(positions) : 0;
  }
  /// Floats per worker; workers share no cache line.
  [[nodiscard]] index_t sum_floats() const noexcept { return capped_sum(capped_round_up(width, 16), 16); }
};

/// Gradients in the order of groups.
struct grouped_gradients {
  const std::byte* const* gradients;
  const float* scales;    // null: all are 1
  const index_t* starts;  // group g has [starts[g], starts[g + 1])
};

/// Arguments for pooling them; the caller sets out and its stride. positions: of all groups; bags: the number
/// of different gradients.
inline gradient_args gradients_of_groups(const grouped_gradients& of, index_t positions, index_t bags,
                                         index_t width, const kernel_tuning* tuning) noexcept {
  gradient_args args{};
  args.row_of = {of.gradients, 0};
  args.ranges = detail::offset_ranges<index_t>{of.starts, -1, -1};
  args.weights = of.scales;
  args.table_rows = bags;
  args.width = width;
  args.end_position = positions;
  args.tuning = tuning;
  args.divide = divide_by::one;
  args.empty = when_empty::zeros;
  args.stored = when_stored::overwrite;
  return args;
}

class backward_pass {
 public:
  /// Total bytes of a pass of that size.
  static index_t bytes_for(const backward_size& size) noexcept {
    const index_t n = size.positions;
    const index_t addresses = scratch_block::bytes_of<const std::byte*>(n);
    const index_t scales = scratch_block::bytes_of<float>(n);
    index_t bytes = 0;
    for (const index_t part :
         {addresses, addresses, scales, scales,
          scratch_block::bytes_of<float>(capped_product(size.workers, size.sum_floats())),
          scratch_block::bytes_of<float>(capped_product(size.chunks(), size.width)),
          scratch_block::bytes_of<index_t>(size.chunks() + 1)}) {
      bytes = capped_sum(bytes, part);
    }
    return bytes;
  }

  /// Takes bytes_for(size) of the block, which outlives the pass.
  backward_pass(scratch_block& block, const backward_size& size) : block_(block), size_(size) {
    gradient_of_ = block_.take<const std::byte*>(size_.positions);
    sums_ = block_.take<float>(size_.workers * size_.sum_floats());
    long_bags_ = {block_.take<float>(size_.chunks() * size_.width), block_.take<index_t>(size_.chunks() + 1)};
  }

  /// Adds the gradient (B,D) of the lookup of a batch; batches in the order in which they were grouped.
  template <class Context, class Resolution>
  void add(const Context& ctx, const Resolution& rows, matrix_view<const float> gradient) {
    using pooling_type = typename Resolution::pooling_type;
    constexpr divide_by divide = divisor_of<typename pooling_type::combiner>();
    const auto& bags = rows.bags();
    const float* const weights = bags.weights();
    const bool scaled = is_scaled(rows);
    if (scaled) take_scales();
    const index_t positions = rows.positions();
    const index_t first = bags.first_position();
    const auto ranges = bags.ranges();
    const auto row_at = rows.rows();
    const std::byte** const gradient_of = gradient_of_.data() + numbered_;
    float* const scale_of = scaled ? scale_of_.data() + numbered_ : nullptr;
    numbered_ += positions + (fills<pooling_type> ? bags.bags() : 0);
    bags_ += bags.bags();
    const double ns = 2.0 * static_cast<double>(positions + bags.bags());
    run_bulk(ctx, {bags.bags(), grain_for(*ctx.tuning, bags.bags(), ns), ns},
             [&](index_t begin, index_t end, int) {
               for (index_t b = begin; b < end; ++b) {
                 const index_t from = ranges.begin(b);
                 const index_t to = ranges.end(b);
                 const auto* const row =
                     static_cast<const std::byte*>(static_cast<const void*>(gradient.row(b)));
                 for (index_t k = from; k < to; ++k) gradient_of[k - first] = row;
                 if constexpr (fills<pooling_type>) gradient_of[positions + b] = row;
                 if constexpr (divide != divide_by::one) {
                   const float scale = scale_of_bag(rows, row_at, b);
                   for (index_t k = from; k < to; ++k) {
                     scale_of[k - first] = (weights == nullptr ? 1.0F : weights[k]) * scale;
                   }
                 } else if (scaled) {
                   for (index_t k = from; k < to; ++k) scale_of[k - first] = weights[k];
                 }
               }
             });
  }

  /// Where a caller writes the gradients of positions that it numbers itself, and their factors.
  struct numbered_lists {
    const std::byte** gradient_of;
    float* scale_of;  // null: all are 1
  };
  /// Behind those added before; `rows`: their batch.
  template <class Resolution>
  numbered_lists begin_numbered(const Resolution& rows) {
    if (is_scaled(rows)) take_scales();
    bags_ += rows.bags().bags();
    return {gradient_of_.data() + numbered_, is_scaled(rows) ? scale_of_.data() + numbered_ : nullptr};
  }
  void end_numbered(index_t positions) noexcept { numbered_ += positions; }

  /// The factor of all gradients of a bag that come without weights. row_at: rows.rows().
  template <class Resolution>
  static float scale_of_bag(const Resolution& rows, const typename Resolution::rows_type& row_at,
                            index_t bag) {
    constexpr divide_by divide = divisor_of<typename Resolution::pooling_type::combiner>();
    if constexpr (divide == divide_by::one) return 1.0F;
    const float* const weights = rows.bags().weights();
    const auto ranges = rows.bags().ranges();
    pool_counts counts;
    for (index_t k = ranges.begin(bag), end = ranges.end(bag); k < end; ++k) {
      if (row_at.absent(k)) continue;
      counts.add(weights == nullptr ? 1.0 : static_cast<double>(weights[k]));
    }
    const double divisor = counts.divisor(divide);
    return divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
  }

  /// Puts the gradients into the order of the groups.
  template <class Context>
  void arrange(const Context& ctx, const row_groups& groups) {
    groups_ = &groups;
    tuning_ = ctx.tuning;
    const bool scaled = !scale_of_.empty();
    gradients_ = block_.take<const std::byte*>(groups.size());
    if (scaled) scales_ = block_.take<float>(groups.size());
    run_bulk(ctx, {groups.size(), index_t{1} << 14, 1.0 * static_cast<double>(groups.size())},
             [&](index_t begin, index_t end, int) {
               for (index_t i = begin; i < end; ++i) {
                 const auto position = static_cast<std::size_t>(groups.position(i));
                 gradients_[static_cast<std::size_t>(i)] = gradient_of_[position];
                 if (scaled) scales_[static_cast<std::size_t>(i)] = scale_of_[position];
               }
             });
  }

  /// The memory in which a worker sums a gradient.
  [[nodiscard]] float* sums_of(index_t worker) const noexcept {
    return sums_.data() + worker * size_.sum_floats();
  }
  /// The address of the gradient of each sorted index.
  [[nodiscard]] const std::byte* const* gradients() const noexcept { return gradients_.data(); }
  /// For pool_long_bag.
  [[nodiscard]] const long_bag_room& long_bags() const noexcept { return long_bags_; }

  /// Arguments for pooling the gradients of the groups; the caller sets out.
  [[nodiscard]] gradient_args pooled() const noexcept {
    gradient_args args = gradients_of_groups(
        {gradients_.data(), scales_.empty() ? nullptr : scales_.data(), groups_->starts()}, groups_->size(),
        bags_, size_.width, tuning_);
    args.out_stride = size_.width;
    return args;
  }

  /// Whether the gradients of a batch have factors.
  template <class Resolution>
  static bool is_scaled(const Resolution& rows) noexcept {
    return divisor_of<typename Resolution::pooling_type::combiner>() != divide_by::one ||
           rows.bags().weights() != nullptr;
  }

 private:
  void take_scales() {
    if (!scale_of_.empty()) return;
    scale_of_ = block_.take<float>(size_.positions);
    std::fill(scale_of_.begin(), scale_of_.end(), 1.0F);
  }

  scratch_block& block_;
  backward_size size_;
  const row_groups* groups_ = nullptr;
  const kernel_tuning* tuning_ = nullptr;
  std::span<const std::byte*> gradient_of_;  // of a position
  std::span<float> scale_of_;                // empty: all are 1
  std::span<const std::byte*> gradients_;    // of a sorted index
  std::span<float> scales_;
  std::span<float> sums_;
  long_bag_room long_bags_;
  index_t numbered_ = 0;
  index_t bags_ = 0;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
