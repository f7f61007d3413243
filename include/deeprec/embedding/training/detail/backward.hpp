// Plan of the backward pass of one table: the rows that its batches used, and the rows of their gradients
// that are added for each of them.
//
//   groups         0         1              2             row of a group; its sorted indices from starts[g]
//   sorted index   0    1    2    3    4    5
//   gradient       &g2  &g7  &g0  &g1  &g2  &g9           address of the gradient (D) of the position's bag
//   scale          w/d  w/d  ...                          its factor; none where all are 1
//
// The plan of a table that several features share has the positions of all their batches: one sum per row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/lookup_job.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/training/detail/row_groups.hpp>
#include <deeprec/embedding/training/detail/update_args.hpp>
#include <deeprec/memory/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Checks a batch as lookup does, and that a position and a row of the table fit one key.
template <class Context, class Bags, class Pooling>
status check_backward(const Context& ctx, const Bags& bags, index_t rows, const Pooling& pooling) {
  if (const status s = bags.validate(); !s) return s;
  if (const status s = check_default_row(pooling, rows); !s) return s;
  if constexpr (std::is_same_v<typename Pooling::bounds_mode, bounds::check_t>) {
    if (const status s = check_positions(ctx, bags, rows, pooling); !s) return s;
  }
  if (!row_groups::fits(bags.end_position() - bags.first_position() + bags.bags(), rows)) {
    return {errc::unsupported, "update: bits of a row and bits of a sorted_index must fit 64 together"};
  }
  return {};
}

/// The sizes that determine the scratch of a backward pass: positions and bags of all its batches together,
/// width of the rows, and number of workers that sum gradients of a row (0: they are summed elsewhere).
struct backward_size {
  index_t positions = 0;
  index_t bags = 0;
  index_t width = 0;
  index_t workers = 0;

  [[nodiscard]] index_t numbered() const noexcept { return capped_sum(positions, bags); }
  [[nodiscard]] index_t chunks() const noexcept {
    return numbered() > chunk_positions ? long_bag_room::chunks_of(numbered()) : 0;
  }
  /// Floats per worker; workers share no cache line.
  [[nodiscard]] index_t sum_floats() const noexcept { return capped_sum(capped_round_up(width, 16), 16); }
};

class backward_plan {
 public:
  /// Allocates one block of `memory`, for the pass and its steps together: a heap maps and unmaps large
  /// blocks page by page.
  backward_plan(std::pmr::memory_resource* memory, const backward_size& size)
      : block_(memory, bytes_for(size)), size_(size) {
    take();
  }
  /// Uses bytes_for(size) bytes that the caller owns.
  backward_plan(std::byte* place, const backward_size& size) : block_(place, bytes_for(size)), size_(size) {
    take();
  }

  /// Total bytes of a plan of that size.
  static index_t bytes_for(const backward_size& size) noexcept {
    const index_t n = size.numbered();
    const index_t addresses = scratch_block::bytes_of<const std::byte*>(n);
    const index_t scales = scratch_block::bytes_of<float>(n);
    index_t bytes = row_groups::bytes_for(n);
    for (const index_t part :
         {addresses, addresses, scales, scales,
          scratch_block::bytes_of<float>(capped_product(size.workers, size.sum_floats())),
          scratch_block::bytes_of<float>(capped_product(size.chunks(), size.width)),
          scratch_block::bytes_of<index_t>(size.chunks() + 1)}) {
      bytes = capped_sum(bytes, part);
    }
    return bytes;
  }

  /// Adds the positions of a batch that was checked, with the gradient (B,D) of its lookup.
  template <class Context, class Bags, class Pooling>
  void add(const Context& ctx, const Bags& bags, matrix_view<const float> gradient, index_t rows,
           const Pooling& pooling) {
    const index_t positions = bags.end_position() - bags.first_position();
    const index_t first = bags.first_position();
    const index_t number = numbered_;
    const index_t numbered = positions + (fills<Pooling> ? bags.bags() : 0);
    numbered_ += numbered;
    const bool scaled =
        divisor_of<typename Pooling::combiner>() != divide_by::one || bags.weights() != nullptr;
    if (scaled && scale_of_.empty()) {
      scale_of_ = block_.take<float>(static_cast<index_t>(gradient_of_.size()));
      std::fill(scale_of_.begin(), scale_of_.end(), 1.0F);
    }
    place_bags(ctx, bags, gradient, rows, pooling, number, scaled);
    const auto absent = absence(bags, rows, pooling);
    groups_.add(ctx, number, numbered, [&](index_t k) {
      if constexpr (fills<Pooling>) {
        if (k >= positions) {
          return gradient_of_[static_cast<std::size_t>(number + k)] == nullptr
                     ? index_t{-1}
                     : static_cast<index_t>(pooling.template get<empty_bag::default_row>().id);
        }
      }
      return absent(first + k) ? index_t{-1} : static_cast<index_t>(bags.ids()[first + k]);
    });
  }

