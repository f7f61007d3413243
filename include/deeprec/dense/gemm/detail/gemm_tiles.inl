// The kernels around a product, written over the vector primitives and compiled once for each region.
//
// An operation that is absent is a branch that never changes: a new operation needs no new template.

inline constexpr index_t floats_at_once = 64;

template <class From, class To>
DEEPREC_INLINE void convert_floats(const From* from, To* to, index_t n) {
  index_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    const vector_f32 first = load(from + j);
    const vector_f32 second = load(from + j + lanes);
    store(to + j, first);
    store(to + j + lanes, second);
  }
  for (; j + lanes <= n; j += lanes) store(to + j, load(from + j));
  if (j < n) store_first(to + j, load_first(from + j, static_cast<int>(n - j)), static_cast<int>(n - j));
}

// Rounds as narrow_for_products: casts that are cached must not depend on the function that made them.
inline void narrow_floats(const float* from, bf16* to, index_t n) {
  float normal[floats_at_once];
  for (index_t at = 0; at < n; at += floats_at_once) {
    const index_t some = n - at < floats_at_once ? n - at : floats_at_once;
    for (index_t j = 0; j < some; ++j) {
      const auto bits = __builtin_bit_cast(std::uint32_t, from[at + j]);
      normal[j] = __builtin_bit_cast(float, (bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
    }
    convert_floats(normal, to + at, some);
  }
}

inline void convert(region, const ::deeprec::detail::convert_block& block) {
  using ::deeprec::detail::conversion;
  for (index_t i = 0; i < block.rows; ++i) {
    const index_t at = i * block.from_stride;
    const auto* f32 = static_cast<const float*>(block.from) + at;
    auto* to = static_cast<float*>(block.to) + i * block.to_stride;
    switch (block.kind) {
      case conversion::none:
      case conversion::copy: {
        const index_t size = ::deeprec::detail::bytes_of(block.stored);
        __builtin_memcpy(static_cast<char*>(block.to) + i * block.to_stride * size,
                         static_cast<const char*>(block.from) + at * size,
                         static_cast<std::size_t>(block.columns * size));
        break;
      }
      case conversion::widen:
        convert_floats(static_cast<const bf16*>(block.from) + at, to, block.columns);
        break;
      case conversion::narrow:
        narrow_floats(f32, static_cast<bf16*>(block.to) + i * block.to_stride, block.columns);
        break;
      case conversion::round_bf16:
        for (index_t j = 0; j < block.columns; ++j) to[j] = bf16(f32[j]);
        break;
      case conversion::round_tf32:
        for (index_t j = 0; j < block.columns; ++j) to[j] = tf32_round(f32[j]);
        break;
    }
  }
}

// The largest magnitude of a block; infinity where a value is infinite or NaN.
inline float largest_of(region, const void* data, index_t stride, gemm_storage storage, index_t rows,
                        index_t columns) {
  if (stride == columns) {  // one long row
    columns *= rows;
    rows = 1;
  }
  std::uint32_t most = 0;
  if (storage == gemm_storage::f32) {
    std::uint32_t lane[floats_at_once] = {};
    for (index_t i = 0; i < rows; ++i) {
      const float* x = static_cast<const float*>(data) + i * stride;
      index_t j = 0;
      for (; j + floats_at_once <= columns; j += floats_at_once) {
        for (index_t l = 0; l < floats_at_once; ++l) {
          const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x[j + l]) & 0x7fffffffU;
          lane[l] = bits > lane[l] ? bits : lane[l];
        }
      }
      for (; j < columns; ++j) {
        const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x[j]) & 0x7fffffffU;
        most = bits > most ? bits : most;
      }
    }
    for (const std::uint32_t bits : lane) most = bits > most ? bits : most;
  } else {
    for (index_t i = 0; i < rows; ++i) {
      const auto* x = static_cast<const bf16*>(data) + i * stride;
      for (index_t j = 0; j < columns; ++j) {
        const std::uint32_t bits = static_cast<std::uint32_t>(x[j].bits & 0x7fffU) << 16;
        most = bits > most ? bits : most;
      }
    }
  }
  return __builtin_bit_cast(float, most > 0x7f800000U ? 0x7f800000U : most);
}

