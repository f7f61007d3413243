// A stream that ends with its owner.
#pragma once

#include <doctest/doctest.h>

#include <cuda_runtime.h>

namespace deeprec_test {

struct owned_stream {
  cudaStream_t it = nullptr;
  owned_stream() { REQUIRE(cudaStreamCreateWithPriority(&it, cudaStreamNonBlocking, 0) == cudaSuccess); }
  owned_stream(const owned_stream&) = delete;
  owned_stream& operator=(const owned_stream&) = delete;
  ~owned_stream() { cudaStreamDestroy(it); }
};

}  // namespace deeprec_test
