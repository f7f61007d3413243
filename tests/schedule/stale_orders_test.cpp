// Every order in which a few threads can read and apply under a stale window, under weak memory; and each
// access that is stronger than relaxed, weakened alone, is caught.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/schedule/stale_window.hpp>

#include "queue/model/explorer.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::index_t;
using deeprec::detail::access;

struct call {
  enum kind { read, apply, end_at, cancel } what;
  index_t number = 0;
};
using program = std::vector<std::vector<call>>;

// One shard, whose row is the number of its updates.
template <class Order>
struct window_scenario : explorer::scenario {
  static constexpr bool exact = std::is_same_v<Order, deeprec::staleness::exact_t>;
  using window_type = deeprec::stale_window<Order, deeprec::park_wait, model_atomics>;

  window_scenario(index_t w, const program& p) : width(w), calls(p), window(w, 1, Order{}) {}
  int threads() const override { return static_cast<int>(calls.size()); }
  void run(int thread) override {
    for (const call& c : calls[static_cast<std::size_t>(thread)]) {
      if (c.what == call::end_at) {
        window.end_at(c.number);
      } else if (c.what == call::cancel) {
        window.cancel();
      } else if (c.what == call::read) {
        const auto reading = window.read(c.number);
        if (!reading) continue;
        if (exact && was_read[c.number]++ != 0) explorer::current().fail("a lookup has read twice");
        const int expected = c.number < width ? 0 : static_cast<int>(c.number - width + 1);
        const int seen = row.value();
        if (exact && (seen != expected || reading.version() != expected)) {
          explorer::current().fail("lookup " + std::to_string(c.number) + " sees " + std::to_string(seen));
        }
        if (seen < reading.version()) explorer::current().fail("fewer updates than the version says");
      } else {
        const auto writing = window.apply(c.number);
        if (!writing) continue;
        const int before = row.value();
        if (exact && before != static_cast<int>(c.number)) explorer::current().fail("updates out of order");
        row = watched(before + 1);
      }
    }
    ++ended;
  }
  const index_t width;
  const program& calls;
  watched row{0};
  window_type window;
  std::map<index_t, int> was_read;
  int ended = 0;
};

// A window without versions, in the harness of the exact one.
struct unbounded_scenario : window_scenario<deeprec::staleness::hogwild_t> {
  using window_scenario::window_scenario;
  void run(int thread) override {
    for (const call& c : calls[static_cast<std::size_t>(thread)]) {
      if (c.what == call::read) {
        const auto reading = window.read(c.number);
        const int expected = c.number < width ? 0 : static_cast<int>(c.number - width + 1);
        if (row.value() != expected) explorer::current().fail("a lookup sees something else");
      } else {
        const auto writing = window.apply(c.number);
        row = watched(row.value() + 1);
      }
    }
  }
};

struct orders {
  const char* name;
  index_t window;
  bool exact;
  program calls;
  int stale = 1;
};
const std::vector<orders> all_orders = {
    {"W = 1: read 0 1 | apply 0", 1, true, {{{call::read, 0}, {call::read, 1}}, {{call::apply, 0}}}},
    {"W = 1: read 0 1 2 | apply 0 1",
     1,
     true,
     {{{call::read, 0}, {call::read, 1}, {call::read, 2}}, {{call::apply, 0}, {call::apply, 1}}}},
    {"W = 2: read 0 2 | read 1 | apply 0",
     2,
     true,
     {{{call::read, 0}, {call::read, 2}}, {{call::read, 1}}, {{call::apply, 0}}}},
    {"W = 1: read 0 | read 1 | apply 0", 1, true, {{{call::read, 0}}, {{call::read, 1}}, {{call::apply, 0}}}},
    {"W = 1: read 1 | read 0, end | apply 0 | apply 1",
     1,
     true,
     {{{call::read, 1}}, {{call::read, 0}, {call::end_at, 2}}, {{call::apply, 0}, {call::apply, 1}}}},
    {"W = 2: read 0 1, end | apply 0 | apply 1",
     2,
     true,
     {{{call::read, 0}, {call::read, 1}, {call::end_at, 2}}, {{call::apply, 0}}, {{call::apply, 1}}}},
    {"W = 2: read 0 | read 0 | read 1, apply 0",
     2,
     true,
     {{{call::read, 0}}, {{call::read, 0}}, {{call::read, 1}, {call::apply, 0}}}},
    {"W = 2: read 0 0, apply 0 | read 1",
     2,
     true,
     {{{call::read, 0}, {call::read, 0}, {call::apply, 0}}, {{call::read, 1}}}},
    {"W = 1: read 0 | apply 0 | apply 0",
     1,
     true,
     {{{call::read, 0}}, {{call::apply, 0}}, {{call::apply, 0}}}},
    {"W = 1: read 1 | cancel", 1, true, {{{call::read, 1}}, {{call::cancel}}}},
    {"W = 1: apply 0 | cancel | read 1", 1, true, {{{call::apply, 0}}, {{call::cancel}}, {{call::read, 1}}}},
    {"hogwild: read | apply", 2, false, {{{call::read, 0}}, {{call::apply, 0}}}},
    {"hogwild: apply | apply", 2, false, {{{call::apply, 0}}, {{call::apply, 1}}}},
    {"hogwild: read | read | apply", 2, false, {{{call::read, 0}}, {{call::read, 1}}, {{call::apply, 0}}}},
};

