// Objects that remember: built or called while one allocation is refused, the first, the second, ... in turn. The
// call that was refused is made again, and the result is that of an object that was never refused. operator new
// is replaced, so this is a program of its own.
#include <doctest/doctest.h>

#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/task_plan.hpp>
#include <deeprec/exec/trace_recorder.hpp>
#include <deeprec/graph/step_program.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/counted_new.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

inline_executor here;

long left_to_grant = -1;  // to calls of until_granted, before one allocation is refused; negative: none is

/// Calls f; where it is refused memory, whether it throws or returns that, calls it again.
template <class F>
void until_granted(const F& f) {
  const auto is_refused = [&] {
    if constexpr (requires { f().code(); }) {
      return f().code() == errc::out_of_memory;
    } else {
      f();
      return false;
    }
  };
  granted_news = left_to_grant;
  bool again = false;
  try {
    again = is_refused();
  } catch (const std::bad_alloc&) {
    again = true;
  }
  left_to_grant = granted_news.exchange(-1);
  if (again) CHECK_FALSE(is_refused());
}

/// Runs build(), which calls what may be refused by until_granted and returns what it sees, with every
/// allocation of these calls refused in turn.
template <class Build>
void refuse_each(const Build& build) {
  const auto expected = build();
  CHECK(build() == expected);
  for (long n = 0;; ++n) {
    REQUIRE(n < 10'000);
    left_to_grant = n;
    const auto made = build();
    const bool refused = std::exchange(left_to_grant, -1) < 0;
    CAPTURE(n);
    CHECK(made == expected);
    if (!refused) {
      CHECK(n > 0);
      return;
    }
  }
}

std::vector<float> values_of(const dense_table<f32_rows>& table) {
  const auto* const first = reinterpret_cast<const float*>(table.view().data());
  return {first, first + table.bytes() / sizeof(float)};
}

}  // namespace

TEST_CASE("n13: a feature that was refused when it was added is no feature of the group") {
  dense_table<f32_rows> a(10, 4, std::pmr::new_delete_resource()), b(10, 4, std::pmr::new_delete_resource());
  const std::vector<std::int64_t> offsets{0, 1}, ids{1, 2, 3, 4};
  const std::vector<float> g(16, 1.0F);
  std::vector<jagged_view<>> bags;
  for (std::size_t t = 0; t < 4; ++t) bags.emplace_back(offsets.data(), 1, ids.data() + t, 1);
  refuse_each([&] {
    a.initialize(here, row_init::zeros{});
    b.initialize(here, row_init::zeros{});
    feature_group<sgd> group;
    until_granted([&] { group.add(a.view(), combiner::sum); });
    until_granted([&] { group.add(a.view(), combiner::mean); });
    until_granted([&] { group.add(b.view(), combiner::sum); });
    until_granted([&] { group.add(b.view(), combiner::sqrtn); });
    const status s = update(here, group, bags, matrix_view<const float>(g.data(), 1, 16), sgd{1.0F});
    return std::tuple(values_of(a), values_of(b), group.features(), group.tables(), s.message());
  });
}
