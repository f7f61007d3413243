// Blocks signals to this thread during its lifetime, except those raised by the thread's own faults.
//
//   { blocked_signals none(code_moves_the_stack); run(); }     // a handler's frame needs a stack
#pragma once

#include <csignal>
#include <initializer_list>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class blocked_signals {
 public:
  explicit blocked_signals(bool block) noexcept : blocked_(block) {
    if (!blocked_) return;
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, own);
    blocked_ = pthread_sigmask(SIG_BLOCK, &all, &before_) == 0;
  }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;
  ~blocked_signals() {
    if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  bool blocked_;
  sigset_t before_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
