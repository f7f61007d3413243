// expect: "deeprec::effects: a pointer has no extent. Fix: array_view"
#include <deeprec/core/array_view.hpp>
#include <deeprec/plan/task_list.hpp>

void call(deeprec::task_list& work, deeprec::index_t op, const float* rows, deeprec::index_t size) {
#if DEEPREC_MUST_FAIL
  static_cast<void>(size);
  work.affects(op, deeprec::reads(rows));
#else
  work.affects(op, deeprec::reads(deeprec::array_view(rows, size)));
#endif
}
