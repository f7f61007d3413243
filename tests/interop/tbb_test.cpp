// An arena of oneTBB as an executor.

#include <deeprec/interop/tbb.hpp>

#include "support/executor_contract.hpp"
#include "support/lookup_bits.hpp"

#include <doctest/doctest.h>
#include <tbb/global_control.h>

using namespace deeprec;

namespace {

// More threads than a small machine has processors, so that there is something to break.
const tbb::global_control more_threads(tbb::global_control::max_allowed_parallelism, 8);

}  // namespace

TEST_CASE("tbb_executor keeps the contract of bulk executors") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    tbb::task_arena arena(threads);
    const tbb_executor executor(arena);
    REQUIRE(executor.concurrency() == threads);
    CHECK(deeprec_test::contract_fault(executor) == "");
  }
}

TEST_CASE("tbb_executor keeps the contract inside another arena's loop") {
  tbb::task_arena arena(2);
  const tbb_executor executor(arena);
  std::string faults[4];
  tbb::parallel_for(0, 4,
                    [&](int i) { faults[i] = deeprec_test::contract::pieces_fault(executor, 1000, 7); });
  for (const std::string& fault : faults) CHECK(fault == "");
}

TEST_CASE("tbb_executor: a lookup has the bits that inline_executor gives") {
  tbb::task_arena arena(3);
  const tbb_executor executor(arena);
  CHECK(deeprec_test::lookup_bits_fault(executor) == "");
}
