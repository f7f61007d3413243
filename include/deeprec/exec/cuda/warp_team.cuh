// A team: a part of a warp whose lanes work on one item together and exchange values.
//
//   lanes = 8      | 0 1 2 3 4 5 6 7 | 0 1 2 ...      four teams in a warp; a power of two, up to 32
//
// Kernels are templates over it (embedding/kernels/device/device_fold.hpp), so that tests can run them
// without a device.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/exec/cuda/warp_team.cuh needs nvcc. Fix: include it in a .cu."
#endif

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// Threads per block of the library's kernels.
inline constexpr int block_threads = 256;

/// Records a fault, unless the recorded one takes precedence (device_fault::order_of).
static __device__ __noinline__ void write_fault(device_fault* fault, errc code, index_t table, index_t bag,
                                                index_t position, std::int64_t value) {
  const unsigned long long order = device_fault::order_of(table, bag, position);
  if (atomicMax(&fault->first, order) > order) return;
  // Lanes that arrive together take turns: a lane that spins on the lock may stall the lane that holds it.
  const unsigned here = __activemask();
  for (unsigned left = here; left != 0; left &= left - 1) {
    if (__ffs(static_cast<int>(left)) - 1 == (static_cast<int>(threadIdx.x) & 31)) {
      while (atomicCAS(&fault->lock, 0, 1) != 0) {
      }
      __threadfence();
      volatile device_fault* const record = fault;
      const device_fault seen{0, record->code, record->table, record->bag, record->position, 0, 0};
      if (seen.comes_after(table, bag, position)) {
        record->table = table;
        record->bag = bag;
        record->position = position;
        record->value = value;
        record->code = static_cast<int>(code);
      }
      __threadfence();
      atomicExch(&fault->lock, 0);
    }
    __syncwarp(here);
  }
}

class warp_team {
 public:
  explicit __device__ warp_team(int lanes)
      : lanes_(lanes),
        lane_(static_cast<int>(threadIdx.x) & (lanes - 1)),
        first_((static_cast<int>(threadIdx.x) & 31) & ~(lanes - 1)),
        mask_(lanes == 32 ? 0xffffffffU : ((1U << lanes) - 1U) << first_) {}

  DEEPREC_HD int lane() const { return lane_; }
  DEEPREC_HD int lanes() const { return lanes_; }
  /// The team's index in its launch, and the number of teams.
  __device__ index_t number() const {
    return (index_t{blockIdx.x} * block_threads + threadIdx.x) >> (__ffs(lanes_) - 1);
  }
  __device__ index_t teams() const { return index_t{gridDim.x} * block_threads >> (__ffs(lanes_) - 1); }

  /// The value of x in a lane.
  template <class T>
  DEEPREC_HD T from([[maybe_unused]] T x, [[maybe_unused]] int lane) const {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(mask_, x, lane, lanes_);
#else
    return x;
#endif
  }
  /// The value of x in the lane whose index differs in these bits.
  template <class T>
  DEEPREC_HD T across([[maybe_unused]] T x, [[maybe_unused]] int bits) const {
#if defined(__CUDA_ARCH__)
    return __shfl_xor_sync(mask_, x, bits, lanes_);
#else
    return x;
#endif
  }
  /// Bit i: the argument of lane i.
  DEEPREC_HD unsigned ballot([[maybe_unused]] bool says) const {
#if defined(__CUDA_ARCH__)
    return (__ballot_sync(mask_, says) & mask_) >> first_;
#else
    return 0;
#endif
  }

  /// Synchronises the lanes: each then sees what the others have written.
  DEEPREC_HD void meet() const {
#if defined(__CUDA_ARCH__)
    __syncwarp(mask_);
#endif
  }

