// A table of an EmbeddingBagCollection: its configuration, and what dense tables and those that grow share.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>

#include "tensors.hpp"

namespace deeprec_torch {

/// How a table grows.
struct growth {
  enum class filter_kind : unsigned char { none, counter, counting_bloom, probabilistic };

  std::optional<index_t> capacity;
  deeprec::when_full full = deeprec::when_full::refuse;
  filter_kind filter = filter_kind::none;
  std::int64_t occurrences = 1;  ///< of counter and counting_bloom
  index_t keys = 0;              ///< of counting_bloom
  double share = 1;              ///< of false admissions, or that probabilistic admits
  std::uint64_t filter_seed = 0;
  std::vector<float> default_row;
};

/// One table and the features that are looked up in it.
struct table_config {
  std::string name;
  index_t rows = 0;  ///< of a table that does not grow
  index_t width = 0;
  std::string format;                  ///< "f32", "f16", "bf16", "int8" or "int4"
  std::vector<std::int64_t> poolings;  ///< of each feature: 0 sum, 1 mean
  std::optional<growth> grows{};
};

/// What an optimizer steps with. Each takes what it has.
struct step_options {
  double learning_rate = 0.01;
  double epsilon = 1e-8;
  double initial_squares = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  std::int64_t step = 1;  ///< the number of the next step
  double weight_decay = 0;
  std::uint64_t rounding_seed = 0;  ///< of rows of 16 bits that are rounded at random
};

/// Floats of state of a row of that width.
template <class Optimizer>
constexpr index_t state_floats_of(index_t width) {
  if constexpr (std::is_same_v<Optimizer, deeprec::lookups_only>) {
    return 0;
  } else {
    return Optimizer::row_state + Optimizer::element_state * width;
  }
}

/// The first values of a table: uniform in [-bound, bound), by the number of a row in the whole table.
struct first_values {
  std::uint64_t seed = 0;
  float bound = 0;
  index_t first = 0;     ///< number of the first row here
  index_t distance = 1;  ///< to the next one

  void operator()(index_t row, float* values, index_t width) const {
    deeprec::row_init::uniform{.seed = seed, .bound = bound}(first + row * distance, values, width);
  }
};

/// A table whose format is not in its type.
class table {
 public:
  explicit table(table_config config) : config_(std::move(config)) {}
  virtual ~table() = default;
  table(const table&) = delete;
  table& operator=(const table&) = delete;

  [[nodiscard]] const table_config& config() const { return config_; }
  /// Sets the first values of rows. A table that grows has no row then.
  virtual void initialize(const first_values& values) = 0;

 protected:
  /// Adds the features of rows to a group.
  template <class Group, class Source, class... Where>
  void add_features(Group& group, const Source& rows, const Where&... where) const {
    for (const std::int64_t pooling : config_.poolings) {
      if (pooling == 0) {
        group.add(rows, deeprec::combiner::sum, where...);
      } else {
        group.add(rows, deeprec::combiner::mean, where...);
      }
    }
  }
  /// Values (N, D) for so many rows.
  void check_values(const at::Tensor& values, index_t rows) const {
    TORCH_CHECK_VALUE(values.dim() == 2 && values.size(0) == rows && values.size(1) == config_.width,
                      "deeprec: weights of table ", config_.name, " must be (", rows, ", ", config_.width,
                      ") (are ", values.sizes(), ")");
    check_floats(values, "weights");
  }

  table_config config_;
};

}  // namespace deeprec_torch
