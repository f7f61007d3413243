// Storage types of 16 and 8 bits, and the accumulator type of every storage type.
//
//   storage   accumulator   unit roundoff of the sum     range
//   double    double        2^-53                        that of IEEE 754
//   float     float         2^-24
//   f16       float         2^-24 (storage: 2^-11)       +-65504, denormals kept
//   bf16      float         2^-24 (storage: 2^-8)        that of float
//   e4m3      float         2^-24 (storage: 2^-4)        +-448, no infinity: beyond is NaN
//   e5m2      float         2^-24 (storage: 2^-3)        +-57344, infinity
//
// All are bit-compatible with Eigen's, CUDA's and PyTorch's types (e4m3 with float8_e4m3fn). They only store
// values; all arithmetic is in accumulate_t<T>. Not here: tf32, which is a math mode of GEMM.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/detail/dtype_bits.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The type of every size, row number and stride.
using index_t = std::int64_t;

/// bfloat16: the upper half of a float.
struct DEEPREC_MAY_ALIAS bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest even; NaN stays NaN.
  DEEPREC_HD constexpr explicit bf16(float value) noexcept : bits(detail::bf16_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept {
    return detail::bit_cast_to<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  DEEPREC_HD static constexpr bf16 from_bits(std::uint16_t bits) noexcept {
    bf16 value;
    value.bits = bits;
    return value;
  }
};

/// IEEE 754 binary16.
struct DEEPREC_MAY_ALIAS f16 {
  std::uint16_t bits = 0;

  f16() = default;
  /// Rounds to nearest even; too large becomes infinity; NaN stays NaN.
  DEEPREC_HD constexpr explicit f16(float value) noexcept : bits(detail::f16_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::f16_value(bits); }
  DEEPREC_HD static constexpr f16 from_bits(std::uint16_t bits) noexcept {
    f16 value;
    value.bits = bits;
    return value;
  }
};

/// OCP FP8 E4M3 (float8_e4m3fn): finite up to 448, no infinity, one NaN of each sign.
struct DEEPREC_MAY_ALIAS e4m3 {
  std::uint8_t bits = 0;

  e4m3() = default;
  /// Rounds to nearest even; beyond 464, infinity too, becomes NaN; NaN stays NaN.
  DEEPREC_HD constexpr explicit e4m3(float value) noexcept : bits(detail::e4m3_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::e4m3_value(bits); }
  DEEPREC_HD static constexpr e4m3 from_bits(std::uint8_t bits) noexcept {
    e4m3 value;
    value.bits = bits;
    return value;
  }
};

/// OCP FP8 E5M2 (float8_e5m2): finite up to 57344, with infinity and NaN as in IEEE 754.
struct DEEPREC_MAY_ALIAS e5m2 {
  std::uint8_t bits = 0;

  e5m2() = default;
  /// Rounds to nearest even; too large becomes infinity; NaN stays NaN.
  DEEPREC_HD constexpr explicit e5m2(float value) noexcept : bits(detail::e5m2_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::e5m2_value(bits); }
  DEEPREC_HD static constexpr e5m2 from_bits(std::uint8_t bits) noexcept {
    e5m2 value;
    value.bits = bits;
    return value;
  }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(e4m3) == 1 && sizeof(e5m2) == 1);

namespace detail {

template <class T>
struct accumulate;

template <>
struct accumulate<double> {
  using type = double;
  static constexpr double unit_roundoff = 0x1p-53;
};

template <>
struct accumulate<float> {
  using type = float;
  static constexpr double unit_roundoff = 0x1p-24;
};

template <>
struct accumulate<bf16> : accumulate<float> {};

template <>
struct accumulate<f16> : accumulate<float> {};

template <>
struct accumulate<e4m3> : accumulate<float> {};

template <>
struct accumulate<e5m2> : accumulate<float> {};

/// The type in which values of the storage type T are summed.
template <class T>
using accumulate_t = typename accumulate<T>::type;

}  // namespace detail

template <class T>
concept Storage = requires { typename detail::accumulate<T>::type; };

/// Ids and offsets: 32 or 64 bits.
template <class T>
concept IdInteger = std::integral<T> && (sizeof(T) == 4 || sizeof(T) == 8);

/// Ids of a batch of bags: integers, or a trivially copyable class whose number id_value(id) returns (found
/// by argument-dependent lookup), such as a key with a type of its own.
template <class T>
concept BagId = IdInteger<T> || (std::is_class_v<T> && std::is_trivially_copyable_v<T> &&
                                 requires(const T& id) { requires IdInteger<decltype(id_value(id))>; });

namespace detail {

/// The number of an id; the one place where the library reads an id of a class type.
template <BagId Id>
DEEPREC_HD constexpr auto id_number(const Id& id) noexcept {
  if constexpr (std::integral<Id>) {
    return id;
  } else {
    return id_value(id);
  }
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
