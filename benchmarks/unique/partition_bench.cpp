// Criteo's batches for two ranks: distinct ids by owner, slots and counts, by partition_unique() and by
// unique() and a pass that distributes what it found.
//
//   unique/partition/criteo   16 batches of 2048 rows with the ranks of the full data set, other ones each
//                             time, one thread: 26 lists of 2048 ids, and one list of all 53,248, row after
//                             row. ns_per_id: the slower of the two; over_unique: speedup over the two calls
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/partition_unique.hpp>
#include <deeprec/ops/unique.hpp>

#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using list = std::span<const std::int64_t>;

constexpr index_t batch = 2048, batches = 16, columns = 26;

/// What a rank does without partition_unique.
struct in_two_calls {
  std::int64_t owners;  // known when the job starts
  unique_ids<> found{};
  std::vector<std::int64_t> ids{}, first{}, slots{}, slot_of{}, next{};

  void operator()(inline_executor& here, list in) {
    if (!unique(here, in, found)) std::abort();
    const std::size_t distinct = found.ids.size();
    first.assign(static_cast<std::size_t>(owners) + 1, 0);
    for (const std::int64_t id : found.ids) ++first[static_cast<std::size_t>(id % owners) + 1];
    for (std::size_t o = 0; o + 1 < first.size(); ++o) first[o + 1] += first[o];
    next.assign(first.begin(), first.end() - 1);
    ids.resize(std::max(ids.size(), distinct));
    slot_of.resize(std::max(slot_of.size(), distinct));
    slots.resize(std::max(slots.size(), in.size()));
    for (std::size_t u = 0; u < distinct; ++u) {
      const std::int64_t slot = next[static_cast<std::size_t>(found.ids[u] % owners)]++;
      slot_of[u] = slot;
      ids[static_cast<std::size_t>(slot)] = found.ids[u] / owners;
    }
    for (std::size_t k = 0; k < in.size(); ++k) {
      slots[k] = slot_of[static_cast<std::size_t>(found.inverse[k])];
    }
  }
};

bool agrees(const in_two_calls& two, const unique_parts<>& one) {
  bool same = std::equal(one.first.begin(), one.first.end(), two.first.begin(), two.first.end()) &&
              std::equal(one.ids.begin(), one.ids.end(), two.ids.begin()) &&
              std::equal(one.slots.begin(), one.slots.end(), two.slots.begin()) &&
              one.ids.size() == two.found.ids.size();
  for (std::size_t u = 0; same && u < one.counts.size(); ++u) {
    same = one.counts[static_cast<std::size_t>(two.slot_of[u])] == two.found.counts[u];
  }
  return same;
}

void criteo(benchmark::State& state) {
  std::uint64_t turn = 0;
  std::vector<std::vector<std::int64_t>> trace;
  std::vector<std::int64_t> all;  // one id space, row after row
  const auto next = [&] {
    trace = deeprec_bench::criteo_trace(batch * batches, 500 + ++turn);
    if (trace.empty()) return;
    all.clear();
    for (std::size_t r = 0; r < static_cast<std::size_t>(batch * batches); ++r) {
      std::int64_t first_id = 0;
      for (std::size_t c = 0; c < columns; ++c) {
        all.push_back(first_id + trace[c][r]);
        first_id += deeprec_bench::criteo_rows[c];
      }
    }
  };
  next();
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const auto for_lists = [&](const auto& use) {
    for (std::size_t b = 0; b < batches; ++b) {
      for (const auto& column : trace) use(list(column).subspan(b * batch, batch));
    }
  };
  const auto for_whole = [&](const auto& use) {
    for (std::size_t b = 0; b < batches; ++b) use(list(all).subspan(b * batch * columns, batch * columns));
  };
  inline_executor here;
  std::int64_t owners = 2;
  benchmark::DoNotOptimize(owners);
  const owner_by_modulo rule(owners);
  unique_parts<> of_lists, of_whole;
  in_two_calls two_of_lists{.owners = owners}, two_of_whole{.owners = owners};
  for (auto _ : state) {
    bool same = true;
    const auto check = [&](list in) {
      if (!partition_unique(here, in, rule, of_lists)) std::abort();
      two_of_lists(here, in);
      same = same && agrees(two_of_lists, of_lists);
    };
    for_lists(check);
    for_whole(check);
    if (!same) return state.SkipWithError("wrong answer: unique and a pass disagree");
    deeprec_bench::figures f("unique/partition/criteo");
    f.sample([&] {
      next();
      const auto compare = [&](const char* name, const auto& each, unique_parts<>& parts, in_two_calls& two) {
        const double seconds = f.pair(
                                    "over_unique", name,
                                    [&] {
                                      each([&](list in) {
                                        if (!partition_unique(here, in, rule, parts)) std::abort();
                                      });
                                    },
                                    [&] { each([&](list in) { two(here, in); }); })
                                   .first;
        const double ns = seconds * 1e9 / static_cast<double>(batch * batches * columns);
        f.note(std::string("ns_per_id_") + name, ns);
        return ns;
      };
      const double lists = compare("lists", for_lists, of_lists, two_of_lists);
      const double whole = compare("whole", for_whole, of_whole, two_of_whole);
      f.add("ns_per_id", std::max(lists, whole));
    });
    f.report(state);
  }
}
BENCHMARK(criteo)
    ->Name("unique/partition/criteo")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
