// Two threads of a pipeline in every order that matters, under weak memory: the segments' own loop, on the
// explorer of the queues. The end of the source, a failure above, below and in both, and a cancel.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/pipeline/detail/run.hpp>
#include <deeprec/pipeline/stages.hpp>

#include "queue/model/explorer.hpp"

namespace {

using namespace deeprec;
using deeprec_test::model::explorer;
using deeprec_test::model::limits;
using deeprec_test::model::model_atomics;
using deeprec_test::model::outcome;
using deeprec_test::model::watched;

// What a scenario does; item k fails above or below, -1: none.
struct script {
  int items = 2;
  int fails_above = -1;
  int fails_below = -1;
  bool cancelled = false;
  std::size_t capacity = 1;
  std::size_t byte_budget = 0;  // a staging_queue instead of a spsc_ring
};

struct reader {
  script s;
  int next = 0;
  int calls_after_end = 0;
  bool ended = false;
  result<std::optional<watched>> operator()() {
    calls_after_end += ended ? 1 : 0;
    if (next == s.items) {
      ended = true;
      return std::optional<watched>();
    }
    if (next == s.fails_above) return status(errc::io_error, "above");
    return std::optional<watched>(watched(next++));
  }
};
struct taker {
  script s;
  std::vector<int> seen;
  status operator()(watched&& w) {
    if (w.value() == s.fails_below) return {errc::io_error, "below"};
    seen.push_back(w.value());
    return {};
  }
};

auto line_of(reader& above, taker& below) {
  return source("above", std::ref(above)) | sink("below", std::ref(below)).own_thread();
}

struct two_stages : explorer::scenario {
  using line_type = decltype(line_of(std::declval<reader&>(), std::declval<taker&>()));
  using run_type = detail::pipeline_run<line_type, park_wait, model_atomics>;

  explicit two_stages(const script& s)
      : what(s),
        above{s},
        below{s, {}},
        line(line_of(above, below)),
        options{.capacity = s.capacity, .byte_budget = s.byte_budget},
        run_of_both(line, options, std::pmr::get_default_resource(), nullptr) {}

  int threads() const override { return what.cancelled ? 3 : 2; }
  void run(int thread) override {
    if (thread == 0) run_of_both.work<0>();
    if (thread == 1) run_of_both.work<1>();
    if (thread == 2) run_of_both.cancel();
  }
  void finish() override {
    const auto fail = [](const char* what_is_wrong) { explorer::current().fail(what_is_wrong); };
    for (std::size_t k = 0; k < below.seen.size(); ++k) {
      if (below.seen[k] != static_cast<int>(k)) fail("out of order, lost, or twice");
    }
    if (above.calls_after_end != 0) fail("the source was called after its end");
    if (!run_of_both.finished()) {
      if (!what.cancelled) fail("halted, and nobody cancelled");
      return;
    }
    int first_failure = what.items;
    const char* stage = nullptr;
    if (what.fails_above >= 0) first_failure = what.fails_above, stage = "above";
    if (what.fails_below >= 0 && what.fails_below < first_failure)
      first_failure = what.fails_below, stage = "below";
    if (static_cast<int>(below.seen.size()) != first_failure) fail("not what came before the end");
    const auto& failure = run_of_both.failure();
    if (failure.has_value() != (stage != nullptr)) fail("a failure is lost, or invented");
    if (failure && failure->stage != std::string(stage)) fail("another failure than the first");
    if (failure && failure->item != static_cast<std::uint64_t>(first_failure)) fail("another item");
  }

  script what;
  reader above;
  taker below;
  line_type line;
  pipeline_options options;
  run_type run_of_both;
};

void all_orders(const char* name, const script& s, int stale, bool membarrier = false,
                std::uint64_t most = 100'000) {
  explorer x;
  const outcome o = x.explore([&] { return std::make_unique<two_stages>(s); }, {},
                              {.executions = most, .stale_reads = stale, .membarrier = membarrier});
  std::printf("  %-44s %zu %5d %10llu %s\n", name, s.capacity, stale,
              static_cast<unsigned long long>(o.executions), o.complete ? "" : "not all");
  std::fflush(stdout);
  CHECK_MESSAGE(!o.failed, name << ": " << o.what);
}

TEST_CASE("model: two segments with a ring between them end by the end, by a failure or by a cancel") {
  for (const std::size_t capacity : {1u, 2u}) {
    all_orders("ring: two items and the end", {.capacity = capacity}, 0);
    all_orders("ring: nothing but the end", {.items = 0, .capacity = capacity}, 1);
    all_orders("ring: the source fails", {.fails_above = 1, .capacity = capacity}, 1);
    all_orders("ring: the sink fails", {.items = 3, .fails_below = 0, .capacity = capacity}, 0);
    all_orders("ring: both fail", {.fails_above = 1, .fails_below = 0, .capacity = capacity}, 0);
    all_orders("ring: a cancel beside", {.items = 1, .cancelled = true, .capacity = capacity}, 0, false,
               60'000);
    all_orders("ring: the sink fails, membarrier", {.fails_below = 0, .capacity = capacity}, 0, true, 60'000);
  }
}

TEST_CASE("model: an access of the ring that is weakened is seen by the segments") {
  using deeprec::detail::access;
  using deeprec_test::model::mutant;
  const auto must_be_seen = [](const mutant& broken, const script& s) {
    explorer x;
    const outcome o = x.explore([&] { return std::make_unique<two_stages>(s); }, broken,
                                {.executions = 100'000, .stale_reads = 1, .membarrier = false});
    CHECK_MESSAGE(o.failed, std::string(broken.name));
  };
  must_be_seen({"an item is not published", mutant::relax, access::flag_publish}, {});
  must_be_seen({"a sleeper does not look again", mutant::omit, access::wait_fence}, {.items = 0});
}

TEST_CASE("model: two segments with a queue between them end by the end, by a failure or by a cancel") {
  for (const std::size_t capacity : {1u, 2u}) {
    const std::size_t budget = sizeof(watched);
    all_orders("queue: two items and the end", {.capacity = capacity, .byte_budget = budget}, 0, false,
               60'000);
    all_orders("queue: the source fails", {.fails_above = 1, .capacity = capacity, .byte_budget = budget}, 0,
               false, 60'000);
    all_orders("queue: the sink fails", {.fails_below = 0, .capacity = capacity, .byte_budget = budget}, 0,
               false, 60'000);
    all_orders("queue: a cancel beside",
               {.items = 1, .cancelled = true, .capacity = capacity, .byte_budget = budget}, 0, false,
               60'000);
  }
}

}  // namespace
