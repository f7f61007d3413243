// Whether an object belongs to this process or came into it by fork(): a child has the memory of its parent,
// and none of the threads.
//
//   process_mark made_in;                       in the object that has threads
//   if (made_in.is_inherited()) ...             one load
//
// Not here: vfork and clone, which run no handlers. Forks are counted by each shared object that hides its
// symbols: there an object is made and used by one of them.
#pragma once

#if defined(__unix__) || defined(__APPLE__)
#  include <pthread.h>
#endif

#include <atomic>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The process in which it was made.
///
/// @threads every member is thread-safe
class process_mark {
 public:
  process_mark() noexcept : made_in_(this_process()) {}
  /// True in a child of the process that made it, and in its children.
  [[nodiscard]] bool is_inherited() const noexcept {
    return forks.load(std::memory_order_relaxed) != made_in_;
  }

 private:
  static unsigned this_process() noexcept {
#if defined(__unix__) || defined(__APPLE__)
    static const bool registered = pthread_atfork(nullptr, nullptr, &count_fork) == 0;
    static_cast<void>(registered);
#endif
    return forks.load(std::memory_order_relaxed);
  }
  static void count_fork() noexcept { forks.fetch_add(1, std::memory_order_relaxed); }

  inline static std::atomic<unsigned> forks{0};  // between this process and the first that made a mark
  unsigned made_in_;
};

}}  // namespace deeprec::DEEPREC_ABI
