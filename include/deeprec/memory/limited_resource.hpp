// A memory resource that holds so many bytes at most.
//
//   limited_resource budget(std::size_t{8} << 30, huge_page_resource::shared());
//   growing_table<f32_rows> table(format, init, {.memory = &budget});     refuses rows beyond 8 GB
#pragma once

#include <atomic>
#include <cstddef>
#include <memory_resource>
#include <new>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @cost    an atomic exchange for each call
/// @threads as the resource behind it; threads together never hold more than the limit
/// @error   std::bad_alloc for bytes beyond the limit (without exceptions: prints and aborts), and as the
///          resource behind it
class limited_resource final : public std::pmr::memory_resource {
 public:
  explicit limited_resource(std::size_t most_bytes,
                            std::pmr::memory_resource* upstream = std::pmr::get_default_resource()) noexcept
      : upstream_(upstream), most_bytes_(most_bytes) {}
  limited_resource(const limited_resource&) = delete;
  limited_resource& operator=(const limited_resource&) = delete;

  [[nodiscard]] std::pmr::memory_resource* upstream() const noexcept { return upstream_; }
  [[nodiscard]] std::size_t most_bytes() const noexcept { return most_bytes_; }
  /// Bytes that are held at some moment during the call.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    std::size_t held = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > most_bytes_ - held) return false;
    } while (!bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!take(bytes)) {
#if DEEPREC_EXCEPTIONS
      throw std::bad_alloc();
#else
      detail::raise(errc::out_of_memory, "limited_resource: bytes must be within the limit");
#endif
    }
#if DEEPREC_EXCEPTIONS
    try {
      return upstream_->allocate(bytes, alignment);
    } catch (...) {
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      throw;
    }
#else
    return upstream_->allocate(bytes, alignment);
#endif
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    upstream_->deallocate(block, bytes, alignment);
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::size_t most_bytes_;
  std::atomic<std::size_t> bytes_{0};
};

}}  // namespace deeprec::DEEPREC_ABI
