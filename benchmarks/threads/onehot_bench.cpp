// The commonest call of a DLRM: 2048 bags of one id each, out of 4 GB on ordinary pages, other ids at every
// call. Such a call takes 60 to 220 us of cache misses on one thread.
//
//   threads/onehot/d:16/openmp   two of OpenMP's threads, which poll between calls: over one thread, and over
//                                FBGEMM's kernel on the same two threads
//   threads/onehot/d:16/parked   two threads of a thread_pool that sleep between calls: share of the inline
//                                executor's pace
//   threads/call/d:16            one bag of one id: the time of the call beside that of reading its row
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/interop/openmp.hpp>

#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/fbgemm.hpp"
#include "support/figures.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t bags = 2048;
constexpr index_t calls = 64;  // of a measurement
constexpr const char* other_bits = "wrong answer: one thread and two give other bits";

/// A table, and batches of ids of it, of which each pass takes the next ones.
class onehot_calls {
 public:
  explicit onehot_calls(index_t width)
      : table_(reinterpret_cast<const std::byte*>(ordinary_memory().data()),
               static_cast<index_t>(ordinary_memory().bytes()) / (4 * width), f32_rows(width)),
        out_(static_cast<std::size_t>(bags * width)) {
    const index_t batches = static_cast<index_t>(cold_bytes()) / (bags * 4 * width) + 3 * calls;
    const counter_rng rng(5);
    for (index_t k = 0; k < batches * bags; ++k) {
      ids_.push_back(hash_bucket(rng.bits(1, static_cast<std::uint64_t>(k)), table_.rows()));
    }
    for (index_t b = 0; b <= bags; ++b) offsets_.push_back(b);
  }

  template <class Executor>
  void look_up(Executor& executor) {
    for (index_t c = 0; c < calls; ++c) {
      const status s = lookup(executor, table_, fixed_hotness_view(next(), bags, 1), combiner::sum,
                              matrix_view(out_.data(), bags, table_.width()));
      if (!s) std::abort();
    }
  }
  /// The kernel on half of the bags for each thread.
  void by_fbgemm(const fbgemm::pooled_lookup<float>& kernel, const openmp_executor& two) {
    const auto* const first = reinterpret_cast<const float*>(table_.data());
    for (index_t c = 0; c < calls; ++c) {
      const std::int64_t* const ids = next();
      two.parallel_for(bags, bags / 2, [&](index_t begin, index_t end, int) {
        if (!kernel(end - begin, end - begin, table_.rows(), first, ids + begin, offsets_.data(), nullptr,
                    out_.data() + begin * table_.width())) {
          std::abort();
        }
      });
    }
  }
  template <class Executor>
  std::vector<float> answer(Executor& executor) {
    at_ = 0;
    look_up(executor);
    return out_;
  }
  [[nodiscard]] std::vector<float> answer_of_fbgemm(const fbgemm::pooled_lookup<float>& kernel,
                                                    const openmp_executor& two) {
    at_ = 0;
    by_fbgemm(kernel, two);
    return out_;
  }

 private:
  const std::int64_t* next() {
    at_ = at_ + 2 * bags > static_cast<index_t>(ids_.size()) ? 0 : at_ + bags;
    return ids_.data() + at_;
  }

  const_table_view<f32_rows> table_;
  std::vector<std::int64_t> ids_, offsets_;
  std::vector<float> out_;
  index_t at_ = 0;
};

void look_at_machine(figures& f) {
  f.unfit(ordinary_memory().unfit());
  if (usable_cpus().size() < 2) f.unfit("one CPU");
}

