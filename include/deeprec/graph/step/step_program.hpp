// Runs the steps of a graph, one after the other: on the calling thread, or on the threads of an executor.
//
//   step_program program = step_program::compile(g).or_throw();
//   step_state state = program.make_state();            memory for all values of a step
//   while (program.run(pool, state).or_throw()) {       false: the source has ended
//     use(state.get(loss));
//   }
//
//   program (immutable) ── run(on, state a) ── thread 1       several steps in flight, each with a state of
//                      └── run(on, state b) ── thread 2       its own, where variables allow it
//
// A stage is nothing here: staged_program.hpp runs it. Not here: stale reads, which need a window.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/scheduled_run.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/op_schedule.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

class planned_resource;

namespace detail {
struct state_access;
}  // namespace detail

/// How ops that are sample-wise run: on whole batches, or as by_lanes() and by_parts() (lane_steps.hpp) have
/// it.
struct sample_cut {
  micro_lanes lanes{};
  bool must_cut = false;  ///< a graph without sample-wise ops is refused
  /// Scratch memory of parts, from its lanes. Null: from the context's resource.
  planned_resource* scratch = nullptr;
  /// Makes a cutter for the ops `here`, by number; null where none of them is sample-wise.
  result<std::unique_ptr<detail::step_cutter>> (*make)(const detail::step_core& graph, const flat_graph& flat,
                                                       std::shared_ptr<const detail::step_layout> layout,
                                                       const std::vector<bool>& here, task_order order,
                                                       const sample_cut& cut) = nullptr;
};

struct step_options {
  task_order order = task_order::as_added;
  sample_cut samples{};
  op_schedule schedule = op_schedule::in_turn;  ///< of ops for whole batches
};

/// All values of one step in flight, for one step after another.
///
/// @pre     the variables of the graph outlive it
/// @threads one run at a time
class step_state {
 public:
  step_state(step_state&&) noexcept = default;
  step_state& operator=(step_state&&) noexcept = default;

  /// A value as the last run left it; of a stage, what it hands on.
  ///
  /// @pre the value is of the graph of this state's program, and was in it when that was compiled
  template <class T>
  [[nodiscard]] const T& get(const value<T>& v) const {
    return *static_cast<const T*>(place(detail::handle_access::ref(v)));
  }
  /// The value of a placeholder, from the next run on.
  ///
  /// @pre as get(); it is a placeholder
  template <class T>
  void feed(const value<T>& placeholder, std::type_identity_t<T> fed) {
    DEEPREC_EXPECTS(held_->layout().kind(placeholder.op()) == op_kind::placeholder);
    *static_cast<T*>(place(detail::handle_access::ref(placeholder))) = std::move(fed);
  }
  /// The number of the step that runs next; it grows with each run that succeeds.
  [[nodiscard]] index_t step() const noexcept { return held_->step; }
  void set_step(index_t step) noexcept { held_->step = step; }

 private:
  friend class step_program;
  friend struct detail::state_access;
  explicit step_state(std::unique_ptr<detail::step_storage> held) noexcept : held_(std::move(held)) {}
  [[nodiscard]] void* place(const detail::port_ref& ref) const {
    DEEPREC_EXPECTS(ref.graph == held_->layout().graph() && ref.op < held_->layout().size());
    return held_->place(held_->layout().slot_of(ref.op, ref.port));
  }

  std::unique_ptr<detail::step_storage> held_;
};

namespace detail {

struct state_access {
  static step_state make(std::shared_ptr<const step_layout> layout, std::pmr::memory_resource* memory,
                         const shared_values* shared = nullptr) {
    return step_state(std::make_unique<step_storage>(std::move(layout), memory, shared));
  }
  static step_storage& storage(const step_state& state) noexcept { return *state.held_; }
};

template <class C>
constexpr void check_step_executor() {
  static_assert(BulkExecutor<std::remove_pointer_t<decltype(context_for<C>::executor)>>,
                "deeprec::step_program: not a bulk executor. Fix: pass a deeprec::thread_pool, an "
                "inline_executor or a context on one; an op on a device holds its own executor.");
}

/// Runs a part of a step, the ops of a plan, with run_plan(context, storage), and returns false where the
/// source ended. A stop is seen before it begins only: what is half done can't be continued.
template <class C, class RunPlan>
result<bool> run_step(C&& on, const task_plan& plan, step_storage& step, const RunPlan& run_plan) {
  const auto given = as_context(on);
  if (given.stop != nullptr && given.stop->stop_requested())
    return status(errc::stopped, {.operation = "step_program::run"});
  environment env = given;
  env.stop = nullptr;
  executor_ref executor = *given.executor;
  const context<executor_ref> ctx(executor, env);
  const step_call call{ctx, step.step};
  const call_in_flight guard(step, call);
  step.ended = false;
  const result<void> ran = run_plan(ctx, step);
  if (ran) [[likely]]
    return true;
  if (step.ended) return false;
  if (step.source_fault) {
    const fault why = *std::exchange(step.source_fault, std::nullopt);
    fault_place where = why.place();
    where.item = ran.fault().place().item;
    return fault(status(why.code(), why.detail(), where), why.file(),
                 std::string(plan.name(where.item)) + ": " + std::string(why.reason()));
  }
  return ran.fault();
}

}  // namespace detail

