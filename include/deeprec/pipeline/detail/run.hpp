// One run of a pipeline: its edges and segments, which exist from its begin to its end. Nothing of a run is
// left for the next one.
//
//   segment 0 ── edge 0 ──> segment 1 ── edge 1 ──> segment 2      work<2>() has the outcome
//
// Threads are the caller's: it calls work<S>() as often as segment S has threads, each from a thread of its
// own, and cancel() where it can't. Wait and Atomics are parameters for the explorer of tests/queue/.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <stop_token>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/pipeline/detail/edge.hpp>
#include <deeprec/pipeline/detail/segment.hpp>
#include <deeprec/pipeline/pipeline_options.hpp>
#include <deeprec/pipeline/statistics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Line, class Wait, class Atomics = std_atomics>
class pipeline_run {
  using traits = line_traits<Line>;

 public:
  static constexpr std::size_t segments = traits::segments();

  pipeline_run(Line& line, const pipeline_options& options, std::pmr::memory_resource* memory,
               trace_sink* trace)
      : nodes_(line.nodes) {
    environment_.on_bad_item = &options.on_bad_item;
    environment_.trace = trace;
    each_edge([&](auto index) { make_edge<index>(options, memory); });
    each_segment(
        [&](auto index) { team_of<index>().working.store(threads_of<index>(), std::memory_order_relaxed); });
  }

  template <std::size_t Segment>
  [[nodiscard]] int threads_of() const noexcept {
    return std::get<traits::first_of(Segment)>(nodes_).thread_count;
  }
  /// One thread of a segment, until the segment ends.
  template <std::size_t Segment>
  void work() noexcept {
    using in_type = std::remove_pointer_t<decltype(in_of<Segment>())>;
    using out_type = std::remove_pointer_t<decltype(out_of<Segment>())>;
    segment_worker<Line, Segment, in_type, out_type, Atomics> worker(nodes_, in_of<Segment>(),
                                                                     out_of<Segment>(), environment_);
    if constexpr (traits::template node<traits::first_of(Segment)>::is_parallel) {
      worker.work(team_of<Segment>());
    } else {
      [[maybe_unused]] const segment_end ended = worker.work();
      if constexpr (Segment + 1 == segments) {
        finished_ = ended != segment_end::halted;
        failure_ = std::move(worker.failure());
      }
    }
    const std::lock_guard lock(tally_mutex_);
    add_tally<Segment>(worker.tally());
  }
  /// Ends the run: every segment after its current item.
  void cancel() noexcept {
    environment_.stopped.store(true, std::memory_order_relaxed);
    each_edge([&](auto index) { std::get<index>(edges_)->cancel(); });
  }

  // --- when no thread works any more -------------------------------------------------------------------

