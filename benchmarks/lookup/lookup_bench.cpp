// Pooled lookups against the roofline of a random gather, the best plain loop, and themselves on ordinary
// pages.
//
//   lookup/cold/d:64            roofline: a table of 4 GB or more, index sets in rotation whose different
//                               rows fill twice the last-level cache, hotness 20 and 100 (the worse of the
//                               two); roofline = the best gather of the same ids in this run, or the best
//                               peer, if that is faster
//   lookup/cold/d:64/threads:2  the same on two threads
//   lookup/onehot/d:64          against gather plus store
//   lookup/vs_loop/d:16         speedup over the faster build of a plain loop
//   lookup/huge_pages/d:64      speedup over the same table on ordinary pages
//   lookup/criteo/batch:128     26 one-hot tables at Criteo's sizes, D = 16, batches that never come again,
//                               drawn by the ranks of the full data set
//
// Answers are compared bit by bit with a plain loop before anything is timed. Everything runs in the default
// bounds mode. A roofline that is faster than reading in order, or slower than one read after the other, is
// refused.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "support/gather.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

template <class Element>
const_table_view<plain_rows<Element>> table_of(const big_memory& memory, index_t width) {
  const plain_rows<Element> format(width);
  return {static_cast<const std::byte*>(static_cast<const void*>(memory.data())),
          static_cast<index_t>(memory.bytes()) / format.stride_bytes(), format};
}

template <class Executor, class Element>
void look_up(Executor& executor, const const_table_view<plain_rows<Element>>& table, const batch& set,
             std::vector<float>& out) {
  const status s = lookup(executor, table, set.view(), combiner::sum,
                          matrix_view(out.data(), set.view().bags(), table.width()));
  if (!s) std::abort();
}

/// True when sums of the decoded rows, added in order, have the same bits; f32 by the plain loop as well.
template <class Element, class Executor>
bool same_answer(Executor& executor, const const_table_view<plain_rows<Element>>& table, const batch& set) {
  const index_t width = table.width();
  std::vector<float> ours(static_cast<std::size_t>(set.view().bags() * width)), expected(ours.size());
  std::vector<float> row(static_cast<std::size_t>(width));
  look_up(executor, table, set, ours);
  for (index_t b = 0; b < set.view().bags(); ++b) {
    const auto first = static_cast<std::size_t>(b), at = static_cast<std::size_t>(b * width);
    for (std::int64_t k = set.offsets[first]; k < set.offsets[first + 1]; ++k) {
      table.format().decode(table.row(set.ids[static_cast<std::size_t>(k)]), row.data());
      for (std::size_t j = 0; j < row.size(); ++j) expected[at + j] += row[j];
    }
  }
  const auto same = [&] {
    return std::memcmp(ours.data(), expected.data(), ours.size() * sizeof(float)) == 0;
  };
  if (!same()) return false;
  if constexpr (std::is_same_v<Element, float>) {
    for (const auto loop : {&o2::plain_sum, &native::plain_sum}) {
      loop(static_cast<const float*>(static_cast<const void*>(table.data())), width,
           {set.offsets.data(), set.ids.data(), set.view().bags()}, expected.data());
      if (!same()) return false;
    }
  }
  return true;
}
constexpr const char* other_bits = "wrong answer: a plain loop sums to other bits";

bool usable(benchmark::State& state, const big_memory& memory) {
  if (memory.data() == nullptr) state.SkipWithError("no memory for the table");
  return memory.data() != nullptr;
}

/// What all of this suite say of the memory that they read.
void look_at_memory(figures& f, const big_memory& memory) {
  f.unfit(memory.unfit());
  f.note("on_huge_pages", share_on_huge_pages(memory.data()));
}