/// A graph made ready to run. It holds the ops and not the graph; no state of a run.
///
/// @threads immutable once made; thread-safe: runs with different states at once, where the ops may. A graph
///          whose source has a state begins one step at a time
class step_program {
 public:
  /// @post    the graph may go; variables and what ops refer to must stay
  /// @numerics deterministic: the same order for the same graph
  /// @cost    O(ops + inputs); allocates
  /// @threads reentrant
  /// @error   as step_graph::flat(); unsupported: a stale read with a window above 1,
  ///          a schedule on threads of a step that is cut by samples; as by_lanes(). Throws
  ///          std::bad_alloc
  /// @example @snippet tests/graph/step_program_test.cpp step_program
  [[nodiscard]] static result<step_program> compile(const step_graph& graph, step_options options = {}) {
    const result<flat_graph> flat = graph.flat();
    if (!flat) return flat.fault();
    const detail::step_core& g = graph.core();
    if (auto stale = detail::find_stale_read(g)) return *std::move(stale);
    auto layout = std::make_shared<const detail::step_layout>(g);
    result<task_plan> plan = detail::plan_steps(g, *layout, options.order, [](index_t) { return true; });
    if (!plan) return plan.fault();
    step_program made(layout, std::make_shared<const task_plan>(std::move(plan).value()), options.schedule);
    if (options.samples.make != nullptr) {
      auto cutter = options.samples.make(g, flat.value(), std::move(layout),
                                         std::vector<bool>(static_cast<std::size_t>(g.size()), true),
                                         options.order, options.samples);
      if (!cutter) return cutter.fault();
      made.cutter_ = std::move(cutter).value();
    }
    if (made.cutter_ != nullptr && options.schedule != op_schedule::in_turn) {
      return status(errc::unsupported,
                    "step_program::compile: a step that is cut by samples must run its ops in turn");
    }
    return made;
  }
  [[nodiscard]] static result<step_program> compile(const step_graph& graph, task_order order) {
    return compile(graph, step_options{.order = order});
  }

  /// The values of one step: made once, then used by one step after another.
  ///
  /// @param memory of the values: their block, and those that are made from a resource; outlives the state
  /// @cost    allocates what the values and some bytes for each op and input take
  /// @threads reentrant, where the resource is thread-safe
  /// @error   throws what a value's constructor and the resource throw
  [[nodiscard]] step_state make_state(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    step_state made = detail::state_access::make(layout_, memory);
    detail::state_access::storage(made).runner = cutter_ != nullptr
                                                     ? cutter_->make_runner(memory)
                                                     : detail::make_scheduled_run(schedule_, *plan_, memory);
    return made;
  }

  /// Runs one step, as step_options::schedule has it; false: the source has ended, and nothing ran.
  ///
  /// @param on a context or an executor: what ops get as step_call::on, without the stop token, which is
  ///           looked at before the step begins: a step that has begun ends
  /// @pre     the state is of this program
  /// @post    true: every op ran. stopped: nothing ran; false: nothing but the source. After another error
  ///          the step is incomplete: its item is gone, and variables are as the ops that had run left them
  /// @cost    as run_inline: no allocation but those of the ops, 2 to 8 ns for an op; on threads as run_on:
  ///          some 100 ns for an op
  /// @threads one run at a time for one state
  /// @error   as run_inline: the status of the op that failed, with its name in the text and its number as
  ///          item; stopped, where the token requested it before the step. Throws task_error for the
  ///          exception of an op
  template <class C>
  [[nodiscard]] result<bool> run(C&& on, step_state& state) const {
    detail::check_step_executor<C>();
    return counted(state, [&](detail::step_storage& step) {
      return detail::run_step(on, *plan_, step, [&](const auto& ctx, detail::step_storage& s) {
        if (s.runner != nullptr) return s.runner->run(ctx, s);
        return run_inline(ctx, *plan_, static_cast<detail::step_cells*>(&s));
      });
    });
  }
  /// The ops by the numbers of the graph; those that no step runs have no task.
  [[nodiscard]] const task_plan& plan() const noexcept { return *plan_; }

 private:
  step_program(std::shared_ptr<const detail::step_layout> layout, std::shared_ptr<const task_plan> plan,
               op_schedule schedule)
      : layout_(std::move(layout)), plan_(std::move(plan)), schedule_(schedule) {}

  template <class Run>
  result<bool> counted(step_state& state, const Run& run) const {
    detail::step_storage& step = detail::state_access::storage(state);
    DEEPREC_EXPECTS(&step.layout() == layout_.get());
    result<bool> ran = run(step);
    if (ran && ran.value()) ++step.step;
    return ran;
  }

  std::shared_ptr<const detail::step_layout> layout_;
  std::shared_ptr<const task_plan> plan_;
  op_schedule schedule_;
  std::shared_ptr<const detail::step_cutter> cutter_;  // null: no op runs for parts
};

}}  // namespace deeprec::DEEPREC_ABI
