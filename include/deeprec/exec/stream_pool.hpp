// Streams and events that end with their pool, and plans that run on them.
//
//   pool.run(plan, launch)       fork ─> op, record, wait ... ─> join       launch(op, stream) enqueues one
//   pool.replay(plan, launch)    the same, captured once into a graph and launched from then on
//   pool.fork(); ...; pool.join();                                          by hand
//
// What a verb needs for itself (scratch, the record of a fault) belongs to the stream that it was given, in
// a graph to the one that it was captured on. So plans of one pool never overlap: each comes behind the one
// before, whichever streams begin them.
//
// A template over the run time (memory/cuda_runtime.hpp) and the stream that verbs take: see
// cuda_stream_pool.hpp. Which op runs where: stream_plan.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/stream_plan.hpp>
#include <deeprec/memory/device_scope.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How the device chooses between streams that are ready.
enum class stream_priority : unsigned char { normal, high };

/// n streams of the device that is current when the pool is made; it is current again in every call of the
/// pool. Stream 0 is the one that plans begin and end on.
///
/// Runtime: as cuda_runtime. Stream: made of a stream_priority; get() is the run time's stream,
/// synchronize() answers with a status.
/// @threads one thread at a time
template <class Runtime, class Stream>
class basic_stream_pool {
  using event = typename Runtime::event;
  using scope = detail::device_scope<Runtime>;
  using graph_key = std::pair<std::uint64_t, std::uint64_t>;  // topology, version

 public:
  using stream_type = Stream;

  explicit basic_stream_pool(int streams, stream_priority priority = stream_priority::normal) {
    for (int i = 0; i < streams; ++i) add_stream(priority);
  }
  basic_stream_pool(const basic_stream_pool&) = delete;
  basic_stream_pool& operator=(const basic_stream_pool&) = delete;
  ~basic_stream_pool() {
    const scope here(device_);
    for (const auto& stream : streams_) static_cast<void>(Runtime::synchronize(stream->get()));
    for (auto& [key, exec] : graphs_) Runtime::end_exec(exec);
    for (const event e : events_) Runtime::end_event(e);
    for (const event e : timers_) Runtime::end_event(e);
  }

  /// One more stream, with a priority of its own; returns its number. Waits until it is ready.
  int add_stream(stream_priority priority) {
    const scope here(device_);
    streams_.push_back(std::make_unique<Stream>(priority));
    // A graph that runs on another stream comes behind what this one was made with, too.
    static_cast<void>(Runtime::synchronize(raw(streams() - 1)));
    return streams() - 1;
  }
  [[nodiscard]] int streams() const noexcept { return static_cast<int>(streams_.size()); }
  [[nodiscard]] Stream& stream(int i) noexcept { return *streams_[static_cast<std::size_t>(i)]; }
  /// Graphs that replay() keeps.
  [[nodiscard]] index_t graphs() const noexcept { return static_cast<index_t>(graphs_.size()); }

