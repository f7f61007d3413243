#include "cuembed_baseline.hpp"

#include <cuembed/include/embedding_lookup.cuh>

namespace gpu_baseline {
namespace {

template <class T>
void run(const cuembed_call& c) {
  cuembed::EmbeddingForward<T, T, std::int32_t, std::int32_t>(
      static_cast<const T*>(c.table), c.width, c.ids, c.offsets, nullptr, c.bags,
      c.offsets != nullptr ? 0 : c.hotness, cuembed::CombineMode::kSum, static_cast<T*>(c.out), c.on);
}

}  // namespace

void cuembed_f32(const cuembed_call& call) { run<float>(call); }
void cuembed_f16(const cuembed_call& call) { run<__half>(call); }

}  // namespace gpu_baseline
