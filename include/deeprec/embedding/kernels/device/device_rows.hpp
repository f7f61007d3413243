// Reads and writes of Vec columns of a row at once by a lane of the device, for every element.
//
//   element        Vec   bytes of one read         a row is read this way when its width is a multiple of Vec
//   float            4   16                        and everything is aligned for it; else column by column
//   f16, bf16        8   16
//   e4m3, e5m2       8   8
//   codes of 8 bits  4   4, and scale and bias
//   codes of 4 bits  8   4, and scale and bias
//   split floats     8   16 and 16
//
// Compiled for the host as well: tests run it on the oracle's vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/detail/row_elements.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Copies Bytes (1, 2, or a multiple of 4) in the widest pieces; on the device both addresses are
/// aligned to Bytes, or to 16 where there are more.
///
/// @tparam Constant  no thread writes there meanwhile
template <std::size_t Bytes, bool Constant = true>
DEEPREC_HD DEEPREC_INLINE void read_words(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (Bytes % 16 == 0) {
    for (std::size_t i = 0; i < Bytes / 16; ++i) {
      const auto* const words = static_cast<const uint4*>(from) + i;
      static_cast<uint4*>(to)[i] = Constant ? __ldg(words) : *words;
    }
  } else if constexpr (Bytes == 8) {
    const auto* const words = static_cast<const uint2*>(from);
    *static_cast<uint2*>(to) = Constant ? __ldg(words) : *words;
  } else if constexpr (Bytes == 4) {
    const auto* const words = static_cast<const unsigned int*>(from);
    *static_cast<unsigned int*>(to) = Constant ? __ldg(words) : *words;
  } else if constexpr (Bytes == 2) {
    const auto* const words = static_cast<const unsigned short*>(from);
    *static_cast<unsigned short*>(to) = Constant ? __ldg(words) : *words;
  } else {
    static_assert(Bytes == 1);
    *static_cast<unsigned char*>(to) = *static_cast<const unsigned char*>(from);
  }
#else
  std::memcpy(to, from, Bytes);
#endif
}
template <std::size_t Bytes>
DEEPREC_HD DEEPREC_INLINE void write_words(void* to, const void* from) {
  read_words<Bytes, false>(to, from);
}

