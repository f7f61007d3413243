// The values and the stages of a cut, from the sides of its ops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/stage_region.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Fills in values, stages and the stage of each op, from the sides.
inline void list_stages(const flat_graph& g, const stage_region& region, stage_cut& cut) {
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  // Staged ops that touch belong to one record; where there is one stage, all do.
  const bool one = std::count_if(region.pairs().begin(), region.pairs().end(),
                                 [](const stage_pair& p) { return p.kept.empty(); }) == 1;
  std::vector<std::int32_t> group(cut.side.size());
  for (std::size_t v = 0; v < group.size(); ++v) group[v] = static_cast<std::int32_t>(v);
  const auto find = [&](index_t v) {
    while (group[at(v)] != v) v = group[at(v)] = group[at(group[at(v)])];
    return static_cast<std::int32_t>(v);
  };
  const auto before = [&](index_t v) { return is_before_cut(cut.side[at(v)]); };
  for (index_t v = 0; v < g.size(); ++v) {
    if (!before(v)) continue;
    if (!one)
      region.for_each_user(v, [&](index_t w, index_t) {
        if (before(w)) group[at(find(w))] = find(v);
      });
    region.for_each_value(v, [&](index_t port, index_t first, index_t last, std::int64_t bytes) {
      bool crosses = false;
      region.for_each_user_of(first, last, [&](index_t w, index_t) {
        crosses = crosses || (!before(w) && cut.side[at(w)] != op_side::earlier);
      });
      if (crosses) cut.values.push_back({v, port, bytes, 0});
    });
  }
  std::vector<std::int32_t> stage_of_group(cut.side.size(), -1);
  for (const stage_pair& pair : region.pairs()) {
    if (!pair.kept.empty()) continue;
    std::int32_t first = -1;
    region.for_each_need(pair.put, [&](index_t u) {
      if (!before(u)) return;
      if (first < 0) first = find(u);
      group[at(find(u))] = first = find(first);
    });
  }
  for (const stage_pair& pair : region.pairs()) {
    if (!pair.kept.empty()) continue;
    std::int32_t first = -1;
    region.for_each_need(pair.put, [&](index_t u) {
      if (before(u)) first = find(u);
    });
    std::int32_t stage = first < 0 ? 0 : stage_of_group[at(first)];
    if (stage < 0 || cut.stages.empty()) {
      stage = static_cast<std::int32_t>(cut.stages.size());
      cut.stages.emplace_back();
      if (first >= 0) stage_of_group[at(first)] = stage;
    }
    cut_stage& into = cut.stages[at(stage)];
    if (!into.name.empty()) into.name += '+';
    into.name += pair.name;
    into.puts.push_back(pair.put);
    into.takes.push_back(pair.take);
  }
  // What has no value of its own goes along with the first stage that has one.
  const auto stage_of = [&](index_t v) { return (std::max)(0, stage_of_group[at(find(v))]); };
  std::vector<std::int32_t> number(cut.stages.size(), -1);
  for (const staged_value& value : cut.values) number[at(stage_of(value.source))] = 0;
  std::vector<cut_stage> kept;
  for (std::size_t s = 0; s < number.size(); ++s) {
    if (number[s] < 0) continue;
    number[s] = static_cast<std::int32_t>(kept.size());
    kept.push_back(std::move(cut.stages[s]));
  }
  for (std::size_t s = 0; s < number.size(); ++s) {
    if (number[s] >= 0) continue;
    number[s] = 0;
    cut_stage& gone = cut.stages[s];
    kept[0].name += '+' + gone.name;
    kept[0].puts.insert(kept[0].puts.end(), gone.puts.begin(), gone.puts.end());
    kept[0].takes.insert(kept[0].takes.end(), gone.takes.begin(), gone.takes.end());
  }
  cut.stages = std::move(kept);
  cut.stage_of.assign(cut.side.size(), -1);
  for (index_t v = 0; v < g.size(); ++v) {
    if (before(v)) cut.stage_of[at(v)] = number[at(stage_of(v))];
  }
  for (staged_value& value : cut.values) value.stage = cut.stage_of[at(value.source)];
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
