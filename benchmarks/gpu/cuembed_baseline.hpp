// cuEmbed's pooled lookup (sum). No header of deeprec here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gpu_baseline {

/// offsets null: bags of `hotness` ids each; else by offsets (bags+1).
struct cuembed_call {
  const void* table;
  int width;
  const std::int32_t* ids;
  const std::int32_t* offsets;
  int bags, hotness;
  void* out;
  cudaStream_t on;
};
void cuembed_f32(const cuembed_call& call);
void cuembed_f16(const cuembed_call& call);

}  // namespace gpu_baseline
