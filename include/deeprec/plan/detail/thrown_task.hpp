// From the exception of a task to a task_error.
#pragma once

#include <exception>
#include <new>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/task_error.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

#if DEEPREC_EXCEPTIONS
/// Throws a task_error with the exception of an op.
[[noreturn]] inline void throw_task_error(const task_plan& plan, index_t op,
                                          const std::exception_ptr& thrown) {
  const char* const task = plan.name(op);
  try {
    std::rethrow_exception(thrown);
  } catch (const error& e) {
    throw task_error(task, op, e.code(), e.what());
  } catch (const std::bad_alloc& e) {
    throw task_error(task, op, errc::out_of_memory, e.what());
  } catch (const std::exception& e) {
    throw task_error(task, op, errc::producer_failed, e.what());
  } catch (...) {
    throw task_error(task, op, errc::producer_failed, "no std::exception");
  }
}
#endif

}}}  // namespace deeprec::DEEPREC_ABI::detail
