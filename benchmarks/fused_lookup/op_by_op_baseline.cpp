// safe_embedding_lookup_sparse as a graph of ops runs it: every op reads its inputs and writes its
// outputs.
#include "fused_lookup/baseline.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace DEEPREC_BASELINE_NS {
namespace {

using ints = std::vector<std::int64_t>;

using floats = std::vector<float>;

// tf.where + tf.gather: the entries whose id is not negative, and whose weight is above 0.
void prune(const sparse_feature& feature, ints& kept, ints& rows, ints& ids, floats& weights) {
  kept.clear();
  if (feature.weights == nullptr) {
    for (std::int64_t k = 0; k < feature.entries; ++k) {
      if (feature.ids[k] >= 0) kept.push_back(k);
    }
  } else {
    for (std::int64_t k = 0; k < feature.entries; ++k) {
      if (feature.ids[k] >= 0 && feature.weights[k] > 0) kept.push_back(k);
    }
    weights.resize(kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) weights[i] = feature.weights[kept[i]];
  }
  rows.resize(kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) rows[i] = feature.rows[kept[i]];
  ids.resize(kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) ids[i] = feature.ids[kept[i]];
}

// SparseFillEmptyRows: entries in the order of their rows, one more for each row without any.
void fill_empty_rows(const ints& rows, const ints& ids, const floats* weights, std::int64_t batch,
                     ints& count, ints& out_rows, ints& out_ids, floats& out_weights,
                     std::vector<char>& empty) {
  count.assign(static_cast<std::size_t>(batch), 0);
  for (const std::int64_t r : rows) ++count[static_cast<std::size_t>(r)];
  empty.resize(static_cast<std::size_t>(batch));
  std::int64_t total = 0;
  for (std::size_t r = 0; r < empty.size(); ++r) {
    empty[r] = count[r] == 0;
    const std::int64_t here = std::max<std::int64_t>(count[r], 1);
    count[r] = total;
    total += here;
  }
  out_rows.resize(static_cast<std::size_t>(total));
  out_ids.resize(static_cast<std::size_t>(total));
  if (weights != nullptr) out_weights.resize(static_cast<std::size_t>(total));
  for (std::size_t r = 0; r < empty.size(); ++r) {
    if (empty[r] == 0) continue;
    out_rows[static_cast<std::size_t>(count[r])] = static_cast<std::int64_t>(r);
    out_ids[static_cast<std::size_t>(count[r])] = 0;
    if (weights != nullptr) out_weights[static_cast<std::size_t>(count[r])] = 1;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t to = count[static_cast<std::size_t>(rows[i])]++;
    out_rows[static_cast<std::size_t>(to)] = rows[i];
    out_ids[static_cast<std::size_t>(to)] = ids[i];
    if (weights != nullptr) out_weights[static_cast<std::size_t>(to)] = (*weights)[i];
  }
}

// Unique: an open-addressing table of twice the entries.
void unique(const ints& ids, std::vector<std::int32_t>& slots, ints& unique_ids, ints& inverse) {
  std::size_t size = 16;
  while (size < 2 * ids.size()) size *= 2;
  slots.assign(size, -1);
  unique_ids.clear();
  inverse.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::size_t at = (static_cast<std::uint64_t>(ids[i]) * 0x9e3779b97f4a7c15ULL >> 20) & (size - 1);
    while (slots[at] >= 0 && unique_ids[static_cast<std::size_t>(slots[at])] != ids[i])
      at = (at + 1) & (size - 1);
    if (slots[at] < 0) {
      slots[at] = static_cast<std::int32_t>(unique_ids.size());
      unique_ids.push_back(ids[i]);
    }
    inverse[i] = slots[at];
  }
}

void gather(const float* table, std::int64_t width, const ints& ids, std::vector<float>& rows) {
  const auto floats = static_cast<std::size_t>(width);
  rows.resize(ids.size() * floats);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::memcpy(rows.data() + i * floats, table + ids[i] * width, floats * sizeof(float));
  }
}

// SparseSegmentMean over the gathered rows.
template <int Width>
void segment_mean(const std::vector<float>& rows, const ints& inverse, const ints& segment,
                  std::int64_t batch, float* out) {
  std::size_t k = 0;
  for (std::int64_t r = 0; r < batch; ++r) {
    float total[Width] = {};
    int count = 0;
    for (; k < segment.size() && segment[k] == r; ++k, ++count) {
      const float* const row = rows.data() + inverse[k] * Width;
      for (int j = 0; j < Width; ++j) total[j] += row[j];
    }
    const float by = static_cast<float>(std::max(count, 1));
    for (int j = 0; j < Width; ++j) out[r * Width + j] = total[j] / by;
  }
}

// The weights' products and sums: a pass of tf.multiply over the gathered rows is left out, to its advantage.
template <int Width>
void weighted_segment_mean(const std::vector<float>& rows, const ints& inverse, const ints& segment,
                           const floats& weights, std::int64_t batch, float* out) {
  std::size_t k = 0;
  for (std::int64_t r = 0; r < batch; ++r) {
    float total[Width] = {};
    float of_weights = 0;
    for (; k < segment.size() && segment[k] == r; ++k) {
      const float* const row = rows.data() + inverse[k] * Width;
      const float w = weights[k];
      for (int j = 0; j < Width; ++j) total[j] += w * row[j];
      of_weights += w;
    }
    for (int j = 0; j < Width; ++j) out[r * Width + j] = total[j] / of_weights;
  }
}

// tf.where(empty, 0, out)
void zero_empty(const std::vector<char>& empty, std::int64_t width, const float* pooled, float* out) {
  for (std::size_t r = 0; r < empty.size(); ++r) {
    float* const to = out + static_cast<std::int64_t>(r) * width;
    const float* const from = pooled + static_cast<std::int64_t>(r) * width;
    for (std::int64_t j = 0; j < width; ++j) to[j] = empty[r] != 0 ? 0.0F : from[j];
  }
}

}  // namespace

void op_by_op_mean(const sparse_feature& feature, float* out) {
  static ints kept, pruned_rows, pruned_ids, count, rows, ids, unique_ids, inverse;
  static std::vector<char> empty;
  static std::vector<std::int32_t> slots;
  static floats gathered, pooled, pruned_weights, weights;
  const bool weighted = feature.weights != nullptr;
  prune(feature, kept, pruned_rows, pruned_ids, pruned_weights);
  fill_empty_rows(pruned_rows, pruned_ids, weighted ? &pruned_weights : nullptr, feature.batch, count, rows,
                  ids, weights, empty);
  unique(ids, slots, unique_ids, inverse);
  gather(feature.table, feature.width, unique_ids, gathered);
  pooled.resize(static_cast<std::size_t>(feature.batch * feature.width));
  if (feature.width == 16 && weighted) {
    weighted_segment_mean<16>(gathered, inverse, rows, weights, feature.batch, pooled.data());
  } else if (feature.width == 16) {
    segment_mean<16>(gathered, inverse, rows, feature.batch, pooled.data());
  } else {
    __builtin_trap();
  }
  zero_empty(empty, feature.width, pooled.data(), out);
}

}  // namespace DEEPREC_BASELINE_NS
