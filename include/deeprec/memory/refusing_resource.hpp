// A memory resource that refuses on purpose: to show what a program does when memory ends.
//
//   allowance granted{.left = n};                                 of all resources that share it
//   refusing_resource memory(granted);
//   ... a call that fails at its (n + 1)-th allocation, for n = 0, 1, 2 ... until it succeeds ...
//
// Its blocks hold no zeros, as memory that was used before, and are overwritten when they are freed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <new>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How many more allocations several resources together grant, and how many they refused.
///
/// @threads thread-safe
struct allowance {
  static constexpr long unlimited = (std::numeric_limits<long>::max)();
  std::atomic<long> left = unlimited;
  std::atomic<long> refused = 0;
};

/// @cost    writes each block when it is taken, and when it is freed
/// @threads as the resource behind it
/// @error   std::bad_alloc when the allowance is used up (without exceptions: prints and aborts), and as the
///          resource behind it
class refusing_resource final : public std::pmr::memory_resource {
 public:
  explicit refusing_resource(allowance& shared,
                             std::pmr::memory_resource* upstream = std::pmr::new_delete_resource()) noexcept
      : shared_(shared), upstream_(upstream) {}
  refusing_resource(const refusing_resource&) = delete;
  refusing_resource& operator=(const refusing_resource&) = delete;

  std::atomic<std::size_t> held = 0;  ///< bytes
  std::atomic<long> granted = 0;      ///< allocations

 private:
  [[nodiscard]] bool grants() noexcept {
    long left = shared_.left.load();
    do {
      if (left == allowance::unlimited) return true;
      if (left == 0) return false;
    } while (!shared_.left.compare_exchange_weak(left, left - 1));
    return true;
  }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!grants()) {
      ++shared_.refused;
#if DEEPREC_EXCEPTIONS
      throw std::bad_alloc();
#else
      detail::raise(errc::out_of_memory, "refusing_resource: its allowance must not be used up");
#endif
    }
    void* const block = upstream_->allocate(bytes, alignment);
    std::memset(block, 0x5a, bytes);
    held += bytes;
    ++granted;
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    held -= bytes;
    std::memset(block, 0xa5, bytes);  // who reads it now sees that
    upstream_->deallocate(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  allowance& shared_;
  std::pmr::memory_resource* upstream_;
};

}}  // namespace deeprec::DEEPREC_ABI
