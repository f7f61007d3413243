// What deeprec/core/executor.hpp promises of every bulk executor, as one test.
//
//   TEST_CASE("my_executor keeps the contract") { CHECK(deeprec_test::contract_fault(executor) == ""); }
//
// Answers in words what is wrong first. Timings decide nothing; an executor that locks up runs into the
// time limit of the test.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/executor.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec_test {

using deeprec::index_t;

namespace contract {

// Pieces cover [0, n) once, end at multiples of the grain or at n; a worker's number is below
// concurrency(), and no two bodies have the same one at once. `inside` runs in every body.
template <class E, class Inside>
std::string pieces_fault(E& executor, index_t n, index_t grain, Inside inside) {
  const int concurrency = executor.concurrency();
  if (concurrency < 1) return "concurrency() is below 1";
  std::vector<std::atomic<int>> hits(static_cast<std::size_t>((std::max<index_t>)(n, 0)));
  std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(concurrency));
  std::vector<index_t> written(hits.size());  // plain: visible when the call has returned
  std::atomic<bool> shared{false}, bad_worker{false}, bad_border{false};
  std::atomic<int> running{0};
  executor.parallel_for(n, grain, [&](index_t begin, index_t end, int worker) {
    ++running;
    if (worker < 0 || worker >= concurrency) {
      bad_worker = true;
    } else if (begin < 0 || begin >= end || end > n || begin % grain != 0 || (end != n && end % grain != 0)) {
      bad_border = true;
    } else {
      auto& mine = busy[static_cast<std::size_t>(worker)];
      if (mine.exchange(true)) shared = true;
      inside();
      for (index_t i = begin; i < end; ++i) {
        hits[static_cast<std::size_t>(i)].fetch_add(1, std::memory_order_relaxed);
        written[static_cast<std::size_t>(i)] = i + 1;
      }
      mine = false;
    }
    --running;
  });
  if (running != 0) return "a body runs after the call has returned";
  if (bad_worker) return "a worker's number is not below concurrency()";
  if (bad_border) return "a border is no multiple of the grain";
  if (shared) return "two bodies under one number at once";
  for (std::size_t i = 0; i < hits.size(); ++i) {
    if (hits[i] != 1) return "an element is not covered exactly once";
    if (written[i] != static_cast<index_t>(i) + 1) return "what a body wrote is not there";
  }
  return {};
}

template <class E>
std::string pieces_fault(E& executor, index_t n, index_t grain) {
  return pieces_fault(executor, n, grain, [] {});
}

struct thrown_at {
  index_t begin;
};

// Bodies that hold a multiple of `step`, from `first` on, throw. The call rethrows the smallest of them
// when no body runs any more.
template <class E>
std::string exception_fault(E& executor, index_t n, index_t grain, index_t first, index_t step) {
  std::atomic<int> running{0};
  std::atomic<index_t> end_of_smallest{0};
  index_t caught = -1;
  int after = 0;
  try {
    executor.parallel_for(n, grain, [&](index_t begin, index_t end, int) {
      struct count {
        std::atomic<int>& running;
        explicit count(std::atomic<int>& r) : running(r) { ++running; }
        ~count() { --running; }
      } counted(running);
      for (index_t i = begin; i < end; ++i) {
        if (i == first) end_of_smallest = end;
        if (i >= first && (i - first) % step == 0) throw thrown_at{begin};
      }
    });
    return "what a body threw is lost";
  } catch (const thrown_at& place) {
    after = running;
    caught = place.begin;
  }
  if (after != 0) return "a body runs after the call has thrown";
  if (caught > first || first >= end_of_smallest) return "not the smallest begin was rethrown";
  return {};
}

// The same for a range that no memory has: the last pieces end where index_t does.
template <class E>
std::string large_fault(E& executor, index_t n, index_t grain) {
  std::mutex mutex;
  std::vector<std::pair<index_t, index_t>> pieces;
  try {
    executor.parallel_for(n, grain, [&](index_t begin, index_t end, int) {
      std::lock_guard lock(mutex);
      if (pieces.size() > 16) throw thrown_at{begin};
      pieces.emplace_back(begin, end);
    });
  } catch (const thrown_at&) {
    return "a body is called without end";
  }
  std::sort(pieces.begin(), pieces.end());
  index_t covered = 0;
  for (const auto& [begin, end] : pieces) {
    if (begin != covered || end <= begin) return "an element is not covered exactly once";
    if (end != n && end % grain != 0) return "a border is no multiple of the grain";
    covered = end;
  }
  return covered == n ? "" : "an element is not covered exactly once";
}

// Calls from inside of bodies, three levels deep.
template <class E>
std::string nested_fault(E& executor) {
  std::mutex mutex;
  std::string fault;
  const auto keep = [&](std::string found) {
    std::lock_guard lock(mutex);
    if (fault.empty()) fault = std::move(found);
  };
  std::atomic<index_t> sum{0};
  executor.parallel_for(6, 1, [&](index_t begin, index_t end, int) {
    for (index_t i = begin; i < end; ++i) {
      if (std::string found = pieces_fault(executor, 100, 7); !found.empty()) keep(found);
      executor.parallel_for(5, 2, [&](index_t inner, index_t inner_end, int) {
        executor.parallel_for(inner_end - inner, 1, [&](index_t b, index_t e, int) { sum += e - b; });
      });
    }
  });
  if (!fault.empty()) return "nested: " + fault;
  if (sum != 30) return "nested: an element is not covered exactly once";
  // An exception of an inner call leaves the outer one by the same rule.
  try {
    executor.parallel_for(8, 1, [&](index_t begin, index_t, int) {
      executor.parallel_for(3, 1, [&](index_t, index_t, int) { throw thrown_at{begin}; });
    });
    return "nested: what a body threw is lost";
  } catch (const thrown_at& place) {
    if (place.begin != 0) return "nested: not the smallest begin was rethrown";
  }
  return {};
}

