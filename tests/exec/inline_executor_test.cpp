// The executor without threads.

#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>
#include <thread>
#include <type_traits>

using namespace deeprec;

TEST_CASE("inline_executor: the whole range is one piece, on this thread") {
  const inline_executor executor;
  int calls = 0;
  executor.parallel_for(10, 3, [&](index_t begin, index_t end, int worker) {
    ++calls;
    CHECK(begin == 0);
    CHECK(end == 10);
    CHECK(worker == 0);
  });
  CHECK(calls == 1);
  executor.parallel_for(0, 3, [&](index_t, index_t, int) { ++calls; });
  executor.parallel_for(-1, 3, [&](index_t, index_t, int) { ++calls; });
  CHECK(calls == 1);
  CHECK(executor.concurrency() == 1);
  static_assert(std::is_empty_v<inline_executor>);
}

TEST_CASE("inline_executor: a posted task has run when post returns, and sees its stop token") {
  const inline_executor executor;
  std::stop_source source;
  source.request_stop();
  bool stopped = false;
  std::thread::id where;
  const status posted = executor.post(
      [&](std::stop_token stop) {
        stopped = stop.stop_requested();
        where = std::this_thread::get_id();
      },
      source.get_token());
  CHECK(posted.ok());
  CHECK(stopped);
  CHECK(where == std::this_thread::get_id());
}