template <class Element>
void cold(benchmark::State& state, const std::string& name, index_t width, int threads) {
  const big_memory& memory = huge_memory();
  if (!usable(state, memory)) return;
  const auto table = table_of<Element>(memory, width);
  const index_t row_bytes = table.format().row_bytes();
  thread_pool pool(threads);
  for (auto _ : state) {
    figures f(name);
    look_at_memory(f, memory);
    if (static_cast<int>(usable_cpus().size()) < threads) f.unfit("fewer CPUs than threads");
    struct rotation {
      std::string which;
      std::vector<batch> sets;
      limit fastest;
      std::vector<float> out;
    };
    std::vector<rotation> rotations;
    for (const index_t hotness : {20, 100}) {
      rotation r{hotness == 20 ? "h20" : "h100", uniform_batches(table.rows(), hotness, row_bytes), {}, {}};
      if (!same_answer(pool, table, r.sets[0])) return state.SkipWithError(other_bits);
      std::vector<row_reader> readers = gathers(memory.data(), row_bytes, nullptr);
      if constexpr (std::is_same_v<Element, float>) {
        append(readers, plain_readers(memory.data(), width));
        append(readers, fbgemm_readers<float>(memory.data(), table.rows(), width));
      } else if constexpr (std::is_same_v<Element, f16>) {
        append(readers, fbgemm_readers<std::uint16_t>(memory.data(), table.rows(), width));
      }
      r.fastest = limit::of(readers, r.sets);
      const std::string fault =
          memory.pace().check_cold(r.fastest.best, ids_of(r.sets), static_cast<double>(row_bytes));
      if (!fault.empty()) return state.SkipWithError(fault.c_str());
      r.out.resize(static_cast<std::size_t>(r.sets[0].view().bags() * width));
      f.say(r.which + ": " + r.fastest.best.name);
      f.unfit(not_cold(r.sets, table.rows(), row_bytes));
      rotations.push_back(std::move(r));
    }
    f.sample([&] {
      for (rotation& r : rotations) {
        const std::size_t all = r.sets.size();
        const auto [ours, theirs] = f.pair(
            "roofline", r.which,
            [&] {
              for (const batch& set : r.sets) look_up(pool, table, set, r.out);
            },
            [&] {
              if (threads == 1) return read_all(r.fastest.reader, r.sets, 0, all);
              pool.parallel_for(2, 1, [&](index_t begin, index_t end, int) {  // half of the sets each
                for (auto h = static_cast<std::size_t>(begin); h < static_cast<std::size_t>(end); ++h) {
                  read_all(r.fastest.reader, r.sets, all * h / 2, all * (h + 1) / 2);
                }
              });
            });
        f.note("ns_per_row_" + r.which, ours / ids_of(r.sets) * 1e9);
        f.note("gather_ns_per_row_" + r.which, theirs / ids_of(r.sets) * 1e9);
      }
    });
    f.report(state);
  }
}

void onehot(benchmark::State& state, const std::string& name, index_t width) {
  const big_memory& memory = huge_memory();
  if (!usable(state, memory)) return;
  const auto table = table_of<float>(memory, width);
  const index_t row_bytes = table.format().row_bytes();
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    look_at_memory(f, memory);
    const std::vector<batch> sets = uniform_batches(table.rows(), 1, row_bytes);
    f.unfit(not_cold(sets, table.rows(), row_bytes));
    if (!same_answer(one, table, sets[0])) return state.SkipWithError(other_bits);
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
    std::vector<row_reader> readers = gathers(memory.data(), row_bytes, reinterpret_cast<char*>(out.data()));
    append(readers, plain_readers(memory.data(), width));
    append(readers, fbgemm_readers<float>(memory.data(), table.rows(), width));
    const limit fastest_reader = limit::of(readers, sets);
    const std::string fault =
        memory.pace().check_cold(fastest_reader.best, ids_of(sets), static_cast<double>(row_bytes));
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.say(fastest_reader.best.name);
    f.sample([&] {
      const double seconds = f.pair(
                                  "roofline", "",
                                  [&] {
                                    for (const batch& set : sets) look_up(one, table, set, out);
                                  },
                                  [&] { read_all(fastest_reader.reader, sets, 0, sets.size()); })
                                 .first;
      f.note("ns_per_row", seconds / ids_of(sets) * 1e9);
    });
    f.report(state);
  }
}

