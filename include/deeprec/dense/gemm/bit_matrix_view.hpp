// A non-owning view of a matrix of bits: which values of a result ReLU let through.
//
//   word r * stride(0) / 64   [ bit (r,0) .. bit (r,63) ][ (r,64) ..        the lowest bit first
//
// A row begins at a multiple of 128 bits, so no two rows share a word. On a device only products read the
// bits: their order within a row is cuBLASLt's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Word is std::uint64_t, or const of it. A function that writes a row may write all of its words.
///
/// @threads as its memory; rows share no word
template <class Word, MemorySpace Space = host_space>
class bit_matrix_view {
  static_assert(std::is_same_v<std::remove_const_t<Word>, std::uint64_t>,
                "deeprec::bit_matrix_view: bits lie in words of 64. Fix: std::uint64_t, or const of it.");

 public:
  using space = Space;
  static constexpr index_t bits_of_word = 64;
  static constexpr index_t stride_unit = 128;

  /// The smallest row stride, in bits, that holds `columns`.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] static constexpr index_t stride_for(index_t columns) noexcept {
    return (columns + stride_unit - 1) / stride_unit * stride_unit;
  }
  /// The words of a matrix with that row stride.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] static constexpr std::size_t words_for(index_t rows, index_t columns) noexcept {
    return static_cast<std::size_t>(rows * (stride_for(columns) / bits_of_word));
  }

  constexpr bit_matrix_view() noexcept = default;
  constexpr bit_matrix_view(Word* data, index_t rows, index_t columns) noexcept
      : bit_matrix_view(data, rows, columns, stride_for(columns)) {}
  /// @param row_stride bits from one row to the next, a multiple of 128
  constexpr bit_matrix_view(Word* data, index_t rows, index_t columns, index_t row_stride) noexcept
      : data_(data), rows_(rows), columns_(columns), stride_(row_stride) {}
  /// To a view of const words, or of a space that may reach this memory.
  template <class Other, MemorySpace From>
    requires std::is_convertible_v<Other (*)[], Word (*)[]> && reachable_as<From, Space>
  constexpr explicit(false) bit_matrix_view(const bit_matrix_view<Other, From>& v) noexcept
      : bit_matrix_view(v.data_handle(), v.extent(0), v.extent(1), v.stride(0)) {}

  [[nodiscard]] constexpr Word* data_handle() const noexcept { return data_; }
  [[nodiscard]] constexpr index_t extent(int rank) const noexcept { return rank == 0 ? rows_ : columns_; }
  [[nodiscard]] constexpr index_t stride(int rank) const noexcept { return rank == 0 ? stride_ : 1; }
  [[nodiscard]] constexpr bool empty() const noexcept { return rows_ == 0 || columns_ == 0; }
  /// True when no bits were given (null data).
  [[nodiscard]] constexpr bool absent() const noexcept { return data_ == nullptr; }

  [[nodiscard]] constexpr Word* row(index_t i) const noexcept { return data_ + i * (stride_ / bits_of_word); }
  [[nodiscard]] constexpr bool operator()(index_t i, index_t j) const {
    static_assert(
        reachable_as<Space, host_space>,
        "deeprec::bit_matrix_view: a bit of device memory read on the host. Fix: use the bits in a product "
        "there (gemm_desc::mask_bits), or copy them first.");
    DEEPREC_EXPECTS(0 <= i && i < rows_ && 0 <= j && j < columns_);
    return ((row(i)[j / bits_of_word] >> (j % bits_of_word)) & 1U) != 0;
  }

 private:
  Word* data_ = nullptr;
  index_t rows_ = 0;
  index_t columns_ = 0;
  index_t stride_ = 0;
};

static_assert(std::is_trivially_copyable_v<bit_matrix_view<std::uint64_t>>);

}}  // namespace deeprec::DEEPREC_ABI
