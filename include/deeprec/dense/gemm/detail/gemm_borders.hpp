// Tile boundaries of a product. They follow from its shape, never from the number of threads.
//
//            nb           rows: blocks of mb (a power of two), the remainder in powers of two down to 16
//        ┌──────┬──────┐        and a last piece, or down to 8 and one that overlaps: few tile sizes
//     mb │      │      │  columns: equal pieces of nb
//        ├──────┼──────┤  k: pieces of kb, summed in order; where k counts rows of both operands (the batch,
//        └──────┴──────┘     in a weight gradient), the remainder is one of few sizes and a last piece
//                            padded with zeros: few tile sizes there too
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct gemm_piece {
  index_t begin, size;
  int kind;             ///< pieces of one kind have one size
  index_t filled;       ///< how much of size is data; the rest is zeros
  index_t skipped = 0;  ///< of the beginning: part of the piece before, multiplied again and not written
};

/// How the remainder after the whole blocks is cut.
enum class gemm_rest : std::uint8_t {
  one_piece,
  powers,        ///< powers of two down to 16, then the last few
  overlapped,    ///< powers of two down to 8, then the end of a piece of 4 or 8; below 16 in all: as powers
  filled,        ///< from 256 a multiple of 1/8 of the power of two below; what is left, padded to a
                 ///< multiple of 8
  filled_few,    ///< the same, from 128 padded to a multiple of 1/8 of the power of two below
  filled_whole,  ///< one piece, padded to a multiple of 8, from 256 to one of 1/16 of the power of two below
  filled_whole_few,  ///< the same, from 128 to 255 to one of 1/8
};

class gemm_pieces {
 public:
  gemm_pieces() = default;
  constexpr gemm_pieces(index_t total, index_t block, gemm_rest rest_as) noexcept
      : block_(block),
        whole_(total / block),
        rest_(total % block),
        rest_as_(rest_as == gemm_rest::overlapped && total < 16 ? gemm_rest::powers : rest_as) {
    for (index_t left = rest_; left > 0; ++kinds_) left -= next(left);
  }

  [[nodiscard]] constexpr index_t count() const noexcept { return whole_ + kinds_ - 1; }
  /// Kind 0 are the whole blocks, of which there may be none.
  [[nodiscard]] constexpr int kinds() const noexcept { return kinds_; }
  [[nodiscard]] constexpr index_t size_of(int kind) const noexcept {
    if (kind == 0) return whole_ > 0 ? block_ : 0;
    return (*this)[whole_ + kind - 1].size;
  }
  [[nodiscard]] constexpr index_t largest() const noexcept {
    return whole_ > 0 ? block_ : kinds_ > 1 ? size_of(1) : 0;
  }
  /// Whether the first piece is of this kind.
  [[nodiscard]] constexpr bool is_first(int kind) const noexcept { return kind == (whole_ > 0 ? 0 : 1); }
  /// Whether a piece of this kind has others before it.
  [[nodiscard]] constexpr bool is_later(int kind) const noexcept {
    return !is_first(kind) || (kind == 0 && whole_ > 1);
  }
  /// Whether a piece of this kind is padded with zeros.
  [[nodiscard]] constexpr bool is_filled_up(int kind) const noexcept {
    if (kind == 0) return false;
    const gemm_piece piece = (*this)[whole_ + kind - 1];
    return piece.filled < piece.size;
  }
  /// Whether a piece of this kind begins within the piece before.
  [[nodiscard]] constexpr bool is_overlapped(int kind) const noexcept {
    return kind != 0 && (*this)[whole_ + kind - 1].skipped > 0;
  }
  [[nodiscard]] constexpr gemm_piece operator[](index_t i) const noexcept {
    if (i < whole_) return {i * block_, block_, 0, block_};
    index_t begin = whole_ * block_;
    index_t left = rest_;
    for (int kind = 1;; ++kind) {
      const index_t there = next(left);
      if (i == whole_ + kind - 1) {
        const index_t size = size_for(there);
        if (rest_as_ == gemm_rest::overlapped) return {begin + there - size, size, kind, size, size - there};
        return {begin, size, kind, there};
      }
      begin += there;
      left -= there;
    }
  }

