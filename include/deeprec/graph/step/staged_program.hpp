// Runs the steps of a graph as a pipeline that is cut where its stages are, or where smart_stage put the cut.
//
//   source ── ops before the cut ──[ capacity ]── ops behind it ── done(state)     threads: 1 + the caller's
//   source ──[ ]── ops before it, n producers ──[ ]── ops behind it ── done                 1 + n + 1
//
//   staged_program program = staged_program::compile(g, cut, {.capacity = 2}).or_throw();
//   program.run(pool, [&](step_state& state) { use(state.get(loss)); }).or_throw();
//
// The state of a step travels, so no value is copied and no put and take are run. Steps keep their order, and
// variables change behind the cut only, so the bits are those of step_program::run. A run that ends early
// keeps the steps that it drew ahead, and the next one goes on with them.
//
//   lookup (g.stale_read(rows, W)) ──[ ]── ... update (g.write(rows))      lookups of W - 1 steps ahead
//
// Lookup t then sees the updates up to t - W and no others, whatever the threads do: update u waits for
// lookup u + W - 1 (schedule/stale_window.hpp). Not here: the choice of a cut (smart_stage.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/step/detail/staged_run.hpp>
#include <deeprec/graph/step/detail/staged_window.hpp>
#include <deeprec/graph/step/detail/stale_reads.hpp>
#include <deeprec/graph/step/detail/step_checks.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/staged_options.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/pipeline/stages.hpp>
#include <deeprec/pipeline/statistics.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
struct staged_access;
}  // namespace detail

/// A graph made ready to run in several threads. It holds the ops and not the graph, and the states of all
/// steps in flight.
///
/// @threads run() by one thread at a time
class staged_program {
 public:
  /// Cut at every stage of the graph. Ops before one are those that it needs. Stages in a line are as many
  /// cuts, at most 2: what lies before the last but one is one part. Without a stage the caller runs all.
  ///
  /// @post    the graph may go; variables and what ops refer to must stay
  /// @cost    O(ops + inputs); allocates the states of all steps in flight
  /// @threads reentrant
  /// @error   as step_graph::flat(); invalid_value: no source, a capacity or producers below 1; stale reads
  ///          of several windows or before several cuts, or of what an op before a cut changes; unsupported:
  ///          a stale read with a window above 1 behind all cuts; with several producers an op before the
  ///          first cut that writes a variable or is external, since steps overlap there; as by_lanes().
  ///          Throws std::bad_alloc, and what constructors of values throw
  /// @example @snippet tests/graph/staged_program_test.cpp staged_program
  [[nodiscard]] static result<staged_program> compile(const step_graph& graph, staged_options options = {}) {
    result<flat_graph> flat = graph.flat();
    if (!flat) return flat.fault();
    return make(graph.core(), flat.value(),
                detail::cuts_after(flat.value(), {}, [](index_t) { return true; }), std::move(options));
  }
  /// Cut by smart_stage, from flat() of this graph; stages that it keeps are cuts as well.
  ///
  /// @post    as compile(graph)
  /// @cost    as compile(graph)
  /// @threads reentrant
  /// @error   as compile(graph); shape_mismatch: the cut is of another graph; invalid_value: an op before the
  ///          cut would share a variable that changes, or need a placeholder
  [[nodiscard]] static result<staged_program> compile(const step_graph& graph, const stage_cut& cut,
                                                      staged_options options = {}) {
    if (const status fits = detail::expect_size(cut.side.size(), graph.size(),
                                                "staged_program::compile: the cut must be of this graph");
        !fits)
      return fits;
    if (!cut.changes()) return compile(graph, std::move(options));
    result<flat_graph> flat = graph.flat();
    if (!flat) return flat.fault();
    std::vector<bool> before;
    for (const op_side side : cut.side) before.push_back(is_before_cut(side));
    std::vector<index_t> cuts = detail::cuts_after(flat.value(), before, [&](index_t stage) {
      return cut.side[static_cast<std::size_t>(stage)] != op_side::undone;
    });
    if (auto race = detail::find_race(graph.core(), cuts)) return *std::move(race);
    if (auto fed = detail::find_fed_before(graph.core(), flat.value(), cuts)) return *std::move(fed);
    return make(graph.core(), flat.value(), std::move(cuts), std::move(options));
  }

