// Where the values of a step lie, and the state of one step in flight.
//
//   layout (shared)   op 3: cells 7 8 9    cell 7: slot 2   cell 8: a variable   cell 9: slot 5
//   storage (a step)  block | value 0 | value 1 | ...     cells | * | * | * ...
//
// A stage has no slots: its outputs are the slots of its inputs. Not here: who runs what (step_program.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class step_layout {
 public:
  struct slot {
    const value_type* type;
    std::shared_ptr<const void> constant;
    std::size_t offset;
    bool kept;  // the caller reads it when a step has ended
  };
  struct cell {
    std::int32_t slot = -1;
    void* object = nullptr;  // of a variable
  };

  /// @pre the graph has no fault
  explicit step_layout(const step_core& g) : graph_(g.id()) {
    std::size_t end = 0;
    for (index_t v = 0; v < g.size(); ++v) {
      const step_op& op = g.op(v);
      nodes_.push_back(op.node);
      first_slot_.push_back(static_cast<std::int32_t>(slots_.size()));
      kinds_.push_back(op.kind);
      if (op.kind == op_kind::stage) continue;
      for (std::size_t port = 0; port < op.outputs.size(); ++port) {
        const value_type* const type = op.outputs[port];
        const bool kept =
            std::find(op.kept.begin(), op.kept.end(), static_cast<index_t>(port)) != op.kept.end();
        end = (end + type->alignment - 1) / type->alignment * type->alignment;
        slots_.push_back({type, op.constant, end, kept});
        alignment_ = (std::max)(alignment_, type->alignment);
        end += type->size;
      }
    }
    bytes_ = end;
    // Stages: the slots of what they hand on, by port.
    for (index_t v = 0; v < g.size(); ++v) {
      first_staged_.push_back(static_cast<std::int32_t>(staged_.size()));
      if (g.op(v).kind != op_kind::stage) continue;
      for (std::size_t p = 0; p < g.op(v).inputs.size(); ++p) {
        const port_ref made = g.made_at({graph_, v, static_cast<index_t>(p)});
        staged_.push_back(first_slot_[at(made.op)] + static_cast<std::int32_t>(made.port));
      }
    }
    for (index_t v = 0; v < g.size(); ++v) {
      first_cell_.push_back(cells_.size());
      const step_op& op = g.op(v);
      if (op.node == nullptr) continue;
      for (const step_input& in : op.inputs) {
        cells_.push_back(in.is_variable() && !g.is_local(in)
                             ? cell{-1, in.object}
                             : cell{slot_of(in.from.op, in.from.port), nullptr});
      }
      for (std::size_t p = 0; p < op.outputs.size(); ++p)
        cells_.push_back({first_slot_[at(v)] + static_cast<std::int32_t>(p), nullptr});
    }
  }

  [[nodiscard]] std::uint64_t graph() const noexcept { return graph_; }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(nodes_.size()); }
  [[nodiscard]] const step_node* node(index_t op) const noexcept { return nodes_[at(op)].get(); }
  [[nodiscard]] op_kind kind(index_t op) const noexcept { return kinds_[at(op)]; }
  [[nodiscard]] std::size_t first_cell(index_t op) const noexcept { return first_cell_[at(op)]; }
  [[nodiscard]] std::int32_t slot_of(index_t op, index_t port) const noexcept {
    return kinds_[at(op)] == op_kind::stage ? staged_[at(first_staged_[at(op)]) + at(port)]
                                            : first_slot_[at(op)] + static_cast<std::int32_t>(port);
  }
  [[nodiscard]] std::span<const slot> slots() const noexcept { return slots_; }
  /// The first slot of an op, whose outputs follow.
  [[nodiscard]] std::int32_t first_slot(index_t op) const noexcept { return first_slot_[at(op)]; }
  [[nodiscard]] std::span<const cell> cells() const noexcept { return cells_; }
  /// Of an op: its inputs, then its outputs.
  [[nodiscard]] std::span<const cell> cells_of(index_t op) const noexcept {
    const std::size_t end = op + 1 < size() ? first_cell_[at(op + 1)] : cells_.size();
    return std::span(cells_).subspan(first_cell_[at(op)], end - first_cell_[at(op)]);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }

 private:
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  std::uint64_t graph_;
  std::vector<std::shared_ptr<const step_node>> nodes_;
  std::vector<op_kind> kinds_;
  std::vector<std::int32_t> first_slot_, first_staged_, staged_;
  std::vector<std::size_t> first_cell_;
  std::vector<slot> slots_;
  std::vector<cell> cells_;
  std::size_t bytes_ = 0;
  std::size_t alignment_ = 1;
};

class step_storage;

/// Runs the ops of a step, or those of a part of it, otherwise than one after the other: one for each step in
/// flight.
class step_runner {
 public:
  step_runner() = default;
  step_runner(const step_runner&) = delete;
  step_runner& operator=(const step_runner&) = delete;
  virtual ~step_runner() = default;
  [[nodiscard]] virtual result<void> run(const context<executor_ref>& on, step_storage& step) = 0;
};
/// Makes runners; immutable.
class step_cutter {
 public:
  step_cutter() = default;
  step_cutter(const step_cutter&) = delete;
  step_cutter& operator=(const step_cutter&) = delete;
  virtual ~step_cutter() = default;
  [[nodiscard]] virtual std::unique_ptr<step_runner> make_runner(std::pmr::memory_resource* memory) const = 0;
};

/// The values that steps in flight share, since ops of one step at a time use them.
struct shared_values {
  const step_storage* home = nullptr;  // where they lie
  std::vector<bool> slots;             // true for those that are shared
};