  /// Whether the last segment came to the end of its input, or to a failure.
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] std::optional<stage_failure>& failure() noexcept { return failure_; }
  /// Fills in what was counted; `to` has a place for each stage.
  void statistics(std::vector<stage_statistics>& to) const {
    each_segment([&](auto index) {
      constexpr std::size_t first = traits::first_of(index), last = traits::first_of(index + 1);
      const auto& sum = std::get<index>(tallies_);
      for (std::size_t i = first; i < last; ++i) {
        const stage_tally& counted = sum.stages[i - first];
        stage_statistics& s = to[i];
        s = {};
        s.segment = index;
        s.threads = threads_of<index>();
        s.items = counted.items;
        s.left_out = counted.left_out;
        s.bad = counted.bad;
        s.busy = whole_ns(counted.busy_ns);
        s.occupancy = sum.elapsed_ns > 0 ? counted.busy_ns / sum.elapsed_ns : 0;
      }
      to[first].input_wait = whole_ns(sum.input_ns);
      to[last - 1].output_wait = whole_ns(sum.output_ns);
    });
    std::size_t i = 0;
    std::apply([&](const auto&... node) { ((to[i++].name = node.name), ...); }, nodes_);
  }
  void append_decisions(std::vector<depth_decision>& to) const {
    each_edge([&](auto index) { std::get<index>(edges_)->append_decisions(to); });
  }

 private:
  template <std::size_t... Index, class Use>
  static void each_of(std::index_sequence<Index...>, Use&& use) {
    (use(std::integral_constant<std::size_t, Index>{}), ...);
  }
  template <class Use>
  static void each_segment(Use&& use) {
    each_of(std::make_index_sequence<segments>{}, use);
  }
  template <class Use>
  static void each_edge(Use&& use) {
    each_of(std::make_index_sequence<segments - 1>{}, use);
  }

  // Edge e lies before the segment e + 1.
  template <std::size_t Edge>
  static constexpr std::size_t consumer = traits::first_of(Edge + 1);
  template <std::size_t Edge>
  using edge_type = edge<typename traits::template input_of<consumer<Edge>>,
                         typename traits::template node<consumer<Edge> - 1>::bytes_type, Wait, Atomics>;
  template <std::size_t... Index>
  static std::tuple<std::optional<edge_type<Index>>...> edges_type(std::index_sequence<Index...>);
  template <std::size_t Segment>
  using tally_type = segment_tally<traits::first_of(Segment + 1) - traits::first_of(Segment)>;
  template <std::size_t... Index>
  static std::tuple<tally_type<Index>...> tallies_type(std::index_sequence<Index...>);

  template <std::size_t Edge>
  void make_edge(const pipeline_options& options, std::pmr::memory_resource* memory) {
    using producer = typename traits::template node<consumer<Edge> - 1>;
    using taker = typename traits::template node<consumer<Edge>>;
    std::size_t least = options.capacity;
    // A place that is reserved counts, so with fewer of them than threads some of these would only wait.
    if (producer::threads == stage_threads::ordered) {
      const auto n = static_cast<std::size_t>(std::get<consumer<Edge> - 1>(nodes_).thread_count);
      if (least < n) least = n;
    }
    std::get<Edge>(edges_).emplace(edge_options{least, options.max_capacity, options.byte_budget,
                                                !producer::is_parallel && !taker::is_parallel, memory,
                                                std::get<consumer<Edge>>(nodes_).name});
  }
  template <std::size_t Segment>
  auto* in_of() noexcept {
    if constexpr (Segment == 0) {
      return static_cast<no_edge*>(nullptr);
    } else {
      return &*std::get<Segment - 1>(edges_);
    }
  }
  template <std::size_t Segment>
  auto* out_of() noexcept {
    if constexpr (Segment + 1 == segments) {
      return static_cast<no_edge*>(nullptr);
    } else {
      return &*std::get<Segment>(edges_);
    }
  }
  template <std::size_t Segment>
  segment_team& team_of() noexcept {
    return teams_[Segment];
  }

  // A thread's timed items stand for all of its time.
  template <std::size_t Segment>
  void add_tally(const tally_type<Segment>& one) noexcept {
    double timed = one.input_ns + one.output_ns;
    for (const stage_tally& s : one.stages) timed += s.busy_ns;
    const double scale = timed > 0 ? one.elapsed_ns / timed : 0;
    auto& sum = std::get<Segment>(tallies_);
    for (std::size_t i = 0; i < one.stages.size(); ++i) {
      sum.stages[i].items += one.stages[i].items;
      sum.stages[i].left_out += one.stages[i].left_out;
      sum.stages[i].bad += one.stages[i].bad;
      sum.stages[i].busy_ns += scale * one.stages[i].busy_ns;
    }
    sum.input_ns += scale * one.input_ns;
    sum.output_ns += scale * one.output_ns;
    sum.elapsed_ns += one.elapsed_ns;
  }
  static std::chrono::nanoseconds whole_ns(double ns) noexcept {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(ns));
  }

  typename traits::nodes& nodes_;
  run_environment environment_;
  decltype(edges_type(std::make_index_sequence<segments - 1>{})) edges_;
  std::array<segment_team, segments> teams_;
  std::mutex tally_mutex_;
  decltype(tallies_type(std::make_index_sequence<segments>{})) tallies_;
  bool finished_ = false;
  std::optional<stage_failure> failure_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