// e^x with a relative error of a few 2^-24, where x is clamped to [-87, 88]; NaN stays NaN.
DEEPREC_INLINE float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * 1.44269504F + 12582912.0F;  // the nearest whole number in the low bits
  const float n = shifted - 12582912.0F;
  float r = x - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto scale = (__builtin_bit_cast(std::int32_t, shifted) - 0x4b400000 + 127) << 23;
  return p * __builtin_bit_cast(float, scale);
}
DEEPREC_INLINE float logistic(float x) { return 1.0F / (1.0F + exponential(-x)); }
DEEPREC_INLINE float gelu_by_tanh(float x) {
  const float u = 0.797884561F * (x + 0.044715F * x * x * x);
  return x * (1.0F - 1.0F / (1.0F + exponential(2.0F * u)));
}
// Error below 2e-7 |x|. Source: Abramowitz and Stegun 7.1.26.
DEEPREC_INLINE float gelu_by_erf(float x) {
  const float z = 0.707106781F * (x < 0 ? -x : x);
  const float t = 1.0F / (1.0F + 0.3275911F * z);
  float p = 1.061405429F;
  p = p * t - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const float rest = 0.5F * p * t * exponential(-z * z);  // 1 - Phi(|x|)
  return x * (x < 0 ? rest : 1.0F - rest);
}

// The activations of 64 values, in loops of constant length, which the compiler vectorises.
inline void activate(gemm_activation activation, float* x) {
  switch (activation) {
    case gemm_activation::none:
    case gemm_activation::relu:
      break;
    case gemm_activation::gelu:
      for (index_t j = 0; j < floats_at_once; ++j) x[j] = gelu_by_erf(x[j]);
      break;
    case gemm_activation::gelu_tanh:
      for (index_t j = 0; j < floats_at_once; ++j) x[j] = gelu_by_tanh(x[j]);
      break;
    case gemm_activation::sigmoid:
      for (index_t j = 0; j < floats_at_once; ++j) x[j] = logistic(x[j]);
      break;
  }
}

DEEPREC_INLINE vector_f32 load_stored(const ::deeprec::detail::stored_rows<const void>& rows, index_t at) {
  return rows.storage == gemm_storage::f32 ? load(static_cast<const float*>(rows.data) + at)
                                           : load(static_cast<const bf16*>(rows.data) + at);
}
DEEPREC_INLINE vector_f32 load_stored(const ::deeprec::detail::stored_rows<const void>& rows, index_t at,
                                      int n) {
  return rows.storage == gemm_storage::f32 ? load_first(static_cast<const float*>(rows.data) + at, n)
                                           : load_first(static_cast<const bf16*>(rows.data) + at, n);
}

// One vector of a row. `n...` is empty for a whole vector, else the number of its valid lanes.
template <class... N>
DEEPREC_INLINE vector_f32 sum_of_steps(const ::deeprec::detail::finish_tile& tile, vector_f32 x, index_t i,
                                       index_t j, N... n) {
  if (tile.old.data != nullptr) x = x + load_stored(tile.old, i * tile.old.stride + j, n...);
  if constexpr (sizeof...(N) == 0) {
    if (tile.bias != nullptr) x = x + load(tile.bias + j);
  } else {
    if (tile.bias != nullptr) x = x + load_first(tile.bias + j, n...);
  }
  if (tile.residual.data != nullptr) x = x + load_stored(tile.residual, i * tile.residual.stride + j, n...);
  if (tile.activation == gemm_activation::relu) x = maximum(x, zero());
  return x;
}
template <class... N>
DEEPREC_INLINE void put_masked(const ::deeprec::detail::finish_tile& tile, vector_f32 x, index_t i, index_t j,
                               N... n) {
  if (tile.mask.data != nullptr)
    x = where_positive(load_stored(tile.mask, i * tile.mask.stride + j, n...), x);
  const index_t at = i * tile.to.stride + j;
  if constexpr (sizeof...(N) == 0) {
    tile.to.storage == gemm_storage::f32 ? store(static_cast<float*>(tile.to.data) + at, x)
                                         : store(static_cast<bf16*>(tile.to.data) + at, x);
  } else {
    tile.to.storage == gemm_storage::f32 ? store_first(static_cast<float*>(tile.to.data) + at, x, n...)
                                         : store_first(static_cast<bf16*>(tile.to.data) + at, x, n...);
  }
}

// The common case of layers, without branches: bias, with or without ReLU, to one type.
template <bool Relu, class To>
DEEPREC_INLINE void finish_layer(const float* product, const float* bias, To* to, index_t n) {
  const auto step = [](vector_f32 x, vector_f32 b) {
    if constexpr (Relu) return maximum(x + b, zero());
    return x + b;
  };
  index_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    const vector_f32 x0 = step(load(product + j), load(bias + j));
    const vector_f32 x1 = step(load(product + j + lanes), load(bias + j + lanes));
    const vector_f32 x2 = step(load(product + j + 2 * lanes), load(bias + j + 2 * lanes));
    const vector_f32 x3 = step(load(product + j + 3 * lanes), load(bias + j + 3 * lanes));
    store(to + j, x0);
    store(to + j + lanes, x1);
    store(to + j + 2 * lanes, x2);
    store(to + j + 3 * lanes, x3);
  }
  for (; j + lanes <= n; j += lanes) store(to + j, step(load(product + j), load(bias + j)));
  if (j < n) {
    const int left = static_cast<int>(n - j);
    store_first(to + j, step(load_first(product + j, left), load_first(bias + j, left)), left);
  }
}
template <class To>
DEEPREC_INLINE void finish_layers(const ::deeprec::detail::finish_tile& tile, To* to) {
  for (index_t i = 0; i < tile.rows; ++i) {
    const float* product = tile.product + i * tile.product_stride;
    if (tile.activation == gemm_activation::relu) {
      finish_layer<true>(product, tile.bias, to + i * tile.to.stride, tile.columns);
    } else {
      finish_layer<false>(product, tile.bias, to + i * tile.to.stride, tile.columns);
    }
  }
}

