// Dense layers with random weights, for forward passes that are timed.
#pragma once

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/matrix_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace deeprec_bench {

using deeprec::index_t;
using deeprec::matrix_view;
using deeprec::mix64;

struct random_layer {
  random_layer(index_t in, index_t out, std::uint64_t seed)
      : numbers(static_cast<std::size_t>((in + 1) * out)),
        weights(numbers.data(), out, in),
        bias(numbers.data() + in * out, 1, out) {
    for (float& x : numbers) {
      seed = mix64(seed);
      x = (static_cast<float>(seed >> 40) * 0x1p-24F - 0.5F) * 2 / std::sqrt(static_cast<float>(in));
    }
  }
  random_layer(const random_layer&) = delete;
  random_layer& operator=(const random_layer&) = delete;
  std::vector<float> numbers;
  matrix_view<float> weights, bias;
};

inline std::vector<std::unique_ptr<random_layer>> random_layers(const std::vector<index_t>& widths) {
  std::vector<std::unique_ptr<random_layer>> made;
  for (std::size_t i = 1; i < widths.size(); ++i)
    made.push_back(std::make_unique<random_layer>(widths[i - 1], widths[i], 100 * i + made.size()));
  return made;
}

}  // namespace deeprec_bench
