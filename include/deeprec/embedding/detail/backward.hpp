// The backward pass of a batch, planned: which rows it used, and which rows of the gradient each of them adds.
//
//   groups        0         1              2             row of a group; its positions begin at starts[g]
//   position      0    1    2    3    4    5
//   bag           2    7    0    1    2    9             row of the gradient (B,D)
//   scale         w/d  w/d  ...                          its factor; none where all are 1
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/detail/lookup_job.hpp>
#include <deeprec/embedding/detail/row_groups.hpp>
#include <deeprec/embedding/detail/update_args.hpp>
#include <deeprec/embedding/pooling.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {
inline namespace DEEPREC_UNIT {

class backward_plan {
 public:
  explicit backward_plan(std::pmr::memory_resource* memory)
      : groups_(memory), bag_of_(memory), bag_scale_(memory), bags_(memory), scales_(memory) {}

  /// Checks the batch as lookup does, and plans. Nothing is written but the plan, and the number of skipped
  /// ids where that is asked for.
  template <class Context, class Bags, class Pooling>
  status build(const Context& ctx, const Bags& bags, index_t rows, const Pooling& how) {
    if (const status s = bags.validate(); !s) return s;
    if constexpr (fills<Pooling>) {
      const std::int64_t id = how.template get<default_row>().id;
      if (is_bad_id(id, rows)) return {errc::id_out_of_range, "the default row", {.value = id}};
    }
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, check_t>) {
      if (const status s = check_slots(ctx, bags, rows, how); !s) return s;
    }
    const index_t slots = bags.last_slot() - bags.first_slot();
    const index_t numbered = slots + (fills<Pooling> ? bags.bags() : 0);
    if (!row_groups::fits(numbered, rows) || bags.bags() > (std::numeric_limits<std::uint32_t>::max)()) {
      return {errc::unsupported, "more rows times slots than a backward pass can number"};
    }
    count_bags(ctx, bags, rows, how);
    const index_t first = bags.first_slot();
    const auto absent = absence(bags, rows, how);
    groups_.build(ctx, numbered, rows, [&](index_t k) {
      if constexpr (fills<Pooling>) {
        if (k >= slots) {
          return bag_scale_[static_cast<std::size_t>(k - slots)] < 0 ? how.template get<default_row>().id : -1;
        }
      }
      return absent(first + k) ? index_t{-1} : static_cast<index_t>(bags.ids()[first + k]);
    });
    place_slots(ctx, bags, slots, divisor_of<typename Pooling::combiner>() != divide_by::one);
    if constexpr (skips<Pooling>) {
      index_t* const counter = how.template get<skip_t>().skipped;
      for (index_t k = first; counter != nullptr && k < first + slots; ++k) {
        *counter += is_stray_id<Pooling>(bags.ids()[k], rows, padding_of(how)) ? 1 : 0;
      }
    }
    return {};
  }

  [[nodiscard]] const row_groups& groups() const noexcept { return groups_; }

  /// What pools the gradients of the groups; out is still to be said.
  [[nodiscard]] gradient_args pooled(matrix_view<const float> gradient) const noexcept {
    gradient_args args{};
    args.row_of = {static_cast<const std::byte*>(static_cast<const void*>(gradient.data_handle())),
                   gradient.stride(0) * index_t{sizeof(float)}, bags_.data()};
    args.ids = bags_.data();
    args.borders = offset_borders<index_t>{groups_.starts(), -1, -1};
    args.weights = scales_.empty() ? nullptr : scales_.data();
    args.rows = gradient.extent(0);
    args.padding = -1;
    args.width = gradient.extent(1);
    args.last_slot = groups_.size();
    args.out_stride = args.width;
    args.divide = divide_by::one;
    args.empty = when_empty::zeros;
    args.stored = when_stored::overwrite;
    return args;
  }

 private:
  template <class Pooling>
  static constexpr bool fills = std::is_same_v<typename Pooling::empty_mode, default_row>;

  // Whether a slot counts as absent.
  template <class Bags, class Pooling>
  static auto absence(const Bags& bags, index_t rows, const Pooling& how) {
    const float* const positive = prunes_weights<Pooling> ? bags.weights() : nullptr;
    return [ids = bags.ids(), rows, padding = padding_of(how), positive](index_t k) {
      return is_absent(ids[k], rows, padding) || (positive != nullptr && !(positive[k] > 0.0F));
    };
  }

  // The bag of every slot, and the factor of every bag; -1 for one that became the default row.
  template <class Context, class Bags, class Pooling>
  void count_bags(const Context& ctx, const Bags& bags, index_t rows, const Pooling& how) {
    constexpr divide_by divide = divisor_of<typename Pooling::combiner>();
    const index_t first = bags.first_slot();
    const index_t slots = bags.last_slot() - first;
    bag_of_.resize(static_cast<std::size_t>(slots));
    bag_scale_.resize(static_cast<std::size_t>(bags.bags()));
    const auto borders = bags.borders();
    const auto absent = absence(bags, rows, how);
    constexpr bool counted = divide != divide_by::one || fills<Pooling>;
    const index_t grain = std::clamp<index_t>(
        slots > 0 ? bags.bags() * chunk_slots / slots : bags.bags(), 1, chunk_slots);
    ctx.executor->parallel_for(bags.bags(), grain, [&](index_t begin, index_t end, int) {
      for (index_t b = begin; b < end; ++b) {
        const index_t from = borders.begin(b);
        const index_t to = borders.end(b);
        for (index_t k = from; k < to; ++k) {
          bag_of_[static_cast<std::size_t>(k - first)] = static_cast<std::uint32_t>(b);
        }
        float scale = 1;
        if constexpr (counted) {
          pool_counts counts;
          for (index_t k = from; k < to; ++k) {
            if (!absent(k)) counts.add(bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]));
          }
          const double divisor = counts.divisor(divide);
          scale = divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
          if (fills<Pooling> && counts.used == 0) scale = -1;
        }
        bag_scale_[static_cast<std::size_t>(b)] = scale;
      }
    });
  }

  // Bags and factors in the order of the groups.
  template <class Context, class Bags>
  void place_slots(const Context& ctx, const Bags& bags, index_t slots, bool divides) {
    const float* const weights = bags.weights();
    const index_t first = bags.first_slot();
    const bool scaled = divides || weights != nullptr;
    bags_.resize(static_cast<std::size_t>(groups_.size()));
    scales_.resize(scaled ? bags_.size() : 0);
    ctx.executor->parallel_for(groups_.size(), index_t{1} << 14, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        const index_t k = groups_.slot(i);
        const auto at = static_cast<std::size_t>(i);
        const bool filled = k >= slots;
        const std::uint32_t bag =
            filled ? static_cast<std::uint32_t>(k - slots) : bag_of_[static_cast<std::size_t>(k)];
        bags_[at] = bag;
        if (!scaled) continue;
        const float weight = weights == nullptr || filled ? 1.0F : weights[first + k];
        scales_[at] = filled ? 1.0F : weight * bag_scale_[bag];
      }
    });
  }

  row_groups groups_;
  std::pmr::vector<std::uint32_t> bag_of_;  // of a slot
  std::pmr::vector<float> bag_scale_;       // of a bag
  std::pmr::vector<std::uint32_t> bags_;    // of a position
  std::pmr::vector<float> scales_;
};

}  // namespace DEEPREC_UNIT
}  // namespace deeprec::inline DEEPREC_ABI::detail
