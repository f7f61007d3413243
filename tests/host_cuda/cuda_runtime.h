// CUDA without a card, for tests: the library's device code, compiled by the host's compiler, runs on it.
//
//   kernel    its blocks one after the other in any order; in a block, a fiber for each thread, which gives way only
//             where lanes wait for each other. A shuffle whose lanes don't all come is a fault, and so is a lane
//             that is asked and was not named
//   stream    what it is given runs when somebody waits for it, in any order that streams and events allow
//   capture   the same, kept; what CUDA refuses during one is refused
//   memory    the host's, filled with rubbish: a sanitizer finds what lies outside
//
// Given to the compiler by -include, in front of the toolkit's headers. Not here: speed, and how much of what
// runs at once a card really reorders.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_LIST__ 900
#define EIGEN_NO_CUDA 1  // its device code needs all of the toolkit
#undef __shared__
#define __shared__ static  // blocks run one after the other
#undef __noinline__
#define __noinline__
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace host_cuda {

/// What lanes can wait for together.
enum class meeting : int { none, shuffle, shuffle_xor, ballot, sync, block };

/// What the lanes of a mask brought, once all of them are here. Gives way to other threads until then.
std::uint64_t meet(meeting kind, unsigned mask, std::uint64_t value, int argument, int width);

/// All threads of a block wait for each other.
void meet_block();

/// Of what kernels are made from.
inline int ptx_version = 90;

/// Of a kernel that may begin early; here it begins behind the kernels before it, but each thread must wait.
void wait_for_earlier_kernels();
inline void let_next_kernel_begin() {}

/// Ends the kernel that runs with cudaErrorLaunchFailure.
[[noreturn]] void fail(const std::string& what);
/// What the last kernel that failed said.
const std::string& failure();
void forget_failure();

/// Enqueues a kernel whose thread is `body`.
cudaError_t launch(const cudaLaunchConfig_t& shape, std::size_t parameter_bytes, std::function<void()> body);
/// Enqueues anything else.
cudaError_t enqueue(cudaStream_t on, std::function<void()> work, long long label = 0);

/// What a stream waits for until it is opened.
using gate = std::shared_ptr<void>;
gate close(cudaStream_t on);
void open(const gate& closed);
/// Runs work that can run now, none or some of it.
void work_some();

/// Allocations of the device that were not freed.
std::size_t blocks_alive();
/// These, and streams, events and graphs that were not ended.
std::size_t things_alive();

/// The call after `calls` more of those that can fail is refused, once, and does nothing; -1: none. What frees and
/// ends is not counted.
void refuse_after(int calls);
/// Whether that call has come.
bool has_refused();

/// Calls that order nothing: what code without them would do. Waits of streams in a capture are not lost; the host's
/// waits are lost to a recording only.
enum class lost { nothing, waits_of_streams, waits_for_events, waits_for_streams };
void lose(lost what);
/// The most bytes that are allocated at once, pinned ones too.
void set_limit(std::size_t bytes);
std::size_t allocated_bytes();
std::size_t bytes_of(const void* block);
/// From here to the end of the block that it lies in; 0 outside of blocks.
std::size_t bytes_behind(const void* p);
/// Whether the device's memory is mapped without access, as a host sees a card's: who looks at it dies.
void close_memory(bool closed);
int device_of(cudaStream_t on);
/// Whether copies and fills of the device reach all of the host's memory, as on a card with pageable access.
void share_memory(bool shared);
/// The number of devices: 2 unless set.
void set_devices(int count);
/// Called by work that runs: it takes that much longer, as events measure it.
void pass_time(std::uint64_t moments);
/// Copies from the device to the device that were enqueued.
std::size_t device_copies();
/// What every call holds: threads come in one after the other. Kernels run in one thread only.
std::unique_lock<std::recursive_mutex> hold();

/// What is enqueued while it lives, numbered, and what comes before what by the order of streams, events and waits
/// of the host alone, as CUDA promises it: no luck of a schedule. Its end takes back the settings above, and makes
/// device 0 current.
class recording {
 public:
  recording();
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;
  ~recording();

  /// Enqueues work without effect; returns its number, or the largest there is in a capture that has failed.
  std::size_t mark(cudaStream_t on, long long label = 0);
  /// How much was enqueued: the next number.
  [[nodiscard]] std::size_t size() const;
  /// What a mark is called; 0 for a kernel, a copy or the launch of a graph, -1 for an event.
  [[nodiscard]] long long label_of(std::size_t n) const;
  [[nodiscard]] cudaStream_t stream_of(std::size_t n) const;
  /// All that comes before.
  [[nodiscard]] std::set<std::size_t> before(std::size_t n) const;
  [[nodiscard]] bool ordered(std::size_t first, std::size_t second) const;
  /// The block of memory is used by what has this number, as copies use theirs.
  void use(std::size_t n, const void* block);
  /// Memory that was freed while the host had not waited for a use of it; empty when there is none.
  [[nodiscard]] const std::string& fault() const;
};

template <class T>
std::uint64_t to_bits(T x) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T x;
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}
template <class T>
T* aligned(T* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % alignof(T) != 0) fail("a load or store that is not aligned");
  return p;
}

}  // namespace host_cuda

template <class... Expected, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* shape, void (*kernel)(Expected...), Given&&... given) {
  std::tuple<std::decay_t<Expected>...> arguments(std::forward<Given>(given)...);
  constexpr std::size_t bytes = (std::size_t{0} + ... + sizeof(Expected));
  return host_cuda::launch(*shape, bytes, [kernel, arguments] { std::apply(kernel, arguments); });
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  *of = {};
  of->ptxVersion = of->binaryVersion = host_cuda::ptx_version;
  return cudaSuccess;
}

template <class T>
T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  return host_cuda::from_bits<T>(
      host_cuda::meet(host_cuda::meeting::shuffle, mask, host_cuda::to_bits(x), lane, width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
  return host_cuda::from_bits<T>(
      host_cuda::meet(host_cuda::meeting::shuffle_xor, mask, host_cuda::to_bits(x), bits, width));
}
inline unsigned __ballot_sync(unsigned mask, int says) {
  return static_cast<unsigned>(host_cuda::meet(host_cuda::meeting::ballot, mask, says != 0 ? 1 : 0, 0, 32));
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  host_cuda::meet(host_cuda::meeting::sync, mask, 0, 0, 32);
}
inline unsigned __activemask() { return 1U << (threadIdx.x & 31U); }  // as few as CUDA allows
inline void __syncthreads() { host_cuda::meet_block(); }
#define cudaGridDependencySynchronize host_cuda::wait_for_earlier_kernels
#define cudaTriggerProgrammaticLaunchCompletion host_cuda::let_next_kernel_begin
inline void __threadfence() {}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

template <class T>
T __ldg(const T* p) {
  return *host_cuda::aligned(p);
}
template <class T>
T __ldcs(const T* p) {
  return *host_cuda::aligned(p);
}
template <class T>
void __stcs(T* p, T x) {
  *host_cuda::aligned(p) = x;
}
template <class T>
T atomicAdd(T* p, T x) {
  return std::exchange(*host_cuda::aligned(p), *p + x);
}
template <class T>
T atomicMax(T* p, T x) {
  const T was = *host_cuda::aligned(p);
  if (was < x) *p = x;
  return was;
}
template <class T>
T atomicExch(T* p, T x) {
  return std::exchange(*host_cuda::aligned(p), x);
}
template <class T>
T atomicCAS(T* p, T expected, T x) {
  const T was = *host_cuda::aligned(p);
  if (was == expected) *p = x;
  return was;
}
