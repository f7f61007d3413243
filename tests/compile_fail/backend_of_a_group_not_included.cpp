// expect: "deeprec::backend: this verb has none for this context. Fix: include the verb's .cuh"
#include <vector>

#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct card {
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

deeprec::status call(const deeprec::feature_group<>& group, const std::vector<deeprec::jagged_view<>>& bags,
                     deeprec::matrix_view<float> out) {
  card executor;
  return deeprec::lookup(executor, group, bags, out);
}
