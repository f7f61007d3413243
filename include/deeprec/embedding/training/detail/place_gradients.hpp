// row_gradients of a batch over slots, after its checks: how often each slot comes is known, so that the
// gradients of its positions are put where they belong instead of sorted.
//
//   ids         1 0 1 2        counts 1 2 1        ends of slots   0 1 3, then 1 3 4 when all are placed
//   gradients   g1 | g0 g2 | g3                    of slot 0, 1, 2: in the order of their positions
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The first slot whose count is not the number of its positions. `found` has room for all slots.
template <class Resolution, class Count>
status check_counts(const Resolution& rows, array_view<const Count> counts, index_t* found) {
  const auto* const ids = rows.bags().ids() + rows.bags().first_position();
  std::fill_n(found, static_cast<std::size_t>(counts.size()), index_t{0});
  for (index_t k = 0; k < rows.positions(); ++k) {
    const auto slot = id_number(ids[k]);
    if (!is_bad_id(slot, counts.size())) ++found[static_cast<index_t>(slot)];
  }
  for (index_t slot = 0; slot < counts.size(); ++slot) {
    if (std::cmp_equal(counts[slot], found[slot])) continue;
    return {errc::invalid_value,
            "row_gradients: counts must be how often each slot comes",
            {.row = slot, .is = static_cast<index_t>(counts[slot]), .must_be = found[slot]}};
  }
  return {};
}

/// The gradients of a batch in the order of its slots.
class placed_gradients {
 public:
  struct size {
    index_t positions = 0;  // default rows included
    index_t slots = 0;
    index_t width = 0;

    [[nodiscard]] index_t chunks() const noexcept {
      return positions > chunk_positions ? long_bag_room::chunks_of(positions) : 0;
    }
    [[nodiscard]] index_t bytes() const noexcept {
      const index_t numbers = scratch_block::bytes_of<index_t>(capped_sum(slots, 1));
      index_t bytes = 0;
      for (const index_t part :
           {scratch_block::bytes_of<const std::byte*>(positions), scratch_block::bytes_of<float>(positions),
            numbers, numbers, scratch_block::bytes_of<float>(capped_product(chunks(), width)),
            scratch_block::bytes_of<index_t>(chunks() + 1)}) {
        bytes = capped_sum(bytes, part);
      }
      return bytes;
    }
  };

  /// Takes of.bytes() of the block.
  placed_gradients(scratch_block& block, const size& of) : size_(of) {
    gradients_ = block.take<const std::byte*>(of.positions).data();
    scales_ = block.take<float>(of.positions).data();
    starts_ = block.take<index_t>(of.slots + 1).data();
    found_ = block.take<index_t>(of.slots + 1).data();
    long_bags_ = {block.take<float>(of.chunks() * of.width), block.take<index_t>(of.chunks() + 1)};
  }

  /// Places the gradient (B,D) of a resolved batch; a fault where the counts are not those of its slots.
  template <class Resolution, class Count>
  status place(const Resolution& rows, array_view<const Count> counts, matrix_view<const float> gradient) {
    scaled_ = backward_pass::is_scaled(rows);
    bags_ = rows.bags().bags();
    if constexpr (uses_all<Resolution>) {
      if (!start_at(counts, rows.positions()) || !place_bags(rows, gradient) || !is_placed(counts))
        return check_counts(rows, counts, found_);
    } else {
      if (const status s = check_counts(rows, counts, found_); !s) return s;
      start_at_used(rows);
      place_bags(rows, gradient);
      if constexpr (fills<typename Resolution::pooling_type>) place_filled(rows, gradient);
    }
    return {};
  }

