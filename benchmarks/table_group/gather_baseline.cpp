// Rows of 64 bytes, copied from many tables to their places side by side: the least that one-hot features
// cost. Rows of 68 bytes, rewritten in place: the least that a step with a state of one float does.
#include "table_group/baseline.hpp"

#include <cstring>

namespace DEEPREC_BASELINE_NS {

namespace {

template <int Into>
void gather(const one_hot_gather& plan) {
  const std::int64_t stride = plan.features * 64;
  for (std::int64_t t = 0; t < plan.features; ++t) {
    const char* const table = plan.tables[t];
    const std::int64_t* const ids = plan.ids[t];
    for (std::int64_t r = 0; r < plan.rows; ++r) {
      if (plan.distance > 0 && r + plan.distance < plan.rows) {
        __builtin_prefetch(table + ids[r + plan.distance] * 64, 0, Into);
      }
      std::memcpy(plan.out + r * stride + t * 64, table + ids[r] * 64, 64);
    }
  }
}

}  // namespace

void gather_64_bytes(const one_hot_gather& plan) { plan.into_all ? gather<3>(plan) : gather<2>(plan); }

void rewrite_68_bytes(const one_hot_rewrite& plan) {
  for (std::int64_t t = 0; t < plan.features; ++t) {
    char* const table = plan.tables[t];
    const std::int64_t* const ids = plan.ids[t];
    for (std::int64_t r = 0; r < plan.rows; ++r) {
      if (plan.distance > 0 && r + plan.distance < plan.rows) {
        const char* const ahead = table + ids[r + plan.distance] * 68;
        __builtin_prefetch(ahead, 1);
        __builtin_prefetch(ahead + 67, 1);
      }
      float row[17];
      std::memcpy(row, table + ids[r] * 68, 68);
      for (float& x : row) x *= 0.999F;
      std::memcpy(table + ids[r] * 68, row, 68);
    }
  }
}

}  // namespace DEEPREC_BASELINE_NS
