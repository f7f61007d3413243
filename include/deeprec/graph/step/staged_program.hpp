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
// keeps the steps that it drew ahead, and the next one goes on with them. Not here: the choice of a cut
// (smart_stage.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
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
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/pipeline/stages.hpp>
#include <deeprec/pipeline/statistics.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/queue/staging_pool.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct staged_options {
  std::size_t capacity = 2;  ///< steps that wait at a cut
  int producers = 1;         ///< threads that run the ops before the first cut, steps in order
  /// Of the values of all steps in flight.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  /// Scratch memory of the ops before a cut: thread-safe.
  std::pmr::memory_resource* staged_memory = std::pmr::get_default_resource();
  /// Feeds the placeholders of a step, before the ops behind the last cut.
  std::function<void(step_state&)> feed{};
  sample_cut samples{};  ///< of the ops behind the last cut
};

namespace detail {

/// A step in flight, and how far it has come. A failure stays with it until its turn comes, since a run may
/// end before it.
struct staged_step {
  step_state state;
  index_t part = 0;  // that it runs next; above all parts: the source's
  std::optional<fault> failed{};
  std::exception_ptr thrown{};
  [[nodiscard]] bool is_good() const noexcept { return !failed && thrown == nullptr; }
  [[nodiscard]] index_t number() const noexcept { return state.step(); }
};

/// What the segments of a staged run share. Parts are numbered by the cuts behind them: part 0 is the rest.
class staged_run {
 public:
  static constexpr index_t most_cuts = 2;  // what lies before more of them runs in one part
  using pool_type = staging_pool<staged_step>;
  using lease = pool_type::lease;

  /// A step on its way. Where it is dropped before it has ended, the next run begins with it.
  class item {
   public:
    item(staged_run* run, lease step) noexcept : run_(run), step_(std::move(step)) {}
    item(item&&) noexcept = default;
    item& operator=(item&& other) noexcept {
      std::swap(run_, other.run_);
      std::swap(step_, other.step_);
      return *this;
    }
    ~item() {
      if (step_) run_->keep(std::move(step_));
    }
    [[nodiscard]] staged_step& operator*() const noexcept { return *step_; }
    /// It is not kept any more.
    [[nodiscard]] lease release() noexcept { return std::move(step_); }

   private:
    staged_run* run_;
    lease step_;
  };

  staged_run(std::vector<index_t> cuts, std::shared_ptr<const step_layout> layout, staged_options options)
      : cuts_(std::move(cuts)), layout_(std::move(layout)), options_(std::move(options)) {
    for (const index_t c : cuts_) parts_ = (std::max)(parts_, c);
  }

  result<void> make(const step_core& g, const flat_graph& flat) {
    index_t source = -1;
    for (index_t v = 0; v < g.size(); ++v) {
      if (g.op(v).is_source) source = v;
    }
    const auto planned = [&](task_plan& to, const auto& here) -> result<void> {
      result<task_plan> plan = plan_steps(g, *layout_, task_order::as_added, here);
      if (!plan) return plan.fault();
      to = std::move(plan).value();
      return {};
    };
    if (result<void> made = planned(source_, [&](index_t v) { return v == source; }); !made) return made;
    for (index_t part = 0; part <= parts_; ++part) {
      if (result<void> made = planned(plans_[static_cast<std::size_t>(part)],
                                      [&](index_t v) { return v != source && cuts_behind(v) == part; });
          !made)
        return made;
    }
    // The ops behind the last cut run for one step at a time: their values are there once, or those of all
    // steps in flight would pass through the cache in turn. The other values of home_ are never used.
    shared_.slots.assign(layout_->slots().size(), false);
    for (index_t v = 0; v < g.size(); ++v) {
      if (v == source || cuts_behind(v) > 0 || g.op(v).kind == op_kind::stage) continue;
      for (std::size_t p = 0; p < g.op(v).outputs.size(); ++p) {
        shared_.slots[static_cast<std::size_t>(layout_->slot_of(v, static_cast<index_t>(p)))] = true;
      }
    }
    home_.emplace(layout_, nullptr, options_.memory);
    shared_.home = &*home_;
    if (options_.samples.make != nullptr) {
      std::vector<bool> rest;
      for (index_t v = 0; v < g.size(); ++v) rest.push_back(v != source && cuts_behind(v) == 0);
      auto cutter =
          options_.samples.make(g, flat, layout_, rest, task_order::as_added, options_.samples.lanes);
      if (!cutter) return cutter.fault();
      if (cutter.value() != nullptr) rest_ = cutter.value()->make_runner(options_.memory);
    }
    states_.emplace(states_in_flight(), [&] {
      return staged_step{state_access::make(layout_, nullptr, options_.memory, &shared_)};
    });
    kept_.reserve(states_->size());
    waiting_.reserve(states_->size());
    return {};
  }

