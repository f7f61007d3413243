// How predictions are spread, by their logits: what a histogram, a ROC curve and a calibration plot are drawn
// of, in the same memory for any number of rows. Rows are counted by their weights.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "models/ctr_data.hpp"
#include "output_file.hpp"

namespace ctr {

class prediction_bins {
 public:
  static constexpr int bins = 960;
  static constexpr float end = 12;  ///< the first and the last bin have what is beyond -12 and 12

  struct bin {
    double clicks = 0, others = 0;
    double predicted = 0;  ///< the sum of probabilities

    void add(const bin& more) {
      clicks += more.clicks;
      others += more.others;
      predicted += more.predicted;
    }
    [[nodiscard]] double rows() const { return clicks + others; }
  };

  /// Weights without rows: 1 each.
  void add(matrix_view<const float> logits, matrix_view<const float> labels,
           matrix_view<const float> weights) {
    for (index_t i = 0; i < logits.extent(0); ++i) {
      const float place = (std::clamp(logits(i, 0), -end, end) + end) / (2 * end) * bins;
      bin& of = all_[static_cast<std::size_t>(std::min(static_cast<int>(place), bins - 1))];
      const double weight = weights.extent(0) == 0 ? 1 : static_cast<double>(weights(i, 0));
      (labels(i, 0) > 0.5F ? of.clicks : of.others) += weight;
      of.predicted += weight * probability_of(logits(i, 0));
    }
  }
  [[nodiscard]] const std::array<bin, bins>& all() const { return all_; }
  /// The probability in the middle of a bin.
  [[nodiscard]] static double probability(int number) {
    return probability_of(((static_cast<float>(number) + 0.5F) / bins * 2 - 1) * end);
  }
  [[nodiscard]] bin sum() const {
    bin of;
    for (const bin& one : all_) of.add(one);
    return of;
  }

 private:
  std::array<bin, bins> all_{};
};

}  // namespace ctr
