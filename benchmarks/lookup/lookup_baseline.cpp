// What a careful engineer writes without a library: a loop per bag with the width known to the compiler,
// and the roofline, a gather of random rows that does nothing but read (or copy) them.
#include "lookup/baseline.hpp"

#include <cstring>

namespace DEEPREC_BASELINE_NS {
namespace {

template <int Width>
void sum_of_width(const float* table, const plain_batch& batch, float* out) {
  for (std::int64_t b = 0; b < batch.bags; ++b) {
    float total[Width] = {};
    for (std::int64_t k = batch.offsets[b]; k < batch.offsets[b + 1]; ++k) {
      const float* row = table + batch.ids[k] * Width;
      for (int j = 0; j < Width; ++j) total[j] += row[j];
    }
    for (int j = 0; j < Width; ++j) out[b * Width + j] = total[j];
  }
}

template <int Into>
void prefetch(const char* row, std::int64_t bytes, bool once) {
  for (std::int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, Into);
  if (!once && (reinterpret_cast<std::uintptr_t>(row) & 63) != 0)
    __builtin_prefetch(row + bytes - 1, 0, Into);
}

using vector = float __attribute__((vector_size(64)));

// Four running sums, whatever the width: nothing but the loads costs time.
template <int Floats, int Into>
float gather_floats(const gather_plan& plan) {
  constexpr int whole = Floats / 16;
  const std::int64_t stride = plan.stride == 0 ? plan.row_bytes : plan.stride;
  vector total[4] = {};
  float tail = 0;
  for (std::int64_t k = 0; k < plan.count; ++k) {
    if (plan.distance > 0 && k + plan.distance < plan.count) {
      prefetch<Into>(plan.table + plan.ids[k + plan.distance] * stride, plan.row_bytes, plan.once);
    }
    const char* const row = plan.table + plan.ids[k] * stride;
    if (plan.out != nullptr) {
      std::memcpy(plan.out + k * Floats * 4, row, Floats * 4);
      continue;
    }
#pragma GCC unroll 8
    for (int v = 0; v < whole; ++v) {
      vector x;
      std::memcpy(&x, row + v * 64, 64);
      total[v % 4] += x;
    }
    if constexpr (Floats % 16 != 0) {
      float last;
      std::memcpy(&last, row + Floats * 4 - 4, 4);
      tail += last;
    }
  }
  const vector all = total[0] + total[1] + total[2] + total[3];
  for (int j = 0; j < 16; ++j) tail += all[j];
  return tail;
}

template <int Floats>
float gather_of(const gather_plan& plan) {
  return plan.into == 3   ? gather_floats<Floats, 3>(plan)
         : plan.into == 2 ? gather_floats<Floats, 2>(plan)
                          : gather_floats<Floats, 0>(plan);
}

}  // namespace

void plain_sum(const float* table, std::int64_t width, const plain_batch& batch, float* out) {
  switch (width) {
    case 16:
      return sum_of_width<16>(table, batch, out);
    case 17:
      return sum_of_width<17>(table, batch, out);
    case 32:
      return sum_of_width<32>(table, batch, out);
    case 50:
      return sum_of_width<50>(table, batch, out);
    case 64:
      return sum_of_width<64>(table, batch, out);
    case 128:
      return sum_of_width<128>(table, batch, out);
    default:
      __builtin_trap();
  }
}

float gather(const gather_plan& plan) {
  switch (plan.row_bytes / 4) {
    case 16:
      return gather_of<16>(plan);
    case 17:
      return gather_of<17>(plan);
    case 18:
      return gather_of<18>(plan);
    case 32:
      return gather_of<32>(plan);
    case 34:
      return gather_of<34>(plan);
    case 50:
      return gather_of<50>(plan);
    case 64:
      return gather_of<64>(plan);
    case 128:
      return gather_of<128>(plan);
    default:
      __builtin_trap();
  }
}

}  // namespace DEEPREC_BASELINE_NS
