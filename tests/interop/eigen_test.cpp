// Eigen's thread pool as an executor.

#include <deeprec/interop/eigen_thread_pool.hpp>

#define EIGEN_USE_THREADS
#include <unsupported/Eigen/CXX11/Tensor>

#include "support/executor_contract.hpp"
#include "support/lookup_bits.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <new>
#include <thread>
#include <utility>

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

#if DEEPREC_EXCEPTIONS
// A pool whose Schedule number `fails_at` throws.
struct failing_eigen_pool final : Eigen::ThreadPoolInterface {
  Eigen::ThreadPool threads{3};
  int fails_at = -1;
  std::atomic<int> calls{0};
  void Schedule(std::function<void()> f) override {
    if (calls++ == fails_at) throw std::bad_alloc();
    threads.Schedule(std::move(f));
  }
  int NumThreads() const override { return threads.NumThreads(); }
  int CurrentThreadId() const override { return threads.CurrentThreadId(); }
};

TEST_CASE("eigen_executor: where Schedule throws, no body runs when the call has returned") {
  for (int at = 0; at < 3; ++at) {
    failing_eigen_pool pool;
    const eigen_executor executor(pool, 4);
    pool.fails_at = at;
    std::atomic<int> running{0};
    CHECK_THROWS_AS(executor.parallel_for(1000, 1,
                                          [&](index_t, index_t, int) {
                                            ++running;
                                            std::this_thread::yield();
                                            --running;
                                          }),
                    std::bad_alloc);
    CHECK(running == 0);
    CHECK(deeprec_test::contract_fault(executor) == "");
  }
}
#endif

TEST_CASE("eigen_executor: a lookup has the bits that inline_executor gives") {
  Eigen::ThreadPool pool(3);
  const eigen_executor executor(pool);
  CHECK(deeprec_test::lookup_bits_fault(executor) == "");
}
