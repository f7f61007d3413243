// When the values of a step live, by the order of its ops, and where they lie then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>
#include <deeprec/graph/step/value_plan.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// When the values of a layout live, by the places of ops in `order`; an end of 0: they are not placed.
struct value_lives {
  std::vector<std::int64_t> made, end;  // of each slot
};

/// @param refers  refers(output, input): whether the value of a slot may refer to that of another one
template <class Refers>
value_lives lives_of_values(const step_layout& layout, std::span<const std::int32_t> order,
                            const Refers& refers) {
  constexpr std::int64_t forever = (std::numeric_limits<std::int64_t>::max)();
  const std::size_t slots = layout.slots().size();
  value_lives lives{std::vector<std::int64_t>(slots, -1), std::vector<std::int64_t>(slots, 0)};
  std::vector<bool> taken(slots);
  const auto outputs_of = [&](index_t op) {
    const auto cells = layout.cells_of(op);
    const auto first = static_cast<std::size_t>(layout.first_slot(op));
    const std::size_t next =
        op + 1 < layout.size() ? static_cast<std::size_t>(layout.first_slot(op + 1)) : slots;
    return cells.last(next - first);
  };
  for (auto at = static_cast<std::int64_t>(order.size()) - 1; at >= 0; --at) {
    const index_t op = order[static_cast<std::size_t>(at)];
    if (layout.node(op) == nullptr) continue;
    const auto outputs = outputs_of(op);
    for (const step_layout::cell& out : outputs) {
      const auto slot = static_cast<std::size_t>(out.slot);
      lives.made[slot] = at;
      // The caller may read what no op takes.
      if (!taken[slot] || layout.slots()[slot].kept) lives.end[slot] = forever;
    }
    const auto cells = layout.cells_of(op);
    for (const step_layout::cell& in : cells.first(cells.size() - outputs.size())) {
      if (in.slot < 0) continue;
      const auto slot = static_cast<std::size_t>(in.slot);
      taken[slot] = true;
      std::int64_t& end = lives.end[slot];
      end = (std::max)(end, at + 1);
      for (const step_layout::cell& out : outputs) {
        if (refers(out.slot, in.slot)) end = (std::max)(end, lives.end[static_cast<std::size_t>(out.slot)]);
      }
    }
  }
  return lives;
}

/// @param at the storage in which the values of the ops of `plan` lie
inline result<value_plan> plan_values(const step_storage& at, const task_plan& plan, bool in_turn,
                                      const block_plan_options& options) {
  const step_layout& layout = at.layout();
  if (!in_turn) {
    return status(errc::unsupported,
                  "plan_memory: ops must run in turn, for whole batches (the program has parts or threads)");
  }
  const auto holds = [&](std::int32_t slot) -> std::int64_t {
    const value_type& type = *layout.slots()[static_cast<std::size_t>(slot)].type;
    return type.own_bytes == nullptr ? 0 : type.own_bytes(at.place(slot));
  };
  const auto memory = [&](std::int32_t slot) {
    const value_type& type = *layout.slots()[static_cast<std::size_t>(slot)].type;
    return type.memory == nullptr ? std::span<const std::byte>() : type.memory(at.place(slot));
  };
  const auto refers = [&](std::int32_t output, std::int32_t input) {
    if (holds(output) > 0) return false;
    const auto to = memory(output), of = memory(input);
    if (to.empty() || of.empty()) return true;  // unknown
    const std::less<> before;
    return before(to.data(), of.data() + of.size()) && before(of.data(), to.data() + to.size());
  };
  const auto order = plan.order();
  const value_lives lives = lives_of_values(layout, order, refers);
  const auto steps = static_cast<std::int64_t>(order.size());
  constexpr std::size_t line = 64;  // so that no two values share one
  value_plan answer;
  answer.graph = layout.graph();
  std::vector<block_lifetime> blocks;
  for (const auto op : order) {
    if (layout.node(op) == nullptr) continue;
    for (std::int32_t slot = layout.first_slot(op);
         static_cast<std::size_t>(slot) < layout.slots().size() &&
         (op + 1 >= layout.size() || slot < layout.first_slot(op + 1));
         ++slot) {
      const std::int64_t bytes = holds(slot);
      if (bytes <= 0) continue;
      const auto i = static_cast<std::size_t>(slot);
      const std::size_t whole = (static_cast<std::size_t>(bytes) + line - 1) / line * line;
      const std::int64_t end = (std::min)(lives.end[i], steps);
      answer.values.push_back({op, slot - layout.first_slot(op), lives.made[i], end, 0, whole});
      answer.apart_bytes += whole;
      blocks.push_back({lives.made[i], end, whole, line});
    }
  }
  result<block_plan> places = plan_blocks(blocks, options);
  if (!places) return places.fault();
  for (std::size_t i = 0; i < blocks.size(); ++i) answer.values[i].offset = places.value().offsets[i];
  answer.bytes = places.value().bytes;
  answer.live_bytes = places.value().live_bytes;
  return answer;
}

inline result<void> place_in(step_storage& to, const value_plan& memory, bool in_turn) {
  const step_layout& layout = to.layout();
  if (!in_turn) {
    return status(errc::unsupported,
                  "place_values: ops must run in turn, for whole batches (the program has parts or threads)");
  }
  if (memory.graph != layout.graph())
    return status(errc::shape_mismatch, "place_values: the plan must be of this program's graph");
  std::vector<step_storage::placed_value> values;
  for (const value_plan::placed_value& v : memory.values)
    values.push_back({layout.slot_of(v.op, v.port), v.offset, v.bytes});
  constexpr std::size_t line = 64;
  to.place_values(values, memory.bytes, line);
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
