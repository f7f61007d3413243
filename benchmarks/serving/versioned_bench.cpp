// Models that are replaced while threads read them: versioned, and what the standard library offers.
//
//   serving/read/threads:N/P   readings of a model of 8 bytes by N threads, each on a processor of its own:
//                              the time of P, the faster of its builds, over ours (speedup)
//   serving/latency/P          the 99.9th percentile of readings of one thread, while another one publishes
//                              every millisecond: ours without the other one over it (of_alone), that of P
//                              over it (speedup); ours where it publishes every 10 us (p999_often_ns)
//   serving/lookup             pooled lookups, a reading each, beside a thread that publishes every
//                              millisecond: their pace over that alone (of_alone); beside one that does
//                              nothing but publish (of_alone_busy)
#include <benchmark/benchmark.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/serving/versioned.hpp>

#include "serving/baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using serving_bench::holder;
using serving_bench::small_model;

class ours {
 public:
  ours() { publish(1); }
  void publish(std::uint64_t number) {
    static_cast<void>(models_.publish(std::make_unique<small_model>(number)).or_throw());
  }
  template <class Use>
  void read(Use use) const {
    const auto now = models_.read();
    use(*now);
  }

 private:
  versioned<small_model> models_;
};

struct build {
  std::string name;
  holder calls;
};
std::vector<build> builds_of(const std::string& peer) {
  if (peer == "atomic_shared_ptr")
    return {{"o2", o2::atomic_shared_ptr()}, {"native", native::atomic_shared_ptr()}};
  return {{"o2", o2::locked_shared_ptr()}, {"native", native::locked_shared_ptr()}};
}

/// One of a holder's.
class held {
 public:
  explicit held(const holder& calls) : calls_(&calls), one_(calls.make()) {}
  held(const held&) = delete;
  held& operator=(const held&) = delete;
  ~held() { calls_->end(one_); }
  std::uint64_t read(std::uint64_t times) const { return calls_->read(one_, times); }
  void publish(std::uint64_t number) const { calls_->publish(one_, number); }
  void time(std::vector<std::uint32_t>& ns) const { calls_->time(one_, ns.data(), ns.size()); }

 private:
  const holder* calls_;
  void* one_;
};

/// The processors of the process; usable_cpus() are those of a thread.
const std::vector<int>& cpus() {
  static const std::vector<int> all = usable_cpus();
  return all;
}

/// While it exists, this thread stays on the first processor.
class on_first_cpu {
 public:
  on_first_cpu() {
    ::sched_getaffinity(0, sizeof(before_), &before_);
    detail::pin_this_thread(cpus().front());
  }
  on_first_cpu(const on_first_cpu&) = delete;
  on_first_cpu& operator=(const on_first_cpu&) = delete;
  ~on_first_cpu() { ::sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

/// Another thread that calls publish(2), publish(3) ... on the last processor, one in each period.
class publisher {
 public:
  publisher(std::function<void(std::uint64_t)> publish, std::chrono::nanoseconds period)
      : thread_([this, publish = std::move(publish), period] {
          detail::pin_this_thread(cpus().back());
          auto next = std::chrono::steady_clock::now();
          for (std::uint64_t n = 2; !stop_.load(std::memory_order_relaxed); ++n) {
            publish(n);
            published_.store(n - 1, std::memory_order_release);
            next += period;
            if (period >= std::chrono::milliseconds(1)) std::this_thread::sleep_until(next);
            while (std::chrono::steady_clock::now() < next) {  // a sleep takes 50 us at least
            }
          }
        }) {
    while (published() == 0) ::sched_yield();
  }
  publisher(const publisher&) = delete;
  publisher& operator=(const publisher&) = delete;
  ~publisher() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] std::uint64_t published() const { return published_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> published_{0};
  std::thread thread_;  // last: it begins when the others are there
};

/// Seconds in which `threads` threads, this one among them, each read `times` times; 0: a wrong sum.
double seconds_of_readers(const held& side, int threads, std::uint64_t times) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, right{true};
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) {
    others.emplace_back([&, t] {
      detail::pin_this_thread(cpus()[static_cast<std::size_t>(t) % cpus().size()]);
      ++ready;
      while (!go.load(std::memory_order_acquire)) {
      }
      if (side.read(times) != times) right = false;
    });
  }
  while (ready.load() < threads - 1) ::sched_yield();
  const double start = clock_now();
  go.store(true, std::memory_order_release);
  if (side.read(times) != times) right = false;
  for (std::thread& t : others) t.join();
  return right.load() ? clock_now() - start : 0;
}