  /// In a kernel that launch_early() enqueued: waits until the kernels before it have ended, and sees what
  /// they wrote. Each thread of such a kernel calls it once at least.
  DEEPREC_HD void wait_for_earlier_kernels() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
  }

  /// As write_fault. Called by one lane, off the hot path.
  DEEPREC_HD void report([[maybe_unused]] device_fault* fault, [[maybe_unused]] errc code,
                         [[maybe_unused]] index_t table, [[maybe_unused]] index_t bag,
                         [[maybe_unused]] index_t position, [[maybe_unused]] std::int64_t value) const {
#if defined(__CUDA_ARCH__)
    write_fault(fault, code, table, bag, position, value);
#endif
  }
  DEEPREC_HD void count([[maybe_unused]] unsigned long long* counter, [[maybe_unused]] index_t n) const {
#if defined(__CUDA_ARCH__)
    if (counter != nullptr) atomicAdd(counter, static_cast<unsigned long long>(n));
#endif
  }

 private:
  int lanes_;
  int lane_;
  int first_;
  unsigned mask_;
};

/// A grid with a team for each of `units`, or fewer teams that process several each.
inline dim3 grid_of(index_t units, int lanes, int panels = 1) {
  const index_t in_block = block_threads / lanes;
  const index_t blocks = (units + in_block - 1) / in_block;
  constexpr index_t most = index_t{1} << 22;
  return dim3(static_cast<unsigned>(blocks < 1      ? 1
                                    : blocks < most ? blocks
                                                    : most),
              static_cast<unsigned>(panels));
}

/// Lets a kernel that launch_early() has enqueued behind this one begin, once all blocks have called it.
inline __device__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

inline cudaLaunchConfig_t launch_shape(dim3 grid, cudaStream_t on) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = grid;
  shape.blockDim = dim3(block_threads);
  shape.stream = on;
  return shape;
}

/// Enqueues a kernel with blocks of block_threads. Returns the error of this launch only; an earlier pending
/// error is neither reported nor cleared.
template <class... Parameters>
status launch_kernel(void (*kernel)(Parameters...), dim3 grid, cudaStream_t on,
                     const std::type_identity_t<Parameters>&... arguments) {
  const cudaLaunchConfig_t shape = launch_shape(grid, on);
  return cuda_status(cudaLaunchKernelEx(&shape, kernel, arguments...));
}

/// Threads with 64 registers each that the current device runs at once.
inline index_t resident_threads() {
  static thread_local struct {
    int device = -1;
    index_t threads = 0;
  } known;
  int device = 0, processors = 0;
  if (!cuda_runtime::get_device(device).ok()) return 0;
  if (known.device != device) {
    static_cast<void>(
        cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)));
    known = {device, index_t{processors} * 1024};  // 65536 registers each
  }
  return known.threads;
}

/// True for a kernel whose code for the current device has wait_for_earlier_kernels(): made from PTX of sm_90
/// or later. Older PTX has no such wait, also where the driver compiles it for a later device.
inline bool may_begin_early(const void* kernel) {
  struct answer {
    const void* kernel;
    int device;
    bool early;
  };
  static thread_local answer known[16] = {};
  int device = 0;
  if (!cuda_runtime::get_device(device).ok()) return false;
  answer& a = known[reinterpret_cast<std::uintptr_t>(kernel) / 16 % 16];
  if (a.kernel != kernel || a.device != device) {
    cudaFuncAttributes of{};
    const bool early = cuda_status(cudaFuncGetAttributes(&of, kernel)).ok() && of.ptxVersion >= 90;
    a = {kernel, device, early};
  }
  return a.early;
}

/// The same for a kernel that may begin while the one before it runs, where that one calls
/// let_next_kernel_begin(). Code for devices before sm_90 begins behind it.
///
/// @pre  the kernel reads what the one before it writes only after warp_team::wait_for_earlier_kernels(), and
///       writes nothing that the one before it reads
template <class... Parameters>
status launch_early(void (*kernel)(Parameters...), dim3 grid, cudaStream_t on,
                    const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t shape = launch_shape(grid, on);
  shape.attrs = &early;
  shape.numAttrs = may_begin_early(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&shape, kernel, arguments...));
}

}}}  // namespace deeprec::DEEPREC_ABI::DEEPREC_DEVICE
