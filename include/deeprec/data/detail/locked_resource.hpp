// Lets several threads share a memory resource that is not thread-safe: a lock around each call.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <mutex>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class locked_resource final : public std::pmr::memory_resource {
 public:
  explicit locked_resource(std::pmr::memory_resource* upstream) noexcept : upstream_(upstream) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const std::lock_guard lock(mutex_);
    return upstream_->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    const std::lock_guard lock(mutex_);
    upstream_->deallocate(memory, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::mutex mutex_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
