// A batch of a collection: bags of each key, in one list of ids.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/safe_numerics.h>

#include <cstdint>
#include <optional>

#include <deeprec/core/jagged_view.hpp>

#include "tensors.hpp"

namespace deeprec_torch {

/// A batch of all features: feature f has the ids of key positions[f], or of key f where there are none.
struct keyed_batch {
  const std::int64_t* offsets;  // (K*B+1)
  const std::int64_t* ids;      // (N)
  const float* weights;         // (N), or null
  index_t id_count;
  index_t bags;
  at::IntArrayRef positions;

  [[nodiscard]] deeprec::jagged_view<> feature(std::size_t f) const {
    const index_t key = positions.empty() ? static_cast<index_t>(f) : positions[f];
    return {offsets + key * bags, bags, ids, id_count, weights};
  }
};

/// What batch_tensors takes, by its types and shapes: of tensors without values too.
inline void check_batch(const at::Tensor& ids, const at::Tensor& offsets,
                        const std::optional<at::Tensor>& weights) {
  check_dimensions(ids, "values", 1);
  check_dimensions(offsets, "offsets", 1);
  check_integers(ids, "values");
  check_integers(offsets, "offsets");
  check_weights_of(ids, weights, "weights", "values");
}

/// Ids, offsets and weights of a batch as contiguous tensors.
struct batch_tensors {
  batch_tensors(const at::Tensor& given_ids, const at::Tensor& given_offsets,
                const std::optional<at::Tensor>& given_weights) {
    check_on_host(given_ids, "values");
    check_on_host(given_offsets, "offsets");
    check_batch(given_ids, given_offsets, given_weights);
    ids = given_ids.to(at::kLong).contiguous();
    offsets = given_offsets.to(at::kLong).contiguous();
    if (given_weights) {
      check_on_host(*given_weights, "weights");
      weights = given_weights->to(at::kFloat).contiguous();
    }
  }
  [[nodiscard]] keyed_batch view(std::int64_t features, std::int64_t bags, std::int64_t keys,
                                 at::IntArrayRef positions) const {
    std::int64_t count = 0;
    TORCH_CHECK_VALUE(
        bags >= 0 && keys >= 0 && !c10::mul_overflows(keys, bags, &count) && count == offsets.size(0) - 1,
        "deeprec: offsets must have keys (", keys, ") * bags (", bags,
        ") + 1 elements, the same number of bags for each key (have ", offsets.size(0), ")");
    const auto used = positions.empty() ? keys : static_cast<std::int64_t>(positions.size());
    TORCH_CHECK_VALUE(used == features, "deeprec: the batch must have the collection's ", features,
                      " features (has ", used, ")");
    for (const std::int64_t key : positions) {
      TORCH_CHECK_INDEX(key >= 0 && key < keys, "deeprec: key ", key, " must be one of ", keys);
    }
    // The values before the first offset would be in no bag. Other faults of offsets are the
    // lookup's to find.
    const std::int64_t first = *offsets.const_data_ptr<std::int64_t>();
    TORCH_CHECK_VALUE(first <= 0, "deeprec: offsets must ascend from 0 (the first is ", first, ")");
    return {offsets.const_data_ptr<std::int64_t>(),
            ids.const_data_ptr<std::int64_t>(),
            weights.defined() ? weights.const_data_ptr<float>() : nullptr,
            ids.size(0),
            bags,
            positions};
  }

  at::Tensor ids, offsets, weights;
};

}  // namespace deeprec_torch
