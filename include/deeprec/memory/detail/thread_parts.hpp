// Parts of an object that belong to one thread each: found by a look at a thread-local list, and given back
// when the thread ends.
//
//   owner    thread_parts parts;     has a number; its destructor makes all lists forget it
//   thread   parts.mine()            null until parts.keep(part)
//            ~thread                 owner.thread_ends(part), for every owner that still exists
//
// Not here: who makes and ends parts (the owner does).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads mine and keep: thread-safe. A fork while another thread is in keep, in a constructor or ends
///          leaves a child whose threads may wait forever when they end
class thread_parts {
 public:
  using end_of_thread = void (*)(void* owner, void* part) noexcept;

  /// @param ends  called on the thread that ends, which holds a lock: it makes and ends no thread_parts
  thread_parts(void* owner, end_of_thread ends) : owner_(owner), ends_(ends) {
    registry& all = registry::all();
    const std::lock_guard lock(all.mutex);
    while (index_ < all.room && all.owners[index_] != nullptr) ++index_;
    if (index_ == all.room && !grow(all.owners, all.room)) refuse();
    all.owners[index_] = this;
    // Another shared object may have a registry of its own: numbers differ there, too.
    id_ = (reinterpret_cast<std::uintptr_t>(&all) >> 4 << 21) + ++all.made;
  }
  thread_parts(const thread_parts&) = delete;
  thread_parts& operator=(const thread_parts&) = delete;
  ~thread_parts() {
    registry& all = registry::all();
    const std::lock_guard lock(all.mutex);
    all.owners[index_] = nullptr;  // entries of threads have its number, which is not used again
  }

  /// The part of this thread; null where it has none.
  [[nodiscard]] DEEPREC_INLINE void* mine() const noexcept {
    const list& here = of_this_thread;
    return index_ < here.room && here.entries[index_].id == id_ ? here.entries[index_].part : nullptr;
  }
  /// Makes a part that of this thread. False: memory is refused, or the thread is ending.
  [[nodiscard]] bool keep(void* part) noexcept {
    list& here = of_this_thread;
    if (here.is_over) return false;
    static thread_local at_end last;  // its destructor runs when the thread ends
    last.touch();
    while (index_ >= here.room) {
      if (!grow(here.entries, here.room)) return false;
    }
    here.entries[index_] = {id_, part};
    return true;
  }

 private:
  struct entry {
    std::uint64_t id;  // of the owner; 0: none
    void* part;
  };
  struct list {
    entry* entries;
    std::size_t room;
    bool is_over;
  };
  struct registry {
    std::mutex mutex;
    thread_parts** owners = nullptr;  // by index; null: free
    std::size_t room = 0;
    std::uint64_t made = 0;

    // Never ends: threads may end after static objects do.
    static registry& all() noexcept {
      alignas(registry) static std::byte storage[sizeof(registry)];
      static auto* const instance = ::new (static_cast<void*>(storage)) registry;
      return *instance;
    }
  };
  struct at_end {
    void touch() noexcept {}
    ~at_end() {
      list& here = of_this_thread;
      registry& all = registry::all();
      {
        const std::lock_guard lock(all.mutex);
        for (std::size_t k = 0; k < here.room; ++k) {
          const entry& one = here.entries[k];
          if (one.id == 0 || k >= all.room || all.owners[k] == nullptr || all.owners[k]->id_ != one.id)
            continue;
          all.owners[k]->ends_(all.owners[k]->owner_, one.part);
        }
      }
      std::free(here.entries);
      here = {nullptr, 0, true};
    }
  };

  // Twice the room, of zeros; false where memory is refused. The heap's memory: an owner's resource may end
  // before a thread does.
  template <class T>
  static bool grow(T*& items, std::size_t& room) noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t more = (std::max)(2 * room, std::size_t{8});
    // NOLINTNEXTLINE(bugprone-sizeof-expression): items may be pointers
    auto* const made = static_cast<T*>(std::realloc(static_cast<void*>(items), more * sizeof(T)));
    if (made == nullptr) return false;
    std::fill(made + room, made + more, T{});
    items = made;
    room = more;
    return true;
  }
  [[noreturn]] static void refuse() {
#if DEEPREC_EXCEPTIONS
    throw std::bad_alloc();
#else
    raise(errc::out_of_memory, "slab_resource: the system must provide a list of resources (it refused)");
#endif
  }

  static inline thread_local constinit list of_this_thread{};

  void* owner_;
  end_of_thread ends_;
  std::size_t index_ = 0;
  std::uint64_t id_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
