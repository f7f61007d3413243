#include "support.hpp"

namespace {
__global__ void wait_for(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long t = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) __nanosleep(500);
}
}  // namespace

void gpu_suite::spin(cudaStream_t on, double microseconds) {
  wait_for<<<1, 1, 0, on>>>(static_cast<unsigned long long>(microseconds * 1000));
  deeprec::cuda_status(cudaGetLastError()).or_throw();
}