  /// Sums into matrices (U_i,D), which have the slots one after the other.
  template <class Context>
  void sum(const Context& ctx, std::span<const matrix_view<float>> outs) const {
    const double ns = ns_of_row(*ctx.tuning, bags_, size_.width * index_t{sizeof(float)}) *
                      static_cast<double>(starts_[size_.slots]);
    run_bulk(ctx, {size_.slots, 256, ns}, [&](index_t begin, index_t end, int) {
      with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
        index_t first = 0;
        for (const matrix_view<float>& out : outs) {
          const index_t from = (std::max)(begin, first), to = (std::min)(end, first + out.extent(0));
          if (from < to)
            pool_bags<float>(region, gradient_policy{}, args_of(ctx, first, out), from - first, to - first);
          first += out.extent(0);
        }
      });
    });
    if (starts_[size_.slots] <= chunk_positions) return;
    index_t first = 0;
    for (const matrix_view<float>& out : outs) {
      for (index_t slot = first; slot < first + out.extent(0); ++slot) {
        if (starts_[slot + 1] - starts_[slot] <= chunk_positions) continue;
        pool_long_bag<float, gradient_policy>(ctx, args_of(ctx, first, out), slot - first, long_bags_);
      }
      first += out.extent(0);
    }
  }

 private:
  // Of the slots from the first one of a matrix.
  template <class Context>
  [[nodiscard]] gradient_args args_of(const Context& ctx, index_t first,
                                      const matrix_view<float>& out) const {
    gradient_args args = gradients_of_groups(
        {.gradients = gradients_, .scales = scaled_ ? scales_ : nullptr, .starts = starts_ + first},
        starts_[size_.slots], bags_, size_.width, ctx.tuning);
    args.out = out.data_handle();
    args.out_stride = out.stride(0);
    return args;
  }
  // starts_[s + 1] is where the next position of slot s goes; after the last it is where slot s + 1 starts.
  template <class Count>
  bool start_at(array_view<const Count> counts, index_t positions) {
    index_t next = 0;
    starts_[0] = 0;
    for (index_t s = 0; s < size_.slots; ++s) {
      starts_[s + 1] = next;
      if (std::cmp_less(counts[s], 0) || std::cmp_greater(counts[s], positions - next)) return false;
      next += static_cast<index_t>(counts[s]);
    }
    end_ = next;
    return next == positions;
  }
  template <class Count>
  [[nodiscard]] bool is_placed(array_view<const Count> counts) const {
    index_t next = 0;
    bool placed = true;
    for (index_t s = 0; s < size_.slots; ++s) {
      next += static_cast<index_t>(counts[s]);
      placed = placed && starts_[s + 1] == next;
    }
    return placed;
  }
  template <class Resolution>
  void start_at_used(const Resolution& rows) {
    const auto row_at = rows.rows();
    const index_t first = rows.bags().first_position();
    std::fill_n(found_, static_cast<std::size_t>(size_.slots), index_t{0});
    for (index_t k = first; k < first + rows.positions(); ++k) {
      if (is_used_position(rows, row_at, k)) ++found_[rows.number(k)];
    }
    if constexpr (fills<typename Resolution::pooling_type>) {
      for (index_t b = 0; b < bags_; ++b) {
        if (is_filled_bag(rows, row_at, b)) ++found_[default_number(rows)];
      }
    }
    starts_[0] = end_ = 0;
    for (index_t s = 0; s < size_.slots; ++s) {
      starts_[s + 1] = end_;
      end_ += found_[s];
    }
  }

  // Copied into loops: a compiler must assume that a store changes a member.
  struct places {
    index_t* next;  // of slot s at s + 1
    const std::byte** gradients;
    float* scales;
    index_t end;

    DEEPREC_INLINE bool put(index_t slot, const std::byte* gradient, float scale) const noexcept {
      const index_t to = next[slot + 1]++;
      if (to >= end) [[unlikely]]
        return false;
      gradients[to] = gradient;
      if (scales != nullptr) scales[to] = scale;
      return true;
    }
  };
  [[nodiscard]] places all_places() const noexcept {
    return {starts_, gradients_, scaled_ ? scales_ : nullptr, end_};
  }
  static const std::byte* bytes_of(const matrix_view<const float>& gradient, index_t bag) noexcept {
    return static_cast<const std::byte*>(static_cast<const void*>(gradient.row(bag)));
  }

  // False where a position has no place.
  template <class Resolution>
  bool place_bags(const Resolution& rows, const matrix_view<const float>& gradient) const noexcept {
    constexpr divide_by divide = divisor_of<typename Resolution::pooling_type::combiner>();
    const places to = all_places();
    const auto row_at = rows.rows();
    const auto ranges = rows.bags().ranges();
    const auto* const ids = rows.bags().ids();
    const float* const weights = rows.bags().weights();
    if constexpr (uses_all<Resolution> && divide == divide_by::one) {
      if (rows.is_one_hot() && weights == nullptr) {
        for (index_t b = 0, bags = bags_, first = rows.bags().first_position(); b < bags; ++b) {
          if (!to.put(static_cast<index_t>(id_number(ids[first + b])), bytes_of(gradient, b), 1.0F))
              [[unlikely]]
            return false;
        }
        return true;
      }
    }
    for (index_t b = 0, bags = bags_; b < bags; ++b) {
      const std::byte* const row = bytes_of(gradient, b);
      [[maybe_unused]] const float scale = backward_pass::scale_of_bag(rows, row_at, b);
      for (index_t k = ranges.begin(b), end = ranges.end(b); k < end; ++k) {
        if constexpr (!uses_all<Resolution>) {
          if (!is_used_position(rows, row_at, k)) continue;
        }
        float factor = weights == nullptr ? 1.0F : weights[k];
        if constexpr (divide != divide_by::one) factor *= scale;
        if (!to.put(static_cast<index_t>(id_number(ids[k])), row, factor)) [[unlikely]]
          return false;
      }
    }
    return true;
  }
  // A bag that became the default row is a position of it, behind all others.
  template <class Resolution>
  void place_filled(const Resolution& rows, const matrix_view<const float>& gradient) const noexcept {
    const places to = all_places();
    const auto row_at = rows.rows();
    for (index_t b = 0; b < bags_; ++b) {
      if (is_filled_bag(rows, row_at, b)) to.put(default_number(rows), bytes_of(gradient, b), 1.0F);
    }
  }

  size size_;
  const std::byte** gradients_ = nullptr;
  float* scales_ = nullptr;
  index_t* starts_ = nullptr;
  index_t* found_ = nullptr;
  long_bag_room long_bags_;
  index_t end_ = 0;
  index_t bags_ = 0;
  bool scaled_ = false;
};

