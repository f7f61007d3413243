// Runs a line of stages: threads, back-pressure, one end, and statistics.
//
//   auto line = source("read", read) | stage("parse", parse).own_thread() | sink("train", f).own_thread();
//   pipeline p(pool, std::move(line), {.capacity = 2});
//   p.run().or_throw();                     // one epoch; an exception of "parse" arrives as pipeline_error
//   p.run().or_throw();                     // the next one: the source decides what it yields
//   std::puts(p.statistics().text().c_str());
//
//   pool:  [read] ──> [parse] ──> caller: [train]      one thread for each segment, one edge between two
//
// The first failure in the order of items ends a run; items before it are delivered. When run() returns, no
// thread works on it and no item of it exists. Not here: what stages are (stages.hpp); several lines at once.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/pipeline/depth_controller.hpp>
#include <deeprec/pipeline/detail/run.hpp>
#include <deeprec/pipeline/pipeline_options.hpp>
#include <deeprec/pipeline/stages.hpp>
#include <deeprec/pipeline/statistics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

#if DEEPREC_EXCEPTIONS
/// The exception of a stage, as run() throws it; the stage's own is nested in it (std::rethrow_if_nested).
class pipeline_error : public error, public std::nested_exception {
 public:
  /// Nests the exception that is being handled.
  pipeline_error(const char* stage, std::uint64_t item, errc code, const char* said)
      : error(code, std::string("pipeline::run: ") + stage + " threw at item " + std::to_string(item) + ": " +
                        said),
        stage_(stage),
        item_(item) {}
  /// The name of the stage.
  [[nodiscard]] const char* stage() const noexcept { return stage_; }
  /// The item's number among those that entered the stage's segment, from 0.
  [[nodiscard]] std::uint64_t item() const noexcept { return item_; }

 private:
  const char* stage_;
  std::uint64_t item_;
};
#endif

namespace detail {

/// The executor and the environment of a pipeline, from a context or a plain executor.
template <class C>
struct pipeline_place {
  using executor_type = C;
  static C* executor_of(C& where) noexcept { return &where; }
  static environment environment_of(const C&) noexcept { return {}; }
};
template <class E>
struct pipeline_place<context<E>> {
  using executor_type = E;
  static E* executor_of(const context<E>& where) noexcept { return where.executor; }
  static environment environment_of(const context<E>& where) noexcept { return where; }
};

/// A segment as a task. Called in post() it would wait for tasks that are not posted yet.
template <class Run, std::size_t Segment>
struct segment_task {
  Run* run;
  std::thread::id caller = std::this_thread::get_id();

  status operator()() const noexcept {
    if (std::this_thread::get_id() == caller) {
      return {errc::unsupported,
              "pipeline::run: the executor must have threads for tasks (called one in post)"};
    }
    run->template work<Segment>();
    return {};
  }
};

}  // namespace detail

/// @param Wait how a segment waits for another (wait_strategies.hpp)
/// @pre     executors, what the callables refer to and a context's resource, token and sink outlive it; an
///          executor runs every task that it accepts
/// @threads one thread at a time
/// @error   invalid_value: a capacity, or an n of parallel(n), of 0, thrown as deeprec::error
template <class Line, class E, class Wait = patient_wait>
class pipeline {
  static_assert(detail::is_line<Line>,
                "deeprec::pipeline: not a line. Fix: compose one with source(name, f) | stage(name, f) | "
                "sink(name, f)");
  static_assert(TaskExecutor<E>,
                "deeprec::pipeline: the executor runs no tasks. Fix: give it post(task, stop_token) and "
                "post(task, stop_token, handle) (see deeprec/core/executor.hpp), or pass a "
                "deeprec::thread_pool");
  using traits = detail::line_traits<Line>;
  static_assert(traits::is_complete(),
                "deeprec::pipeline: the line has no sink, so nothing would draw from its source. Fix: end it "
                "with | sink(name, f)");
  using run_type = detail::pipeline_run<Line, Wait>;
  static constexpr std::size_t segments = traits::segments();

 public:
  /// @param where an executor for tasks, or a context on one: edges are allocated from its resource, its
  ///              token stops every run, and its trace sink receives the begin and the end of each call
  template <class C>
  pipeline(C&& where, Line line, pipeline_options options = {})
      : executor_(place<C>::executor_of(where)),
        environment_(place<C>::environment_of(where)),
        line_(std::move(line)),
        options_(std::move(options)) {
    if (options_.capacity < 1)
      detail::raise(errc::invalid_value, "pipeline: capacity must be at least 1 (was 0)");
    std::apply([](const auto&... node) { (check_threads(node.thread_count), ...); }, line_.nodes);
    statistics_.stages.resize(traits::count);
    decisions_.reserve(options_.max_capacity > options_.capacity ? (segments - 1) * depth_controller::recorded
                                                                 : 0);
  }