/// Fetches the line of an address into the second level of the device's cache.
DEEPREC_HD DEEPREC_INLINE void prefetch_line([[maybe_unused]] const void* at) {
#if defined(DEEPREC_PTX)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

/// Columns that one lane reads at once.
template <class Element>
inline constexpr int lane_columns = 8;
template <>
inline constexpr int lane_columns<float> = 4;
template <class Scale>
inline constexpr int lane_columns<scaled_code<8, Scale>> = 4;

/// Bytes of one read of Vec columns: the alignment that addresses must have.
template <class Element, int Vec>
inline constexpr int lane_bytes = Vec * static_cast<int>(sizeof(Element));
template <int Bits, class Scale, int Vec>
inline constexpr int lane_bytes<scaled_code<Bits, Scale>, Vec> = 4;
template <int Vec>
inline constexpr int lane_bytes<split_float, Vec> = 2 * Vec;

/// Columns [column, column + Vec) of a row, in two parts: load() only moves bytes, so that several rows can
/// be in flight; decode() converts them to floats. `Constant`: no thread writes the row meanwhile.
template <class Element, int Vec, bool Constant = true>
struct row_lane {
  struct raw {
    alignas(16) Element stored[Vec];
  };
  DEEPREC_HD DEEPREC_INLINE static void load(const std::byte* row, row_parts, index_t column, raw& r) {
    read_words<sizeof(Element) * Vec, Constant>(r.stored, row + column * index_t{sizeof(Element)});
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, row_parts, float* x) {
    for (int v = 0; v < Vec; ++v) x[v] = static_cast<float>(r.stored[v]);
  }
};

/// Converts the codes of one lane to floats.
template <int Bits, int Vec>
DEEPREC_HD DEEPREC_INLINE void spread_codes(std::uint32_t codes, float scale, float bias, float* x) {
  for (int v = 0; v < Vec; ++v) {
    x[v] = value_of_code(codes >> (Bits * v) & ((1U << Bits) - 1U), scale, bias);
  }
}

template <int Bits, class Scale, int Vec, bool Constant>
struct row_lane<scaled_code<Bits, Scale>, Vec, Constant> {
  static_assert(Vec * Bits == 32 || Vec * Bits == 16);
  struct raw {
    std::uint32_t codes;
    Scale pair[2];
  };
  DEEPREC_HD DEEPREC_INLINE static void load(const std::byte* row, row_parts parts, index_t column, raw& r) {
    r.codes = 0;
    read_words<Vec * Bits / 8, Constant>(&r.codes, row + parts.values + column * Bits / 8);
    read_words<sizeof(Scale), Constant>(r.pair, row + parts.others);
    read_words<sizeof(Scale), Constant>(r.pair + 1, row + parts.others + sizeof(Scale));
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, row_parts, float* x) {
    spread_codes<Bits, Vec>(r.codes, static_cast<float>(r.pair[0]), static_cast<float>(r.pair[1]), x);
  }
};

template <int Bits, class Scale, bool Constant>
struct row_lane<scaled_code<Bits, Scale>, 1, Constant> {
  struct raw {
    float x;
  };
  DEEPREC_HD DEEPREC_INLINE static void load(const std::byte* row, row_parts parts, index_t column, raw& r) {
    r.x = stored_value<scaled_code<Bits, Scale>>::at(row, parts, column);
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, row_parts, float* x) { x[0] = r.x; }
};

template <int Vec, bool Constant>
struct row_lane<split_float, Vec, Constant> {
  struct raw {
    alignas(16) std::uint16_t high[Vec];
    alignas(16) std::uint16_t low[Vec];
  };
  DEEPREC_HD DEEPREC_INLINE static void load(const std::byte* row, row_parts parts, index_t column, raw& r) {
    read_words<2 * Vec, Constant>(r.high, row + parts.values + 2 * column);
    read_words<2 * Vec, Constant>(r.low, row + parts.others + 2 * column);
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, row_parts, float* x) {
    for (int v = 0; v < Vec; ++v) {
      x[v] = bit_cast_to<float>(static_cast<std::uint32_t>(r.high[v]) << 16 | r.low[v]);
    }
  }
};

/// Element types as run-time values, for kernels over tables of different elements.
enum class element_kind : unsigned char {
  f32,
  f16,
  bf16,
  e4m3,
  e5m2,
  int8_f32,
  int8_f16,
  int4_f32,
  int4_f16,
  split
};

template <class Element>
inline constexpr element_kind kind_of_element = element_kind::split;
template <>
inline constexpr element_kind kind_of_element<float> = element_kind::f32;
template <>
inline constexpr element_kind kind_of_element<f16> = element_kind::f16;
template <>
inline constexpr element_kind kind_of_element<bf16> = element_kind::bf16;
template <>
inline constexpr element_kind kind_of_element<e4m3> = element_kind::e4m3;
template <>
inline constexpr element_kind kind_of_element<e5m2> = element_kind::e5m2;
template <>
inline constexpr element_kind kind_of_element<scaled_code<8, float>> = element_kind::int8_f32;
template <>
inline constexpr element_kind kind_of_element<scaled_code<8, f16>> = element_kind::int8_f16;
template <>
inline constexpr element_kind kind_of_element<scaled_code<4, float>> = element_kind::int4_f32;
template <>
inline constexpr element_kind kind_of_element<scaled_code<4, f16>> = element_kind::int4_f16;

/// Calls call(std::type_identity<Element>{}) for the element of a kind.
template <class Call>
DEEPREC_HD DEEPREC_INLINE void with_element(element_kind kind, const Call& call) {
  switch (kind) {
    case element_kind::f32:
      return call(std::type_identity<float>{});
    case element_kind::f16:
      return call(std::type_identity<f16>{});
    case element_kind::bf16:
      return call(std::type_identity<bf16>{});
    case element_kind::e4m3:
      return call(std::type_identity<e4m3>{});
    case element_kind::e5m2:
      return call(std::type_identity<e5m2>{});
    case element_kind::int8_f32:
      return call(std::type_identity<scaled_code<8, float>>{});
    case element_kind::int8_f16:
      return call(std::type_identity<scaled_code<8, f16>>{});
    case element_kind::int4_f32:
      return call(std::type_identity<scaled_code<4, float>>{});
    case element_kind::int4_f16:
      return call(std::type_identity<scaled_code<4, f16>>{});
    case element_kind::split:
      return call(std::type_identity<split_float>{});
  }
}

/// Offsets of the parts of a row, and its element.
struct device_parts : row_parts {
  element_kind kind;
};

/// An element that is selected at run time by a row's kind: one kernel for tables of every kind.
struct any_element {};

/// Columns that one lane of a group's kernel reads at once, for every element.
inline constexpr int group_columns = 4;

template <bool Constant>
struct row_lane<any_element, group_columns, Constant> {
  struct raw {
    alignas(16)
        std::uint32_t word[4];  // values or codes; scale and bias in words 1 and 2, lower halves in 2 and 3
  };
  DEEPREC_HD DEEPREC_INLINE static void load(const std::byte* row, device_parts parts, index_t column,
                                             raw& r) {
    const std::byte* const values = row + parts.values;
    const std::byte* const others = row + parts.others;
    switch (parts.kind) {
      case element_kind::f32:
        read_words<16, Constant>(r.word, values + 4 * column);
        break;
      case element_kind::f16:
      case element_kind::bf16:
        read_words<8, Constant>(r.word, values + 2 * column);
        break;
      case element_kind::split:
        read_words<8, Constant>(r.word, values + 2 * column);
        read_words<8, Constant>(r.word + 2, others + 2 * column);
        break;
      case element_kind::e4m3:
      case element_kind::e5m2:
      case element_kind::int8_f32:
      case element_kind::int8_f16:
        r.word[0] = word_at<4>(values + column);
        break;
      case element_kind::int4_f32:
      case element_kind::int4_f16:
        r.word[0] = word_at<2>(values + column / 2);
        break;
    }
    if (parts.kind == element_kind::int8_f32 || parts.kind == element_kind::int4_f32) {
      r.word[1] = word_at<4>(others);
      r.word[2] = word_at<4>(others + 4);
    } else if (parts.kind == element_kind::int8_f16 || parts.kind == element_kind::int4_f16) {
      r.word[1] = word_at<2>(others);
      r.word[2] = word_at<2>(others + 2);
    }
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, device_parts parts, float* x) {
    const auto half = [&](int v) { return static_cast<std::uint16_t>(r.word[v / 2] >> (v % 2 * 16)); };
    const bool wide = parts.kind == element_kind::int8_f32 || parts.kind == element_kind::int4_f32;
    // Only rows of codes have these words.
    const auto side = [&](int word) {
      return wide ? bit_cast_to<float>(r.word[word]) : f16_value(static_cast<std::uint16_t>(r.word[word]));
    };
    const auto byte = [&](int v) { return static_cast<std::uint8_t>(r.word[0] >> (8 * v)); };
    const auto each = [&](const auto& value) {
      DEEPREC_UNROLLED
      for (int v = 0; v < group_columns; ++v) x[v] = value(v);
    };
    switch (parts.kind) {
      case element_kind::f32:
        return each([&](int v) { return bit_cast_to<float>(r.word[v]); });
      case element_kind::f16:
        return each([&](int v) { return f16_value(half(v)); });
      case element_kind::bf16:
        return each([&](int v) { return bit_cast_to<float>(static_cast<std::uint32_t>(half(v)) << 16); });
      case element_kind::e4m3:
        return each([&](int v) { return e4m3_value(byte(v)); });
      case element_kind::e5m2:
        return each([&](int v) { return e5m2_value(byte(v)); });
      case element_kind::int8_f32:
      case element_kind::int8_f16:
        return spread_codes<8, group_columns>(r.word[0], side(1), side(2), x);
      case element_kind::int4_f32:
      case element_kind::int4_f16:
        return spread_codes<4, group_columns>(r.word[0], side(1), side(2), x);
      case element_kind::split:
        return each([&](int v) {
          return bit_cast_to<float>(static_cast<std::uint32_t>(half(v)) << 16 | half(v + 4));
        });
    }
    __builtin_unreachable();
  }

 private:
  template <std::size_t Bytes>
  DEEPREC_HD DEEPREC_INLINE static std::uint32_t word_at(const std::byte* from) {
    std::conditional_t<Bytes == 4, std::uint32_t, std::uint16_t> word;
    read_words<Bytes, Constant>(&word, from);
    return word;
  }
};

template <bool Constant>
struct row_lane<any_element, 1, Constant> {
  struct raw {
    float x = 0;
  };
  DEEPREC_HD static void load(const std::byte* row, device_parts parts, index_t column, raw& r) {
    with_element(parts.kind, [&](auto which) {
      r.x = stored_value<typename decltype(which)::type>::at(row, parts, column);
    });
  }
  DEEPREC_HD DEEPREC_INLINE static void decode(const raw& r, device_parts, float* x) { x[0] = r.x; }
};

/// load() and decode().
template <class Element, int Vec, class Parts>
DEEPREC_HD DEEPREC_INLINE void read_row(const std::byte* row, const Parts& parts, index_t column, float* x) {
  typename row_lane<Element, Vec>::raw r;
  row_lane<Element, Vec>::load(row, parts, column, r);
  row_lane<Element, Vec>::decode(r, parts, x);
}

/// True when rows that begin at `first` and are `stride` bytes apart can be read Vec columns at a time.
template <class Element, int Vec = lane_columns<Element>>
bool rows_fit_lanes(const void* first, index_t stride, row_parts parts, index_t width) noexcept {
  constexpr int bytes = lane_bytes<Element, Vec>;
  const auto aligned = [](index_t x, int to) { return x % to == 0; };
  bool fits = aligned(static_cast<index_t>(reinterpret_cast<std::uintptr_t>(first)), bytes) &&
              aligned(stride, bytes) && aligned(width, Vec) && aligned(parts.values, bytes);
  // Scale and bias are 2 or 4 bytes each; lower halves are read like the upper ones.
  return fits && aligned(parts.others, bytes);
}

/// The same, for writing rows of Out, vec columns at a time.
template <class Out>
bool out_fits_lanes(const Out* first, index_t stride, index_t width, int vec) noexcept {
  const index_t bytes = vec * index_t{sizeof(Out)} < 16 ? vec * index_t{sizeof(Out)} : 16;
  return static_cast<index_t>(reinterpret_cast<std::uintptr_t>(first)) % bytes == 0 &&
         stride * index_t{sizeof(Out)} % bytes == 0 && width % vec == 0;
}

/// Number of lanes that read a row together (a power of two, up to a warp), and of their passes over the row.
struct lane_shape {
  int lanes;
  int panels;
};
DEEPREC_HD constexpr lane_shape lanes_of(index_t width, int vec) noexcept {
  const index_t reads = (width + vec - 1) / vec;
  int lanes = 1;
  while (lanes < 32 && lanes < reads) lanes *= 2;
  return {lanes, static_cast<int>((reads + lanes - 1) / lanes)};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
