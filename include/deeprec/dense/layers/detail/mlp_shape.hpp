// Where the parameters of a stack of fully connected layers lie in one array.
//
//   | W0 (O,I) | b0 (O) | W1 | b1 | ...      layer by layer
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/random.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class mlp_shape {
 public:
  /// @pre at least two sizes, each at least 1
  explicit mlp_shape(std::vector<index_t> sizes) : sizes_(std::move(sizes)) {
    DEEPREC_EXPECTS(sizes_.size() >= 2);
    for (std::size_t l = 0; l + 1 < sizes_.size(); ++l) {
      DEEPREC_EXPECTS(sizes_[l] >= 1 && sizes_[l + 1] >= 1);
      first_.push_back(parameters_);
      constexpr index_t most = (std::numeric_limits<index_t>::max)();  // more than any vector holds
      const index_t rows = sizes_[l] < most ? sizes_[l] + 1 : most;
      const bool fits = sizes_[l + 1] <= (most - parameters_) / rows;
      parameters_ = fits ? parameters_ + rows * sizes_[l + 1] : most;
    }
  }

  [[nodiscard]] const std::vector<index_t>& sizes() const noexcept { return sizes_; }
  [[nodiscard]] int layers() const noexcept { return static_cast<int>(sizes_.size()) - 1; }
  [[nodiscard]] index_t size(int i) const noexcept { return sizes_[static_cast<std::size_t>(i)]; }
  /// The number of all parameters.
  [[nodiscard]] index_t parameters() const noexcept { return parameters_; }

  /// The weights of layer l (O,I), and its bias (1,O).
  template <class Floats>
  [[nodiscard]] auto weights_in(Floats& all, int l) const noexcept {
    return matrix_view(all.data() + first_[static_cast<std::size_t>(l)], size(l + 1), size(l));
  }
  template <class Floats>
  [[nodiscard]] auto bias_in(Floats& all, int l) const noexcept {
    return matrix_view(all.data() + first_[static_cast<std::size_t>(l)] + size(l) * size(l + 1), index_t{1},
                       size(l + 1));
  }

 private:
  std::vector<index_t> sizes_;
  std::vector<index_t> first_;  // where each layer's weights begin
  index_t parameters_ = 0;
};

/// Uniform in [-bound, bound), from one stream.
DEEPREC_PER_UNIT inline void fill_uniform(matrix_view<float> weights, const counter_rng& rng,
                                          std::uint64_t stream, double bound) {
  float* const w = weights.data_handle();
  for (index_t i = 0; i < weights.extent(0) * weights.extent(1); ++i) {
    const double u = rng.uniform(stream, static_cast<std::uint64_t>(i));
    w[i] = static_cast<float>((2 * u - 1) * bound);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
