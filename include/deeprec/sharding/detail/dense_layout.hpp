// How dense tensors lie in buckets, and buckets in slices of ranks.
//
//   tensors   0 1 2 3 4 5            gradients are ready in the order 5 4 3 2 1 0
//   buckets   [5 4 3] [2] [1 0]      each closes when it has bucket_bytes
//   slices    |r0 |r1 |r2 |          of a bucket, as equal as rows allow, where a row must stay whole
//
// Numbers of floats, no memory of tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A tensor, by its floats.
struct dense_shape {
  index_t rows = 0, width = 0;
  [[nodiscard]] index_t floats() const noexcept { return rows * width; }
};

/// Floats [first, first + count) of a tensor, which are the bucket's from `at` on.
struct dense_piece {
  std::size_t tensor;
  index_t first, count, at;
};

enum class dense_cuts : unsigned char { anywhere, between_rows };

class dense_layout {
 public:
  /// @pre ranks >= 1; all floats together fit memory
  dense_layout(std::span<const dense_shape> shapes, int ranks, index_t bucket_bytes, dense_cuts cuts,
               std::pmr::memory_resource* memory)
      : shapes_(shapes.begin(), shapes.end(), memory),
        at_(shapes.size(), memory),
        of_(shapes.size(), memory),
        buckets_(memory),
        borders_(memory),
        ranks_(static_cast<std::size_t>(ranks)) {
    bucket open{shapes.size(), shapes.size(), 0};
    for (std::size_t t = shapes.size(); t-- > 0;) {
      at_[t] = open.floats;
      of_[t] = buckets_.size();
      open.begin = t;
      open.floats += shapes_[t].floats();
      if (open.floats * index_t{sizeof(float)} < bucket_bytes) continue;
      buckets_.push_back(open);
      open = {t, t, 0};
    }
    // One at least: faults of ranks travel with it.
    if (open.begin < open.end || buckets_.empty()) buckets_.push_back(open);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      for (index_t r = 0; r <= ranks; ++r)
        borders_.push_back(border(b, buckets_[b].floats * r / ranks, cuts));
    }
  }

  [[nodiscard]] std::size_t tensors() const noexcept { return shapes_.size(); }
  [[nodiscard]] std::size_t buckets() const noexcept { return buckets_.size(); }
  /// Of a tensor.
  [[nodiscard]] std::size_t bucket_of(std::size_t tensor) const noexcept { return of_[tensor]; }
  /// Tensors of a bucket.
  [[nodiscard]] std::size_t tensors_in(std::size_t b) const noexcept {
    return buckets_[b].end - buckets_[b].begin;
  }
  [[nodiscard]] index_t floats_in(std::size_t b) const noexcept { return buckets_[b].floats; }
  [[nodiscard]] index_t width(std::size_t tensor) const noexcept { return shapes_[tensor].width; }
  /// (n+1): slice r of a bucket has the floats [borders[r], borders[r + 1]).
  [[nodiscard]] std::span<const index_t> borders(std::size_t b) const noexcept {
    return std::span<const index_t>(borders_).subspan(b * (ranks_ + 1), ranks_ + 1);
  }

  /// each(piece) for the tensors that lie at the floats [first, end) of a bucket, in their order there.
  template <class Each>
  void for_pieces(std::size_t of, index_t first, index_t end, const Each& each) const {
    for (std::size_t t = buckets_[of].end; t-- > buckets_[of].begin;) {
      const index_t from = (std::max)(first, at_[t]), to = (std::min)(end, at_[t] + shapes_[t].floats());
      if (from < to) each(dense_piece{t, from - at_[t], to - from, from});
    }
  }
  /// each(slice, piece, place in the slice) for the parts of a tensor.
  template <class Each>
  void for_slices(std::size_t tensor, const Each& each) const {
    const std::span<const index_t> cut = borders(of_[tensor]);
    const index_t begin = at_[tensor], end = begin + shapes_[tensor].floats();
    for (std::size_t r = 0; r + 1 < cut.size(); ++r) {
      const index_t from = (std::max)(begin, cut[r]), to = (std::min)(end, cut[r + 1]);
      if (from < to)
        each(static_cast<int>(r), dense_piece{tensor, from - begin, to - from, from}, from - cut[r]);
    }
  }

 private:
  struct bucket {
    std::size_t begin, end;  // of the tensors
    index_t floats;
  };

  [[nodiscard]] index_t border(std::size_t of, index_t at, dense_cuts cuts) const noexcept {
    index_t result = at;
    if (cuts == dense_cuts::between_rows && at < buckets_[of].floats) {
      for_pieces(of, at, at + 1, [&](const dense_piece& p) { result -= p.first % shapes_[p.tensor].width; });
    }
    return result;
  }

  std::pmr::vector<dense_shape> shapes_;
  std::pmr::vector<index_t> at_;      // of a tensor, in its bucket
  std::pmr::vector<std::size_t> of_;  // the bucket of a tensor
  std::pmr::vector<bucket> buckets_;
  std::pmr::vector<index_t> borders_;  // [bucket][rank]
  std::size_t ranks_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
