// kernel_tuning, and the decision of run_bulk between one thread and several.
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/support/bulk.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <iterator>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

using namespace deeprec;

namespace {

constexpr index_t mb = index_t{1} << 20;

// Counts its calls, and runs the pieces on the calling thread.
struct counting_executor {
  int threads = 4;
  mutable int calls = 0;
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    ++calls;
    for (index_t begin = 0; begin < n; begin += grain) body(begin, begin + grain < n ? begin + grain : n, 1);
  }
  int concurrency() const { return threads; }
};
struct polling_executor : counting_executor {
  bool awake = true;
  bool polls() const { return awake; }
};

// The pieces that run_bulk hands out; empty where they do not cover [0, units).
template <class E>
std::vector<index_t> pieces_of(const E& executor, const kernel_tuning& tuning,
                               const detail::bulk_work& work) {
  context ctx(executor);
  ctx.tuning = &tuning;
  std::vector<index_t> sizes;
  index_t next = 0;
  detail::run_bulk(ctx, work, [&](index_t begin, index_t end, int) {
    CHECK(begin == next);
    CHECK(end > begin);
    next = end;
    sizes.push_back(end - begin);
  });
  CHECK(next == work.units);
  return sizes;
}

}  // namespace

TEST_CASE("kernel_tuning: parts of DEEPREC_TUNING are applied, the first bad one is named") {
  const auto apply = [](std::string_view text, std::string_view refused) {
    kernel_tuning t;
    CHECK(detail::apply_tuning(t, text) == refused);
    return t;
  };
  CHECK(apply("", "").lines_ahead == kernel_tuning{}.lines_ahead);
  CHECK(apply("lines_ahead=128", "").lines_ahead == 128);
  const kernel_tuning two = apply("parked_ns=0,kept_bytes=123456789", "");
  CHECK(two.parked_ns == 0);
  CHECK(two.kept_bytes == 123456789);
  CHECK(apply("parked_ns=1,parked_ns=2", "").parked_ns == 2);
  CHECK(apply("fast=1,parked_ns=7", "fast=1").parked_ns == 7);
  CHECK(apply("parked_ns=7,fast=1,slow=2", "fast=1").parked_ns == 7);
  for (const std::string_view bad :
       {"lines_ahead", "lines_ahead=", "lines_ahead=-1", "lines_ahead=1x", "lines_ahead=0", "=5",
        "lines_ahead=99999999999999999999", " lines_ahead=5"}) {
    CAPTURE(bad);
    CHECK(apply(bad, bad).lines_ahead == kernel_tuning{}.lines_ahead);
  }
  CHECK(apply(",,piece_ns=5,", "").piece_ns == 5);
}

TEST_CASE("kernel_tuning: every member has a name, and its default is allowed") {
  static_assert(std::size(tuning_values) * sizeof(index_t) == sizeof(kernel_tuning));
  const kernel_tuning defaults;
  for (const tuning_value& v : tuning_values) {
    CAPTURE(v.name);
    CHECK(defaults.*v.value >= v.least);
    for (const tuning_value& other : tuning_values) CHECK((&v == &other) == (v.name == other.name));
  }
}

TEST_CASE("kernel_tuning: reported caches are believed up to a core's plausible share") {
  const kernel_tuning unknown = detail::tuning_for(0, 0);
  CHECK(unknown.own_cache_bytes == mb);
  CHECK(unknown.kept_bytes == mb);
  const kernel_tuning genoa = detail::tuning_for(mb, 32 * mb);
  CHECK(genoa.own_cache_bytes == mb);
  CHECK(genoa.kept_bytes == 5 * mb);
  const kernel_tuning package = detail::tuning_for(2 * mb, 260 * mb);  // a hypervisor's report
  CHECK(package.kept_bytes == 6 * mb);
  const kernel_tuning absurd = detail::tuning_for(mb << 10, std::numeric_limits<index_t>::max());
  CHECK(absurd.own_cache_bytes == 4 * mb);
  CHECK(absurd.kept_bytes == 8 * mb);
  CHECK(detail::tuning_for(1, 1).own_cache_bytes == mb / 4);
}

TEST_CASE("run_bulk: work that ends before another thread begins stays on this one") {
  kernel_tuning t;
  t.polling_ns = 1000;
  t.parked_ns = 50'000;
  const detail::bulk_work small{100, 10, 1500}, medium{100, 10, 5000}, large{100, 10, 200'000};
  const counting_executor sleeping;
  CHECK(pieces_of(sleeping, t, small).size() == 1);
  CHECK(pieces_of(sleeping, t, medium).size() == 1);
  CHECK(sleeping.calls == 0);
  CHECK(pieces_of(sleeping, t, large).size() == 10);
  CHECK(sleeping.calls == 1);

  polling_executor polling;
  CHECK(pieces_of(polling, t, small).size() == 1);
  CHECK(pieces_of(polling, t, medium).size() == 10);
  CHECK(pieces_of(executor_ref(polling), t, medium).size() == 10);
  polling.awake = false;
  CHECK(pieces_of(polling, t, medium).size() == 1);
  CHECK(pieces_of(executor_ref(polling), t, medium).size() == 1);
  CHECK(pieces_of(executor_ref(sleeping), t, large).size() == 10);

  polling.awake = true;
  polling.threads = 1;
  CHECK(pieces_of(polling, t, large).size() == 1);
  polling.threads = 4;
  polling.calls = 0;
  CHECK(pieces_of(polling, t, {10, 10, 200'000}).size() == 1);  // one piece
  CHECK(pieces_of(polling, t, {0, 1, 200'000}).empty());
  CHECK(polling.calls == 0);
  CHECK(pieces_of(inline_executor{}, t, large).size() == 1);
}

TEST_CASE("grain_for: pieces of piece_ns, and at least one unit each") {
  kernel_tuning t;
  t.piece_ns = 10'000;
  CHECK(detail::grain_for(t, 1000, 100'000) == 100);
  CHECK(detail::grain_for(t, 1000, 9'000) == 1000);
  CHECK(detail::grain_for(t, 10, 1e12) == 1);
  CHECK(detail::grain_for(t, 0, 0) == 1);
}

TEST_CASE("thread_pool: polls until its workers sleep") {
  thread_pool alone(1);
  CHECK(!alone.polls());
  thread_pool pool({.threads = 2, .spin = std::chrono::microseconds{0}});
  while (pool.polls()) std::this_thread::yield();  // the worker has just begun
  CHECK(!pool.polls());
  thread_pool eager({.threads = 2, .spin = std::chrono::hours{1}});
  CHECK(eager.polls() == (default_concurrency() > 1));
}