inline void finish(region, const ::deeprec::detail::finish_tile& wanted) {
  const ::deeprec::detail::finish_tile tile = wanted;  // a copy, which no store can alias
  if (tile.old.data == nullptr && tile.residual.data == nullptr && tile.mask.data == nullptr &&
      tile.bias != nullptr && tile.activation <= gemm_activation::relu) {
    tile.to.storage == gemm_storage::f32 ? finish_layers(tile, static_cast<float*>(tile.to.data))
                                         : finish_layers(tile, static_cast<bf16*>(tile.to.data));
    return;
  }
  const int tail = static_cast<int>(tile.columns % lanes);
  const index_t whole = tile.columns - tail;
  const bool by_vectors = tile.activation <= gemm_activation::relu;
  for (index_t i = 0; i < tile.rows; ++i) {
    const float* product = tile.product + i * tile.product_stride;
    if (by_vectors) {
      for (index_t j = 0; j < whole; j += lanes)
        put_masked(tile, sum_of_steps(tile, load(product + j), i, j), i, j);
      if (tail != 0) {
        put_masked(tile, sum_of_steps(tile, load_first(product + whole, tail), i, whole, tail), i, whole,
                   tail);
      }
      continue;
    }
    for (index_t first = 0; first < tile.columns; first += floats_at_once) {
      const index_t last = tile.columns - first < floats_at_once ? tile.columns : first + floats_at_once;
      float x[floats_at_once] = {};
      index_t j = first;
      for (; j + lanes <= last; j += lanes)
        store(x + (j - first), sum_of_steps(tile, load(product + j), i, j));
      if (j < last)
        store_first(x + (j - first), sum_of_steps(tile, load_first(product + j, tail), i, j, tail), tail);
      activate(tile.activation, x);
      for (j = first; j + lanes <= last; j += lanes) put_masked(tile, load(x + (j - first)), i, j);
      if (j < last) put_masked(tile, load_first(x + (j - first), tail), i, j, tail);
    }
  }
}

// Sums as in column_sums: partial sums of 64 rows, added in order.
template <class T>
inline void finish_block_of(const ::deeprec::detail::result_block& block, T* c) {
  constexpr index_t width = ::deeprec::detail::result_block::width;
  float sum[width] = {}, part[width] = {};
  float x[width] = {};  // values past the columns stay 0
  for (index_t i = 0; i < block.rows; ++i) {
    T* const row = c + i * block.c.stride;
    convert_floats(row, x, block.columns);
    if (block.mask != nullptr) {
      const std::uint64_t bits = block.mask[i * block.mask_stride];
      for (index_t j = 0; j < width; ++j) x[j] = ((bits >> j) & 1U) != 0 ? x[j] : 0.0F;
      convert_floats(x, row, block.columns);
    }
    if (block.positive != nullptr) {
      std::uint64_t bits = 0;
      for (index_t j = 0; j < width; ++j) bits |= static_cast<std::uint64_t>(x[j] > 0.0F ? 1 : 0) << j;
      block.positive[i * block.positive_stride] = bits;
    }
    if (block.sums == nullptr) continue;
    for (index_t j = 0; j < width; ++j) part[j] += x[j];
    if ((i + 1) % floats_at_once != 0 && i + 1 != block.rows) continue;
    for (index_t j = 0; j < width; ++j) {
      sum[j] += part[j];
      part[j] = 0.0F;
    }
  }
  if (block.sums != nullptr)
    __builtin_memcpy(block.sums, sum, static_cast<std::size_t>(block.columns) * sizeof(float));
}
inline void finish_block(region, const ::deeprec::detail::result_block& wanted) {
  const ::deeprec::detail::result_block block = wanted;  // a copy, which no store can alias
  block.c.storage == gemm_storage::f32 ? finish_block_of(block, static_cast<float*>(block.c.data))
                                       : finish_block_of(block, static_cast<bf16*>(block.c.data));
}

#include <deeprec/dense/gemm/detail/row_products.inl>