  /// Runs until the source ends, an op fails, done() fails or a stop is requested. A step that has begun
  /// behind the last cut ends. Those that were drawn ahead are kept, with their numbers and what was computed
  /// of them (a failure too, which is reported when the step's turn comes); the next run begins with them,
  /// and then calls the source. So runs that end early and go on are one run, as calls of step_program::run
  /// are. A source that is set back needs drop_kept().
  ///
  /// With stale reads a run ends between two steps only, so after a request to stop it may wait for the
  /// source to begin W - 1 steps more, or to end. A step whose update failed leaves its changes out of what
  /// later lookups see.
  ///
  /// @param where an executor with threads for tasks and for bulk work, or a context on one. The ops behind
  ///              the last cut run on the caller's thread and get it as step_call::on; those before a cut
  ///              get an inline_executor. Its stop token ends the run; its trace sink records every part
  /// @param done  called as done(step_state&) behind the last op of each step, in order, on the caller's
  ///              thread; returns nothing, a status or result<void>
  /// @post        no thread works on it. Step numbers go on in the next run, without a gap but for steps that
  ///              failed
  /// @numerics    the bits of step_program::run, for every capacity and number of producers; with stale reads
  ///              other ones, which depend on the window only
  /// @cost        the states are there; edges and tasks are allocated once for a run, nothing for a step
  /// @threads     one thread at a time; not from an op
  /// @error       of the first step that failed, the fault of its op, with its name in the text and its
  ///              number as item; what done() returns; stopped; would_block: too few threads. Throws
  ///              pipeline_error for the exception of an op, whose task_error is nested in it, and of done()
  template <class C, class Done>
  [[nodiscard]] result<void> run(C&& where, Done&& done, std::stop_token stop = {}) {
    using executor_type = std::remove_pointer_t<decltype(context_for<C>::executor)>;
    static_assert(TaskExecutor<executor_type> && BulkExecutor<executor_type>,
                  "deeprec::staged_program: the executor has no threads for tasks and for bulk work. Fix: "
                  "pass a deeprec::thread_pool or a context on one");
    static_assert(std::is_invocable_v<Done&, step_state&>,
                  "deeprec::staged_program: done is not called with the state of a step. Fix: let it take "
                  "step_state&");
    const auto ctx = detail::as_context(where);
    executor_ref executor = *ctx.executor;
    environment env = ctx;
    env.stop = nullptr;  // the pipeline's: a step that has begun completes
    const detail::staged_rest rest{run_.get(), context<executor_ref>(executor, env),
                                   const_cast<void*>(static_cast<const void*>(std::addressof(done))),
                                   [](void* f, step_state& state) -> result<void> {
                                     auto& call = *static_cast<std::remove_reference_t<Done>*>(f);
                                     if constexpr (std::is_void_v<std::invoke_result_t<Done&, step_state&>>) {
                                       call(state);
                                       return {};
                                     } else {
                                       return call(state);
                                     }
                                   }};
    env.memory = run_->options().staged_memory;
    run_->begin();
    if (run_->window() == nullptr) return run_parts(ctx, env, rest, std::move(stop));
    // The pipeline's stop comes between two steps.
    const auto request = [window = run_->window()] { window->request_stop(); };
    const std::stop_callback by_caller(std::move(stop), request);
    const std::stop_callback by_context(ctx.stop == nullptr ? std::stop_token() : *ctx.stop, request);
    auto inner = ctx;
    inner.stop = nullptr;
    return run_parts(inner, env, rest, run_->window()->token());
  }

  /// Whether an op runs before a cut. The source does where there is a cut.
  [[nodiscard]] bool is_staged(index_t op) const noexcept { return run_->cuts_after(op) > 0; }
  /// The ops that a step runs before a cut, in order of their numbers.
  [[nodiscard]] std::vector<index_t> staged_ops() const {
    std::vector<index_t> ops;
    for (index_t v = 0; v < run_->size(); ++v) {
      if (!is_staged(v)) continue;
      if (run_->plan(run_->cuts_after(v)).has_task(v) || v == source_) ops.push_back(v);
    }
    return ops;
  }
  /// How many cuts a step passes.
  [[nodiscard]] index_t cuts() const noexcept { return run_->parts(); }
  /// How many steps the last run drew and did not end: by so many items the source is ahead. The next run
  /// begins with them.
  [[nodiscard]] index_t kept_steps() const noexcept { return run_->kept(); }
  /// Drops them, for a source that was set back: the next run begins with the source, and step numbers go on
  /// behind the last step that ended.
  void drop_kept() noexcept { run_->drop_kept(); }
  /// Of the last run.
  [[nodiscard]] const pipeline_statistics& statistics() const noexcept { return run_->statistics; }

 private:
  friend struct detail::staged_access;
  staged_program(std::unique_ptr<detail::staged_run> run, index_t source)
      : run_(std::move(run)), source_(source) {}