  [[nodiscard]] index_t parts() const noexcept { return parts_; }
  [[nodiscard]] index_t cuts_behind(index_t op) const noexcept { return cuts_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(cuts_.size()); }
  [[nodiscard]] const task_plan& plan(index_t part) const noexcept {
    return plans_[static_cast<std::size_t>(part)];
  }
  [[nodiscard]] const staged_options& options() const noexcept { return options_; }

  // --- one run after another: by the caller's thread, while no other works on it --------------------------

  void begin() {
    for (lease& step : kept_) waiting_.push_back(std::move(step));
    kept_.clear();
    std::sort(waiting_.begin(), waiting_.end(),
              [](const lease& a, const lease& b) { return a->number() > b->number(); });
  }
  /// `whole`: the run came to the end of the source.
  void end(bool whole) noexcept {
    if (whole || std::exchange(source_reported_, false)) source_over_ = false;
  }
  [[nodiscard]] index_t kept() const noexcept {
    index_t n = 0;
    for_each_kept([&](const staged_step& step) { n += step.part <= parts_ ? 1 : 0; });
    return n;
  }
  void drop_kept() noexcept {
    for_each_kept([&](const staged_step& step) { next_ = (std::min)(next_, step.number()); });
    kept_.clear();
    waiting_.clear();
    source_over_ = false;
  }

  // --- in a run -------------------------------------------------------------------------------------------

  /// The next step, if there is one. By one thread at a time.
  result<std::optional<item>> draw(const environment& env) {
    if (!waiting_.empty()) {
      std::optional<item> next(std::in_place, this, std::move(waiting_.back()));
      waiting_.pop_back();
      return {std::move(next)};  // nvcc would copy it
    }
    if (source_over_) return std::optional<item>();
    lease step = states_->try_acquire();
    if (!step) return status(errc::would_block, "staged_program: a state of a step must be free");
    step->part = parts_ + 1;
    step->state.set_step(next_);
    const bool more = attempt(*step, [&] { return run_part(env, source_, step->state); });
    source_over_ = !more || !step->is_good();
    if (!more) return std::optional<item>();
    if (step->is_good()) {
      step->part = parts_;
      ++next_;
    }
    return std::optional<item>(std::in_place, this, std::move(step));
  }
  /// Runs a part of a step, unless it was run by a run before, or a part before it failed.
  void stage(const environment& env, index_t part, staged_step& step) const {
    if (step.part != part || !step.is_good()) return;
    attempt(step, [&] { return run_part(env, plan(part), step.state); });
    if (step.is_good()) step.part = part - 1;
  }
  /// The failure of a step, when its turn has come. By the caller's thread.
  fault report(staged_step& step) {
    source_reported_ = step.part > parts_;
#if DEEPREC_EXCEPTIONS
    if (step.thrown != nullptr) std::rethrow_exception(std::exchange(step.thrown, nullptr));
#endif
    return *std::exchange(step.failed, std::nullopt);
  }
  result<bool> run_rest(const context<executor_ref>& ctx, step_state& state) const {
    if (rest_ == nullptr) return run_part(ctx, plan(0), state);
    return run_step(ctx, plan(0), state_access::storage(state),
                    [&](const auto& on, step_storage& step) { return rest_->run(on, step); });
  }
  static result<bool> run_part(const environment& env, const task_plan& plan, step_state& state) {
    inline_executor here;
    return run_part(context<inline_executor>(here, env), plan, state);
  }
  template <class E>
  static result<bool> run_part(const context<E>& ctx, const task_plan& plan, step_state& state) {
    return run_step(ctx, plan, state_access::storage(state), [&](const auto& on, step_storage& step) {
      return run_inline(on, plan, static_cast<step_cells*>(&step));
    });
  }