// Calls from several threads at once.
template <class E>
std::string shared_fault(E& executor) {
  std::vector<std::string> faults(4);
  std::vector<std::thread> callers;
  for (std::string& fault : faults) {
    callers.emplace_back([&executor, &fault] {
      for (int round = 0; round < 30 && fault.empty(); ++round) {
        fault = pieces_fault(executor, 200 + round, 3);
        if (fault.empty() && round % 10 == 0) fault = nested_fault(executor);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& fault : faults) {
    if (!fault.empty()) return "from several threads: " + fault;
  }
  return {};
}

}  // namespace contract

/// The first broken promise; empty when the executor keeps them all.
template <class E>
std::string contract_fault(E& executor) {
  static_assert(deeprec::BulkExecutor<E>);
  const auto at = [](std::string fault, index_t n, index_t grain) {
    if (!fault.empty()) {
      fault += " (n = " + std::to_string(n) + ", grain = " + std::to_string(grain) + ")";
    }
    return fault;
  };
  constexpr index_t largest = (std::numeric_limits<index_t>::max)();
  for (const index_t grain : {index_t{1}, index_t{2}, index_t{7}, index_t{64}, largest}) {
    for (const index_t n : {index_t{0}, index_t{-5}, index_t{1}, index_t{2}, index_t{6}, index_t{7},
                            index_t{8}, index_t{64}, index_t{65}, index_t{129}, index_t{1000}}) {
      if (auto fault = at(contract::pieces_fault(executor, n, grain), n, grain); !fault.empty()) {
        return fault;
      }
    }
  }
  if (auto fault = at(contract::pieces_fault(executor, 1'000'000, 512), 1'000'000, 512); !fault.empty()) {
    return fault;
  }
  for (const index_t n : {largest, largest - 1, largest / 2 + 2}) {
    for (const index_t grain : {largest / 2 + 1, largest / 2 + 2, largest / 3, largest / 12, largest}) {
      if (auto fault = at(contract::large_fault(executor, n, grain), n, grain); !fault.empty()) return fault;
    }
  }
  for (int round = 0; round < 200; ++round) {  // short calls in a row: the end of one, the start of the next
    if (auto fault = at(contract::pieces_fault(executor, 40, 3), 40, 3); !fault.empty()) return fault;
  }
  for (const index_t first : {0, 1, 50, 999}) {
    for (const index_t step : {1, 13, 1000}) {
      for (const index_t grain : {1, 7, 1000}) {
        if (auto fault = at(contract::exception_fault(executor, 1000, grain, first, step), 1000, grain);
            !fault.empty()) {
          return fault;
        }
      }
    }
  }
  if (auto fault = contract::pieces_fault(executor, 1000, 7); !fault.empty()) {
    return "after an exception: " + fault;
  }
  for (int round = 0; round < 20; ++round) {
    if (auto fault = contract::nested_fault(executor); !fault.empty()) return fault;
  }
  deeprec::executor_ref behind_pointers(executor);
  if (auto fault = contract::pieces_fault(behind_pointers, 1000, 7); !fault.empty()) {
    return "through executor_ref: " + fault;
  }
  return contract::shared_fault(executor);
}

/// What is promised of post(): an accepted task runs once and sees its stop token; a refused one never runs
/// and is left with the caller. `finish` waits for the accepted ones.
template <class E, class Finish>
std::string task_contract_fault(E& executor, Finish finish) {
  static_assert(deeprec::TaskExecutor<E>);
  struct counts {
    std::atomic<int> runs{0}, told{0}, empty{0};
  } seen;
  struct task {
    std::unique_ptr<int> own;
    counts* to;
    void operator()(std::stop_token stop) {
      if (own == nullptr) ++to->empty;
      if (stop.stop_requested()) ++to->told;
      ++to->runs;
    }
  };
  std::stop_source source;
  source.request_stop();
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    task given{std::make_unique<int>(i), &seen};
    const deeprec::status answer = executor.post(std::move(given), source.get_token());
    if (answer.ok()) {
      ++accepted;
    } else if (given.own == nullptr) {
      return "a refused task was taken";
    } else if (answer.code() != deeprec::errc::would_block) {
      return "a task is refused for another reason: " + answer.message();
    }
  }
  finish();
  if (accepted == 0) return "no task is accepted";
  if (seen.runs != accepted) return "an accepted task does not run exactly once, or a refused one runs";
  if (seen.empty != 0) return "a task runs without what it holds";
  if (seen.told != accepted) return "a task does not see its stop token";
  return {};
}

/// That accepted tasks run beside each other, `limit` of them, and the next one is refused: tasks that wait
/// for the caller don't keep another from beginning. An executor that queues one behind another locks up
/// here.
template <class E, class Finish>
std::string blocked_tasks_fault(E& executor, int limit, Finish finish) {
  std::atomic<int> begun{0};
  std::atomic<bool> release{false};
  const auto wait_for_release = [&](std::stop_token) {
    ++begun;
    begun.notify_all();
    release.wait(false);
  };
  std::string fault;
  int accepted = 0;
  while (accepted <= limit && executor.post(wait_for_release).ok()) ++accepted;
  if (accepted != limit) fault = std::to_string(accepted) + " tasks are accepted";
  for (int now = begun; now < accepted; now = begun) begun.wait(now);
  release = true;
  release.notify_all();
  finish();
  return fault;
}

}  // namespace deeprec_test
