// The roofline of an update, random rows read, changed and written; and an update as separate passes.
#include "update/baseline.hpp"

#include <cmath>
#include <cstring>
#include <vector>

namespace DEEPREC_BASELINE_NS {
namespace {

using vector = float __attribute__((vector_size(64)));

// Unique ids in order of appearance: an open-addressing table of twice the ids.
void unique(const std::int64_t* ids, std::int64_t count, std::vector<std::int32_t>& slots,
            std::vector<std::int64_t>& found, std::vector<std::int32_t>& inverse) {
  std::size_t size = 16;
  while (size < 2 * static_cast<std::size_t>(count)) size *= 2;
  slots.assign(size, -1);
  found.clear();
  inverse.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::size_t at = (static_cast<std::uint64_t>(ids[i]) * 0x9e3779b97f4a7c15ULL >> 20) & (size - 1);
    while (slots[at] >= 0 && found[static_cast<std::size_t>(slots[at])] != ids[i]) at = (at + 1) & (size - 1);
    if (slots[at] < 0) {
      slots[at] = static_cast<std::int32_t>(found.size());
      found.push_back(ids[i]);
    }
    inverse[static_cast<std::size_t>(i)] = slots[at];
  }
}

template <bool IntoAll>
void prefetch(const char* line) {
  if constexpr (IntoAll) {
    __builtin_prefetch(line, 1);
  } else {
    __builtin_prefetch(line, 0, 2);
  }
}

template <bool IntoAll>
void rewrite_rows(const rewrite_plan& plan) {
  const vector factor = vector{} + 0.999F;
  const std::int64_t whole = plan.floats / 16;
  for (std::int64_t k = 0; k < plan.count; ++k) {
    if (plan.distance > 0 && k + plan.distance < plan.count) {
      const char* const ahead = plan.table + plan.ids[k + plan.distance] * plan.stride;
      for (std::int64_t line = 0; line < plan.stride; line += 64) prefetch<IntoAll>(ahead + line);
      if ((reinterpret_cast<std::uintptr_t>(ahead) & 63) != 0) prefetch<IntoAll>(ahead + plan.stride - 1);
    }
    char* const row = plan.table + plan.ids[k] * plan.stride;
    for (std::int64_t v = 0; v < whole; ++v) {
      vector x;
      std::memcpy(&x, row + v * 64, 64);
      x *= factor;
      std::memcpy(row + v * 64, &x, 64);
    }
    for (std::int64_t j = whole * 16; j < plan.floats; ++j) {
      float x;
      std::memcpy(&x, row + j * 4, 4);
      x *= 0.999F;
      std::memcpy(row + j * 4, &x, 4);
    }
  }
}

}  // namespace

void rewrite(const rewrite_plan& plan) {
  plan.into_all ? rewrite_rows<true>(plan) : rewrite_rows<false>(plan);
}

void unfused_rowwise_adagrad(const unfused_batch& batch, float* table, std::int64_t stride_floats, float rate,
                             float epsilon) {
  static std::vector<float> of_id, sums;
  static std::vector<std::int32_t> slots, inverse;
  static std::vector<std::int64_t> found;
  const std::int64_t width = batch.width;
  const std::int64_t count = batch.bags * batch.hotness;
  of_id.resize(static_cast<std::size_t>(count * width));
  for (std::int64_t k = 0; k < count; ++k) {
    std::memcpy(of_id.data() + k * width, batch.gradient + k / batch.hotness * width,
                static_cast<std::size_t>(width) * sizeof(float));
  }
  unique(batch.ids, count, slots, found, inverse);
  sums.assign(found.size() * static_cast<std::size_t>(width), 0.0F);
  for (std::int64_t k = 0; k < count; ++k) {
    float* const to = sums.data() + inverse[static_cast<std::size_t>(k)] * width;
    const float* const from = of_id.data() + k * width;
    for (std::int64_t j = 0; j < width; ++j) to[j] += from[j];
  }
  for (std::size_t u = 0; u < found.size(); ++u) {
    float* const row = table + found[u] * stride_floats;
    const float* const g = sums.data() + static_cast<std::int64_t>(u) * width;
    float squares = 0;
    for (std::int64_t j = 0; j < width; ++j) squares += g[j] * g[j];
    row[width] += squares / static_cast<float>(width);
    const float step = rate / (std::sqrt(row[width]) + epsilon);
    for (std::int64_t j = 0; j < width; ++j) row[j] -= step * g[j];
  }
}

}  // namespace DEEPREC_BASELINE_NS
