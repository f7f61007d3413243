// Independent work on several CUDA streams, and a training step as a CUDA graph.
//
//   cuda_stream_pool pool(4);
//   plan_streams(work, pool.streams(), plan).or_throw();
//   pool.run(plan, [&](index_t op, cuda_stream& on) { return towers[op](on); }).or_throw();
//   pool.replay(plan, launch).or_throw();          captured once, then one launch for each step
//   pool.synchronize().or_throw();
//
//   pool.fork(); ...; pool.join();                                          by hand
//
// The scratch and the fault record of a verb belong to the stream on which it was enqueued, in a graph to the
// stream on which it was captured. Therefore plans of one pool are serialised, whichever streams they start
// on. The assignment of ops to streams: stream_plan.hpp.
//
// Not here: sharing a device between processes, which is what NVIDIA's MPS is for (docs/cuda.md).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/plan/detail/plan_timers.hpp>
#include <deeprec/plan/stream_plan.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/plan/trace_recorder.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// n streams of the device that is current at construction; every call makes that device current. Plans start
/// and end on stream 0.
///
/// @threads one thread at a time
/// @error   the constructor throws deeprec::error (device_error) without a usable device
class cuda_stream_pool {
  using scope = detail::device_scope;
  using graph_key = std::pair<std::uint64_t, std::uint64_t>;  // topology, version
  using timing = detail::plan_timers::timing;

 public:
  explicit cuda_stream_pool(int streams, stream_priority priority = stream_priority::normal) {
    for (int i = 0; i < streams; ++i) add_stream(priority);
  }
  cuda_stream_pool(const cuda_stream_pool&) = delete;
  cuda_stream_pool& operator=(const cuda_stream_pool&) = delete;
  ~cuda_stream_pool() {
    const scope here(device_);
    for (const auto& stream : streams_) static_cast<void>(cuda_runtime::synchronize(stream->get()));
    for (auto& [key, exec] : graphs_) cuda_runtime::end_exec(exec);
    events_.clear();
    timers_.clear();
  }

  /// Adds a stream with the given priority; returns its number. Waits until the stream is ready.
  int add_stream(stream_priority priority) {
    const scope here(device_);
    streams_.push_back(std::make_unique<cuda_stream>(priority));
    // The stream's initialisation must also precede graphs that run on another stream.
    static_cast<void>(cuda_runtime::synchronize(raw(streams() - 1)));
    return streams() - 1;
  }
  [[nodiscard]] int streams() const noexcept { return static_cast<int>(streams_.size()); }
  [[nodiscard]] cuda_stream& stream(int i) noexcept { return *streams_[static_cast<std::size_t>(i)]; }
  /// The number of graphs that replay() keeps.
  [[nodiscard]] index_t graphs() const noexcept { return static_cast<index_t>(graphs_.size()); }

