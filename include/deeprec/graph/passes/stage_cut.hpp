// Where the step is cut: the result of smart_stage, the input of apply_cut and explain.
//
//   read ── parse ── hash ──┤ put │ take ├── lookup ── loss        op_side of each op, and
//   └──── staged ────┘ moved                 rest                  the values that cross, each once
//
// Not here: how the cut is found (smart_stage.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Which cuts smart_stage considers.
enum class stage_rule : std::uint8_t {
  farthest,  ///< DeepRec's: as far downstream as possible
  balanced,  ///< of all legal cuts the one with the least max(stage, rest) + transfer, as far as it is found
};

struct smart_stage_options {
  stage_rule rule = stage_rule::balanced;
  double cost_per_byte = 0;               ///< of moving a byte over the cut, in the unit of the ops' costs
  int stage_threads = 1;                  ///< that run the staged part; its cost is divided among them
  op_place staged_place = op_place::cpu;  ///< where the staged part is placed; any: where its ops are
  index_t most_searched = 100'000;  ///< with more movable ops only `farthest` and the user's cut are compared
};

/// On which side of the cut an op is.
enum class op_side : std::uint8_t {
  rest,       ///< in the step itself
  staged,     ///< before the user's own cut
  moved,      ///< after the user's cut, and moved before it
  companion,  ///< not after the user's cut; staged since moved ops need it, or may
  constant,   ///< on each side that uses it
  earlier,    ///< before a stage that stays as it is
  undone,     ///< a put or take that the cut replaces
};

/// Whether ops of this side run before the cut.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr bool is_before_cut(op_side side) noexcept {
  return side == op_side::staged || side == op_side::moved || side == op_side::companion;
}

/// A value that crosses the cut, once for however many ops use it.
struct staged_value {
  index_t source = 0;
  index_t source_port = 0;
  std::int64_t bytes = 0;
  index_t stage = 0;  ///< the stage that it crosses in: an index of stage_cut::stages
};

/// A stage of the user, or several that share ops and so became one.
struct cut_stage {
  std::string name;
  std::vector<index_t> puts, takes;  ///< the user's ops; the same for an op of the kind `stage`
};

/// A stage that stays where the user put it.
struct kept_stage {
  std::string name;
  std::string reason;
};

/// What a cut costs.
struct cut_cost {
  double stage = 0;  ///< ops before the cut, divided by stage_threads
  double rest = 0;   ///< ops after it
  double bytes = 0;  ///< of the values that cross
  double price = 0;  ///< max(stage, rest) + cost_per_byte * bytes
};

/// Which cut was chosen.
enum class cut_choice : std::uint8_t { unchanged, farthest, user, searched };

/// @threads immutable once made; thread-safe
struct stage_cut {
  cut_choice choice = cut_choice::unchanged;
  std::string reason;                  ///< why the graph stays as it is, where it does
  std::vector<op_side> side;           ///< of each op; all `rest` in a graph that stays as it is
  std::vector<op_side> farthest_side;  ///< the same for DeepRec's cut
  /// The op through which a barrier reaches this one, and itself for a barrier: the path to the nearest one.
  /// -1: no barrier reaches it.
  std::vector<std::int32_t> barrier;
  std::vector<std::int32_t> stage_of;  ///< of an op before the cut: an index of `stages`; -1 of others
  std::vector<staged_value> values;
  std::vector<cut_stage> stages;
  std::vector<kept_stage> kept;
  cut_cost cost, farthest_cost, user_cost;
  op_place staged_place = op_place::any;

  /// Whether apply_cut would change anything.
  [[nodiscard]] bool changes() const noexcept { return choice != cut_choice::unchanged; }
  /// The ops that run before the cut, in order of their numbers.
  [[nodiscard]] std::vector<index_t> staged_ops() const {
    std::vector<index_t> ops;
    for (std::size_t v = 0; v < side.size(); ++v) {
      if (is_before_cut(side[v])) ops.push_back(static_cast<index_t>(v));
    }
    return ops;
  }
};

/// The ops from the nearest barrier to `op`, both included: why it can't move. Empty: no barrier reaches it.
///
/// @pre     the cut has this op
/// @cost    O(length)
/// @threads reentrant
/// @error   none
[[nodiscard]] inline std::vector<index_t> barrier_path(const stage_cut& cut, index_t op) {
  std::vector<index_t> path;
  while (cut.barrier[static_cast<std::size_t>(op)] >= 0) {
    path.push_back(op);
    const index_t before = cut.barrier[static_cast<std::size_t>(op)];
    if (before == op) break;
    op = before;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}}  // namespace deeprec::DEEPREC_ABI