  static result<staged_program> make(const detail::step_core& g, const flat_graph& flat,
                                     std::vector<index_t> cuts, staged_options options) {
    if (options.capacity < 1 || options.producers < 1)
      return status(errc::invalid_value, "staged_program: capacity and producers must be at least 1");
    index_t source = -1, parts = 0;
    for (index_t v = 0; v < g.size(); ++v) {
      index_t& c = cuts[static_cast<std::size_t>(v)];
      c = (std::min)(c, detail::staged_run::most_cuts);
      parts = (std::max)(parts, c);
      if (g.op(v).is_source) source = v;
    }
    if (source < 0)
      return status(errc::invalid_value, "staged_program: a graph must have a source, which ends the run");
    cuts[static_cast<std::size_t>(source)] = parts;
    if (auto stale = detail::find_stale_read(g, cuts)) return *std::move(stale);
    result<detail::stale_reads> stale = detail::stale_reads_of(g, cuts);
    if (!stale) return stale.fault();
    for (index_t v = 0; v < g.size() && parts > 0 && options.producers > 1; ++v) {
      if (cuts[static_cast<std::size_t>(v)] < parts || g.op(v).node == nullptr || v == source) continue;
      if (has_effect(flat.effects(v), op_effects::writes | op_effects::external)) {
        return detail::refuse_step(
            g, v, "with several producers an op before the first cut must not write or be external", {},
            errc::unsupported);
      }
    }
    if (stale.value().part == 0) return make(g, flat, std::move(cuts), std::move(options), nullptr, source);
    auto window = std::make_unique<detail::staged_window>(stale.value());
    options.capacity = (std::max)(options.capacity, static_cast<std::size_t>(window->window() - 1));
    detail::step_core waiting = g;
    for (const index_t v : stale.value().updates)
      waiting.change(v).node = std::make_shared<const detail::updating_node>(g.op(v).node, *window);
    return make(waiting, flat, std::move(cuts), std::move(options), std::move(window), source);
  }
  static result<staged_program> make(const detail::step_core& g, const flat_graph& flat,
                                     std::vector<index_t> cuts, staged_options options,
                                     std::unique_ptr<detail::staged_window> window, index_t source) {
    auto layout = std::make_shared<const detail::step_layout>(g);
    auto run = std::make_unique<detail::staged_run>(std::move(cuts), std::move(layout), std::move(options),
                                                    std::move(window));
    if (result<void> made = run->make(g, flat); !made) return made.fault();
    return staged_program(std::move(run), source);
  }

  template <class C>
  result<void> run_parts(const C& ctx, const environment& env, const detail::staged_rest& rest,
                         std::stop_token stop) {
    switch (run_->parts()) {
      case 0:
        return run_line<0>(ctx, env, rest, std::move(stop));
      case 1:
        return run_line<1>(ctx, env, rest, std::move(stop));
      default:
        return run_line<detail::staged_run::most_cuts>(ctx, env, rest, std::move(stop));
    }
  }
  template <index_t Cuts, class C>
  result<void> run_line(const C& ctx, const environment& env, const detail::staged_rest& rest,
                        std::stop_token stop) {
    const detail::staged_source first{run_.get(), env};
    if constexpr (Cuts == 0) {
      return run_pipeline(ctx, source("source", first) | sink("rest", rest), std::move(stop));
    } else {
      const auto part = [&](index_t n) { return detail::staged_part{run_.get(), env, n}; };
      const auto with_rest = [&](auto line) {
        if constexpr (Cuts == 1) {
          return std::move(line) | sink("rest", rest).own_thread();
        } else {
          return std::move(line) | stage("staged 2", part(1)).own_thread() | sink("rest", rest).own_thread();
        }
      };
      // Each line takes its time to compile: of two cuts there is one line only.
      const int producers = run_->options().producers;
      if constexpr (Cuts == 1) {
        if (producers == 1) {
          return run_pipeline(ctx, with_rest(source("source", first) | stage("staged", part(Cuts))),
                              std::move(stop));
        }
      }
      return run_pipeline(
          ctx, with_rest(source("source", first) | stage("staged", part(Cuts)).parallel(producers)),
          std::move(stop));
    }
  }
  template <class C, class Line>
  result<void> run_pipeline(const C& ctx, Line line, std::stop_token stop) {
    pipeline<Line, std::remove_pointer_t<decltype(ctx.executor)>> run(ctx, std::move(line),
                                                                      {.capacity = run_->options().capacity});
    struct end_of_run {
      const decltype(run)& from;
      detail::staged_run& to;
      bool whole = false;
      ~end_of_run() {
        to.statistics = from.statistics();
        to.end(whole);
      }
    } end{run, *run_};
    result<void> ran = run.run(std::move(stop));
    end.whole = ran.ok();
    return ran;
  }

  std::unique_ptr<detail::staged_run> run_;
  index_t source_;
};

namespace detail {

/// What runs behind the last cut: for one step at a time.
struct staged_access {
  static step_storage& home(const staged_program& program) noexcept { return program.run_->home(); }
  static const task_plan& rest(const staged_program& program) noexcept { return program.run_->plan(0); }
  static bool runs_in_turn(const staged_program& program) noexcept { return program.run_->runs_in_turn(); }
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
