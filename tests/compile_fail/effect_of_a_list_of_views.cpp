// expect: "deeprec::effects: a list of views. Fix: affects.op, reads.view.. for each of them"
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/plan/task_list.hpp>

void call(deeprec::task_list& work, deeprec::index_t op,
          const std::vector<deeprec::matrix_view<float>>& all) {
#if DEEPREC_MUST_FAIL
  work.affects(op, deeprec::reads(all));
#else
  for (const deeprec::matrix_view<float>& one : all) work.affects(op, deeprec::reads(one));
#endif
}