 private:
  static constexpr index_t power_below(index_t x) noexcept {
    return static_cast<index_t>(std::bit_floor(static_cast<std::uint64_t>(x)));
  }
  // The part of `left` that the next piece takes.
  [[nodiscard]] constexpr index_t next(index_t left) const noexcept {
    if (rest_as_ == gemm_rest::powers && left >= 16) return power_below(left);
    if (rest_as_ == gemm_rest::overlapped && left >= 8) return power_below(left);
    const bool cut = rest_as_ == gemm_rest::filled || rest_as_ == gemm_rest::filled_few;
    if (!cut || left < 256) return left;
    const index_t step = power_below(left) / 8;
    return left / step * step;
  }
  [[nodiscard]] constexpr index_t size_for(index_t there) const noexcept {
    if (rest_as_ == gemm_rest::overlapped && there < 8) return there <= 4 ? 4 : 8;
    if (rest_as_ < gemm_rest::filled) return there;
    const bool few = rest_as_ == gemm_rest::filled_few || rest_as_ == gemm_rest::filled_whole_few;
    const index_t step = there >= 256 && rest_as_ >= gemm_rest::filled_whole ? power_below(there) / 16
                         : few ? (std::max)(power_below(there) / 8, index_t{8})
                               : index_t{8};
    return (there + step - 1) / step * step;
  }

  index_t block_ = 1, whole_ = 0, rest_ = 0;
  gemm_rest rest_as_ = gemm_rest::one_piece;
  int kinds_ = 1;
};

struct gemm_borders {
  gemm_pieces m, n, k;
};

constexpr index_t up_to_multiple(index_t x, index_t of) noexcept { return (x + of - 1) / of * of; }

/// Columns of a tile where b is packed once for every m.
constexpr index_t packed_columns(index_t n) noexcept {
  constexpr index_t widest = 1024;
  return n <= widest ? n
                     : up_to_multiple((n + (n + widest - 1) / widest - 1) / ((n + widest - 1) / widest), 64);
}

/// Least rows of a tile where b is packed: few, so that there are tiles for several threads, but enough for
/// each read of a b of `values` that the second-level cache does not keep.
constexpr index_t rows_of_packed_tile(index_t m, index_t values) noexcept {
  const bool cached = values <= index_t{1} << 18;
  if (m >= 1024) return cached ? 64 : 128;
  return cached || m < 128 ? 32 : 64;
}

/// What tile sizes depend on. A tile has enough work to be worth a call, its result fits the second-level
/// cache where an epilogue reads it again, and a large product has enough tiles for several threads.
struct tile_wishes {
  bool packed = false;      ///< b is packed in pieces of packed_columns()
  bool finished = false;    ///< the epilogue reads the product from a scratch tile
  bool converts_b = false;  ///< b is converted for every tile
  bool converts_a = false;
  bool k_is_rows = false;   ///< k counts rows of both operands
  bool few_depths = false;  ///< fewer sizes of k where it counts rows
  bool overlaps = false;    ///< the last few rows are the end of a piece that overlaps the one before
};

constexpr gemm_borders cut(index_t m, index_t n, index_t k, tile_wishes wishes) noexcept {
  constexpr index_t worth = index_t{1} << 23;  // multiplications of a tile
  const auto power = [](index_t x) {
    return static_cast<index_t>(std::bit_floor(static_cast<std::uint64_t>((std::max)(x, index_t{1}))));
  };
  const index_t kb = wishes.converts_b ? 1024 : k <= 8192 ? (wishes.k_is_rows ? 8192 : k) : 4096;
  const gemm_pieces depth(k, kb,
                          !wishes.k_is_rows ? gemm_rest::one_piece
                          : wishes.converts_a && wishes.converts_b
                              ? (wishes.few_depths ? gemm_rest::filled_whole_few : gemm_rest::filled_whole)
                              : (wishes.few_depths ? gemm_rest::filled_few : gemm_rest::filled));
  if (m == 1 && !wishes.packed) {
    const index_t nb = up_to_multiple((std::max)((worth / 16) / k, index_t{256}), 64);
    return {{1, 16, gemm_rest::powers}, {n, nb, gemm_rest::one_piece}, depth};
  }
  index_t nb = packed_columns(n);
  index_t mb = (std::max)(power((2 * worth - 1) / (nb * (std::min)(k, kb))),
                          wishes.packed ? rows_of_packed_tile(m, nb * k) : index_t{256});
  if (wishes.finished) mb = (std::min)(mb, (std::max)(power((index_t{1} << 17) / nb), index_t{32}));
  mb = (std::min)((std::max)(mb, index_t{16}), index_t{8192});
  if (!wishes.packed) {
    const auto tiles = [&] { return ((m + mb - 1) / mb) * ((n + nb - 1) / nb); };
    while (tiles() < 8 && k >= (2 * worth + mb * nb - 1) / (mb * nb) && (mb > 64 || nb > 128)) {
      if ((std::min)(mb, m) * 2 > nb && mb > 64) {
        mb = power((std::min)(mb, m + m - 1)) / 2;
      } else if (nb > 128) {
        nb = up_to_multiple(nb / 2, 64);
      } else {
        break;
      }
    }
  }
  return {{m, mb, wishes.overlaps ? gemm_rest::overlapped : gemm_rest::powers},
          {n, nb, gemm_rest::one_piece},
          depth};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
