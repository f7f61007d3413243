// The limit of updates: the best of a sweep of passes that read, change and write the rows of the same ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>

#include "support/roofline.hpp"
#include "update/baseline.hpp"

namespace deeprec_bench {

using deeprec::index_t;
using id_sets = std::vector<std::vector<std::int64_t>>;
using rewrite_function = void (*)(const rewrite_plan&);

/// One way to rewrite the rows of ids.
struct rewriter {
  std::string name;
  rewrite_plan plan{};
  rewrite_function run = nullptr;

  void pass(const std::vector<std::int64_t>& ids, index_t begin, index_t end) const {
    rewrite_plan here = plan;
    here.ids = ids.data() + begin;
    here.count = end - begin;
    run(here);
  }
  void pass(const std::vector<std::int64_t>& ids) const { pass(ids, 0, static_cast<index_t>(ids.size())); }
  void pass(const id_sets& sets) const {
    for (const auto& ids : sets) pass(ids);
  }
};

struct rewriter_search {
  rewriter found;
  candidate best;  // its name, and seconds of one pass over all sets
};

/// The fastest on rows of `stride` bytes.
inline rewriter_search fastest_rewriter(void* table, index_t stride, const id_sets& sets) {
  std::vector<rewriter> all;
  for (const rewrite_function run : {&o2::rewrite, &native::rewrite}) {
    for (const index_t distance : {0, 4, 8, 16, 32, -8, -16, -32}) {
      const rewrite_plan plan{static_cast<char*>(table), stride,       stride / 4, nullptr, 0,
                              std::abs(distance),        distance >= 0};
      all.push_back({std::string("rewrite ") + (run == &o2::rewrite ? "o2 " : "native ") +
                         std::to_string(std::abs(distance)) + " rows ahead into " +
                         (distance >= 0 ? "3" : "2"),
                     plan, run});
    }
  }
  std::vector<candidate> candidates;
  for (const rewriter& r : all) candidates.push_back({r.name, [&r, &sets] { r.pass(sets); }});
  const candidate best = fastest(candidates);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const rewriter& r) { return r.name == best.name; });
  return {*found, {best.name, {}, best.seconds}};
}

}  // namespace deeprec_bench
