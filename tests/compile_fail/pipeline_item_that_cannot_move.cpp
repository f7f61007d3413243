// expect: "deeprec::pipeline: an item can't be moved, or its destructor may throw. Fix: "
#include <deeprec/pipeline/pipeline.hpp>

#include <atomic>
#include <memory>
#include <optional>

#if DEEPREC_MUST_FAIL
using item = std::optional<std::atomic<int>>;
#else
using item = std::optional<std::unique_ptr<std::atomic<int>>>;
#endif

auto line() {
  return deeprec::source("read", [] { return item(); }) | deeprec::sink("use", [](auto&&) {});
}
using made = decltype(line());
