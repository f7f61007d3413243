// OpenMP's threads as an executor.

#include <deeprec/interop/openmp.hpp>

#include "support/executor_contract.hpp"
#include "support/lookup_bits.hpp"

#include <doctest/doctest.h>
#include <omp.h>

using namespace deeprec;

TEST_CASE("openmp_executor keeps the contract of bulk executors") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    const openmp_executor executor(threads);
    REQUIRE(executor.concurrency() == threads);
    CHECK(deeprec_test::contract_fault(executor) == "");
  }
  CHECK(openmp_executor().concurrency() == omp_get_max_threads());
}

TEST_CASE("openmp_executor keeps the contract where regions nest") {
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(3);
  const openmp_executor executor(2);
  CHECK(deeprec_test::contract_fault(executor) == "");
  omp_set_max_active_levels(levels);
}

TEST_CASE("openmp_executor keeps the contract inside a parallel region") {
  const openmp_executor executor(3);
  std::string faults[2];
#pragma omp parallel num_threads(2)
  faults[omp_get_thread_num()] = deeprec_test::contract::pieces_fault(executor, 1000, 7);
  CHECK(faults[0] == "");
  CHECK(faults[1] == "");
}

TEST_CASE("openmp_executor: a lookup has the bits that inline_executor gives") {
  const openmp_executor executor(3);
  CHECK(deeprec_test::lookup_bits_fault(executor) == "");
}
