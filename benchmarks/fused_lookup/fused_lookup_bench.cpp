// The fused sparse lookup against its ops one by one: 26 features at Criteo's table sizes, D = 16, mean, ids
// drawn by the ranks of the full data set as entries (row, id), batches that never come again.
//
//   fused_lookup/criteo/batch:128   clean input, one id in each row, in order: speedup over the faster build
//                                   of the ops
//   fused_lookup/dirty/batch:128    what it is for: 0 to 4 entries in a row, in any order, with weights (the
//                                   mean is by weight); one id of twenty is invalid, and one weight of fifty
//                                   is 0
//
// Answers of both builds are compared bit by bit, with weights to the last bits of a sum of eight.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "fused_lookup/baseline.hpp"
#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t width = 16;
constexpr std::size_t features = 26;

/// The entries of one feature in all batches of a turn, batch after batch.
struct column {
  std::vector<std::int64_t> rows, ids;
  std::vector<float> weights;         // none: all 1
  std::vector<std::size_t> begin{0};  // of each batch, and the end
};

std::vector<column> clean_columns(criteo_stream& stream, index_t batch) {
  std::vector<column> columns;
  for (auto& ids : stream.next()) {
    column c;
    for (std::size_t k = 0; k < ids.size(); ++k) c.rows.push_back(static_cast<std::int64_t>(k) % batch);
    for (std::size_t end = 0; end < ids.size();) c.begin.push_back(end += static_cast<std::size_t>(batch));
    c.ids = std::move(ids);
    columns.push_back(std::move(c));
  }
  return columns;
}

std::vector<column> dirty_columns(criteo_stream& stream, index_t batch) {
  static std::uint64_t turn = 0;
  const counter_rng rng(77 + ++turn);
  std::vector<column> columns;
  for (const auto& ids : stream.next()) {
    const auto t = static_cast<std::uint64_t>(columns.size());
    column c;
    for (std::size_t next = 0; next < ids.size();) {
      const std::size_t first = c.rows.size();
      for (index_t r = 0; r < batch; ++r) {
        const std::uint64_t count =
            rng.bits(3 * t, c.begin.size() * 100'000 + static_cast<std::uint64_t>(r)) % 5;
        for (std::uint64_t i = 0; i < count; ++i) c.rows.push_back(r);
      }
      if (next + c.rows.size() - first > ids.size()) {
        c.rows.resize(first);
        break;
      }
      for (std::size_t k = c.rows.size(); k > first + 1; --k) {  // in any order
        std::swap(c.rows[k - 1], c.rows[first + rng.bits(3 * t + 1, k) % (k - first)]);
      }
      for (std::size_t k = first; k < c.rows.size(); ++k, ++next) {
        const std::uint64_t draw = rng.bits(3 * t + 2, k);
        c.ids.push_back(draw % 20 == 0 ? -1 : ids[next]);
        c.weights.push_back(draw / 20 % 50 == 0 ? 0.0F : 0.5F + static_cast<float>(draw >> 40) * 0x1p-24F);
      }
      c.begin.push_back(c.rows.size());
    }
    columns.push_back(std::move(c));
  }
  return columns;
}

bool agree(const std::vector<float>& ours, const std::vector<float>& theirs, bool weighted) {
  if (!weighted) return std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) == 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!(std::fabs(ours[i] - theirs[i]) <= 0x1p-19F * std::fabs(theirs[i]))) return false;
  }
  return true;
}

void against_ops(benchmark::State& state, const std::string& name, index_t batch, bool dirty) {
  const big_memory& memory = huge_memory();
  if (memory.data() == nullptr) return state.SkipWithError("no memory for the tables");
  if (criteo_ranks().empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  std::vector<const_table_view<f32_rows>> tables;
  index_t before = 0;
  for (const index_t rows : criteo_rows) {
    tables.emplace_back(reinterpret_cast<const std::byte*>(memory.data()) + before * width * 4, rows,
                        f32_rows(width));
    before += rows;
  }
  if (static_cast<std::size_t>(before * width * 4) > memory.bytes()) {
    return state.SkipWithError("unfit: no memory for Criteo's tables");
  }
  criteo_stream stream(batch);
  std::vector<column> columns;
  std::size_t batches = 0;
  const auto next = [&] {
    columns = dirty ? dirty_columns(stream, batch) : clean_columns(stream, batch);
    batches = columns[0].begin.size() - 1;
    for (const column& c : columns) batches = std::min(batches, c.begin.size() - 1);
  };
  std::vector<float> out(static_cast<std::size_t>(batch * width) * features);
  inline_executor here;
  // use(table, its column's entries of a batch, their number, their weights or null, where the answer goes)
  const auto each = [&](const auto& use) {
    for (std::size_t b = 0; b < batches; ++b) {
      for (std::size_t t = 0; t < features; ++t) {
        const column& c = columns[t];
        const std::size_t first = c.begin[b];
        use(tables[t], c.rows.data() + first, c.ids.data() + first,
            static_cast<index_t>(c.begin[b + 1] - first),
            c.weights.empty() ? nullptr : c.weights.data() + first,
            out.data() + static_cast<index_t>(t) * batch * width);
      }
    }
  };
  const auto ours = [&] {
    each([&](const auto& table, const std::int64_t* rows, const std::int64_t* ids, index_t entries,
             const float* weights, float* to) {
      const coo_view<> view(rows, ids, entries, batch, weights);
      const matrix_view bags(to, batch, width);
      const status s = weights == nullptr
                           ? fused_lookup(here, table, view, combiner::mean, bags)
                           : fused_lookup(here, table, view, combiner::mean(combiner::by_weight), bags);
      if (!s) std::abort();
    });
  };
  const auto theirs = [&](auto run) {
    each([&](const auto& table, const std::int64_t* rows, const std::int64_t* ids, index_t entries,
             const float* weights, float* to) {
      run({rows, ids, entries, batch, static_cast<const float*>(static_cast<const void*>(table.data())),
           width, weights},
          to);
    });
  };
  for (auto _ : state) {
    figures f(name);
    next();
    ours();
    const std::vector<float> answer = out;
    for (const auto run : {&o2::op_by_op_mean, &native::op_by_op_mean}) {
      std::fill(out.begin(), out.end(), -1.0F);
      theirs(run);
      if (!agree(answer, out, dirty)) return state.SkipWithError("wrong answer: the ops give other bags");
    }
    f.sample([&] {
      for (const auto run : {&o2::op_by_op_mean, &native::op_by_op_mean}) {
        const char* const which = run == &o2::op_by_op_mean ? "o2" : "native";
        const double seconds = f.pair("speedup", which, ours, [&] { theirs(run); }, next).first;
        f.note("ns_per_entry", seconds / static_cast<double>(columns[0].begin[batches]) / features * 1e9);
      }
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const bool dirty : {false, true}) {
    for (const index_t batch : {128, 2048, 8192}) {
      add(std::string(dirty ? "fused_lookup/dirty" : "fused_lookup/criteo") +
              "/batch:" + std::to_string(batch),
          [batch, dirty](benchmark::State& state, const std::string& name) {
            against_ops(state, name, batch, dirty);
          });
    }
  }
  return true;
}();

}  // namespace