void openmp(benchmark::State& state, const std::string& name, index_t width) {
  if (ordinary_memory().data() == nullptr) return state.SkipWithError("no memory for the table");
  onehot_calls made(width);
  const openmp_executor two(2);
  inline_executor one;
  std::vector<fbgemm::pooled_lookup<float>> kernels;
  for (const int distance : {8, 16, 32}) {
    if (auto kernel = fbgemm::generate_lookup<float>(width, distance)) kernels.push_back(std::move(kernel));
  }
  for (auto _ : state) {
    figures f(name);
    look_at_machine(f);
    const std::vector<float> expected = made.answer(one);
    if (made.answer(two) != expected) return state.SkipWithError(other_bits);
    for (const auto& kernel : kernels) {
      if (made.answer_of_fbgemm(kernel, two) != expected) {
        return state.SkipWithError("wrong answer: FBGEMM gives other bits");
      }
    }
    if (kernels.empty()) f.say("no FBGEMM");
    f.sample([&] {
      const double seconds =
          f.pair("scaling", "", [&] { made.look_up(two); }, [&] { made.look_up(one); }).first;
      f.note("us_per_call", seconds / calls * 1e6);
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        f.pair(
            "over_fbgemm", std::to_string(8 << i), [&] { made.look_up(two); },
            [&] { made.by_fbgemm(kernels[i], two); });
      }
    });
    f.report(state);
  }
}

void parked(benchmark::State& state, const std::string& name, index_t width) {
  if (ordinary_memory().data() == nullptr) return state.SkipWithError("no memory for the table");
  onehot_calls made(width);
  thread_pool two({.threads = 2, .spin = std::chrono::microseconds(0)});
  inline_executor one;
  for (auto _ : state) {
    figures f(name);
    look_at_machine(f);
    if (made.answer(two) != made.answer(one)) return state.SkipWithError(other_bits);
    f.sample([&] {
      const double seconds =
          f.pair("of_inline", "", [&] { made.look_up(two); }, [&] { made.look_up(one); }).first;
      f.note("us_per_call", seconds / calls * 1e6);
    });
    f.report(state);
  }
}

/// One bag of one id that the caches hold, so that what is left is the call.
void one_call(benchmark::State& state, const std::string& name, index_t width) {
  constexpr index_t rows = 256, repeats = 4096;
  std::vector<float> values(static_cast<std::size_t>(rows * width)), out(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const const_table_view<f32_rows> table(reinterpret_cast<const std::byte*>(values.data()), rows,
                                         f32_rows(width));
  std::vector<std::int64_t> ids;
  const counter_rng rng(3);
  for (index_t k = 0; k < repeats; ++k)
    ids.push_back(hash_bucket(rng.bits(1, static_cast<std::uint64_t>(k)), rows));
  thread_pool pool(2);
  for (auto _ : state) {
    figures f(name);
    double sum = 0, expected = 0;
    const auto call = [&] {
      for (const std::int64_t& id : ids) {
        const status s = lookup(pool, table, fixed_hotness_view(&id, 1, 1), combiner::sum,
                                matrix_view(out.data(), 1, width));
        if (!s) std::abort();
        sum += static_cast<double>(out[0]);
      }
    };
    const auto copy = [&] {
      for (const std::int64_t id : ids) {
        std::memcpy(out.data(), table.row(id), static_cast<std::size_t>(width) * 4);
        benchmark::DoNotOptimize(out.data());
        benchmark::ClobberMemory();
        expected += static_cast<double>(out[0]);
      }
    };
    call();
    copy();
    if (sum != expected) return state.SkipWithError("wrong answer: the row is another");
    f.sample([&] {
      const auto [ours, theirs] = f.pair("of_copy", "", call, copy);
      f.add("ns_per_call", (ours - theirs) / repeats * 1e9);
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    const std::string of = "threads/onehot/d:" + std::to_string(width);
    add(of + "/openmp", [width](benchmark::State& s, const std::string& name) { openmp(s, name, width); });
    add(of + "/parked", [width](benchmark::State& s, const std::string& name) { parked(s, name, width); });
  }
  add("threads/call/d:16", [](benchmark::State& s, const std::string& name) { one_call(s, name, 16); });
  return true;
}();

}  // namespace
