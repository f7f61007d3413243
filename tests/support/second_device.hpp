// The second device as the current one, for a test; the first again behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

namespace deeprec_test {

class second_device {
 public:
  second_device() {
    int devices = 0;
    REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
    REQUIRE(cudaGetDevice(&before_) == cudaSuccess);
    there_ = devices > 1;
    if (!there_) MESSAGE("NOT TESTED: one device");
    if (there_) REQUIRE(cudaSetDevice(1) == cudaSuccess);
  }
  second_device(const second_device&) = delete;
  second_device& operator=(const second_device&) = delete;
  ~second_device() { cudaSetDevice(before_); }
  [[nodiscard]] bool is_there() const { return there_; }

 private:
  int before_ = 0;
  bool there_ = false;
};

}  // namespace deeprec_test
