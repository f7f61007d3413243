// The callables of a task_list, in memory of their own.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/support/containers.hpp>
#include <deeprec/support/monotonic_memory.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Callables, side by side in the order of their creation.
class task_store {
 public:
  task_store() = default;
  task_store(const task_store&) = delete;
  task_store& operator=(const task_store&) = delete;
  ~task_store() {
    for (std::size_t i = owned_.size(); i > 0; --i) owned_[i - 1].destroy(owned_[i - 1].task);
  }

  template <class F>
  void* keep(F&& task) {
    using type = std::decay_t<F>;
    void* const place = memory_.allocate(sizeof(type), alignof(type));
    if constexpr (std::is_trivially_destructible_v<type>) {
      ::new (place) type(std::forward<F>(task));
    } else {
      make_room(owned_);
      ::new (place) type(std::forward<F>(task));
      owned_.push_back({place, [](void* it) { static_cast<type*>(it)->~type(); }});
    }
    return place;
  }

 private:
  struct owned {
    void* task;
    void (*destroy)(void*);
  };
  monotonic_memory memory_{std::pmr::new_delete_resource()};
  std::vector<owned> owned_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
