// Prints the versions that this build uses, one "<name> <version>" a line.
#include <Eigen/Core>
#include <xsimd/config/xsimd_config.hpp>

#include <cstdio>

#if defined(DEEPREC_WITH_ONEDNN)
#  include <oneapi/dnnl/dnnl_version.h>
#endif
#if defined(DEEPREC_WITH_CUDA)
#  include <cuda_runtime_api.h>
#endif

int main() {
  std::printf("CMake %s\n", DEEPREC_CMAKE_VERSION);
  std::printf("Eigen %d.%d.%d\n", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
  std::printf("xsimd %d.%d.%d\n", XSIMD_VERSION_MAJOR, XSIMD_VERSION_MINOR, XSIMD_VERSION_PATCH);
#if defined(DEEPREC_WITH_ONEDNN)
  std::printf("oneDNN %d.%d.%d\n", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
#endif
#if defined(DEEPREC_WITH_CUDA)
  std::printf("CUDA Toolkit %d.%d\n", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
}