  /// Work enqueued on the streams from now on runs after the work enqueued on stream `from` so far, and after
  /// the last plan.
  ///
  /// @cost    one event, and a wait for each other stream
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status fork(int from = 0) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = take_turn(from); !s) return s;
    if (const status s = events_.grow(1); !s) return s;
    if (const status s = cuda_runtime::record(events_[0], raw(from)); !s) return s;
    for (int i = 0; i < streams(); ++i) {
      if (i == from) continue;
      if (const status s = cuda_runtime::wait(raw(i), events_[0]); !s) return s;
    }
    return {};
  }

  /// Work enqueued on stream `to` from now on runs after the work enqueued on all streams so far.
  ///
  /// @cost    an event and a wait for each other stream
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status join(int to = 0) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = events_.grow(streams_.size()); !s) return s;
    for (int i = 0; i < streams(); ++i) {
      if (i == to) continue;
      const cudaEvent_t e = events_[static_cast<std::size_t>(i)];
      if (const status s = cuda_runtime::record(e, raw(i)); !s) return s;
      if (const status s = cuda_runtime::wait(raw(to), e); !s) return s;
    }
    turn_ = to;
    return {};
  }

  /// Enqueues a plan: launch(op, stream) enqueues one op on a stream and returns a status.
  ///
  /// @pre     the plan was made for no more streams than the pool has
  /// @post    the plan runs after the earlier work of stream 0 and after the last plan, and before later work
  ///          of stream 0; also when a launch failed and the remaining ones were skipped
  /// @cost    the launches, one event for each op that is awaited, one wait for each wait of the plan
  /// @threads one at a time
  /// @error   the first error that a launch returns; invalid_value; device_error. An exception of launch
  ///          is rethrown once the streams are joined
  template <class Launch>
  [[nodiscard]] status run(const stream_plan& plan, Launch&& launch) {
    return run_from_0(plan, launch, timing::none);
  }

  /// The same, with the time of each stream measured for times().
  template <class Launch>
  [[nodiscard]] status run_timed(const stream_plan& plan, Launch&& launch) {
    return run_from_0(plan, launch, timing::streams);
  }

  /// Milliseconds from the start of the last run_timed to the end of each stream's last op; 0 for a stream
  /// that ran none.
  ///
  /// @cost    waits for that run
  /// @threads one at a time
  /// @error   device_error; invalid_value when there was no such run
  [[nodiscard]] status times(std::vector<float>& out) {
    if (timers_.streams() == 0)
      return {errc::invalid_value, "cuda_stream_pool::times: a plan must run with a timer first"};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    std::vector<float> made(timers_.streams());
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!timers_.was_used(i)) continue;
      if (const status s = cuda_runtime::synchronize(raw(static_cast<int>(i))); !s) return s;
      if (const status s = timers_.read_stream(i, made[i]); !s) return s;
    }
    out = std::move(made);
    return {};
  }

  /// As run_timed, with the time of each op measured for add_spans().
  ///
  /// @cost    as run_timed, and two events for each op
  /// @threads one at a time
  /// @error   as run
  template <class Launch>
  [[nodiscard]] status run_traced(const stream_plan& plan, const trace_recorder& trace, Launch&& launch) {
    traced_from_ = trace.now();
    return run_from_0(plan, launch, timing::ops);
  }

  /// Adds the spans of the ops of the last run_traced to a trace: when they ran on the device, each on the
  /// line of its stream. The plan begins when it was enqueued: earlier work of stream 0 is not seen.
  ///
  /// @param names the plan that the stream plan was made from
  /// @pre     `trace` is that of run_traced, and outlives no names
  /// @cost    waits for that run
  /// @threads one at a time
  /// @error   device_error; shape_mismatch: the run had an op that `names` does not have; then nothing is
  ///          added. Throws std::bad_alloc
  [[nodiscard]] status add_spans(trace_recorder& trace, const task_plan& names) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    const auto& traced = timers_.ops();
    struct span {
      float begin = 0, end = 0;
    };
    std::vector<span> spans(traced.size());
    for (std::size_t i = 0; i < traced.size(); ++i) {
      if (traced[i].op >= names.size())
        return {errc::shape_mismatch,
                "cuda_stream_pool::add_spans: the plan must have the ops of the run",
                {.item = traced[i].op, .at_most = names.size() - 1}};
      if (const status s = timers_.read_op(i, spans[i].begin, spans[i].end); !s) return s;
    }
    for (std::size_t i = 0; i < traced.size(); ++i) {
      const auto at = [&](float ms) {
        return traced_from_ + static_cast<std::int64_t>(1e6 * static_cast<double>(ms));
      };
      const index_t op = traced[i].op;
      trace.add({names.name(op), op, names.bytes(op), traced[i].stream}, at(spans[i].begin),
                (std::max)(at(spans[i].begin), at(spans[i].end)));
    }
    return {};
  }

  /// As run, through a graph: captured at the first call with this (topology, version), and launched on
  /// stream `on` at every call. A graph keeps the pointers and sizes of its capture: change `version` when
  /// they change.
  ///
  /// @pre     the scratch of the ops is allocated: run the plan once before. Work enqueued by hand on other
  ///          streams of the plan is joined to `on` before the call, and forked from it after the call: a
  ///          graph uses their scratch
  /// @post    as run, for stream `on`. Faults are in the records of the plan's streams: the pool's
  ///          synchronize() reads them all, that of stream `on` does not
  /// @cost    one launch of a graph, and an event where `on` is not the stream that the last plan ended on;
  ///          the first time a capture and an instantiation (milliseconds)
  /// @threads one at a time
  /// @error   as run; a failed capture leaves no graph
  template <class Launch>
  [[nodiscard]] status replay(const stream_plan& plan, Launch&& launch, std::uint64_t version = 0,
                              int on = 0) {
    if (on < 0 || on >= streams())
      return {errc::invalid_value,
              "cuda_stream_pool: the number of the stream must be below size()",
              {.value = on}};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    const graph_key key(plan.topology, version);
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      std::map<graph_key, cudaGraphExec_t> made;  // its node is made before the graph
      const auto enqueued = [&] { return enqueue(plan, launch, timing::none); };
      if (const status s = cuda_runtime::capture(made[key], raw(0), enqueued); !s) return s;
      graphs_.merge(made);
      found = graphs_.find(key);
    }
    if (const status s = take_turn(on); !s) return s;
    return cuda_runtime::launch(found->second, raw(on));
  }

  /// Destroys the graphs that replay() keeps.
  ///
  /// @cost    waits for the streams
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status forget_graphs() {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    for (const auto& stream : streams_) {
      if (const status s = cuda_runtime::synchronize(stream->get()); !s) return s;
    }
    for (auto& [key, exec] : graphs_) cuda_runtime::end_exec(exec);
    graphs_.clear();
    return {};
  }

  /// Waits for all streams, then reads the fault records of all: a graph writes those of the streams on which
  /// it was captured, whichever stream it runs on.
  ///
  /// @cost    blocks
  /// @threads one at a time
  /// @error   the fault of the first stream that has one
  [[nodiscard]] status synchronize() {
    const scope here(device_);
    status first = here.made();
    const auto note = [&](const status& s) {
      if (first.ok()) first = s;
    };
    for (const auto& stream : streams_) note(cuda_runtime::synchronize(stream->get()));
    if (first.ok()) turn_ = 0;
    for (const auto& stream : streams_) note(stream->synchronize());
    return first;
  }

 private:
  [[nodiscard]] cudaStream_t raw(int i) const { return streams_[static_cast<std::size_t>(i)]->get(); }

  // The last plan ended on stream turn_. Orders later work of stream `on` after it; an event is recorded only
  // here, when the stream changes.
  status take_turn(int on) {
    if (on == turn_) return {};
    if (const status s = events_.grow(1); !s) return s;
    if (const status s = cuda_runtime::record(events_[0], raw(turn_)); !s) return s;
    if (const status s = cuda_runtime::wait(raw(on), events_[0]); !s) return s;
    turn_ = on;
    return {};
  }

  template <class Launch>
  status run_from_0(const stream_plan& plan, Launch&& launch, timing timed) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = take_turn(0); !s) return s;
    return enqueue(plan, launch, timed);
  }

  // After the first failure nothing more is launched, but the streams are joined as far as possible. That
  // failure is returned: later ones (in a capture, every call fails) follow from it.
  template <class Launch>
  status enqueue(const stream_plan& plan, Launch&& launch, timing timed) {
    if (plan.streams > streams()) {
      return {errc::invalid_value,
              "cuda_stream_pool: the plan must have no more streams than the pool",
              {.value = plan.streams}};
    }
    if (const status s = events_.grow(plan.steps.size() + 1); !s) return s;
    status first;
    const auto note = [&](const status& s) {
      if (first.ok()) first = s;
    };
    if (timed != timing::none) {
      const std::size_t ops = timed == timing::ops ? plan.steps.size() : 0;
      if (const status s = timers_.prepare(streams_.size(), ops); !s) return s;
      note(timers_.begin(raw(0)));
    }
    // Event 0 marks the start, event op + 1 the end of an op.
    const auto of = [&](index_t op) { return events_[static_cast<std::size_t>(op) + 1]; };
    if (!plan.forks.empty()) note(cuda_runtime::record(events_[0], raw(0)));
    for (const int i : plan.forks) note(cuda_runtime::wait(raw(i), events_[0]));
#if DEEPREC_EXCEPTIONS
    std::exception_ptr thrown;
    const auto start = [&](const stream_plan::step& step) -> status {
      try {
        return launch(step.op, stream(step.stream));
      } catch (...) {
        thrown = std::current_exception();
        return {errc::cancelled, "cuda_stream_pool: launches must not throw (one did)"};
      }
    };
#else
    const auto start = [&](const stream_plan::step& step) -> status {
      return launch(step.op, stream(step.stream));
    };
#endif
    for (const stream_plan::step& step : plan.steps) {
      const auto on = raw(step.stream);
      for (const index_t u : step.waits) note(cuda_runtime::wait(on, of(u)));
      if (timed == timing::ops) note(timers_.begin_op(on));
      if (first.ok()) first = start(step);
      if (timed == timing::ops) note(timers_.end_op(step.op, step.stream, on));
      if (step.recorded) note(cuda_runtime::record(of(step.op), on));
    }
    if (timed != timing::none) {
      for (const stream_plan::step& step : plan.steps) timers_.use(static_cast<std::size_t>(step.stream));
      for (std::size_t i = 0; i < timers_.streams(); ++i) {
        if (timers_.was_used(i)) note(timers_.end_stream(i, raw(static_cast<int>(i))));
      }
    }
    for (const index_t u : plan.joins) note(cuda_runtime::wait(raw(0), of(u)));
#if DEEPREC_EXCEPTIONS
    if (thrown) std::rethrow_exception(thrown);
#endif
    return first;
  }

  int device_ = detail::current_device();
  int turn_ = 0;  // the stream that the last plan ended on
  std::vector<std::unique_ptr<cuda_stream>> streams_;
  // An event may be recorded again once its waits are enqueued: they keep the record that they saw.
  detail::cuda_event_list events_{false};
  detail::plan_timers timers_;
  std::int64_t traced_from_ = 0;
  std::map<graph_key, cudaGraphExec_t> graphs_;
};

/// An event, destroyed at the end of its scope.
///
/// @threads one thread at a time
/// @error   the constructor throws deeprec::error (device_error)
class cuda_event {
 public:
  explicit cuda_event(bool timed = false) { cuda_runtime::make_event(event_, timed).or_throw(); }
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  ~cuda_event() { cuda_runtime::end_event(event_); }

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }
  /// Records the event after the work enqueued on the stream so far.
  [[nodiscard]] status record(const cuda_stream& on) noexcept {
    return cuda_runtime::record(event_, on.get());
  }
  /// Makes work enqueued on the stream from now on wait for the event.
  [[nodiscard]] status wait(const cuda_stream& on) const noexcept {
    return cuda_runtime::wait(on.get(), event_);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}}  // namespace deeprec::DEEPREC_ABI
