// Executors that fail to take a task: whatever calls post(), whichever post fails and however, the run ends
// with that failure, no task of it is left, and the next run on a healthy executor is right.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/stale_loop.hpp>

#include "support/children.hpp"

namespace {

using namespace deeprec;

enum class failure { bad_alloc, exception, refused, dropped, dropped_and_exception };
constexpr failure failures[] = {failure::bad_alloc, failure::exception, failure::refused, failure::dropped,
                                failure::dropped_and_exception};

// A pool whose post number `fails_at`, from 0, fails; no other does.
struct failing_pool {
  thread_pool threads{1};
  failure how = failure::refused;
  int fails_at = -1;
  int posts = 0;

  template <class Task>
  status post(Task&& task, std::stop_token stop, task_handle& handle) {
    if (posts++ != fails_at) return threads.post(std::forward<Task>(task), std::move(stop), handle);
    switch (how) {
      case failure::bad_alloc:
        throw std::bad_alloc();
      case failure::refused:
        return {errc::would_block, "failing_pool::post"};
      case failure::dropped:
        runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle);
        return {};
      case failure::dropped_and_exception: {
        const runnable_task begun(std::forward<Task>(task), std::move(stop), {}, &handle);
        break;
      }
      case failure::exception:
        break;
    }
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  }
  template <class Task>
  status post(Task&& task, std::stop_token stop = {}) {
    return threads.post(std::forward<Task>(task), std::move(stop));
  }
};
static_assert(TaskExecutor<failing_pool>);

// How a call ended.
enum class ending { ok, out_of_memory, would_block, cancelled, thrown, other };
ending code_of(errc code) {
  switch (code) {
    case errc::ok:
      return ending::ok;
    case errc::out_of_memory:
      return ending::out_of_memory;
    case errc::would_block:
      return ending::would_block;
    case errc::cancelled:
      return ending::cancelled;
    default:
      return ending::other;
  }
}
template <class Run>
ending ending_of(const Run& run) {
  try {
    if constexpr (std::is_same_v<decltype(run()), status>) {
      return code_of(run().code());
    } else {
      const result<void> r = run();
      return code_of(r.ok() ? errc::ok : r.code());
    }
  } catch (const std::bad_alloc&) {
    return ending::out_of_memory;
  } catch (const std::system_error&) {
    return ending::thrown;
  }
}
bool is_right(ending found, failure how) {
  switch (how) {
    case failure::bad_alloc:
      return found == ending::out_of_memory;
    case failure::refused:
      return found == ending::would_block;
    case failure::dropped:
      return found == ending::cancelled;
    default:
      return found == ending::thrown;
  }
}

// Whatever hands work to an executor of tasks: made anew for each failure, then run several times.
struct poster {
  virtual ~poster() = default;
  virtual int posts() const = 0;  // of the first run
  virtual ending run(failing_pool& on) = 0;
  virtual bool result_is_right() = 0;
};

struct pipeline_poster final : poster {
  int posts() const override { return 4; }
  ending run(failing_pool& on) override {
    next = 0;
    seen.clear();
    pipeline p(on, source("read", [this] { return next == 20 ? std::nullopt : std::optional<int>(next++); }) |
                       stage("double", [](int v) { return 2 * v; }).parallel(2) |
                       stage("add", [](int v) { return v + 1; }).own_thread() |
                       sink("last", [this](int v) { seen.push_back(v); }).own_thread());
    return ending_of([&] { return p.run(); });
  }
  bool result_is_right() override {
    if (seen.size() != 20) return false;
    for (int i = 0; i < 20; ++i) {
      if (seen[static_cast<std::size_t>(i)] != 2 * i + 1) return false;
    }
    return true;
  }
  int next = 0;
  std::vector<int> seen;
};

template <class Order>
struct stale_poster final : poster {
  int posts() const override { return 4; }
  ending run(failing_pool& on) override {
    applied = 0;
    return ending_of([&] {
      return loop.run(
          on, [](stale_step s) { return s.number < 20; },
          [this](stale_step s) { return window.read(s.number).outcome(); }, [](stale_step) {},
          [this](stale_step s) {
            const auto writing = window.apply(s.number);
            ++applied;
            return writing.outcome();
          });
    });
  }
  bool result_is_right() override { return applied == 20 && loop.report().steps == 20; }
  stale_window<Order> window{3};
  stale_loop<stale_window<Order>> loop{window};
  int applied = 0;
};

struct micro_poster final : poster {
  micro_poster() {
    for (int r = 0; r < 4; ++r) {
      step.stage("s" + std::to_string(r), r, [this, r](const micro_chunk&) { ++calls[r]; });
    }
    step.update("rows", sgd{}, [this] { ++updates; });
  }
  int posts() const override { return 3; }
  ending run(failing_pool& on) override {
    for (std::atomic<int>& c : calls) c = 0;
    updates = 0;
    return ending_of([&] { return step.run(on, 16); });
  }
  bool result_is_right() override {
    return updates == 1 &&
           std::all_of(std::begin(calls), std::end(calls), [](const std::atomic<int>& c) { return c == 4; });
  }
  micro_batch<> step{4};
  std::atomic<int> calls[4] = {};
  int updates = 0;
};

struct poster_kind {
  const char* name;
  std::function<std::unique_ptr<poster>()> make;
};
const poster_kind posters[] = {
    {"pipeline", [] { return std::make_unique<pipeline_poster>(); }},
    {"stale_loop", [] { return std::make_unique<stale_poster<staleness::exact_t>>(); }},
    {"stale_loop, hogwild", [] { return std::make_unique<stale_poster<staleness::hogwild_t>>(); }},
    {"micro_batch", [] { return std::make_unique<micro_poster>(); }},
};

// 0, or what went wrong. Another pool: one made when the first has been destroyed.
int fails_and_goes_on(const poster_kind& kind, failure how, int at, bool another_pool) {
  const auto made = kind.make();
  std::optional<failing_pool> pool(std::in_place);
  pool->how = how;
  pool->fails_at = at;
  if (!is_right(made->run(*pool), how)) return 1;
  if (pool->posts != at + 1) return 2;  // no post follows one that failed
  if (another_pool) pool.emplace();
  for (int round = 0; round < 3; ++round) {
    if (made->run(*pool) != ending::ok) return 3;
    if (!made->result_is_right()) return 4;
    if (another_pool) pool.emplace();
  }
  return 0;
}

TEST_CASE("post: whichever fails, and however, ends the run, and the next run is right") {
  for (const poster_kind& kind : posters) {
    const int posts = kind.make()->posts();
    for (const failure how : failures) {
      for (int at = 0; at < posts; ++at) {
        for (const bool another_pool : {false, true}) {
          INFO(kind.name, ", failure ", static_cast<int>(how), ", post ", at, ", another ", another_pool);
          const auto test = [&] { return fails_and_goes_on(kind, how, at, another_pool); };
          CHECK(deeprec_test::in_child(test, 30) == 0);
        }
      }
    }
  }
}

TEST_CASE("post: as many as the tests of failures expect") {
  for (const poster_kind& kind : posters) {
    failing_pool pool;
    const auto made = kind.make();
    INFO(kind.name);
    CHECK(made->run(pool) == ending::ok);
    CHECK(made->result_is_right());
    CHECK(pool.posts == made->posts());
  }
}

}  // namespace
