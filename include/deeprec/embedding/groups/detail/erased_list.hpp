// A list of type-erased objects that lie in one block, one after the other.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/support/containers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Objects of different sizes in one block; destroyed with it where T has a virtual destructor.
template <class T>
class erased_list {
 public:
  erased_list(std::pmr::memory_resource* memory, std::size_t count, std::size_t bytes)
      : memory_(memory), bytes_(bytes), items_(memory) {
    items_.reserve(count);
    if (bytes > 0) next_ = place_ = static_cast<std::byte*>(memory->allocate(bytes));
  }
  erased_list(erased_list&& other) noexcept
      : memory_(other.memory_),
        bytes_(std::exchange(other.bytes_, 0)),
        items_(std::move(other.items_)),
        place_(std::exchange(other.place_, nullptr)),
        next_(other.next_) {}
  erased_list& operator=(erased_list&& other) noexcept {
    replace(*this, std::move(other));
    return *this;
  }
  ~erased_list() {
    if (place_ == nullptr) return;
    if constexpr (std::has_virtual_destructor_v<T>) {
      for (T* const item : items_) item->~T();
    }
    memory_->deallocate(place_, bytes_);
  }

  /// make(place) makes an item of that size, see bytes_of_item, and returns it.
  template <class Make>
  T& add(std::size_t bytes, const Make& make) {
    items_.push_back(make(next_));
    next_ += bytes;
    return *items_.back();
  }
  void remove_last() noexcept {
    items_.back()->~T();
    items_.pop_back();
  }
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return *items_[i]; }

 private:
  std::pmr::memory_resource* memory_;
  std::size_t bytes_;
  std::pmr::vector<T*> items_;
  std::byte* place_ = nullptr;
  std::byte* next_ = nullptr;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
