// Values that ranks agree on, sums over ranks, and what their link costs.
#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/measure_link.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/comm/sum_in_order.hpp>
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/hash.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rank_threads.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

float value_of(int rank, std::size_t k) {
  const std::uint64_t h = mix64(seed() + static_cast<std::uint64_t>(rank) * 100'000 + k);
  return static_cast<float>(static_cast<int>(h % 2001) - 1000) / 777.0F;
}
std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> all(count);
  for (std::size_t k = 0; k < count; ++k) all[k] = value_of(rank, k);
  return all;
}
std::vector<float> sums_of(int ranks, std::size_t count, bool backwards = false) {
  std::vector<float> all(count);
  for (std::size_t k = 0; k < count; ++k) {
    for (int r = 0; r < ranks; ++r) {
      const float v = value_of(backwards ? ranks - 1 - r : r, k);
      all[k] = r == 0 ? v : all[k] + v;
    }
  }
  return all;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("sum: the bits of a sum in the order of the ranks, of fewer values than ranks and of none") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    std::atomic<int> wrong{0}, backwards{0};
    on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      for (const std::size_t count : {1000U, 0U, 3U, 4001U, 8U}) {
        std::vector<float> values = values_of(comm.rank(), count);
        if (!comm.sum(values, within(std::chrono::seconds(60))).ok()) ++wrong;
        if (!same_bits(values, sums_of(n, count))) ++wrong;
        if (same_bits(values, sums_of(n, count, true)) && count > 100) ++backwards;
      }
    });
    CHECK(wrong == 0);
    if (n > 2) CHECK(backwards == 0);
  }
}
TEST_CASE("sum: other numbers of values, and a silent rank, end the communicator") {
  for (const bool silent : {false, true}) {
    CHECK(in_patience([&](std::chrono::milliseconds patience) {
      std::vector<status> seen(3);
      std::atomic<int> over{0};
      on_ranks(3, {}, [&](thread_rank<> comm) {
        std::vector<float> values(comm.rank() == 1 ? 10 : 7);
        const auto limit = within(silent ? patience : std::chrono::minutes(1));
        if (!silent || comm.rank() != 1) {
          seen[static_cast<std::size_t>(comm.rank())] = comm.sum(values, limit);
          CHECK(!comm.sum(values, limit).ok());
        }
        for (++over; over < 3;) std::this_thread::yield();
      });
      bool named = false;
      for (std::size_t r = 0; r < 3; ++r) {
        if (silent && r == 1) continue;
        CHECK(!seen[r].ok());
        if (silent) named = named || (seen[r].code() == errc::timed_out && seen[r].place().rank == 1);
        if (!silent) named = named || seen[r].code() == errc::invalid_value;
      }
      return named;
    }));
  }
}
TEST_CASE("rank_values: each rank has the values of all, or the fault of the smallest that has one") {
  struct entry {
    double a;
    int b;
  };
  for (int n = 1; n <= 5; ++n) {
    on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      rank_values<entry> all(n);
      for (int step = 0; step < 4; ++step) {
        const status fault = step == 2 && comm.rank() >= n / 2
                                 ? status(errc::weight_is_nan, "a test", {.position = 3})
                                 : status();
        const status s =
            all.trade(comm, step, {comm.rank() + 0.5, step}, fault, within(std::chrono::seconds(60)));
        CHECK(s.code() == (step == 2 ? errc::weight_is_nan : errc::ok));
        if (step == 2) CHECK(s.place().rank == n / 2);
        for (int r = 0; r < n && s.ok(); ++r) {
          CHECK(all.of(r).a == r + 0.5);
          CHECK(all.of(r).b == step);
        }
      }
    });
  }
}

namespace {

// A clock that exchanges advance: by 50 us, and 1 ns for a byte that is sent; twice as much at rank 1.
struct modelled_clock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<modelled_clock, duration>;
  static time_point now() { return time_point(duration(at())); }
  static std::int64_t& at() {
    thread_local std::int64_t ns = 0;
    return ns;
  }
};
struct modelled_rank {
  using space = host_space;
  thread_rank<> of;

  [[nodiscard]] int rank() const { return of.rank(); }
  [[nodiscard]] int size() const { return of.size(); }
  [[nodiscard]] int most_in_flight() const { return of.most_in_flight(); }
  [[nodiscard]] status begin(exchange& x) {
    std::int64_t ns = 50'000;
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) ns += static_cast<std::int64_t>(payload_of(x.to[static_cast<std::size_t>(r)]).size());
    }
    modelled_clock::at() += rank() == 1 ? 2 * ns : ns;
    return of.begin(x);
  }
  [[nodiscard]] queue_result poll(exchange& x) { return of.poll(x); }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit = {}) { return of.wait(x, limit); }
  [[nodiscard]] rank_list awaited(const exchange& x) const { return of.awaited(x); }
  void abandon(const status& why) { of.abandon(why); }
  [[nodiscard]] result<modelled_rank> duplicate() { return modelled_rank{of.duplicate().or_throw()}; }
  [[nodiscard]] result<modelled_rank> split(int color, int key, const wait_limit& limit = {}) {
    return modelled_rank{of.split(color, key, limit).or_throw()};
  }
};

}  // namespace

TEST_CASE("measure_link: latency and bandwidth of the slowest rank, at all ranks") {
  for (const int n : {2, 4}) {
    on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      modelled_rank modelled{comm};
      const auto link = measure_link<modelled_clock>(modelled, within(std::chrono::seconds(60)));
      REQUIRE(link.ok());
      CHECK(link.value().latency == std::chrono::microseconds(100));
      CHECK(link.value().bytes_per_second > 0.499e9);
      CHECK(link.value().bytes_per_second < 0.501e9);
      CHECK(link.value().bytes_in(10) > 490'000);
      CHECK(link.value().bytes_in(10) < 510'000);
    });
  }
}
TEST_CASE("measure_link: real ranks get one answer; one rank has no link") {
  std::vector<double> rates(3);
  std::vector<std::int64_t> times(3);
  on_ranks(3, {}, [&](thread_rank<> comm) {
    const auto link = measure_link(comm, within(std::chrono::seconds(60)));
    REQUIRE(link.ok());
    rates[static_cast<std::size_t>(comm.rank())] = link.value().bytes_per_second;
    times[static_cast<std::size_t>(comm.rank())] = link.value().latency.count();
  });
  CHECK(rates[0] > 0);
  CHECK(times[0] > 0);
  for (std::size_t r = 1; r < 3; ++r) {
    CHECK(rates[r] == rates[0]);
    CHECK(times[r] == times[0]);
  }
  on_ranks(1, {}, [&](thread_rank<> comm) {
    CHECK(!measure_link(comm).ok());
    CHECK(measure_link(comm).fault().code() == errc::unsupported);
  });
}
