// expect: "deeprec::pipeline: the line has no sink, so nothing would draw from its source. Fix: "
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>

#include <optional>
#include <utility>

bool run(deeprec::thread_pool& pool) {
  auto line = deeprec::source("read", [] { return std::optional<int>(); }) |
              deeprec::stage("add", [](int i) { return i + 1; });
#if DEEPREC_MUST_FAIL
  deeprec::pipeline p(pool, std::move(line));
#else
  deeprec::pipeline p(pool, std::move(line) | deeprec::sink("use", [](int) {}));
#endif
  return p.run().ok();
}