void read(benchmark::State& state, const std::string& name, const std::string& peer, int threads) {
  constexpr std::uint64_t times = 1'000'000;
  const on_first_cpu here;
  for (auto _ : state) {
    figures f(name);
    if (static_cast<int>(cpus().size()) < threads) f.unfit("fewer CPUs than threads");
    const holder our_calls = serving_bench::holder_of<ours>();
    const held mine(our_calls);
    const std::vector<build> builds = builds_of(peer);
    bool right = true;
    f.sample([&] {
      for (const build& b : builds) {
        const held other(b.calls);
        double seconds[2];
        for (const int i : {f.swapped() ? 1 : 0, f.swapped() ? 0 : 1}) {
          seconds[i] = seconds_of_readers(i == 0 ? mine : other, threads, times);
          right = right && seconds[i] > 0;
        }
        f.add("speedup", seconds[1] / seconds[0], b.name);
        f.note("ns", seconds[0] / static_cast<double>(times) * 1e9);
      }
    });
    if (!right) return state.SkipWithError("wrong answer: another sum");
    f.report(state);
  }
}

double percentile(std::vector<std::uint32_t>& ns, double of) {
  const auto at = static_cast<std::ptrdiff_t>(of * static_cast<double>(ns.size()));
  std::nth_element(ns.begin(), ns.begin() + at, ns.end());
  return ns[static_cast<std::size_t>(at)];
}

void latency(benchmark::State& state, const std::string& name, const std::string& peer) {
  using std::chrono::microseconds;
  const on_first_cpu here;
  for (auto _ : state) {
    figures f(name);
    if (cpus().size() < 2) f.unfit("one CPU");
    const holder our_calls = serving_bench::holder_of<ours>();
    const held mine(our_calls);
    const std::vector<build> builds = builds_of(peer);
    std::vector<std::uint32_t> ns(1'000'000);
    const auto alone = [&] {
      mine.time(ns);
      return percentile(ns, 0.999);
    };
    const auto beside = [&](const held& side, microseconds period) {
      const publisher other([&](std::uint64_t n) { side.publish(n); }, period);
      side.time(ns);
      return percentile(ns, 0.999);
    };
    f.sample([&] {
      double without = 0;
      if (f.swapped()) without = alone();
      const double own = beside(mine, microseconds(1000));
      if (!f.swapped()) without = alone();
      f.add("of_alone", without / own);
      for (const build& b : builds) {
        const held other(b.calls);
        f.add("speedup", beside(other, microseconds(1000)) / own, b.name);
      }
      f.note("p999_ns", own);
      f.note("p999_often_ns", beside(mine, microseconds(10)));
    });
    f.report(state);
  }
}

/// A model whose table is shared: publishing it costs what publishing costs.
struct table_model {
  const dense_table<f32_rows>* table;
};

void lookups(benchmark::State& state, const std::string& name) {
  constexpr index_t rows = 1 << 20, width = 64, bags = 256, hotness = 20, requests = 400;
  const on_first_cpu here;
  dense_table<f32_rows> table(rows, width);
  inline_executor executor;
  table.initialize(executor, row_init::uniform{.seed = 42, .bound = 0.05F});
  std::vector<std::int64_t> ids(static_cast<std::size_t>(bags * hotness * requests));
  for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = hash_bucket(mix64(k), rows);
  std::vector<float> out(static_cast<std::size_t>(bags * width));
  for (auto _ : state) {
    figures f(name);
    if (cpus().size() < 2) f.unfit("one CPU");
    versioned<table_model> models;
    const auto publish = [&](std::uint64_t) {
      static_cast<void>(models.publish(std::make_unique<table_model>(table_model{&table})).or_throw());
    };
    publish(1);
    bool right = true;
    const auto serve = [&] {
      for (index_t k = 0; k < requests; ++k) {
        const auto model = models.read();
        const auto batch = fixed_hotness_view(ids.data() + k * bags * hotness, bags, hotness);
        right = lookup(executor, model->table->view(), batch, combiner::sum,
                       matrix_view<float>(out.data(), bags, width))
                    .ok() &&
                right;
      }
    };
    f.sample([&] {
      double alone = 0;
      if (f.swapped()) alone = seconds_of(serve);
      double beside = 0, busy = 0;
      {
        const publisher other(publish, std::chrono::milliseconds(1));
        beside = seconds_of(serve);
      }
      {
        const publisher other(publish, std::chrono::nanoseconds(0));
        busy = seconds_of(serve);
      }
      if (!f.swapped()) alone = seconds_of(serve);
      f.add("of_alone", alone / beside);
      f.add("of_alone_busy", alone / busy);
      f.note("us_per_request", alone / static_cast<double>(requests) * 1e6);
    });
    if (!right) return state.SkipWithError("wrong answer: a lookup failed");
    f.report(state);
  }
}

const bool registered = [] {
  for (const char* const peer : {"atomic_shared_ptr", "locked_shared_ptr"}) {
    for (const int threads : {1, 2}) {
      add("serving/read/threads:" + std::to_string(threads) + "/" + peer,
          [peer, threads](benchmark::State& s, const std::string& n) { read(s, n, peer, threads); });
    }
    add(std::string("serving/latency/") + peer,
        [peer](benchmark::State& s, const std::string& n) { latency(s, n, peer); });
  }
  add("serving/lookup", lookups);
  return true;
}();

}  // namespace