  /// Groups the added positions by rows in [0, rows).
  template <class Context>
  void group(const Context& ctx, index_t rows) {
    groups_.group(ctx, rows);
    const bool scaled = !scale_of_.empty();
    gradients_ = block_.take<const std::byte*>(groups_.size());
    if (scaled) scales_ = block_.take<float>(groups_.size());
    ctx.executor->parallel_for(groups_.size(), index_t{1} << 14, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        const auto position = static_cast<std::size_t>(groups_.position(i));
        gradients_[static_cast<std::size_t>(i)] = gradient_of_[position];
        if (scaled) scales_[static_cast<std::size_t>(i)] = scale_of_[position];
      }
    });
  }

  [[nodiscard]] const row_groups& groups() const noexcept { return groups_; }
  /// The memory in which a worker sums a gradient.
  [[nodiscard]] float* sums_of(index_t worker) const noexcept {
    return sums_.data() + worker * size_.sum_floats();
  }
  /// For pool_long_bag.
  [[nodiscard]] const long_bag_room& long_bags() const noexcept { return long_bags_; }

  /// Arguments for pooling the gradients of the groups; the caller sets out.
  [[nodiscard]] gradient_args pooled(index_t width) const noexcept {
    gradient_args args{};
    args.row_of = {gradients_.data(), 0};
    args.ranges = detail::offset_ranges<index_t>{groups_.starts(), -1, -1};
    args.weights = scales_.empty() ? nullptr : scales_.data();
    args.rows = size_.bags;
    args.padding = -1;
    args.width = width;
    args.end_position = groups_.size();
    args.out_stride = width;
    args.divide = divide_by::one;
    args.empty = when_empty::zeros;
    args.stored = when_stored::overwrite;
    return args;
  }

 private:
  void take() {
    groups_.reserve(size_.numbered());
    gradient_of_ = block_.take<const std::byte*>(size_.numbered());
    sums_ = block_.take<float>(size_.workers * size_.sum_floats());
    long_bags_ = {block_.take<float>(size_.chunks() * size_.width), block_.take<index_t>(size_.chunks() + 1)};
  }

  // Whether the id at a position counts as absent.
  template <class Bags, class Pooling>
  static auto absence(const Bags& bags, index_t rows, const Pooling& pooling) {
    const float* const positive = prunes_weights<Pooling> ? bags.weights() : nullptr;
    return [ids = bags.ids(), rows, padding = padding_of(pooling), positive](index_t k) {
      return is_absent(ids[k], rows, padding) || (positive != nullptr && !(positive[k] > 0.0F));
    };
  }

  // Writes gradient and factor of every position, from `number` on. Where empty bags become the default row,
  // one more gradient per bag follows: null when the bag is not empty.
  template <class Context, class Bags, class Pooling>
  void place_bags(const Context& ctx, const Bags& bags, matrix_view<const float> gradient, index_t rows,
                  const Pooling& pooling, index_t number, bool scaled) {
    constexpr divide_by divide = divisor_of<typename Pooling::combiner>();
    const index_t first = bags.first_position();
    const index_t positions = bags.end_position() - first;
    const auto ranges = bags.ranges();
    const auto absent = absence(bags, rows, pooling);
    constexpr bool counted = divide != divide_by::one || fills<Pooling>;
    const float* const weights = bags.weights();
    const std::byte** const gradient_of = gradient_of_.data() + number;
    float* const scale_of = scaled ? scale_of_.data() + number : nullptr;
    const index_t grain = std::clamp<index_t>(
        positions > 0 ? bags.bags() * chunk_positions / positions : bags.bags(), 1, chunk_positions);
    ctx.executor->parallel_for(bags.bags(), grain, [&](index_t begin, index_t end, int) {
      for (index_t b = begin; b < end; ++b) {
        const index_t from = ranges.begin(b);
        const index_t to = ranges.end(b);
        const auto* const row = static_cast<const std::byte*>(static_cast<const void*>(gradient.row(b)));
        for (index_t k = from; k < to; ++k) gradient_of[k - first] = row;
        if constexpr (counted) {
          pool_counts counts;
          for (index_t k = from; k < to; ++k) {
            if (!absent(k)) counts.add(weights == nullptr ? 1.0 : static_cast<double>(weights[k]));
          }
          if constexpr (fills<Pooling>) gradient_of[positions + b] = counts.used == 0 ? row : nullptr;
          const double divisor = counts.divisor(divide);
          const float scale = divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
          if (scaled) {
            for (index_t k = from; k < to; ++k) {
              scale_of[k - first] = (weights == nullptr ? 1.0F : weights[k]) * scale;
            }
          }
        } else if (scaled) {
          for (index_t k = from; k < to; ++k) scale_of[k - first] = weights[k];
        }
      }
    });
  }

  scratch_block block_;
  backward_size size_;
  row_groups groups_{block_};
  std::span<const std::byte*> gradient_of_;  // of a position
  std::span<float> scale_of_;                // empty: all are 1
  std::span<const std::byte*> gradients_;    // of a sorted index
  std::span<float> scales_;
  std::span<float> sums_;
  long_bag_room long_bags_;
  index_t numbered_ = 0;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
