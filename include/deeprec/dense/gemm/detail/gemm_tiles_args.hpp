// Arguments of the kernels around a product: blocks to convert, tiles to finish.
#pragma once

#include <cstdint>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// How an operand is converted before it is multiplied.
enum class conversion : std::uint8_t {
  none,
  copy,        ///< to a dense block
  widen,       ///< bf16 to float, exact
  narrow,      ///< float to bf16, denormals flushed to zero, as in bf16 products
  round_bf16,  ///< float to the nearest bf16 value, stored as float
  round_tf32,  ///< float to the nearest TF32 value, stored as float
};

/// A block of rows x columns; `to` is written with its own stride.
struct convert_block {
  conversion kind;
  const void* from;
  index_t from_stride;
  void* to;
  index_t to_stride;
  index_t rows, columns;
  gemm_storage stored = gemm_storage::f32;  ///< of `from`
};

/// Rows of one storage type; absent where data is null.
template <class Void>
struct stored_rows {
  Void* data = nullptr;
  index_t stride = 0;
  gemm_storage storage = gemm_storage::f32;
};

/// to = cast( mask( act( product + old + bias + residual ) ) ), see gemm_desc.
struct finish_tile {
  const float* product;
  index_t product_stride;
  index_t rows, columns;
  stored_rows<const void> old, residual, mask;
  const float* bias;
  gemm_activation activation;
  stored_rows<void> to;
};

/// At most 64 columns of a result, from a multiple of 64 on: masked by bits, its positive values recorded as
/// bits, its columns summed. Strides of bits are in words of 64; a null pointer skips the operation.
struct result_block {
  static constexpr index_t width = 64;

  stored_rows<void> c;
  index_t rows, columns;
  const std::uint64_t* mask;
  index_t mask_stride;
  std::uint64_t* positive;
  index_t positive_stride;
  float* sums;
};

/// The largest magnitude of a row; infinity where a value is infinite or NaN.
inline float largest_magnitude(const void* row, index_t n, gemm_storage storage) noexcept {
  std::uint32_t most = 0;
  if (storage == gemm_storage::f32) {
    const auto* x = static_cast<const float*>(row);
    index_t j = 0;
    for (; j + 64 <= n; j += 64) {
      for (index_t l = 0; l < 64; ++l) {
        const std::uint32_t bits = bit_cast_to<std::uint32_t>(x[j + l]) & 0x7fffffffU;
        most = bits > most ? bits : most;
      }
    }
    for (; j < n; ++j) {
      const std::uint32_t bits = bit_cast_to<std::uint32_t>(x[j]) & 0x7fffffffU;
      most = bits > most ? bits : most;
    }
  } else {
    const auto* x = static_cast<const bf16*>(row);
    for (index_t j = 0; j < n; ++j) {
      const std::uint32_t bits = static_cast<std::uint32_t>(x[j].bits & 0x7fffU) << 16;
      most = bits > most ? bits : most;
    }
  }
  return bit_cast_to<float>(most > 0x7f800000U ? 0x7f800000U : most);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
