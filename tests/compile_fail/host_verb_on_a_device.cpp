// expect: "deeprec::backend: this verb runs on the host only. Fix: "
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/transpose.hpp>

struct card_without_verbs {
#if DEEPREC_MUST_FAIL
  struct backend {};
#else
  using backend = deeprec::host_backend;
#endif
  template <class Body>
  void parallel_for(deeprec::index_t n, deeprec::index_t, Body body) {
    body(deeprec::index_t{0}, n, 0);
  }
  int concurrency() const { return 1; }
};

deeprec::status call(deeprec::matrix_view<const float> in, deeprec::matrix_view<float> out) {
  card_without_verbs executor;
  return deeprec::transpose(executor, in, out);
}