  pipeline_statistics statistics;

 private:
  template <class Run>
  static bool attempt(staged_step& step, const Run& run) {
#if DEEPREC_EXCEPTIONS
    try {
#endif
      const result<bool> ran = run();
      if (ran) return ran.value();
      step.failed = ran.fault();
#if DEEPREC_EXCEPTIONS
    } catch (...) {
      step.thrown = std::current_exception();
    }
#endif
    return true;
  }
  void keep(lease step) noexcept {
    const std::lock_guard lock(keeping_);
    kept_.push_back(std::move(step));  // there is room for all
  }
  template <class F>
  void for_each_kept(const F& f) const {
    for (const std::vector<lease>* list : {&kept_, &waiting_}) {
      for (const lease& step : *list) f(*step);
    }
  }

  // As many as edges hold and threads have in hand, so that the source never waits for one. The pool hands
  // out the one that was returned last: those that are not needed stay untouched.
  [[nodiscard]] std::uint32_t states_in_flight() const noexcept {
    const auto cuts = static_cast<std::size_t>(parts_);
    const auto producers = static_cast<std::size_t>(options_.producers);
    std::size_t n = cuts * options_.capacity + 2 * (cuts + 1);
    if (producers > 1 || cuts > 1) n += 2 * (std::max)(options_.capacity, producers) + 2 * producers;
    return static_cast<std::uint32_t>((std::min)(n, std::size_t{1} << 30));
  }

