// Where a product is cut. Everything here follows from the shape, never from threads.
//
//            nb           rows: blocks of mb (a power of two), then what is left as powers of two down
//        ┌──────┬──────┐        to 16, then the last rows: few kinds of tiles for all batch sizes
//     mb │      │      │  columns: even pieces of nb
//        ├──────┼──────┤  k: pieces of kb, summed in order
//        └──────┴──────┘
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

struct gemm_piece {
  index_t begin, size;
  int kind;  ///< pieces of one kind have one size
};

class row_pieces {
 public:
  row_pieces() = default;
  constexpr row_pieces(index_t total, index_t block) noexcept
      : block_(block), whole_(total / block), rest_(total % block) {}

  [[nodiscard]] constexpr index_t count() const noexcept { return whole_ + kinds() - 1; }
  /// Kind 0 are the whole blocks, of which there may be none.
  [[nodiscard]] constexpr int kinds() const noexcept {
    return 1 + std::popcount(static_cast<std::uint64_t>(rest_ / 16)) + (rest_ % 16 != 0 ? 1 : 0);
  }
  [[nodiscard]] constexpr index_t size_of(int kind) const noexcept {
    if (kind == 0) return whole_ > 0 ? block_ : 0;
    return (*this)[whole_ + kind - 1].size;
  }
  [[nodiscard]] constexpr gemm_piece operator[](index_t i) const noexcept {
    if (i < whole_) return {i * block_, block_, 0};
    index_t begin = whole_ * block_;
    index_t left = rest_;
    for (int kind = 1;; ++kind) {
      const index_t size =
          left >= 16 ? static_cast<index_t>(std::bit_floor(static_cast<std::uint64_t>(left))) : left;
      if (i == whole_ + kind - 1) return {begin, size, kind};
      begin += size;
      left -= size;
    }
  }

 private:
  index_t block_ = 1, whole_ = 0, rest_ = 0;
};

class even_pieces {
 public:
  even_pieces() = default;
  constexpr even_pieces(index_t total, index_t size) noexcept
      : size_((std::min)(size, total)),
        count_((total + size_ - 1) / size_),
        last_(total - (count_ - 1) * size_) {}

  [[nodiscard]] constexpr index_t count() const noexcept { return count_; }
  [[nodiscard]] constexpr int kinds() const noexcept { return last_ == size_ ? 1 : 2; }
  [[nodiscard]] constexpr index_t size_of(int kind) const noexcept { return kind == 0 ? size_ : last_; }
  [[nodiscard]] constexpr gemm_piece operator[](index_t i) const noexcept {
    const bool is_last = i == count_ - 1 && last_ != size_;
    return {i * size_, is_last ? last_ : size_, is_last ? 1 : 0};
  }

 private:
  index_t size_ = 1, count_ = 0, last_ = 1;
};

struct gemm_borders {
  row_pieces m;
  even_pieces n, k;
};

constexpr index_t up_to_multiple(index_t x, index_t of) noexcept { return (x + of - 1) / of * of; }

/// Columns of a tile of a product with an operand b that was packed once for all m.
constexpr index_t packed_columns(index_t n) noexcept {
  constexpr index_t widest = 1024;
  return n <= widest ? n
                     : up_to_multiple((n + (n + widest - 1) / widest - 1) / ((n + widest - 1) / widest), 64);
}

/// What tiles are made for: enough work to be worth a call, a result that stays in the second-level cache
/// when it is finished there, and several tiles where there is work for several threads.
struct tile_wishes {
  bool packed = false;      ///< b has its columns cut by packed_columns()
  bool finished = false;    ///< the result is a scratch tile first
  bool converts_b = false;  ///< for every tile
};

constexpr gemm_borders cut(index_t m, index_t n, index_t k, tile_wishes wishes) noexcept {
  constexpr index_t worth = index_t{1} << 23;  // multiplications of a tile
  const auto power = [](index_t x) {
    return static_cast<index_t>(std::bit_floor(static_cast<std::uint64_t>((std::max)(x, index_t{1}))));
  };
  const index_t kb = wishes.converts_b ? 1024 : k <= 8192 ? k : 4096;
  if (m == 1 && !wishes.packed) {
    return {{1, 16}, {n, up_to_multiple((std::max)((worth / 16) / k, index_t{256}), 64)}, {k, kb}};
  }
  index_t nb = packed_columns(n);
  index_t mb = (std::max)(power((2 * worth - 1) / (nb * (std::min)(k, kb))),
                          wishes.packed ? index_t{m >= 1024 ? 64 : 32} : index_t{256});
  if (wishes.finished) mb = (std::min)(mb, (std::max)(power((index_t{1} << 17) / nb), index_t{32}));
  mb = (std::min)((std::max)(mb, index_t{16}), index_t{8192});
  if (!wishes.packed) {
    const auto tiles = [&] { return ((m + mb - 1) / mb) * ((n + nb - 1) / nb); };
    while (tiles() < 8 && mb * nb * k >= 2 * worth && (mb > 64 || nb > 128)) {
      if ((std::min)(mb, m) * 2 > nb && mb > 64) {
        mb = power((std::min)(mb, m + m - 1)) / 2;
      } else if (nb > 128) {
        nb = up_to_multiple(nb / 2, 64);
      } else {
        break;
      }
    }
  }
  return {{m, mb}, {n, nb}, {k, kb}};
}

}  // namespace deeprec::inline DEEPREC_ABI::detail
