// Functions like at::parallel_for as an executor. A look-alike stands for PyTorch: it cuts the range as
// at::parallel_for does and runs nested calls on the calling thread.

#include <deeprec/interop/at_parallel_for.hpp>

#include "support/executor_contract.hpp"
#include "support/lookup_bits.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <thread>
#include <vector>

using namespace deeprec;

namespace look_alike {

thread_local bool in_parallel_region = false;

struct inside_region {
  bool before = in_parallel_region;
  inside_region() { in_parallel_region = true; }
  ~inside_region() { in_parallel_region = before; }
};

template <int Threads, class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const F& f) {
  if (begin >= end) return;
  if (in_parallel_region || end - begin <= grain || Threads == 1) {
    f(begin, end);
    return;
  }
  const std::int64_t chunks = (std::min)(std::int64_t{Threads}, (end - begin + grain - 1) / grain);
  const std::int64_t chunk = (end - begin + chunks - 1) / chunks;
  std::vector<std::thread> threads;
  for (std::int64_t b = begin + chunk; b < end; b += chunk) {
    threads.emplace_back([&f, b, e = (std::min)(b + chunk, end)] {
      const inside_region inside;
      f(b, e);
    });
  }
  {
    const inside_region inside;
    f(begin, begin + chunk);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace look_alike

TEST_CASE("torch_executor keeps the contract of bulk executors") {
  const torch_executor executor{[](std::int64_t b, std::int64_t e, std::int64_t g, const auto& f) {
                                  look_alike::parallel_for<3>(b, e, g, f);
                                },
                                3};
  CHECK(executor.concurrency() == 3);
  CHECK(deeprec_test::contract_fault(executor) == "");
}

TEST_CASE("torch_executor keeps the contract where the number of threads was guessed wrong") {
  for (const int threads : {-1, 0, 1, 2, 9}) {
    CAPTURE(threads);
    const torch_executor executor{[](std::int64_t b, std::int64_t e, std::int64_t g, const auto& f) {
                                    look_alike::parallel_for<3>(b, e, g, f);
                                  },
                                  threads};
    CHECK(executor.concurrency() == (std::max)(1, threads));
    CHECK(deeprec_test::contract_fault(executor) == "");
  }
}

TEST_CASE("torch_executor: a lookup has the bits that inline_executor gives") {
  const torch_executor executor{[](std::int64_t b, std::int64_t e, std::int64_t g, const auto& f) {
                                  look_alike::parallel_for<4>(b, e, g, f);
                                },
                                4};
  CHECK(deeprec_test::lookup_bits_fault(executor) == "");
}
