// Of faults that are found in any order, the first is returned.

#include <deeprec/core/context.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/support/first_fault.hpp>

#include <doctest/doctest.h>
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "support/seed.hpp"

using namespace deeprec;

namespace {

status at(index_t k) { return {errc::id_out_of_range, {.position = k}}; }

// Runs the pieces one by one, the last first.
struct backward_executor {
  [[nodiscard]] int concurrency() const noexcept { return 1; }
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    for (index_t begin = (n - 1) / grain * grain; n > 0 && begin >= 0; begin -= grain) {
      body(begin, (std::min)(n, begin + grain), 0);
    }
  }
};

}  // namespace

TEST_CASE("fault_report: keeps the smallest, in any order and of equal ones the one that came first") {
  detail::fault_report none;
  CHECK(none.first().ok());
  CHECK(none.is_wanted(0));
  std::vector<index_t> orders(6);
  std::iota(orders.begin(), orders.end(), index_t{0});
  do {
    detail::fault_report report;
    for (const index_t k : orders) report.add(k, at(k));
    CHECK(report.first().place().position == 0);
    CHECK(!report.is_wanted(0));
  } while (std::next_permutation(orders.begin(), orders.end()));
  detail::fault_report same;
  same.add(3, at(1));
  same.add(3, at(2));
  CHECK(same.first().place().position == 1);
  CHECK(same.is_wanted(2));
  CHECK(!same.is_wanted(3));
}

TEST_CASE("fault_report: threads that add at once leave the smallest, whole") {
  for (int round = 0; round < 20; ++round) {
    detail::fault_report report;
    std::vector<std::thread> threads;
    for (index_t t = 0; t < 4; ++t) {
      threads.emplace_back([&report, t] {
        for (index_t k = 400; k >= 0; --k)
          report.add(4 * k + t, status(errc::invalid_value, {.position = 4 * k + t, .row = t}));
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(report.first().place() == fault_place{.position = 0, .row = 0});
  }
}

TEST_CASE("first_fault: is the same for any executor and grain") {
  thread_pool pool(4);
  std::mt19937_64 random(deeprec_test::seed());
  const auto here = detail::as_context(inline_executor{});
  const auto pooled = detail::as_context(pool);
  const backward_executor last_first;
  const auto backward = detail::as_context(last_first);
  for (int round = 0; round < 50; ++round) {
    const auto n = static_cast<index_t>(random() % 3000);
    std::vector<bool> bad(static_cast<std::size_t>(n));
    for (std::uint64_t k = random() % 4; n > 0 && k > 0; --k) bad[random() % bad.size()] = true;
    const auto first = std::find(bad.begin(), bad.end(), true) - bad.begin();
    const auto grain = static_cast<index_t>(1 + random() % 500);
    const auto check = [&](index_t begin, index_t end) -> status {
      for (index_t k = begin; k < end; ++k) {
        if (bad[static_cast<std::size_t>(k)]) return at(k);
      }
      return {};
    };
    const auto agrees = [&](const status& s) { return first == n ? s.ok() : s.place().position == first; };
    CHECK(agrees(detail::first_fault(here, {n, grain, 0.0}, check)));
    CHECK(agrees(detail::first_fault(pooled, {n, grain, 0.0}, check)));
    CHECK(agrees(detail::first_fault(backward, {n, grain, 0.0}, check)));
  }
}