outcome explore(const orders& o, const mutant& broken = {}, std::uint64_t most = 60'000) {
  explorer x;
  const limits bounds{.executions = most, .stale_reads = o.stale};
  if (o.exact) {
    return x.explore(
        [&] { return std::make_unique<window_scenario<deeprec::staleness::exact_t>>(o.window, o.calls); },
        broken, bounds);
  }
  return x.explore(
      [&] { return std::make_unique<window_scenario<deeprec::staleness::hogwild_t>>(o.window, o.calls); },
      broken, bounds);
}

TEST_CASE("stale_window: a lookup sees its version in every order of a few threads") {
  std::printf("  %-52s %13s %12s\n", "stale_window", "interleavings", "steps");
  for (const orders& o : all_orders) {
    const outcome found = explore(o);
    std::printf("  %-52s %13llu %12llu%s\n", o.name, static_cast<unsigned long long>(found.executions),
                static_cast<unsigned long long>(found.steps), found.complete ? "" : "  not all");
    std::fflush(stdout);
    CHECK_MESSAGE(!found.failed, o.name << ": " << found.what);
  }
}

TEST_CASE("hazard H4: the explorer catches a window without versions") {
  explorer x;
  const program calls = {{{call::read, 0}, {call::read, 1}}, {{call::apply, 0}}};
  CHECK(x.explore([&] { return std::make_unique<unbounded_scenario>(1, calls); }).failed);
}

TEST_CASE("hazard H4: the explorer catches a window that does not mark who has begun") {
  const mutant unmarked{"not marked", mutant::omit, access::window_begin};
  for (const char* const name : {"W = 2: read 0 | read 0 | read 1, apply 0",
                                 "W = 2: read 0 0, apply 0 | read 1", "W = 1: read 0 | apply 0 | apply 0"}) {
    const auto found = std::find_if(all_orders.begin(), all_orders.end(),
                                    [&](const orders& o) { return o.name == std::string(name); });
    REQUIRE(found != all_orders.end());
    CHECK_MESSAGE(explore(*found, unmarked).failed, name);
  }
}

TEST_CASE("stale_window: each access stronger than relaxed is needed by some scenario") {
  const std::vector<std::pair<access, const char*>> stronger = {
      {access::version_publish, "version_publish"},
      {access::version_read, "version_read"},
      {access::version_applied, "version_applied"},
      {access::passed_publish, "passed_publish"},
      {access::passed_seen, "passed_seen"},
      {access::shard_shared, "shard_shared"},
      {access::shard_left, "shard_left"},
      {access::shard_taken, "shard_taken"},
      {access::shard_given_back, "shard_given_back"}};
  std::set<std::string> files;
  for (const auto& [what, name] : stronger) {
    std::string by;
    for (const orders& o : all_orders) {
      if (explore(o, {name, mutant::relax, what}, 40'000).failed) {
        by = o.name;
        break;
      }
    }
    std::printf("  %-18s weakened, caught by: %s\n", name, by.empty() ? "NOTHING" : by.c_str());
    CHECK_MESSAGE(!by.empty(), std::string(name) << " may be weakened: no scenario sees it");
    const site_use& where = sites[static_cast<std::size_t>(what)];
    REQUIRE(where.file != nullptr);
    CHECK_MESSAGE(!where.elsewhere, std::string(name) << " is used in two places");
    files.insert(where.file);
  }
  // No other in the source, and none without a name.
  std::ptrdiff_t found = 0;
  for (const std::string& file : files) {
    std::ifstream in(file);
    REQUIRE_MESSAGE(in.good(), file);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::regex order("memory_order_(acquire|release|acq_rel|seq_cst)");
    found += std::distance(std::sregex_iterator(text.begin(), text.end(), order), {});
  }
  CHECK(found == static_cast<std::ptrdiff_t>(stronger.size()));
}

}  // namespace