  /// Runs until the source ends, a stage fails or a stop is requested. The caller's thread is that of the
  /// last segment; each of the others is one task, each parallel one n tasks.
  ///
  /// A request to stop ends every segment after its current item; items on the way are dropped.
  ///
  /// @post    no task of this run exists, nor an item of it
  /// @cost    an allocation for each task and edge; then none for an item. About 10 ns for an item and a
  ///          segment, some ns for a stage; a wait polls up to 200 us before it sleeps (patient_wait)
  /// @threads one thread at a time; not from a stage
  /// @error   the fault of the first bad item at which the policy stops: its place().operation is the stage,
  ///          its place().item the item's number where it had none; stopped; what a refused post() returned
  ///          (would_block: fewer threads than segments), before the source was called. Throws pipeline_error
  ///          for an exception of a callable; throws what the resource and post() throw
  [[nodiscard]] result<void> run(std::stop_token stop = {}) {
    run_type now(line_, options_, environment_.memory, environment_.trace);
    const on_stop stop_run{&now};
    const std::stop_callback<on_stop> by_caller(std::move(stop), stop_run);
    const std::stop_callback<on_stop> by_context(
        environment_.stop != nullptr ? *environment_.stop : std::stop_token(), stop_run);
    const auto begun = std::chrono::steady_clock::now();
    status first_error = work(now);
    statistics_.elapsed = std::chrono::steady_clock::now() - begun;
    now.statistics(statistics_.stages);
    decisions_.clear();
    now.append_decisions(decisions_);
    if (now.failure()) return failed(*now.failure());
    if (!first_error) return first_error;
    if (!now.finished()) return status(errc::stopped, {.operation = "pipeline::run"});
    return {};
  }

  /// Of the last run.
  [[nodiscard]] const pipeline_statistics& statistics() const noexcept { return statistics_; }
  /// The changes of depths in the last run, edge by edge: of each the last depth_controller::recorded.
  [[nodiscard]] const std::vector<depth_decision>& depth_decisions() const noexcept { return decisions_; }
  [[nodiscard]] const Line& line() const noexcept { return line_; }

 private:
  template <class C>
  using place = detail::pipeline_place<std::remove_cvref_t<C>>;
  struct on_stop {
    run_type* run;
    void operator()() const noexcept { run->cancel(); }
  };
  // Ends the run where posting throws, before the handles wait for what was posted.
  struct unless_posted {
    run_type* run;
    ~unless_posted() {
      if (run != nullptr) run->cancel();
    }
  };

  static void check_threads(int n) {
    if (n < 1)
      detail::raise(errc::invalid_value,
                    "stage::parallel: n must be at least 1 (was " + std::to_string(n) + ")");
  }

  status work(run_type& now) {
    constexpr std::size_t last_node = traits::first_of(segments - 1);
    constexpr bool caller_works = std::is_void_v<typename traits::template node<last_node>::executor_type>;
    std::vector<task_handle> tasks;
    unless_posted guard{&now};
    // The source comes last: where a task is refused nothing was drawn.
    status refused = post_down_to<caller_works ? segments - 1 : segments, 0>(now, tasks);
    if (refused.ok()) guard.run = nullptr;
    if (guard.run != nullptr) now.cancel();
    if constexpr (caller_works) {
      if (refused.ok()) now.template work<segments - 1>();
    }
    for (task_handle& task : tasks) {
      const status outcome = task.join();
      if (refused.ok()) refused = outcome;
    }
    return refused;
  }
  // The segments [Lowest, End), from the last on.
  template <std::size_t End, std::size_t Lowest>
  status post_down_to(run_type& now, std::vector<task_handle>& tasks) {
    if constexpr (End == Lowest) {
      return {};
    } else {
      constexpr std::size_t segment = End - 1;
      const int n = now.template threads_of<segment>();
      tasks.reserve(tasks.size() + static_cast<std::size_t>(n));
      for (int i = 0; i < n; ++i) {
        task_handle& task = tasks.emplace_back();
        if (const status s = post<segment>(now, task); !s) return s;
        // It has ended already: without items, or because the executor dropped it or called it in post().
        if (task.done()) {
          if (const status s = task.join(); !s) return s;
        }
      }
      return post_down_to<segment, Lowest>(now, tasks);
    }
  }
  template <std::size_t Segment>
  status post(run_type& now, task_handle& task) {
    using node = typename traits::template node<traits::first_of(Segment)>;
    detail::segment_task<run_type, Segment> work{&now};
    if constexpr (std::is_void_v<typename node::executor_type>) {
      return executor_->post(std::move(work), std::stop_token(), task);
    } else {
      return std::get<traits::first_of(Segment)>(line_.nodes)
          .executor->post(std::move(work), std::stop_token(), task);
    }
  }

  static result<void> failed(detail::stage_failure& failure) {
#if DEEPREC_EXCEPTIONS
    if (failure.thrown) {
      try {
        std::rethrow_exception(failure.thrown);
      } catch (const error& e) {
        throw pipeline_error(failure.stage, failure.item, e.code(), e.what());
      } catch (const std::bad_alloc& e) {
        throw pipeline_error(failure.stage, failure.item, errc::out_of_memory, e.what());
      } catch (const std::exception& e) {
        throw pipeline_error(failure.stage, failure.item, errc::producer_failed, e.what());
      } catch (...) {
        throw pipeline_error(failure.stage, failure.item, errc::producer_failed, "no std::exception");
      }
    }
#endif
    const fault& why = *failure.why;
    fault_place where = why.place();
    std::string reason(why.reason());
    if (where.operation != nullptr && !reason.starts_with(where.operation))
      reason = std::string(where.operation) + (reason.empty() ? "" : ": ") + reason;
    where.operation = failure.stage;
    if (where.item < 0) where.item = static_cast<index_t>(failure.item);
    return fault(status(why.code(), why.detail(), where), why.file(), std::move(reason));
  }

  E* executor_;
  environment environment_;
  Line line_;
  const pipeline_options options_;
  pipeline_statistics statistics_;
  std::vector<depth_decision> decisions_;
};

template <class C, class... Nodes>
pipeline(C&&, pipeline_line<Nodes...>, pipeline_options = {})
    -> pipeline<pipeline_line<Nodes...>,
                typename detail::pipeline_place<std::remove_cvref_t<C>>::executor_type>;

}}  // namespace deeprec::DEEPREC_ABI