/// Over the faster build of the plain loop; rows: how many the ids are drawn from (0: all).
void vs_loop(benchmark::State& state, const std::string& name, index_t width, index_t rows) {
  const big_memory& memory = huge_memory();
  if (!usable(state, memory)) return;
  const auto table = table_of<float>(memory, width);
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    look_at_memory(f, memory);
    std::vector<batch> sets = uniform_batches(rows == 0 ? table.rows() : rows, 20, width * 4);
    if (rows == 0) {
      f.unfit(not_cold(sets, table.rows(), width * 4));
    } else {
      sets.resize(std::min<std::size_t>(sets.size(), 64));
    }
    if (!same_answer(one, table, sets[0])) return state.SkipWithError(other_bits);
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
    const std::vector<row_reader> loops = plain_readers(memory.data(), width);
    f.sample([&] {
      for (const row_reader& loop : loops) {
        const std::string which = &loop == loops.data() ? "o2" : "native";
        f.pair(
            "speedup", which,
            [&] {
              for (const batch& set : sets) look_up(one, table, set, out);
            },
            [&] { read_all(loop, sets, 0, sets.size()); });
      }
    });
    f.report(state);
  }
}

void huge_pages(benchmark::State& state, const std::string& name, index_t width) {
  const big_memory& memory = huge_memory();
  const big_memory& other = ordinary_memory();
  if (!usable(state, memory) || !usable(state, other)) return;
  const auto table = table_of<float>(memory, width);
  const auto ordinary = table_of<float>(other, width);
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    look_at_memory(f, memory);
    f.unfit(other.unfit());
    if (share_on_huge_pages(memory.data()) < 0.9)
      f.unfit("transparent huge pages are set to " + huge_page_setting());
    const index_t rows = std::min(table.rows(), ordinary.rows());
    const std::vector<batch> sets = uniform_batches(rows, 20, width * 4);
    f.unfit(not_cold(sets, rows, width * 4));
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width)), expected(out.size());
    look_up(one, table, sets[0], out);
    look_up(one, ordinary, sets[0], expected);
    if (!same_answer(one, table, sets[0]) || out != expected) return state.SkipWithError(other_bits);
    f.sample([&] {
      f.pair(
          "speedup", "",
          [&] {
            for (const batch& set : sets) look_up(one, table, set, out);
          },
          [&] {
            for (const batch& set : sets) look_up(one, ordinary, set, out);
          });
    });
    f.report(state);
  }
}