/// Whether a matrix shares a byte with an array of the inputs.
template <class... Inputs>
bool matrix_shares_bytes(const matrix_view<float>& out, const Inputs&... inputs) noexcept {
  return any_array(out, [&](const byte_range& written) {
    const auto hits = [&](const byte_range& read) { return overlap(read, written); };
    return (any_array(inputs, hits) || ...);
  });
}

/// The body of row_gradients over slots.
template <class Context, class Rows, class Count>
DEEPREC_PER_UNIT status place_gradients(const Context& ctx, const Rows& given, array_view<const Count> counts,
                                        matrix_view<const float> gradient,
                                        std::span<const matrix_view<float>> outs) {
  const placed_gradients::size size{.positions = grouped_positions(given.bags(), given.pooling()),
                                    .slots = counts.size(),
                                    .width = gradient.extent(1)};
  scratch_block block(ctx.memory, size.bytes());
  auto rows = given.resolution();
  if (const status s = resolve_in(ctx, rows, block); !s) return s;
  for (const matrix_view<float>& out : outs) {
    if (matrix_shares_bytes(out, given.bags(), gradient, counts))
      return {errc::unsupported, "row_gradients: out must share no memory with the inputs"};
  }
  placed_gradients placed(block, size);
  if (const status s = placed.place(rows, counts, gradient); !s) return s;
  rows.count_skipped();
  if (size.slots > 0 && size.width > 0) placed.sum(ctx, outs);
  return {};
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
