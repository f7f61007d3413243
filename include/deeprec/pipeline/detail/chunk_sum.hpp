// The gradients of the parts of a batch as one: weighted, and summed in the order of the parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/pipeline/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The sum of a gradient over the chunks of a batch.
class chunk_sum {
 public:
  chunk_sum() = default;
  chunk_sum(const chunk_sum&) = delete;
  chunk_sum& operator=(const chunk_sum&) = delete;
  virtual ~chunk_sum() = default;
  /// After the stage of a chunk, in the order of the chunks.
  virtual void add(const micro_chunk& chunk) = 0;
  /// After the last one: the sum takes the place of the gradient.
  virtual void put_back() = 0;
};

/// Each chunk overwrites the gradient.
template <class Gradient>
class overwritten_gradient final : public chunk_sum {
 public:
  explicit overwritten_gradient(Gradient gradient) : gradient_(std::move(gradient)) {}
  void add(const micro_chunk& chunk) override {
    decltype(auto) part = gradient_();
    if constexpr (is_matrix_view<value_type>) {
      const auto columns = static_cast<std::size_t>(part.extent(1));
      sum_.resize(static_cast<std::size_t>(part.extent(0)) * columns);
      for (index_t i = 0; i < part.extent(0); ++i) {
        float* const sum = sum_.data() + static_cast<std::size_t>(i) * columns;
        if (chunk.number == 0) {
          scale_into(sum, part.row(i), chunk.weight, part.extent(1));
        } else {
          add_weighted(sum, part.row(i), chunk.weight, part.extent(1));
        }
      }
    } else {
      if (chunk.number == 0) batch_traits<value_type>::clear(sum_);
      batch_traits<value_type>::accumulate(sum_, part, chunk.weight);
    }
  }
  void put_back() override {
    decltype(auto) part = gradient_();
    if constexpr (is_matrix_view<value_type>) {
      for (index_t i = 0; i < part.extent(0); ++i) {
        std::copy_n(sum_.data() + i * part.extent(1), part.extent(1), part.row(i));
      }
    } else {
      using std::swap;
      swap(part, sum_);
    }
  }

 private:
  using value_type = std::remove_cvref_t<std::invoke_result_t<Gradient&>>;
  Gradient gradient_;
  std::conditional_t<is_matrix_view<value_type>, std::vector<float>, value_type> sum_{};
};

/// Each chunk writes the rows of its samples.
template <class Gradient>
class gradient_of_samples final : public chunk_sum {
 public:
  explicit gradient_of_samples(Gradient gradient) : gradient_(std::move(gradient)) {}
  void add(const micro_chunk& chunk) override {
    if (chunk.weight == 1) return;
    const matrix_view<float> rows = chunk.of(matrix_view<float>(gradient_()));
    for (index_t i = 0; i < rows.extent(0); ++i) {
      scale_into(rows.row(i), rows.row(i), chunk.weight, rows.extent(1));
    }
  }
  void put_back() override {}

 private:
  Gradient gradient_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
