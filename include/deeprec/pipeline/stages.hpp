// The description of a pipeline: a source, stages and a sink, each an ordinary callable with a name.
//
//   auto line = source("read", read)                    std::optional<text>()          nullopt: the end
//             | stage("parse", parse).parallel(2)       batch(text&&)                  two threads, in order
//             | stage("clean", clean).own_thread()      std::optional<batch>(batch&&)  nullopt: left out
//             | stage("look up", look_up)               status(batch&)                 the batch goes on
//             | sink("train", train).own_thread();      void(batch&&)
//
// Names may be left out: source(read) | sink(train) are "source" and "sink" in statistics and errors.
// A stage runs in the thread of the stage before it, unless it says otherwise; stages of one thread are plain
// calls. Each of these returns, which may fail, can be a result<...> instead. Here it only is described:
// pipeline.hpp runs it. Not here: branches and joins; a stage has one input and one output.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/pipeline/detail/item_types.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Where a stage runs.
enum class stage_threads : unsigned char {
  upstream,   ///< in the thread of the stage before it
  own,        ///< in a thread of its own; stages after it may share that
  ordered,    ///< in n threads; its outputs leave in the order of its inputs
  unordered,  ///< in n threads; its outputs leave as they come, and stages after it see that order
};

/// A source, stage or sink, made by the functions of these names.
///
/// @threads as the callable; the methods return a changed copy
template <detail::node_role Role, class F, stage_threads Threads = stage_threads::upstream, class E = void,
          class Bytes = detail::bytes_of_object>
struct pipeline_node {
  static constexpr detail::node_role role = Role;
  static constexpr stage_threads threads = Threads;
  static constexpr bool is_parallel =
      Threads == stage_threads::ordered || Threads == stage_threads::unordered;
  using function_type = F;
  using executor_type = E;
  using bytes_type = Bytes;

  const char* name;  ///< a string literal
  F function;
  int thread_count = 1;
  E* executor = nullptr;  ///< null: that of the pipeline

  /// Runs in a thread of its own, beside the stage before it.
  auto own_thread() && {
    static_assert(Role != detail::node_role::source,
                  "deeprec::pipeline: a source has no thread to share. Fix: give own_thread() to the stage "
                  "after it");
    return rebuild<is_parallel ? Threads : stage_threads::own>(executor, thread_count);
  }
  /// Runs in a thread of this executor, which must outlive the pipeline.
  template <TaskExecutor Other>
  auto on(Other& other) && {
    return rebuild < Threads == stage_threads::upstream ? stage_threads::own
                                                        : Threads > (&other, thread_count);
  }
  /// Runs in n threads at once, so the callable must be thread-safe. Outputs keep the order of the inputs.
  ///
  /// @pre n >= 1, which pipeline checks
  auto parallel(int n) && {
    static_assert(Role == detail::node_role::stage,
                  "deeprec::pipeline: a source and a sink have one thread. Fix: put what can run in parallel "
                  "into a stage after the source or before the sink");
    return rebuild<stage_threads::ordered>(executor, n);
  }
  /// After parallel(n): outputs leave as they come.
  auto unordered() && {
    static_assert(is_parallel,
                  "deeprec::pipeline: unordered() says how a parallel stage ends. Fix: call parallel(n) "
                  "before it");
    return rebuild<stage_threads::unordered>(executor, thread_count);
  }
  /// How many bytes an output takes of pipeline_options::byte_budget: measure(output), without a state.
  /// Otherwise sizeof.
  template <class Measure>
  auto bytes(Measure) && {
    static_assert(std::is_empty_v<Measure> && std::is_default_constructible_v<Measure>,
                  "deeprec::pipeline: the measure of bytes has a state. Fix: capture nothing");
    static_assert(Role != detail::node_role::sink,
                  "deeprec::pipeline: a sink has no outputs. Fix: give bytes() to the stage before it");
    return pipeline_node<Role, F, Threads, E, Measure>{name, std::move(function), thread_count, executor};
  }

 private:
  template <stage_threads Where, class Other>
  auto rebuild(Other* where, int n) {
    return pipeline_node<Role, F, Where, Other, Bytes>{name, std::move(function), n, where};
  }
};

/// Nodes from a source on; complete once it ends with a sink. Made by the operator |.
template <class... Nodes>
struct pipeline_line {
  std::tuple<Nodes...> nodes;
};