/// All values of one step. Not moved: plans' tasks get its address.
class step_storage : public step_cells {
 public:
  /// @param shared outlives it, and its home; null: no value is shared
  step_storage(std::shared_ptr<const step_layout> layout, std::pmr::memory_resource* memory,
               const shared_values* shared = nullptr)
      : layout_(std::move(layout)), memory_(memory), shared_(shared), pointers_(memory) {
    const auto slots = layout_->slots();
    pointers_.reserve(layout_->cells().size());
    block_ = layout_->bytes() == 0
                 ? nullptr
                 : static_cast<std::byte*>(memory_->allocate(layout_->bytes(), layout_->alignment()));
#if DEEPREC_EXCEPTIONS
    try {
#endif
      for (; made_ < slots.size(); ++made_) {
        const step_layout::slot& s = slots[made_];
        if (!is_shared(made_)) s.type->make(block_ + s.offset, memory_, s.constant.get());
      }
#if DEEPREC_EXCEPTIONS
    } catch (...) {
      clear();
      throw;
    }
#endif
    for (const step_layout::cell& c : layout_->cells())
      pointers_.push_back(c.object != nullptr ? c.object : place(c.slot));
    cells = pointers_.data();
  }
  step_storage(const step_storage&) = delete;
  step_storage& operator=(const step_storage&) = delete;
  ~step_storage() { clear(); }

  [[nodiscard]] const step_layout& layout() const noexcept { return *layout_; }
  [[nodiscard]] void* place(std::int32_t slot) const noexcept {
    const auto i = static_cast<std::size_t>(slot);
    return is_shared(i) ? shared_->home->place(slot) : block_ + layout_->slots()[i].offset;
  }

  /// Values of the slots keep their content at their offsets in one block from now on.
  struct placed_value {
    std::int32_t slot;
    std::size_t offset, bytes;
  };
  void place_values(std::span<const placed_value> values, std::size_t bytes, std::size_t alignment) {
    auto* const fresh = bytes == 0 ? nullptr : static_cast<std::byte*>(memory_->allocate(bytes, alignment));
    for (const placed_value& v : values) {
      const step_layout::slot& s = layout_->slots()[static_cast<std::size_t>(v.slot)];
      s.type->place(place(v.slot), {fresh + v.offset, v.bytes});
    }
    free_placed();
    placed_ = {fresh, bytes, alignment};
  }

  std::unique_ptr<step_runner> runner;  // null: one op after the other
  index_t step = 0;

 private:
  [[nodiscard]] bool is_shared(std::size_t slot) const noexcept {
    return shared_ != nullptr && shared_->slots[slot];
  }
  void clear() noexcept {
    while (made_ > 0) {
      --made_;
      const step_layout::slot& s = layout_->slots()[made_];
      if (!is_shared(made_)) s.type->destroy(block_ + s.offset);
    }
    if (block_ != nullptr) memory_->deallocate(block_, layout_->bytes(), layout_->alignment());
    block_ = nullptr;
    free_placed();
  }
  void free_placed() noexcept {
    if (placed_.at != nullptr) memory_->deallocate(placed_.at, placed_.bytes, placed_.alignment);
    placed_ = {};
  }

  std::shared_ptr<const step_layout> layout_;
  std::pmr::memory_resource* memory_;
  const shared_values* shared_;
  std::pmr::vector<void*> pointers_;
  std::byte* block_ = nullptr;
  std::size_t made_ = 0;
  struct {
    std::byte* at = nullptr;
    std::size_t bytes = 0, alignment = 1;
  } placed_;
};

/// A plan of the ops for which `here` is true, by the numbers of the graph; the others have no task. What the
/// others made is there when the plan begins.
///
/// @pre the graph has no fault, and no op here needs one that is neither here nor before
template <class Here>
result<task_plan> plan_steps(const step_core& g, const step_layout& layout, task_order order,
                             const Here& here) {
  task_list list;
  const auto runs = [&](index_t v) { return g.op(v).node != nullptr && here(v); };
  index_t source = -1;
  for (index_t v = 0; v < g.size(); ++v) {
    if (g.op(v).is_source && here(v)) source = v;
  }
  std::vector<index_t> after;
  for (index_t v = 0; v < g.size(); ++v) {
    const step_op& op = g.op(v);
    if (!runs(v)) {
      list.add(op.name, {}, op.cost);
      continue;
    }
    after.clear();
    for (const step_input& in : op.inputs) {
      if (in.is_variable()) continue;
      const index_t u = g.made_at(in.from).op;
      if (runs(u)) after.push_back(u);
    }
    for (const port_ref& u : op.after) {
      const index_t maker = g.made_at(u).op;
      if (runs(maker)) after.push_back(maker);
    }
    // Where the source ends, nothing of the step has run.
    if (after.empty() && source >= 0 && v != source) after.push_back(source);
    op.node->add_to(list, op.name, layout.first_cell(v), after, op.cost);
    std::int64_t bytes = 0;
    for (const std::int64_t b : op.bytes) bytes += b;
    list.set_bytes(v, bytes);
  }
  for_each_effect_edge(g, [&](index_t u, index_t v) {
    if (runs(u) && runs(v)) list.edge(u, v);
  });
  return task_plan::compile(list, order);
}

/// The first op whose stale read needs a window, and is behind all cuts.
inline std::optional<fault> find_stale_read(const step_core& g, const std::vector<index_t>& cuts = {}) {
  for (index_t v = 0; v < g.size(); ++v) {
    if (!cuts.empty() && cuts[static_cast<std::size_t>(v)] > 0) continue;
    for (const step_input& in : g.op(v).inputs) {
      if (!in.is_stale()) continue;
      return refuse_step(g, v, "a stale read must be before a cut, or have a window of 1",
                         "that of '" + g.op(in.from.op).name + "' is " + std::to_string(in.window),
                         errc::unsupported);
    }
  }
  return std::nullopt;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
