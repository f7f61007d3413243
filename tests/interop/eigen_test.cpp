// Eigen's thread pool as an executor.

#include <deeprec/interop/eigen_thread_pool.hpp>

#define EIGEN_USE_THREADS
#include <unsupported/Eigen/CXX11/Tensor>

#include "support/executor_contract.hpp"
#include "support/lookup_bits.hpp"

#include <doctest/doctest.h>

using namespace deeprec;

TEST_CASE("eigen_executor keeps the contract of bulk executors") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    Eigen::ThreadPool pool(threads);
    const eigen_executor executor(pool);
    REQUIRE(executor.concurrency() == threads);
    CHECK(deeprec_test::contract_fault(executor) == "");
    const eigen_executor wider(pool, 7);
    CHECK(deeprec_test::contract_fault(wider) == "");
  }
}

TEST_CASE("eigen_executor: a device's number of threads is the limit") {
  Eigen::ThreadPool pool(4);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  const eigen_executor executor(device);
  CHECK(executor.concurrency() == 3);
  CHECK(deeprec_test::contract_fault(executor) == "");
}

TEST_CASE("eigen_executor: a call from the pool's only thread doesn't lock up") {
  Eigen::ThreadPool pool(1);
  const eigen_executor executor(pool, 4);
  std::string fault = "never ran";
  Eigen::Barrier done(1);
  pool.Schedule([&] {
    fault = deeprec_test::contract_fault(executor);
    done.Notify();
  });
  done.Wait();
  CHECK(fault == "");
}

TEST_CASE("eigen_executor: a lookup has the bits that inline_executor gives") {
  Eigen::ThreadPool pool(3);
  const eigen_executor executor(pool);
  CHECK(deeprec_test::lookup_bits_fault(executor) == "");
}
