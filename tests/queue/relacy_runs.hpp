// Simulations under Relacy: that a suite holds, and that it breaks where one access is weaker.
#pragma once

#include <cstdio>
#include <optional>

#include "queue/relacy_atomics.hpp"  // last: it brings macros

namespace deeprec_test {

inline int failures = 0;
inline rl::iteration_t executions = 20'000;  // of each random search; more by argument

template <class Suite>
rl::test_params simulate(rl::scheduler_type_e search, unsigned bound = 1) {
  rl::ostringstream text;  // takes no memory from the operator new that is being watched
  rl::test_params params;
  params.search_type = search;
  params.iteration_count = executions;
  params.context_bound = bound;
  params.output_stream = params.progress_stream = &text;
  rl::simulate<Suite>(params);
  return params;
}

template <class Suite>
void holds(const char* name, rl::scheduler_type_e search, unsigned bound = 1) {
  const rl::test_params p = simulate<Suite>(search, bound);
  const bool good = p.test_result == rl::test_result_success;
  failures += good ? 0 : 1;
  std::printf("%-52s %-24s %9llu executions: %s\n", name, rl::format(search),
              static_cast<unsigned long long>(p.stop_iteration), rl::test_result_str(p.test_result));
  std::fflush(stdout);
}

template <class Suite>
void breaks(const char* name, std::optional<deeprec::detail::access> site,
            rl::test_result_e expected = rl::test_result_data_race,
            rl::scheduler_type_e search = rl::sched_random) {
  broken_access = site;
  const rl::test_params p = simulate<Suite>(search, 2);
  broken_access.reset();
  const bool caught = p.test_result == expected;
  failures += caught ? 0 : 1;
  std::printf("%-52s %-24s %9llu executions: %s%s\n", name, site ? "weakened" : "mistaken",
              static_cast<unsigned long long>(p.stop_iteration), rl::test_result_str(p.test_result),
              caught ? "" : " - NOT WHAT WAS EXPECTED");
  std::fflush(stdout);
}

}  // namespace deeprec_test
