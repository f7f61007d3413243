// What the GPU suites call besides the library, for the host: nobody spins, and cuEmbed is a loop.
#include "gpu/cuembed_baseline.hpp"
#include "gpu/support.hpp"

#include <deeprec/core/dtypes.hpp>

void gpu_suite::spin(cudaStream_t, double) {}

namespace gpu_baseline {
namespace {

template <class T>
void run(const cuembed_call& c) {
  host_cuda::enqueue(c.on, [c] {
    for (int b = 0; b < c.bags; ++b) {
      const int first = c.offsets != nullptr ? c.offsets[b] : b * c.hotness;
      const int end = c.offsets != nullptr ? c.offsets[b + 1] : first + c.hotness;
      for (int j = 0; j < c.width; ++j) {
        float sum = 0;
        for (int k = first; k < end; ++k) {
          sum += static_cast<float>(
              static_cast<const T*>(c.table)[static_cast<std::ptrdiff_t>(c.ids[k]) * c.width + j]);
        }
        static_cast<T*>(c.out)[static_cast<std::ptrdiff_t>(b) * c.width + j] = static_cast<T>(sum);
      }
    }
  });
}

}  // namespace

void cuembed_f32(const cuembed_call& call) { run<float>(call); }
void cuembed_f16(const cuembed_call& call) { run<deeprec::f16>(call); }

}  // namespace gpu_baseline