/// The begin of a line: f() returns std::optional<T>, or result<std::optional<T>>; nullopt is the end, after
/// which it is not called again in this run.
///
/// @param name a string literal
/// @cost    moves the callable
/// @threads f is called by one thread at a time
/// @error   none; a wrong type is a message of the compiler, where the line is composed
template <class F>
auto source(const char* name, F f) {
  return pipeline_node<detail::node_role::source, F>{name, std::move(f)};
}
/// The same, for a source named "source".
template <class F>
auto source(F f) {
  return source("source", std::move(f));
}
/// A step: f takes T&& or T& and returns U, std::optional<U> (nullopt: the item is left out), or a result<>
/// of both. Where f takes T& (or const T&) and returns nothing, a status or result<void>, the item itself
/// goes on.
///
/// @param name a string literal
/// @cost    moves the callable
/// @threads f is called by one thread at a time, unless parallel(n) says otherwise
/// @error   none; a wrong type is a message of the compiler, where the line is composed
template <class F>
auto stage(const char* name, F f) {
  return pipeline_node<detail::node_role::stage, F>{name, std::move(f)};
}
/// The same, for a stage named "stage": name stages where statistics and errors shall tell them apart.
template <class F>
auto stage(F f) {
  return stage("stage", std::move(f));
}
/// The end of a line: f takes T&& or T& and returns nothing, a status or result<void>.
///
/// @param name a string literal
/// @cost    moves the callable
/// @threads f is called by one thread at a time: the one that runs the pipeline, unless on() names an
///          executor
/// @error   none; a wrong type is a message of the compiler, where the line is composed
template <class F>
auto sink(const char* name, F f) {
  return pipeline_node<detail::node_role::sink, F>{name, std::move(f)};
}
/// The same, for a sink named "sink".
template <class F>
auto sink(F f) {
  return sink("sink", std::move(f));
}

namespace detail {

template <class T>
inline constexpr bool is_node = false;
template <node_role Role, class F, stage_threads Threads, class E, class Bytes>
inline constexpr bool is_node<pipeline_node<Role, F, Threads, E, Bytes>> = true;

template <class T>
inline constexpr bool is_line = false;
template <class... Nodes>
inline constexpr bool is_line<pipeline_line<Nodes...>> = true;

/// The nodes of a line by number: what enters them, and which begin a segment, a part that shares a thread.
template <class Line>
struct line_traits;

template <class... Nodes>
struct line_traits<pipeline_line<Nodes...>> {
  static constexpr std::size_t count = sizeof...(Nodes);
  using nodes = std::tuple<Nodes...>;
  template <std::size_t Which>
  using node = std::tuple_element_t<Which, nodes>;

  template <std::size_t Which>
  struct output {
    using type =
        typename stage_types<typename node<Which>::function_type, typename output<Which - 1>::type>::type;
  };
  template <std::size_t Which>
    requires(Which == 0)
  struct output<Which> {
    using type = typename source_types<typename node<0>::function_type>::type;
  };
  template <std::size_t Which>
  using output_of = typename output<Which>::type;
  template <std::size_t Which>
  using input_of = typename output<Which - 1>::type;

  static constexpr bool begins_segment(std::size_t which) {
    constexpr stage_threads where[] = {Nodes::threads...};
    constexpr bool parallel[] = {Nodes::is_parallel...};
    return which == 0 || where[which] != stage_threads::upstream || parallel[which - 1];
  }
  static constexpr std::size_t segments() {
    std::size_t n = 0;
    for (std::size_t i = 0; i < count; ++i) n += begins_segment(i) ? 1 : 0;
    return n;
  }
  /// The first node of a segment; count for the segment behind the last.
  static constexpr std::size_t first_of(std::size_t segment) {
    std::size_t i = 0;
    for (std::size_t left = segment; i < count; ++i) {
      if (begins_segment(i) && left-- == 0) break;
    }
    return i;
  }
  static constexpr bool is_complete() {
    constexpr node_role roles[] = {Nodes::role...};
    return roles[0] == node_role::source && roles[count - 1] == node_role::sink;
  }
};

template <class Line, class Next>
constexpr void check_next() {
  using traits = line_traits<Line>;
  static_assert(traits::template node<0>::role == node_role::source,
                "deeprec::pipeline: a line begins with its source. Fix: write source(name, f) | stage(name, "
                "f) | sink(name, f)");
  static_assert(Next::role != node_role::source,
                "deeprec::pipeline: a line has one source. Fix: let the first source yield what both have");
  static_assert(traits::template node<traits::count - 1>::role != node_role::sink,
                "deeprec::pipeline: nothing follows a sink. Fix: make it a stage");
  if constexpr (traits::template node<0>::role == node_role::source && Next::role != node_role::source &&
                traits::template node<traits::count - 1>::role != node_role::sink) {
    using item = typename traits::template output_of<traits::count - 1>;
    if constexpr (Next::role == node_role::sink) {
      check_sink<typename Next::function_type, item>();
    } else {
      check_stage<typename Next::function_type, item>();
    }
  }
}

}  // namespace detail

/// Appends a stage or the sink.
///
/// @cost    moves the callables
/// @threads reentrant
/// @error   none; nodes that don't fit together are messages of the compiler
template <class... Nodes, class Next>
  requires detail::is_node<Next>
auto operator|(pipeline_line<Nodes...> line, Next next) {
  detail::check_next<pipeline_line<Nodes...>, Next>();
  return std::apply(
      [&](Nodes&... nodes) {
        return pipeline_line<Nodes..., Next>{
            std::tuple<Nodes..., Next>(std::move(nodes)..., std::move(next))};
      },
      line.nodes);
}
/// The same, for the source itself.
template <class First, class Next>
  requires(detail::is_node<First> && detail::is_node<Next>)
auto operator|(First first, Next next) {
  if constexpr (First::role == detail::node_role::source)
    detail::check_source<typename First::function_type>();
  return pipeline_line<First>{std::tuple<First>(std::move(first))} | std::move(next);
}

}}  // namespace deeprec::DEEPREC_ABI