  /// What the streams are given from now on comes behind what stream `from` was given until now, and behind
  /// the last plan.
  ///
  /// @cost    one event, and a wait for each other stream
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status fork(int from = 0) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = take_turn(from); !s) return s;
    if (const status s = prepare(1); !s) return s;
    if (const status s = Runtime::record(events_[0], raw(from)); !s) return s;
    for (int i = 0; i < streams(); ++i) {
      if (i == from) continue;
      if (const status s = Runtime::wait(raw(i), events_[0]); !s) return s;
    }
    return {};
  }

  /// What stream `to` is given from now on comes behind what all of them were given until now.
  ///
  /// @cost    an event and a wait for each other stream
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status join(int to = 0) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = prepare(streams_.size()); !s) return s;
    for (int i = 0; i < streams(); ++i) {
      if (i == to) continue;
      const event e = events_[static_cast<std::size_t>(i)];
      if (const status s = Runtime::record(e, raw(i)); !s) return s;
      if (const status s = Runtime::wait(raw(to), e); !s) return s;
    }
    turn_ = to;
    return {};
  }

  /// Enqueues a plan: launch(op, stream) enqueues one op on a stream and answers with a status.
  ///
  /// @pre     the plan was made for no more streams than the pool has
  /// @post    the plan comes behind what stream 0 was given before and behind the last plan, and what stream 0
  ///          is given next behind it; also when a launch has failed, and the rest was left out
  /// @cost    the launches, one event for each op that is awaited, one wait for each wait of the plan
  /// @threads one at a time
  /// @error   the first error that a launch returns; invalid_value; device_error. What a launch throws is thrown on,
  ///          once the streams are joined
  template <class Launch>
  [[nodiscard]] status run(const stream_plan& plan, Launch&& launch) {
    return run_from_0(plan, launch, false);
  }

  /// The same, for a run of which times() shall know how long each stream took.
  template <class Launch>
  [[nodiscard]] status run_timed(const stream_plan& plan, Launch&& launch) {
    return run_from_0(plan, launch, true);
  }

  /// Milliseconds from the begin of the last run_timed to the end of each stream's last op; 0 for a stream
  /// that ran none.
  ///
  /// @cost    waits for that run
  /// @threads one at a time
  /// @error   device_error; invalid_value when there was no such run
  [[nodiscard]] status times(std::vector<float>& out) {
    if (timed_.empty()) return {errc::invalid_value, "stream_pool::times: a plan must run with a timer first"};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    std::vector<float> made(timed_.size());
    for (std::size_t i = 0; i < timed_.size(); ++i) {
      if (!timed_[i]) continue;
      if (const status s = Runtime::synchronize(raw(static_cast<int>(i))); !s) return s;
      if (const status s = Runtime::milliseconds(made[i], timers_[0], timers_[i + 1]); !s) return s;
    }
    out = std::move(made);
    return {};
  }

  /// As run, through a graph: captured the first time that this (topology, version) is asked for, and
  /// launched on stream `on` every time. A graph keeps the pointers and sizes of its capture: whoever
  /// changes them changes `version`.
  ///
  /// @pre     what the ops need of scratch is there already: run the plan once before. What other streams of
  ///          the plan were given by hand is joined to `on`, and what they are given next forked from it: a
  ///          graph uses their scratch
  /// @post    as run, for stream `on`. Faults are in the records of the plan's streams: synchronize() of the
  ///          pool reads them all, that of stream `on` does not
  /// @cost    one launch of a graph, and an event where `on` is not where the last plan ended; the first
  ///          time a capture and an instantiation (milliseconds)
  /// @threads one at a time
  /// @error   as run; a capture that failed leaves no graph behind
  template <class Launch>
  [[nodiscard]] status replay(const stream_plan& plan, Launch&& launch, std::uint64_t version = 0,
                              int on = 0) {
    if (on < 0 || on >= streams())
      return {errc::invalid_value, "stream_pool: the number of the stream must be below size()", {.value = on}};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    const graph_key key(plan.topology, version);
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      std::map<graph_key, typename Runtime::graph_exec> made;  // its node is made before the graph
      if (const status s = capture(plan, launch, made[key]); !s) return s;
      graphs_.merge(made);
      found = graphs_.find(key);
    }
    if (const status s = take_turn(on); !s) return s;
    return Runtime::launch(found->second, raw(on));
  }

  /// Ends the graphs that replay() keeps.
  ///
  /// @cost    waits for the streams
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status forget_graphs() {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    for (const auto& stream : streams_) {
      if (const status s = Runtime::synchronize(stream->get()); !s) return s;
    }
    for (auto& [key, exec] : graphs_) Runtime::end_exec(exec);
    graphs_.clear();
    return {};
  }

  /// Waits for all streams, then reads the records of all: a graph writes those of the streams that it was
  /// captured on, whichever it runs on.
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
    for (const auto& stream : streams_) note(Runtime::synchronize(stream->get()));
    if (first.ok()) turn_ = 0;
    for (const auto& stream : streams_) note(stream->synchronize());
    return first;
  }

 private:
  [[nodiscard]] auto raw(int i) const { return streams_[static_cast<std::size_t>(i)]->get(); }

  // An event may be recorded anew once its waits are enqueued: they keep the record that they saw.
  status prepare(std::size_t events) {
    events_.reserve(events);  // throws before there is something to lose
    while (events_.size() < events) {
      event made{};
      if (const status s = Runtime::make_event(made, false); !s) return s;
      events_.push_back(made);
    }
    return {};
  }
  status prepare_timers() {
    timers_.reserve(streams_.size() + 1);
    while (timers_.size() < streams_.size() + 1) {
      event made{};
      if (const status s = Runtime::make_event(made, true); !s) return s;
      timers_.push_back(made);
    }
    timed_.assign(streams_.size(), false);
    return {};
  }

  // The last plan ended on stream turn_: what another stream is given from now on comes behind it. An event
  // is recorded only here, when the stream changes.
  status take_turn(int on) {
    if (on == turn_) return {};
    if (const status s = prepare(1); !s) return s;
    if (const status s = Runtime::record(events_[0], raw(turn_)); !s) return s;
    if (const status s = Runtime::wait(raw(on), events_[0]); !s) return s;
    turn_ = on;
    return {};
  }

  template <class Launch>
  status run_from_0(const stream_plan& plan, Launch&& launch, bool timed) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = take_turn(0); !s) return s;
    return enqueue(plan, launch, timed);
  }

  // After the first failure nothing more is launched, but the streams are joined, as far as they can be. That
  // failure is the answer: what fails behind it (in a capture, all) follows from it.
  template <class Launch>
  status enqueue(const stream_plan& plan, Launch&& launch, bool timed) {
    if (plan.streams > streams()) {
      return {errc::invalid_value,
              "stream_pool: the plan must have no more streams than the pool",
              {.value = plan.streams}};
    }
    if (const status s = prepare(plan.steps.size() + 1); !s) return s;
    status first;
    const auto note = [&](const status& s) {
      if (first.ok()) first = s;
    };
    if (timed) {
      if (const status s = prepare_timers(); !s) return s;
      note(Runtime::record(timers_[0], raw(0)));
    }
    // Event 0 is the begin, event op + 1 the end of an op.
    const auto of = [&](index_t op) { return events_[static_cast<std::size_t>(op) + 1]; };
    if (!plan.forks.empty()) note(Runtime::record(events_[0], raw(0)));
    for (const int i : plan.forks) note(Runtime::wait(raw(i), events_[0]));
#if DEEPREC_EXCEPTIONS
    std::exception_ptr thrown;
    const auto start = [&](const stream_plan::step& step) -> status {
      try {
        return launch(step.op, stream(step.stream));
      } catch (...) {
        thrown = std::current_exception();
        return {errc::cancelled, "stream_pool: launches must not throw (one did)"};
      }
    };
#else
    const auto start = [&](const stream_plan::step& step) -> status {
      return launch(step.op, stream(step.stream));
    };
#endif
    for (const stream_plan::step& step : plan.steps) {
      const auto on = raw(step.stream);
      for (const index_t u : step.waits) note(Runtime::wait(on, of(u)));
      if (first.ok()) first = start(step);
      if (step.recorded) note(Runtime::record(of(step.op), on));
    }
    if (timed) {
      for (const stream_plan::step& step : plan.steps) timed_[static_cast<std::size_t>(step.stream)] = true;
      for (std::size_t i = 0; i < timed_.size(); ++i) {
        if (timed_[i]) note(Runtime::record(timers_[i + 1], raw(static_cast<int>(i))));
      }
    }
    for (const index_t u : plan.joins) note(Runtime::wait(raw(0), of(u)));
#if DEEPREC_EXCEPTIONS
    if (thrown) std::rethrow_exception(thrown);
#endif
    return first;
  }

  template <class Launch>
  status capture(const stream_plan& plan, Launch&& launch, typename Runtime::graph_exec& exec) {
    if (const status s = Runtime::begin_capture(raw(0)); !s) return s;
    typename Runtime::graph graph{};
    status recorded;
#if DEEPREC_EXCEPTIONS
    try {
      recorded = enqueue(plan, launch, false);
    } catch (...) {
      if (Runtime::end_capture(raw(0), graph).ok()) Runtime::end_graph(graph);
      throw;
    }
#else
    recorded = enqueue(plan, launch, false);
#endif
    const status ended =
        Runtime::end_capture(raw(0), graph);  // also after a fault: the stream is free again
    status made = recorded.ok() ? ended : recorded;
    if (made.ok()) made = Runtime::instantiate(exec, graph);
    if (ended.ok()) Runtime::end_graph(graph);
    return made;
  }

  int device_ = detail::current_device<Runtime>();
  int turn_ = 0;  // the stream that the last plan ended on
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<event> events_;
  std::vector<event> timers_;  // the begin, and the end of each stream
  std::vector<bool> timed_;
  std::map<graph_key, typename Runtime::graph_exec> graphs_;
};

}}  // namespace deeprec::DEEPREC_ABI
