// expect: "deeprec::pipeline: the executor runs no tasks. Fix: "
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>

#include <optional>

struct bulk_only {
  template <class Body>
  void parallel_for(deeprec::index_t n, deeprec::index_t, Body&& body) {
    body(deeprec::index_t{0}, n, 0);
  }
  int concurrency() { return 1; }
};

bool run() {
#if DEEPREC_MUST_FAIL
  bulk_only executor;
#else
  deeprec::thread_pool executor(1);
#endif
  deeprec::pipeline p(executor, deeprec::source("read", [] { return std::optional<int>(); }) |
                                    deeprec::sink("use", [](int) {}));
  return p.run().ok();
}
