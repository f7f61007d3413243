// The steps of a staged_program in flight, and what each segment of its pipeline does with them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/scheduled_run.hpp>
#include <deeprec/graph/step/detail/staged_window.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/staged_options.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/pipeline/statistics.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/queue/staging_pool.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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

  /// @param window null: nothing is read stale
  staged_run(std::vector<index_t> cuts, std::shared_ptr<const step_layout> layout, staged_options options,
             std::unique_ptr<staged_window> window)
      : cuts_(std::move(cuts)),
        layout_(std::move(layout)),
        options_(std::move(options)),
        window_(std::move(window)) {
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
                                      [&](index_t v) { return v != source && cuts_after(v) == part; });
          !made)
        return made;
    }
    // The ops behind the last cut run for one step at a time: their values are there once, or those of all
    // steps in flight would pass through the cache in turn. The other values of home_ are never used.
    shared_.slots.assign(layout_->slots().size(), false);
    for (index_t v = 0; v < g.size(); ++v) {
      if (v == source || cuts_after(v) > 0 || g.op(v).kind == op_kind::stage) continue;
      for (std::size_t p = 0; p < g.op(v).outputs.size(); ++p) {
        shared_.slots[static_cast<std::size_t>(layout_->slot_of(v, static_cast<index_t>(p)))] = true;
      }
    }
    home_.emplace(layout_, options_.memory);
    shared_.home = &*home_;
    if (options_.samples.make != nullptr) {
      std::vector<bool> rest;
      for (index_t v = 0; v < g.size(); ++v) rest.push_back(v != source && cuts_after(v) == 0);
      auto cutter = options_.samples.make(g, flat, layout_, rest, task_order::as_added, options_.samples);
      if (!cutter) return cutter.fault();
      if (cutter.value() != nullptr) rest_ = cutter.value()->make_runner(options_.memory);
    }
    if (rest_ != nullptr && options_.schedule != op_schedule::in_turn) {
      return status(errc::unsupported,
                    "staged_program::compile: a step that is cut by samples must run its ops in turn");
    }
    if (rest_ == nullptr) rest_ = make_scheduled_run(options_.schedule, plan(0), options_.memory);
    states_.emplace(states_in_flight(),
                    [&] { return staged_step{state_access::make(layout_, options_.memory, &shared_)}; });
    kept_.reserve(states_->size());
    waiting_.reserve(states_->size());
    return {};
  }

  [[nodiscard]] index_t parts() const noexcept { return parts_; }
  [[nodiscard]] index_t cuts_after(index_t op) const noexcept { return cuts_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(cuts_.size()); }
  [[nodiscard]] const task_plan& plan(index_t part) const noexcept {
    return plans_[static_cast<std::size_t>(part)];
  }
  [[nodiscard]] const staged_options& options() const noexcept { return options_; }
  [[nodiscard]] staged_window* window() const noexcept { return window_.get(); }
  /// Where the values of the rest lie.
  [[nodiscard]] step_storage& home() noexcept { return *home_; }
  [[nodiscard]] bool runs_in_turn() const noexcept { return rest_ == nullptr; }

  // --- one run after another: by the caller's thread, while no other works on it --------------------------

  void begin() {
    for (lease& step : kept_) waiting_.push_back(std::move(step));
    kept_.clear();
    std::sort(waiting_.begin(), waiting_.end(),
              [](const lease& a, const lease& b) { return a->number() > b->number(); });
    if (window_ == nullptr) return;
    window_->begin(waiting_.empty() ? next_ : waiting_.back()->number());
    for (const lease& step : waiting_) {
      if (step->part < window_->part()) window_->has_read(step->number());
    }
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
    if (source_over_) {
      if (window_ != nullptr) window_->end_at(next_);
      return std::optional<item>();
    }
    lease step = states_->try_acquire();
    if (!step) {
      if (window_ != nullptr) window_->cancel();
      return status(errc::would_block, "staged_program: a state of a step must be free");
    }
    step->part = parts_ + 1;
    step->state.set_step(next_);
    const bool more = attempt(*step, [&] { return run_part(env, source_, step->state); });
    source_over_ = !more || !step->is_good();
    if (source_over_ && window_ != nullptr) window_->end_at(next_);
    if (!more) return std::optional<item>();
    if (step->is_good()) {
      step->part = parts_;
      ++next_;
    }
    return std::optional<item>(std::in_place, this, std::move(step));
  }
  /// Runs a part of a step, unless it was run by a run before, or a part before it failed.
  void stage(const environment& env, index_t part, staged_step& step) const {
    // Of a failed step too: the next updates wait for its lookup. That of the source's failure is none.
    if (window_ != nullptr && part == window_->part() && step.part >= part && step.part <= parts_) {
      const stale_window<>::reading lookup = window_->read(step.number());
      if (lookup) run_part_of(env, part, step);
      return;  // else the run ends
    }
    run_part_of(env, part, step);
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
  void run_part_of(const environment& env, index_t part, staged_step& step) const {
    if (step.part != part || !step.is_good()) return;
    attempt(step, [&] { return run_part(env, plan(part), step.state); });
    if (step.is_good()) step.part = part - 1;
  }
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
  std::unique_ptr<staged_window> window_;
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
    staged_window* const window = run->window();
    if (window == nullptr) return run_step(item);
    if (!window->begin_step()) return status(errc::stopped, {.operation = "staged_program::run"});
    // Nobody waits for an update that never comes.
    struct unless_done {
      staged_window* window;
      bool is_done = false;
      ~unless_done() {
        if (!is_done) window->cancel();
        window->end_step();
      }
    } end{window};
    result<void> ran = run_step(item);
    end.is_done = ran.ok();
    return ran;
  }

 private:
  result<void> run_step(staged_run::item& item) const {
    if ((*item).is_good() && run->options().feed) run->options().feed((*item).state);
    const staged_run::lease step = item.release();  // whatever happens now: it is not run again
    if (!step->is_good()) return run->report(*step);
    const result<bool> ran = run->run_rest(on, step->state);
    if (!ran) return ran.fault();
    return call_done(done, step->state);
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