  std::vector<index_t> cuts_;  // behind an op
  std::shared_ptr<const step_layout> layout_;
  staged_options options_;
  index_t parts_ = 0;
  task_plan source_;
  std::array<task_plan, most_cuts + 1> plans_;
  std::unique_ptr<step_runner> rest_;  // null: one op after the other
  std::optional<step_storage> home_;
  shared_values shared_;
  std::optional<pool_type> states_;  // refers to both
  std::mutex keeping_;
  std::vector<lease> kept_;     // by this run
  std::vector<lease> waiting_;  // for the source's turn: kept by runs before, the first one last
  index_t next_ = 0;
  bool source_over_ = false;      // it ended or failed, and no run has come to that
  bool source_reported_ = false;  // this one has come to its failure
};

struct staged_source {
  staged_run* run;
  environment env;
  result<std::optional<staged_run::item>> operator()() const { return run->draw(env); }
};
struct staged_part {
  staged_run* run;
  environment env;
  index_t part;
  void operator()(staged_run::item& item) const { run->stage(env, part, *item); }
};
struct staged_rest {
  staged_run* run;
  context<executor_ref> on;
  void* done;
  result<void> (*call_done)(void* done, step_state& state);
  result<void> operator()(staged_run::item& item) const {
    if ((*item).is_good() && run->options().feed) run->options().feed((*item).state);
    const staged_run::lease step = item.release();  // whatever happens now: it is not run again
    if (!step->is_good()) return run->report(*step);
    const result<bool> ran = run->run_rest(on, step->state);
    if (!ran) return ran.fault();
    return call_done(done, step->state);
  }
};

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
  /// @error   as step_graph::flat(); invalid_value: no source, a capacity or producers below 1; unsupported:
  ///          a stale read with a window above 1; with several producers an op before the first cut that
  ///          writes a variable or is external, since steps overlap there; as by_lanes(). Throws
  ///          std::bad_alloc, and what constructors of values throw
  /// @example @snippet tests/graph/staged_program_test.cpp staged_program
  [[nodiscard]] static result<staged_program> compile(const step_graph& graph, staged_options options = {}) {
    result<flat_graph> flat = graph.flat();
    if (!flat) return flat.fault();
    return make(graph.core(), flat.value(),
                detail::cuts_behind(flat.value(), {}, [](index_t) { return true; }), std::move(options));
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
    std::vector<index_t> cuts = detail::cuts_behind(flat.value(), before, [&](index_t stage) {
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
  /// @param where an executor with threads for tasks and for bulk work, or a context on one. The ops behind
  ///              the last cut run on the caller's thread and get it as step_call::on; those before a cut
  ///              get an inline_executor. Its stop token ends the run; its trace sink records every part
  /// @param done  called as done(step_state&) behind the last op of each step, in order, on the caller's
  ///              thread; returns nothing, a status or result<void>
  /// @post        no thread works on it. Step numbers go on in the next run, without a gap but for steps that
  ///              failed
  /// @numerics    the bits of step_program::run, for every capacity and number of producers
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
    switch (run_->parts()) {
      case 0:
        return run_line<0>(ctx, env, rest, std::move(stop));
      case 1:
        return run_line<1>(ctx, env, rest, std::move(stop));
      default:
        return run_line<detail::staged_run::most_cuts>(ctx, env, rest, std::move(stop));
    }
  }

  /// Whether an op runs before a cut. The source does where there is a cut.
  [[nodiscard]] bool is_staged(index_t op) const noexcept { return run_->cuts_behind(op) > 0; }
  /// The ops that a step runs before a cut, in order of their numbers.
  [[nodiscard]] std::vector<index_t> staged_ops() const {
    std::vector<index_t> ops;
    for (index_t v = 0; v < run_->size(); ++v) {
      if (!is_staged(v)) continue;
      if (run_->plan(run_->cuts_behind(v)).has_task(v) || v == source_) ops.push_back(v);
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
  staged_program(std::unique_ptr<detail::staged_run> run, index_t source)
      : run_(std::move(run)), source_(source) {}

  static result<staged_program> make(const detail::step_core& g, const flat_graph& flat,
                                     std::vector<index_t> cuts, staged_options options) {
    if (options.capacity < 1 || options.producers < 1)
      return status(errc::invalid_value, "staged_program: capacity and producers must be at least 1");
    if (auto stale = detail::find_stale_read(g)) return *std::move(stale);
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
    for (index_t v = 0; v < g.size() && parts > 0 && options.producers > 1; ++v) {
      if (cuts[static_cast<std::size_t>(v)] < parts || g.op(v).node == nullptr || v == source) continue;
      if (has_effect(flat.effects(v), op_effects::writes | op_effects::external)) {
        return detail::refuse_step(
            g, v, "with several producers an op before the first cut must not write or be external", {},
            errc::unsupported);
      }
    }
    auto layout = std::make_shared<const detail::step_layout>(g);
    auto run = std::make_unique<detail::staged_run>(std::move(cuts), std::move(layout), std::move(options));
    if (result<void> made = run->make(g, flat); !made) return made.fault();
    return staged_program(std::move(run), source);
  }

  template <index_t Cuts, class C>
  result<void> run_line(const C& ctx, const environment& env, const detail::staged_rest& rest,
                        std::stop_token stop) {
    const detail::staged_source first{run_.get(), env};
    if constexpr (Cuts == 0) {
      return run_pipeline(ctx, source("source", first) | sink("rest", rest), std::move(stop));
    } else {
      const auto part = [&](index_t n) { return detail::staged_part{run_.get(), env, n}; };
      const auto behind = [&](auto line) {
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
          return run_pipeline(ctx, behind(source("source", first) | stage("staged", part(Cuts))),
                              std::move(stop));
        }
      }
      return run_pipeline(ctx,
                          behind(source("source", first) | stage("staged", part(Cuts)).parallel(producers)),
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
    run_->begin();
    result<void> ran = run.run(std::move(stop));
    end.whole = ran.ok();
    return ran;
  }

  std::unique_ptr<detail::staged_run> run_;
  index_t source_;
};

}}  // namespace deeprec::DEEPREC_ABI
