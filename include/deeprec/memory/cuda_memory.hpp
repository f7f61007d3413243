// Device memory, pinned host memory for copies, and managed memory.
//
//   device_array<float> weights(n);      cudaMalloc; its views carry device_space: no host code can read them
//   pinned_resource                      page-locked host memory, as a pmr resource
//   managed_resource                     memory that both reach: never more than the device has free
//   cuda_pool_resource                   blocks in the order of streams (cuda_pool_resource.hpp)
//
// Tables belong in plain cudaMalloc memory: pages that migrate on a fault cost a hundred times a read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <mutex>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_pool_resource.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/memory/detail/managed_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// n elements in device memory, from cudaMalloc. Its views carry device_space.
///
/// @threads as its memory
/// @error   the constructor throws deeprec::error (out_of_memory, device_error)
template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>,
                "deeprec::device_array: elements are copied by their bytes. Fix: a trivially copyable type.");

 public:
  device_array() = default;
  explicit device_array(std::size_t size) : size_(size) {
    if (size > (std::numeric_limits<std::size_t>::max)() / sizeof(T)) {
      detail::raise(errc::out_of_memory, "device_array: bytes must fit an address");
    }
    void* memory = nullptr;
    if (size > 0) cuda_runtime::allocate(memory, size * sizeof(T)).or_throw();
    data_ = static_cast<T*>(memory);
  }
  device_array(device_array&& other) noexcept { swap(other); }
  device_array& operator=(device_array&& other) noexcept {
    device_array moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~device_array() {
    if (data_ != nullptr) cuda_runtime::deallocate(data_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// For views of device_space and for kernels; the host can't read it.
  [[nodiscard]] T* data() const noexcept { return data_; }
  /// All elements.
  [[nodiscard]] array_view<T, device_space> view() const noexcept {
    return {data_, static_cast<index_t>(size_)};
  }
  /// The elements as rows.
  [[nodiscard]] matrix_view<T, device_space> matrix(index_t rows, index_t columns) const noexcept {
    return {data_, rows, columns};
  }

  /// Copies from the host. Without a stream it returns when the copy is complete, and any stream may read it;
  /// with a stream the copy is enqueued, and the source must stay unchanged until the stream has executed it.
  ///
  /// @pre     not more elements than size(); without a stream: no other stream uses these elements now
  /// @cost    a copy; for pageable memory the caller waits until it is staged
  /// @threads one writer
  /// @error   shape_mismatch; device_error
  [[nodiscard]] status copy_from(std::span<const T> source) {
    const status s = copy_from(source, nullptr);
    return s.ok() ? cuda_runtime::synchronize(nullptr) : s;
  }
  [[nodiscard]] status copy_from(std::span<const T> source, cudaStream_t on) {
    if (source.size() > size_) return {errc::shape_mismatch, "device_array: elements must fit the array"};
    return cuda_status(
        cudaMemcpyAsync(data_, source.data(), source.size_bytes(), cudaMemcpyHostToDevice, on));
  }
  /// The same, to the host.
  [[nodiscard]] status copy_to(std::span<T> target) const {
    const status s = copy_to(target, nullptr);
    return s.ok() ? cuda_runtime::synchronize(nullptr) : s;
  }
  [[nodiscard]] status copy_to(std::span<T> target, cudaStream_t on) const {
    if (target.size() > size_) return {errc::shape_mismatch, "device_array: elements must fit the array"};
    return cuda_status(
        cudaMemcpyAsync(target.data(), data_, target.size_bytes(), cudaMemcpyDeviceToHost, on));
  }

 private:
  void swap(device_array& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Page-locked host memory, from which copies to the device are asynchronous. All instances are equal;
/// without RTTI each is equal to itself only.
///
/// @cost    allocate: a call of the driver, some 100 us; reuse blocks
/// @threads thread-safe
/// @error   std::bad_alloc, also where CUDA's block lacks the alignment, which can happen above 256 bytes
///          (without exceptions: prints and aborts)
class pinned_resource final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* memory = nullptr;
    if (!cuda_status(cudaHostAlloc(&memory, at_least_one(bytes), cudaHostAllocPortable)).ok()) refuse();
    if (!is_aligned(memory, alignment)) {
      cudaFreeHost(memory);
      refuse();
    }
    return memory;
  }
  void do_deallocate(void* memory, std::size_t, std::size_t) override { cudaFreeHost(memory); }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    return dynamic_cast<const pinned_resource*>(&other) != nullptr;
#else
    return this == &other;
#endif
  }

 public:
  [[noreturn]] static void refuse() {
#if DEEPREC_EXCEPTIONS
    throw std::bad_alloc();
#else
    detail::raise(errc::out_of_memory,
                  "pinned_resource, managed_resource: the runtime must provide the bytes (it refused)");
#endif
  }
  /// CUDA has no block of 0 bytes; pmr requires one, distinct from all others.
  static constexpr std::size_t at_least_one(std::size_t bytes) noexcept { return bytes == 0 ? 1 : bytes; }
  static bool is_aligned(const void* memory, std::size_t alignment) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
  }
};

/// Memory that host and device reach (unified_space). Refuses more than the device could hold at once:
/// oversubscribed pages migrate back and forth until the device seems to hang. All resources of a device
/// share the memory that was free there when the first of them was made.
///
/// @cost    allocate: a call of the driver
/// @threads thread-safe; host and device must not access a block at the same time where CUDA forbids it
/// @error   as pinned_resource; the constructor throws deeprec::error
class managed_resource final : public std::pmr::memory_resource {
 public:
  managed_resource() {
    constexpr int most = 64;
    static std::mutex* const mutex = new std::mutex;
    static shared* const of_device = new shared[most];
    int device = 0;
    cuda_status(cudaGetDevice(&device)).or_throw();
    if (device >= most)
      detail::raise(errc::unsupported,
                    "managed_resource: the device number must be below the devices it counts for");
    const std::lock_guard lock(*mutex);
    shared_ = of_device + device;
    if (shared_->is_open) return;
    std::size_t total = 0;
    std::size_t free = 0;
    cuda_status(cudaMemGetInfo(&free, &total)).or_throw();
    shared_->budget = detail::managed_budget(free);
    shared_->is_open = true;
  }

 private:
  struct shared {
    std::mutex mutex;
    detail::managed_budget budget;
    bool is_open = false;
  };
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const std::lock_guard lock(shared_->mutex);
    std::size_t total = 0;
    std::size_t free = 0;
    void* memory = nullptr;
    bytes = pinned_resource::at_least_one(bytes);
    if (!cuda_status(cudaMemGetInfo(&free, &total)).ok() || !shared_->budget.take(bytes, free))
      pinned_resource::refuse();
    const bool made = cuda_status(cudaMallocManaged(&memory, bytes)).ok();
    if (!made || !pinned_resource::is_aligned(memory, alignment)) {
      if (made) cudaFree(memory);
      shared_->budget.give_back(bytes);
      pinned_resource::refuse();
    }
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t) override {
    const std::lock_guard lock(shared_->mutex);
    cudaFree(memory);
    shared_->budget.give_back(pinned_resource::at_least_one(bytes));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    const auto* const theirs = dynamic_cast<const managed_resource*>(&other);
    return theirs != nullptr && theirs->shared_ == shared_;
#else
    return this == &other;
#endif
  }

  shared* shared_;
};

}}  // namespace deeprec::DEEPREC_ABI
