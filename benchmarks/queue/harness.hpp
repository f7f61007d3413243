// How the queue suite runs a queue: threads pinned, producer i on CPU i mod 2, consumer i on the other one,
// the clock started when all stand ready. No header of deeprec here. A queue is anything with
//
//   Queue(std::size_t capacity)   bool try_push(const T&)   bool try_pop(T&)
//
// or with push and pop that wait by themselves (Wait::own).
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace queue_bench {

struct spec {
  int producers = 1;
  int consumers = 1;
  std::size_t capacity = 1024;
  std::uint64_t items = 1'000'000;
};

// What a thread does when the queue says no: looks again at once, after a pause, after the other threads;
// pauses 128 times and then lets the others run (what adaptive_wait does); or what the queue does by itself.
enum class wait { spin, pause, yield, patient, own };

// Seconds that a run takes, or -1: wrong answer.
using run = double (*)(const spec&);
enum class kind { spsc_8, spsc_two, spsc_64, round_trip, mpmc };  // spsc_two: a capacity of two, and no other
struct contender {
  const char* name;
  kind what;
  run seconds;
  // How many items it takes before it is full, asked for a capacity of 2; 0: not known.
  std::size_t (*holds)() = nullptr;
  // Slow ones get fewer items: what they do with them is counted per item.
  std::uint64_t items = 0;
  // Only with so many threads on a side: those that spin would stand still with more threads than CPUs.
  int sides = 1000;
};

struct wide {
  std::uint64_t value = 0;
  std::uint64_t rest[7] = {};
  wide() = default;
  wide(std::uint64_t v) : value(v) {}  // NOLINT
};
inline std::uint64_t value_of(std::uint64_t v) { return v; }
inline std::uint64_t value_of(const wide& w) { return w.value; }

inline void pin(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<unsigned>(cpu % 2), &mask);
  pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask);
}

template <wait W>
inline void again(unsigned n) {
  if constexpr (W == wait::patient) {
    n < 128 ? again<wait::pause>(n) : again<wait::yield>(n);
  } else if constexpr (W == wait::pause) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else if constexpr (W == wait::yield) {
    sched_yield();
  }
}

template <wait W, class Queue, class T>
inline void put(Queue& queue, const T& item) {
  if constexpr (W == wait::own) {
    queue.push(item);
  } else {
    for (unsigned n = 0; !queue.try_push(item); ++n) again<W>(n);
  }
}
template <wait W, class Queue, class T>
inline void get(Queue& queue, T& item) {
  if constexpr (W == wait::own) {
    queue.pop(item);
  } else {
    for (unsigned n = 0; !queue.try_pop(item); ++n) again<W>(n);
  }
}

// Runs body(t) in threads that begin together; seconds from then to the last end.
template <class CpuOf, class Body>
double together(int threads, CpuOf cpu_of, Body body) {
  using clock = std::chrono::steady_clock;
  std::atomic<int> ready{0};
  std::vector<std::thread> all;
  std::vector<clock::time_point> begin(static_cast<std::size_t>(threads)), end = begin;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      pin(cpu_of(t));
      ++ready;
      while (ready.load(std::memory_order_acquire) < threads) sched_yield();
      begin[static_cast<std::size_t>(t)] = clock::now();
      body(t);
      end[static_cast<std::size_t>(t)] = clock::now();
    });
  }
  for (std::thread& t : all) t.join();
  return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                       *std::min_element(begin.begin(), begin.end()))
      .count();
}

template <class Queue, class T, wait W>
double spsc(const spec& s) {
  auto queue = std::make_unique<Queue>(s.capacity);
  bool right = true;
  const double seconds = together(
      2, [](int t) { return t; },
      [&](int t) {
        if (t == 0) {
          for (std::uint64_t k = 1; k <= s.items; ++k) put<W>(*queue, T(k));
        } else {
          T item{};
          bool mine = true;
          for (std::uint64_t k = 1; k <= s.items; ++k) {
            get<W>(*queue, item);
            mine = mine && value_of(item) == k;
          }
          right = mine;
        }
      });
  return right ? seconds : -1;
}

template <class Queue, class T, wait W>
double round_trip(const spec& s) {
  auto there = std::make_unique<Queue>(s.capacity);
  auto back = std::make_unique<Queue>(s.capacity);
  bool right = true;
  const double seconds = together(
      2, [](int t) { return t; },
      [&](int t) {
        T item{};
        for (std::uint64_t k = 1; k <= s.items; ++k) {
          if (t == 0) {
            put<W>(*there, T(k));
            get<W>(*back, item);
            if (value_of(item) != k) right = false;
          } else {
            get<W>(*there, item);
            put<W>(*back, item);
          }
        }
      });
  return right ? seconds : -1;
}

template <class Queue, class T, wait W>
double mpmc(const spec& s) {
  auto queue = std::make_unique<Queue>(s.capacity);
  std::atomic<std::uint64_t> sum{0};
  const auto cpu_of = [&](int t) { return t < s.producers ? t : t - s.producers + 1; };
  const double seconds = together(s.producers + s.consumers, cpu_of, [&](int t) {
    const bool producer = t < s.producers;
    const std::uint64_t mine = s.items / static_cast<std::uint64_t>(producer ? s.producers : s.consumers);
    if (producer) {
      const std::uint64_t first = static_cast<std::uint64_t>(t) * mine + 1;
      for (std::uint64_t k = first; k < first + mine; ++k) put<W>(*queue, T(k));
    } else {
      T item{};
      std::uint64_t got = 0;
      for (std::uint64_t k = 0; k < mine; ++k) {
        get<W>(*queue, item);
        got += value_of(item);
      }
      sum += got;
    }
  });
  return sum == s.items * (s.items + 1) / 2 ? seconds : -1;
}

template <class Queue>
std::size_t holds() {
  Queue queue(2);
  std::size_t n = 0;
  while (n < 100 && queue.try_push(std::uint64_t{1})) ++n;
  return n;
}

}  // namespace queue_bench
