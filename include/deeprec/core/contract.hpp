// Violations of contracts that are checked in debug builds only.
//
// Bad data (ids, offsets, files) is reported by a status instead. This is for misuse that a correct program
// can't contain, such as reading row 7 of a view with 5 rows.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct contract_violation {
  const char* condition;  ///< the text of the condition that was false
  const char* file;
  int line;
};

/// Called for a broken contract. May throw; when it returns, the program is aborted.
using violation_handler = void (*)(const contract_violation&);

namespace detail {

inline std::atomic<violation_handler>& current_violation_handler() noexcept {
  static std::atomic<violation_handler> handler{nullptr};
  return handler;
}

[[noreturn]] inline void contract_violated(const char* condition, const char* file, int line) {
  if (const violation_handler handler = current_violation_handler().load()) {
    handler({condition, file, line});
  }
  std::fprintf(stderr, "deeprec: broken contract at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace detail

/// Replaces the handler of broken contracts; null restores the default (print and abort).
///
/// @cost    O(1)
/// @threads thread-safe
/// @error   none
inline violation_handler set_violation_handler(violation_handler handler) noexcept {
  return detail::current_violation_handler().exchange(handler);
}

}}  // namespace deeprec::DEEPREC_ABI
