// The blocks of a slab_resource in its granules: which are free, and in which order they are taken.
//
//   granule   | runs | block | block | ...
//   run       64 KB: the blocks that begin in it. First those that were never taken, in the order of
//             addresses; then those that were freed, linked; from the begin again once all are free
//
// A free block begins with the place of the next one, so nothing lies beside it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/granules.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads next_of, all and prefetch: thread-safe; the rest: exclusive
class slab_runs {
 public:
  /// A place in a granule, in bytes; 0: none.
  using link = std::uint32_t;
  static constexpr index_t least_stride = sizeof(link);

  slab_runs(index_t stride, index_t granule_bytes, bool has_marks, std::pmr::memory_resource* memory)
      : granules_(stride, granule_bytes, head_for(stride, granule_bytes, has_marks), memory),
        run_bits_(run_bits_for(stride, granule_bytes)) {}

  /// The head of a granule: its runs, and a byte for each block where these are marked.
  static granules::head head_for(index_t stride, index_t granule_bytes, bool has_marks) noexcept {
    const index_t runs = granule_bytes >> run_bits_for(stride, granule_bytes);
    return {.bytes = runs * index_t{sizeof(run)}, .of_place = has_marks ? 1 : 0};
  }
  [[nodiscard]] const granules& all() const noexcept { return granules_; }

  /// Blocks that were taken from the list of one run.
  struct chain {
    std::byte* granule = nullptr;
    link first = 0;
    std::uint32_t blocks = 0;
  };
  /// Takes all freed blocks of a run; or up to blocks.size() that were never taken, the first one last.
  /// Returns how many of these. `added(granule)` is called for a new granule; throws std::bad_alloc where it
  /// is refused.
  template <class Added>
  std::size_t take(std::span<std::byte*> blocks, chain& freed, const Added& added) {
    run& of = with_blocks(added);
    std::byte* const granule = granule_of(of);
    if (of.free != 0) {
      freed = {granule, std::exchange(of.free, 0), std::exchange(of.frees, 0)};
      of.used += freed.blocks;
      return 0;
    }
    const auto stride = static_cast<link>(granules_.stride());
    const std::size_t count = (std::min)(blocks.size(), std::size_t{(end_of(of) - of.fresh) / stride});
    for (std::size_t k = count; k > 0; --k) {
      blocks[k - 1] = granule + of.fresh;
      of.fresh += stride;
    }
    of.used += static_cast<std::uint32_t>(count);
    return count;
  }
  /// Links are read one after the other, each a miss: where many lines of a run have one, fetches all lines.
  void prefetch(const chain& freed) const noexcept {
    const index_t index = static_cast<index_t>(freed.first) >> run_bits_;
    const link begin = first_of(index), end = first_of(index + 1);
    const link step = (std::max)(static_cast<link>(granules_.stride()), link{64});
    if (std::uint64_t{freed.blocks} * 4 * step < end - begin) return;
    for (link at = begin; at < end; at += step) __builtin_prefetch(freed.granule + at, 1, 2);
  }
  /// The first block of a chain that is not empty.
  std::byte* pop(chain& freed) const noexcept {
    std::byte* const block = freed.granule + freed.first;
    freed.first = next_of(block);
    return block;
  }

  /// Before give().
  void prefetch_for(std::byte* block) const noexcept {
    __builtin_prefetch(block, 1);
    __builtin_prefetch(&run_of(block), 1);
  }
  void give(std::byte* block) noexcept {
    run& of = run_of(block);
    if (--of.used == 0) {
      of.free = 0;
      of.frees = 0;
      of.fresh = first_of(index_of(of));
    } else {
      set_next(block, of.free);
      of.free = static_cast<link>(block - granules_.begin_of(block));
      ++of.frees;
    }
    if (!of.is_listed) list(of);
  }

 private:
  // In the granule's head.
  struct run {
    link free;  // blocks, as many as `frees`
    std::uint32_t frees;
    link fresh;          // the first of the blocks that were never taken since all were free
    std::uint32_t used;  // blocks that were taken
    run* next;
    bool is_listed;  // among those that have blocks, or had some
  };

  static int run_bits_for(index_t stride, index_t granule_bytes) noexcept {
    constexpr index_t least = index_t{1} << 16;
    const index_t bytes = stride > granule_bytes / 256 ? granule_bytes : (std::max)(least, 256 * stride);
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>((std::min)(bytes, granule_bytes) - 1)));
  }
  [[nodiscard]] run& run_of(std::byte* block) const noexcept {
    std::byte* const granule = granules_.begin_of(block);
    return runs_in(granule)[(block - granule) >> run_bits_];
  }
  static run* runs_in(std::byte* granule) noexcept {
    return reinterpret_cast<run*>(granules::head_of(granule));
  }
  [[nodiscard]] std::byte* granule_of(run& of) const noexcept {
    return granules_.begin_of(reinterpret_cast<std::byte*>(&of));
  }
  [[nodiscard]] index_t index_of(run& of) const noexcept { return &of - runs_in(granule_of(of)); }
  // Where the first block lies that begins in a run, or behind it.
  [[nodiscard]] link first_of(index_t index) const noexcept {
    const index_t beyond = (std::max)((index << run_bits_) - granules_.first_at(), index_t{0});
    const index_t place =
        (std::min)((beyond + granules_.stride() - 1) / granules_.stride(), granules_.places());
    return static_cast<link>(granules_.first_at() + place * granules_.stride());
  }
  [[nodiscard]] link end_of(run& of) const noexcept { return first_of(index_of(of) + 1); }
  void list(run& of) noexcept {
    of.is_listed = true;
    of.next = listed_;
    listed_ = &of;
  }
  template <class Added>
  run& with_blocks(const Added& added) {
    for (;;) {
      for (; listed_ != nullptr; listed_ = listed_->next) {
        if (listed_->free != 0 || listed_->fresh != end_of(*listed_)) return *listed_;
        listed_->is_listed = false;
      }
      granules_.grow(1);
      std::byte* const granule = granules_.begin(granules_.count() - 1);
      added(granule);
      for (index_t k = granules_.granule_bytes() >> run_bits_; k > 0; --k) {
        run& one = runs_in(granule)[k - 1];
        one.fresh = first_of(k - 1);
        list(one);
      }
    }
  }
  [[nodiscard]] link next_of(std::byte* block) const noexcept {
    link next = 0;
    granules_.unpoison(block);
    std::memcpy(&next, block, sizeof(next));
    granules_.poison(block);
    return next;
  }
  void set_next(std::byte* block, link next) const noexcept {
    granules_.unpoison(block);
    std::memcpy(block, &next, sizeof(next));
    granules_.poison(block);
  }

  granules granules_;
  int run_bits_;
  run* listed_ = nullptr;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