/// 26 calls, one for each table, batch after batch.
void criteo(benchmark::State& state, const std::string& name, index_t batch_rows) {
  constexpr index_t width = 16;
  const big_memory& memory = huge_memory();
  if (!usable(state, memory)) return;
  criteo_stream stream(batch_rows);
  auto trace = stream.next();
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const index_t total = stream.rows();
  const auto next = [&] { trace = stream.next(); };
  std::vector<const_table_view<f32_rows>> tables;
  std::vector<const char*> first_row;
  index_t before = 0;
  for (const index_t rows : criteo_rows) {
    first_row.push_back(memory.data() + before * width * 4);
    tables.emplace_back(reinterpret_cast<const std::byte*>(first_row.back()), rows, f32_rows(width));
    before += rows;
  }
  if (static_cast<std::size_t>(before * width * 4) > memory.bytes()) {
    return state.SkipWithError("unfit: no memory for Criteo's tables");
  }
  std::vector<std::int64_t> offsets;
  for (index_t b = 0; b <= batch_rows; ++b) offsets.push_back(b);
  std::vector<float> out(static_cast<std::size_t>(batch_rows * width * 26));
  thread_pool one(1);
  const auto ours = [&] {
    for (index_t r = 0; r < total; r += batch_rows) {
      for (std::size_t t = 0; t < 26; ++t) {
        const status s =
            lookup(one, tables[t], jagged_view<>(offsets.data(), batch_rows, trace[t].data() + r, batch_rows),
                   combiner::sum,
                   matrix_view(out.data() + static_cast<index_t>(t) * batch_rows * width, batch_rows, width));
        if (!s) std::abort();
      }
    }
  };
  // The rows that `read` is given: of table t, the ids of batch r, to their place.
  const auto batch_by_batch = [&](const auto& read) {
    for (index_t r = 0; r < total; r += batch_rows) {
      for (std::size_t t = 0; t < 26; ++t) {
        read(t, trace[t].data() + r, out.data() + static_cast<index_t>(t) * batch_rows * width);
      }
    }
  };
  std::vector<candidate> readers;
  for (const bool is_native : {false, true}) {
    for (const auto& [distance, into] :
         std::vector<std::pair<index_t, int>>{{0, 3}, {16, 3}, {32, 3}, {64, 3}, {16, 2}, {32, 2}, {64, 2}}) {
      readers.push_back(
          {std::string("gather ") + (is_native ? "native " : "o2 ") + std::to_string(distance) +
               " rows ahead into " + std::to_string(into),
           [&, is_native, distance = distance, into = into] {
             batch_by_batch([&](std::size_t t, const std::int64_t* ids, float* to) {
               const gather_plan plan{
                   first_row[t], width * 4, ids, batch_rows, distance, into, reinterpret_cast<char*>(to)};
               benchmark::DoNotOptimize(is_native ? native::gather(plan) : o2::gather(plan));
             });
           }});
    }
  }
  for (const int distance : {8, 16, 32}) {
    const auto kernel = fbgemm::generate_lookup<float>(width, distance);
    if (!kernel) break;
    readers.push_back({"FBGEMM " + std::to_string(distance) + " rows ahead", [&, kernel] {
                         batch_by_batch([&](std::size_t t, const std::int64_t* ids, float* to) {
                           if (!kernel(batch_rows, batch_rows, tables[t].rows(),
                                       reinterpret_cast<const float*>(first_row[t]), ids, offsets.data(),
                                       nullptr, to)) {
                             std::abort();
                           }
                         });
                       }});
  }
  for (auto _ : state) {
    figures f(name);
    look_at_memory(f, memory);
    ours();
    const std::vector<float> answer = out;
    for (const candidate& reader : readers) {
      std::fill(out.begin(), out.end(), -1.0F);
      reader.run();
      if (std::memcmp(answer.data(), out.data(), out.size() * sizeof(float)) != 0) {
        return state.SkipWithError(("wrong answer: " + reader.name + " copies other rows").c_str());
      }
    }
    const candidate best = fastest(readers, next);
    const auto ids = static_cast<double>(total * 26);
    const std::string fault = memory.pace().check(best, ids, width * 4.0);
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.say(best.name);
    f.sample([&] {
      const double seconds = f.pair("roofline", "", ours, best.run, next).first;
      f.note("ns_per_row", seconds / ids * 1e9);
    });
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  for (const index_t width : {16, 32, 64, 128, 50, 17}) {
    add("lookup/cold/d:" + std::to_string(width),
        [width](state& s, const string& name) { cold<float>(s, name, width, 1); });
  }
  add("lookup/cold/d:64/threads:2", [](state& s, const string& name) { cold<float>(s, name, 64, 2); });
  add("lookup/cold/f16/d:64", [](state& s, const string& name) { cold<f16>(s, name, 64, 1); });
  add("lookup/cold/bf16/d:64", [](state& s, const string& name) { cold<bf16>(s, name, 64, 1); });
  add("lookup/onehot/d:64", [](state& s, const string& name) { onehot(s, name, 64); });
  add("lookup/warm/d:64", [](state& s, const string& name) { vs_loop(s, name, 64, 1 << 16); });
  add("lookup/vs_loop/d:16", [](state& s, const string& name) { vs_loop(s, name, 16, 0); });
  add("lookup/huge_pages/d:16", [](state& s, const string& name) { huge_pages(s, name, 16); });
  add("lookup/huge_pages/d:64", [](state& s, const string& name) { huge_pages(s, name, 64); });
  add("lookup/criteo/batch:128", [](state& s, const string& name) { criteo(s, name, 128); });
  add("lookup/criteo/batch:2048", [](state& s, const string& name) { criteo(s, name, 2048); });
  return says_fbgemm();
}();

}  // namespace
