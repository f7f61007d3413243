// The exception of a task, with the name of its op.
#pragma once

#include <exception>
#include <string>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

#if DEEPREC_EXCEPTIONS
/// The exception of a task, as run_inline and run_on throw it; the task's own is nested in it
/// (std::rethrow_if_nested).
class task_error : public error, public std::nested_exception {
 public:
  /// Nests the exception that is being handled.
  task_error(const char* task, index_t op, errc code, const char* said)
      : error(code, "task_plan: " + std::string(task) + " threw (op " + std::to_string(op) + "): " + said),
        op_(op) {}
  /// The op's number in the plan.
  [[nodiscard]] index_t op() const noexcept { return op_; }

 private:
  index_t op_;
};
#endif

}}  // namespace deeprec::DEEPREC_ABI
