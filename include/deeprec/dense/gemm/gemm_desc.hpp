// What a matrix product computes: the parameters of gemm().
//
//   c = cast( mask( act( op(a) op(b) + old c + bias + residual ) ) )
//                │     └ desc.c = accumulate    └ (1,N)    └ (M,N)
//                └ desc.mask (M,N): c is 0 where the mask is not above 0, the gradient of ReLU
//
//   relu_bits    one bit per value, set where c is above 0: the mask_bits of the backward product
//   column_sums  sums of c's columns: with a mask, the bias gradient of the layer below
//
// Products use the arithmetic that desc.math permits or forces, whatever the storage of the operands. Not
// here: backends (gemm_backend.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/bit_matrix_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Whether an operand is used as stored, or transposed.
enum class gemm_operand : std::uint8_t { normal, transposed };

/// What happens to the old values of the result.
enum class gemm_output : std::uint8_t { overwrite, accumulate };

/// Rounding of the factors before a product: none, to bf16 (relative error 2^-8), to TF32 (2^-11). Sums are
/// float. bf16 and tf32 are permissions: the host rounds where that is faster than f32, which follows from
/// the machine and the shape, never from a clock (explain_gemm() returns the choice and its reason). The
/// forced ones round everywhere, whatever that costs.
enum class gemm_math : std::uint8_t { f32, bf16, tf32, forced_bf16, forced_tf32 };

/// x, max(x, 0), x Phi(x), the same by tanh, 1 / (1 + e^-x).
enum class gemm_activation : std::uint8_t { none, relu, gelu, gelu_tanh, sigmoid };

/// Storage type of a matrix of a product.
enum class gemm_storage : std::uint8_t { f32, bf16 };

template <class T>
concept GemmElement = std::is_same_v<T, float> || std::is_same_v<T, bf16>;

namespace detail {

template <GemmElement T>
inline constexpr gemm_storage gemm_storage_of =
    std::is_same_v<T, float> ? gemm_storage::f32 : gemm_storage::bf16;

}  // namespace detail

constexpr const char* to_string(gemm_math math) noexcept {
  switch (math) {
    case gemm_math::f32:
      return "f32";
    case gemm_math::bf16:
      return "bf16";
    case gemm_math::tf32:
      return "tf32";
    case gemm_math::forced_bf16:
      return "forced_bf16";
    case gemm_math::forced_tf32:
      return "forced_tf32";
  }
  return "unknown";
}
constexpr const char* to_string(gemm_activation activation) noexcept {
  constexpr const char* names[] = {"none", "relu", "gelu", "gelu_tanh", "sigmoid"};
  return names[static_cast<std::size_t>(activation)];
}

/// A matrix_view whose element type is known at run time: float or bf16. Void: const void, or void where
/// the elements may be written.
template <class Void, MemorySpace Space>
class basic_gemm_view {
 public:
  constexpr basic_gemm_view() noexcept = default;
  template <class T, MemorySpace From>
  constexpr explicit(false) basic_gemm_view(const matrix_view<T, From>& v) noexcept
      : rows_(v.extent(0)), columns_(v.extent(1)), stride_(v.stride(0)) {
    static_assert(GemmElement<std::remove_const_t<T>>,
                  "deeprec::gemm: elements of another type. Fix: matrix_view<float> or matrix_view<bf16>.");
    static_assert(std::is_convertible_v<T*, Void*>,
                  "deeprec::gemm: the result is read only. Fix: matrix_view<float>, not <const float>.");
    static_assert(reachable_as<From, Space>,
                  "deeprec::gemm: a matrix in another memory than the context's. Fix: copy it, or pass a "
                  "context that reaches it.");
    data_ = v.data_handle();
    storage_ = detail::gemm_storage_of<std::remove_const_t<T>>;
  }
  constexpr explicit(false) basic_gemm_view(const basic_gemm_view<void, Space>& v) noexcept
    requires std::is_const_v<Void>
      : data_(v.data()),
        rows_(v.extent(0)),
        columns_(v.extent(1)),
        stride_(v.stride(0)),
        storage_(v.storage()) {}

  [[nodiscard]] constexpr Void* data() const noexcept { return data_; }
  [[nodiscard]] constexpr index_t extent(int rank) const noexcept { return rank == 0 ? rows_ : columns_; }
  [[nodiscard]] constexpr index_t stride(int rank) const noexcept { return rank == 0 ? stride_ : 1; }
  [[nodiscard]] constexpr gemm_storage storage() const noexcept { return storage_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return rows_ == 0 || columns_ == 0; }
  /// True when no matrix was given (null data).
  [[nodiscard]] constexpr bool absent() const noexcept { return data_ == nullptr; }

 private:
  Void* data_ = nullptr;
  index_t rows_ = 0;
  index_t columns_ = 0;
  index_t stride_ = 0;
  gemm_storage storage_ = gemm_storage::f32;
};

/// An operand of a product.
template <MemorySpace Space = host_space>
using gemm_view = basic_gemm_view<const void, Space>;
/// The result of a product.
template <MemorySpace Space = host_space>
using gemm_result = basic_gemm_view<void, Space>;

/// Several products of one shape. A batch stride is the distance in elements from one product's matrix to the
/// next one's; 0 repeats it. All share the bias; residual, masks, bits, sums and bias gradient need a count
/// of 1.
struct gemm_batch {
  index_t count = 1;
  index_t a_batch_stride = 0;
  index_t b_batch_stride = 0;
  index_t c_batch_stride = 0;
};

/// Describes a product. A field that is left out means that its operand or operation is absent.
template <MemorySpace Space = host_space>
struct basic_gemm_desc {
  gemm_operand a = gemm_operand::normal;
  gemm_operand b = gemm_operand::normal;
  gemm_output c = gemm_output::overwrite;
  gemm_math math = gemm_math::f32;
  matrix_view<const float, Space> bias{};  ///< (1,N)
  gemm_view<Space> residual{};             ///< (M,N); may be c itself
  gemm_activation activation = gemm_activation::none;
  bit_matrix_view<std::uint64_t, Space> relu_bits{};        ///< out (M,N), with relu: set where c is above 0
  gemm_view<Space> mask{};                                  ///< (M,N): an output of relu; may be c itself
  bit_matrix_view<const std::uint64_t, Space> mask_bits{};  ///< (M,N): a mask in the form of relu_bits
  matrix_view<float, Space> bias_gradient{};  ///< out (1,M): sums of op(a)'s rows, for op(a) = dy^T
  matrix_view<float, Space> column_sums{};    ///< out (1,N): sums of c's columns
  gemm_batch batch{};
};
using gemm_desc = basic_gemm_desc<>;

namespace detail {

/// The math that permits what a forced one demands.
constexpr gemm_math permission_of(gemm_math math) noexcept {
  return math == gemm_math::forced_bf16   ? gemm_math::bf16
         : math == gemm_math::forced_tf32 ? gemm_math::tf32
                                          : math;
}

constexpr index_t bytes_of(gemm_storage storage) noexcept { return storage == gemm_storage::f32 ? 4 : 2; }

/// p advanced by a number of elements.
template <class Void>
Void* offset_by(Void* p, index_t elements, gemm_storage storage) noexcept {
  using byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<byte*>(p) + elements * bytes_of(storage);
}

}  // namespace detail
}}  // namespace deeprec::DEEPREC_ABI
