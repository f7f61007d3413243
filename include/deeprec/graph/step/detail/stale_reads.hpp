// Stale reads of variables before a cut, and the ops behind it that change what they read. Not here: how both
// wait for each other (staged_window.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The stale reads before the cuts of a graph.
struct stale_reads {
  index_t part = 0;  // the number of cuts behind them; 0: there are none, or nothing changes what they read
  index_t window = 1;
  std::vector<index_t> updates{};  // the ops behind all cuts that change what they read
};

/// @pre find_race() found none
inline result<stale_reads> stale_reads_of(const step_core& g, const std::vector<index_t>& cuts) {
  stale_reads found;
  index_t first = -1;
  std::vector<const step_input*> all;
  const auto level = [&](index_t v) { return cuts[static_cast<std::size_t>(v)]; };
  for (index_t v = 0; v < g.size(); ++v) {
    for (const step_input& in : g.op(v).inputs) {
      if (!in.is_stale() || level(v) == 0) continue;
      all.push_back(&in);
      if (first < 0) {
        first = v;
        found.part = level(v);
        found.window = in.window;
      } else if (in.window != found.window) {
        return refuse_step(
            g, v, "stale reads before a cut must have one window",
            std::to_string(in.window) + "; " + named(g, first) + ": " + std::to_string(found.window));
      } else if (level(v) != found.part) {
        return refuse_step(g, v, "stale reads must be before the same cut", "not that of " + named(g, first));
      }
    }
  }
  for (index_t v = 0; v < g.size(); ++v) {
    const auto changes_one = [&](const step_input& in) {
      return in.is_variable() && in.changes() && !g.is_local(in) &&
             std::any_of(all.begin(), all.end(), [&](const step_input* read) { return read->overlaps(in); });
    };
    const auto& inputs = g.op(v).inputs;
    if (std::any_of(inputs.begin(), inputs.end(), changes_one)) found.updates.push_back(v);
  }
  for (const index_t v : found.updates) {
    if (level(v) > 0)
      return refuse_step(g, v, "what is read stale before a cut must be changed behind all cuts",
                         named(g, first) + " reads it");
  }
  if (found.updates.empty()) return stale_reads();
  return {std::move(found)};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
