#include <deeprec/memory/detail/managed_budget.hpp>

#include <doctest/doctest.h>

#include <cstddef>

using namespace deeprec;

TEST_CASE("detail::managed_budget: never more than the card had, or has, free") {
  detail::managed_budget budget(1000);
  CHECK(budget.take(600, 1000));
  CHECK_FALSE(budget.take(500, 1000));
  CHECK_FALSE(budget.take(400, 399));
  CHECK(budget.take(400, 400));
  CHECK_FALSE(budget.take(1, 1000));
  budget.give_back(600);
  CHECK_FALSE(budget.take(static_cast<std::size_t>(-1), static_cast<std::size_t>(-1)));
  CHECK(budget.take(600, 600));
  CHECK(budget.held() == 1000);
}
