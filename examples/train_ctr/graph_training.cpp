#include "graph_training.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/async_embedding.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/plan_memory.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_costs.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/trace_recorder.hpp>

#include "output_file.hpp"

namespace ctr {

namespace {

/// Adds up the time of ops by the parts of a step, and passes spans on to a recorder.
class part_times final : public deeprec::trace_sink {
 public:
  /// @param ahead  of each op: whether it runs ahead of the training
  part_times(std::vector<part> parts, std::vector<char> ahead, deeprec::trace_recorder* next)
      : parts_(std::move(parts)),
        ahead_(std::move(ahead)),
        next_(next),
        spent_(parts_.size()),
        runs_(parts_.size()) {}

  void begin(const char* verb) noexcept override {
    if (next_ != nullptr) next_->begin(verb);
  }
  void end(const char* verb) noexcept override {
    if (next_ != nullptr) next_->end(verb);
  }
  // The clock is read between the recorder's two readings, so a span and what it counts for are equally long
  // but for some 25 ns.
  void begin_op(const deeprec::traced_op& op) noexcept override {
    // The first op of the training itself, on whichever thread.
    if (!is_ahead(op.op) && waits_.load(std::memory_order_relaxed) && waits_.exchange(false)) {
      waited_ += now() - ended_;
    }
    if (next_ != nullptr) next_->begin_op(op);
    begun() = now();
  }
  void end_op(const deeprec::traced_op& op) noexcept override {
    count(op, now());
    if (next_ != nullptr) next_->end_op(op);
  }
  void next_op(const deeprec::traced_op& ended, const deeprec::traced_op& begins) noexcept override {
    const std::int64_t at = now();
    count(ended, at);
    begun() = at;
    if (next_ == nullptr) return;
    next_->next_op(ended, begins);
    begun() = now();
  }

  /// From now on the training waits for the next step.
  void wait() {
    trainer_ = std::this_thread::get_id();
    ended_ = now();
    waits_ = true;
  }
  /// Adds what was spent since the last call to these times, and calls each(op, seconds).
  template <class Each>
  void take(stopwatch& watch, const Each& each) {
    watch.add(part::read, 1e-9 * static_cast<double>(std::exchange(waited_, 0)));
    for (std::size_t op = 0; op < spent_.size(); ++op) {
      const double seconds = 1e-9 * static_cast<double>(spent_[op].exchange(0));
      if (ahead_[op] == 0) watch.add(parts_[op], seconds);
      each(static_cast<index_t>(op), seconds);
    }
  }

  /// Of the ops that do not run ahead: on threads other than the one that trains; all.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> ops_elsewhere() const {
    std::int64_t all = 0;
    for (std::size_t op = 0; op < runs_.size(); ++op) {
      if (ahead_[op] == 0) all += runs_[op];
    }
    return {elsewhere_, all};
  }
  /// How often the op ran that ran most: once for each part of a batch, where it runs by parts.
  [[nodiscard]] std::int64_t most_runs() const {
    std::int64_t most = 0;
    for (const auto& runs : runs_) most = std::max<std::int64_t>(most, runs);
    return most;
  }

 private:
  static std::int64_t now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static std::int64_t& begun() noexcept {
    thread_local std::int64_t at = 0;
    return at;
  }
  [[nodiscard]] bool is_ahead(index_t op) const noexcept { return ahead_[static_cast<std::size_t>(op)] != 0; }
  void count(const deeprec::traced_op& op, std::int64_t at) noexcept {
    spent_[static_cast<std::size_t>(op.op)].fetch_add(at - begun(), std::memory_order_relaxed);
    runs_[static_cast<std::size_t>(op.op)].fetch_add(1, std::memory_order_relaxed);
    if (is_ahead(op.op)) return;
    if (std::this_thread::get_id() != trainer_) elsewhere_.fetch_add(1, std::memory_order_relaxed);
  }

  std::vector<part> parts_;
  std::vector<char> ahead_;
  deeprec::trace_recorder* next_;
  std::vector<std::atomic<std::int64_t>> spent_, runs_;  // by, and of each op
  std::atomic<std::int64_t> elsewhere_{0};
  std::thread::id trainer_;
  std::int64_t ended_ = 0, waited_ = 0;  // of the thread that trains
  std::atomic<bool> waits_{false};
};

/// Weights may have been loaded since the last run.
template <class Source>
void settle(const graph_step_of<Source>& step) {
  for (stack_type* const stack : step.stacks) stack->weights_settled();
}

/// The innermost of nested exceptions has the text that helps a user.
[[noreturn]] void rethrow_innermost(const std::exception& wrong) {
  try {
    std::rethrow_if_nested(wrong);
  } catch (const std::exception& inner) {
    rethrow_innermost(inner);
  }
  throw failure(wrong.what());
}

/// The step with the graph that a pass made of its own.
template <class Source>
void replace_graph(graph_step_of<Source>& step, deeprec::step_graph made,
                   const deeprec::moved_values& moved) {
  std::vector<part> parts(static_cast<std::size_t>(made.size()), part::read);  // of ops that are new
  for (std::size_t op = 0; op < step.parts.size(); ++op) {
    const index_t to = moved.op(static_cast<index_t>(op));
    if (to >= 0) parts[static_cast<std::size_t>(to)] = step.parts[op];
  }
  step.parts = std::move(parts);
  step.source = *moved(step.source);
  step.logits = *moved(step.logits);
  step.labels = *moved(step.labels);
  step.graph = std::move(made);
}
/// Applies the passes that the options name; what they did, in words.
template <class Source>
std::string apply_passes(graph_step_of<Source>& step, const graph_options& how) {
  std::string words;
  if (!how.fusions.empty()) {
    deeprec::fused_graph made = fuse(step.graph, how.fusions).or_throw();
    words += explain(made);
    replace_graph(step, std::move(made.graph), made.moved);
  }
  if (how.async_window > 0) {
    deeprec::async_graph made = async_embedding(step.graph, {.window = how.async_window}).or_throw();
    words += explain(made);
    replace_graph(step, std::move(made.graph), made.moved);
  }
  return words;
}

}  // namespace

graph_options graph_options_of(const options& o) {
  return {.smart_stage = o.smart_stage,
          .async_window = o.async_embedding,
          .schedule = o.executor == "pool"   ? deeprec::op_schedule::as_ready
                      : o.executor == "cost" ? deeprec::op_schedule::by_cost
                                             : deeprec::op_schedule::in_turn,
          .memory_plan = o.memory_plan,
          .threads = o.threads,
          .prefetch = o.prefetch,
          .trace = o.trace,
          .picture = o.graph};
}

template <class Source>
class graph_training<Source>::body {
 public:
  body(const make_step<Source>& make, const graph_options& how)
      : how_(how),
        scratch_(how.memory_plan, 1, how.threads),
        step_(make([this](Source& rows) { return read(rows); })),
        passes_(apply_passes(step_, how)),
        flat_(step_.graph.flat().or_throw()) {
    cut_ = smart_stage(flat_, {.rule = deeprec::stage_rule::farthest}).or_throw();
    const deeprec::sample_cut samples = how.parts == 0   ? deeprec::by_lanes({}, scratch_.memory())
                                        : how.parts == 1 ? deeprec::sample_cut{}
                                                         : deeprec::by_parts(how.parts, scratch_.memory());
    std::vector<char> ahead(static_cast<std::size_t>(flat_.size()), 0);
    if (how.prefetch > 0) {
      const deeprec::staged_options options{
          .capacity = static_cast<std::size_t>(how.prefetch),
          .feed = [this](deeprec::step_state& step) { scratch_.begin(step.get(step_.source).rows); },
          .samples = samples,
          .schedule = how.schedule};
      staged_.emplace((how.smart_stage ? deeprec::staged_program::compile(step_.graph, cut_, options)
                                       : deeprec::staged_program::compile(step_.graph, options))
                          .or_throw());
      for (const index_t op : staged_->staged_ops()) ahead[static_cast<std::size_t>(op)] = 1;
    } else {
      alone_.emplace(
          deeprec::step_program::compile(step_.graph, {.samples = samples, .schedule = how.schedule})
              .or_throw());
      state_.emplace(alone_->make_state());
    }
    if (!how.trace.empty()) {
      const int threads = how.threads + 1;  // any of the pool's can run ahead
      const index_t spans = std::max<index_t>((index_t{1} << 19) / threads, 1 << 14);
      recorder_.emplace(deeprec::trace_options{.threads = threads, .spans = spans});
    }
    step_.parts.resize(static_cast<std::size_t>(flat_.size()), part::read);
    seconds_of_.resize(step_.parts.size());
    times_.emplace(step_.parts, std::move(ahead), recorder_ ? &*recorder_ : nullptr);
    if (!how.picture.empty()) {
      write_file(how.picture, how.smart_stage ? graphviz(step_.graph, cut_) : graphviz(step_.graph));
    }
  }

  deeprec::pipeline_statistics run(deeprec::thread_pool& pool, const reader_of<Source>& read,
                                   const std::function<void(index_t)>& trained, stopwatch& watch) {
    read_ = &read;
    settle(step_);
    deeprec::pipeline_statistics made;
    const auto done = [&](deeprec::step_state& state) {
      if (steps_++ == 0) {
        take_bytes(step_.graph, state);
        place_values(state);
      }
      trained(state.get(step_.source).rows);
      scratch_.end();
      times_->wait();
    };
    deeprec::executor_ref on_pool(pool);
    step_context on(on_pool);
    on.trace = &*times_;
    on.memory = scratch_.resource();
    if (recorder_) recorder_->name_thread("train");
    times_->wait();
    try {
      if (staged_) {
        deeprec::context<deeprec::thread_pool> threads(pool);
        threads.trace = &*times_;
        threads.memory = scratch_.resource();
        staged_->run(threads, done).or_throw();
        made = staged_->statistics();
      } else {
        const auto begun = std::chrono::steady_clock::now();
        while (alone_->run(on, *state_).or_throw()) done(*state_);
        made.elapsed = std::chrono::steady_clock::now() - begun;
        made.stages = {{.name = "step", .busy = made.elapsed, .occupancy = 1}};
      }
    } catch (const std::exception& wrong) {
      rethrow_innermost(wrong);
    }
    scratch_.end();
    times_->take(watch, [&](index_t op, double seconds) {
      double& all = seconds_of_[static_cast<std::size_t>(op)];
      all += seconds;
      step_.graph.set_cost(op, all / static_cast<double>(std::max<index_t>(steps_, 1)));
    });
    seconds_ += std::chrono::duration<double>(made.elapsed).count();
    return made;
  }

  [[nodiscard]] memory_use memory() const {
    memory_use use = values_;
    scratch_.add_to(use);
    return use;
  }
  [[nodiscard]] std::string explain() const {
    std::string ahead, behind;
    index_t ops = 0, opaque = 0;
    const auto add = [](std::string& to, std::string_view kind, index_t count) {
      to += (to.empty() ? " " : ", ") + std::string(kind);
      if (count > 1) to += " x " + std::to_string(count);
    };
    std::vector<std::pair<std::string_view, std::array<index_t, 2>>> kinds;  // in the order of the graph
    for (index_t op = 0; op < step_.graph.size(); ++op) {
      if (!step_.graph.is_run(op)) continue;
      const std::string_view kind = step_.graph.kind_name(op);
      const bool is_opaque = kind == "opaque" || kind == "source";
      ++ops;
      opaque += is_opaque ? 1 : 0;
      auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
      if (found == kinds.end()) found = kinds.insert(found, {kind, {0, 0}});
      ++found->second[staged_ && staged_->is_staged(op) ? 1 : 0];
    }
    for (const auto& [kind, count] : kinds) {
      if (count[1] > 0) add(ahead, kind, count[1]);
      if (count[0] > 0) add(behind, kind, count[0]);
    }
    double seconds_ahead = 0;
    for (index_t op = 0; op < step_.graph.size(); ++op) {
      if (staged_ && staged_->is_staged(op)) seconds_ahead += seconds_of_[static_cast<std::size_t>(op)];
    }
    std::string text =
        "         graph of " + std::to_string(ops) + " ops, " + std::to_string(opaque) + " opaque\n";
    if (staged_) {
      char share[64];
      std::snprintf(share, sizeof share, " (%.1f %% of the time)",
                    100 * seconds_ahead / std::max(seconds_, 1e-9));
      text += "         ahead:" + ahead + share + "\n";
    }
    text += "         in the step:" + behind + "\n" + "         time: " + time_by_kind() + "\n";
    if (how_.parts != 1) {
      char parts[64];
      std::snprintf(
          parts, sizeof parts, "         parts of a batch: %.1f\n",
          static_cast<double>(times_->most_runs()) / static_cast<double>(std::max<index_t>(steps_, 1)));
      text += parts;
    }
    if (how_.schedule != deeprec::op_schedule::in_turn) {
      const auto [elsewhere, all] = times_->ops_elsewhere();
      text += "         executor " +
              std::string(how_.schedule == deeprec::op_schedule::by_cost ? "cost" : "pool") + ": " +
              std::to_string(elsewhere) + " of " + std::to_string(all) + " ops on other threads\n";
    }
    if (!how_.smart_stage && passes_.empty()) return text;
    std::string words = passes_;
    if (how_.smart_stage) {  // the same cut, with what was measured
      const deeprec::flat_graph measured = step_.graph.flat().or_throw();
      const deeprec::stage_rule rule = deeprec::stage_rule::farthest;
      words += deeprec::explain(measured, smart_stage(measured, {.rule = rule}).or_throw());
    }
    for (std::size_t at = 0; at < words.size(); at = words.find('\n', at) + 1) {
      words.insert(at, "         ");
      if (words.find('\n', at) == std::string::npos) break;
    }
    return text + words;
  }
  void write_trace() const {
    if (!recorder_) return;
    write_file(how_.trace, recorder_->json("train_ctr"));
    if (recorder_->dropped() == 0) return;
    std::fprintf(stderr, "train_ctr: %s has the first steps only: no room for %llu spans\n",
                 how_.trace.c_str(), static_cast<unsigned long long>(recorder_->dropped()));
  }

 private:
  /// Each kind of op with its share of the time of all ops, the longest first.
  [[nodiscard]] std::string time_by_kind() const {
    std::map<std::string_view, double> of_kind;
    double all = 0;
    for (index_t op = 0; op < step_.graph.size(); ++op) {
      const double seconds = seconds_of_[static_cast<std::size_t>(op)];
      of_kind[step_.graph.kind_name(op)] += seconds;
      all += seconds;
    }
    std::vector<std::pair<std::string_view, double>> kinds(of_kind.begin(), of_kind.end());
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (const auto& [kind, seconds] : kinds) {
      const double share = 100 * seconds / std::max(all, 1e-9);
      if (share < 0.05) break;
      char word[64];
      std::snprintf(word, sizeof word, " %.1f %%", share);
      text += (text.empty() ? "" : ", ") + std::string(kind) + word;
    }
    return text;
  }
  bool read(Source& rows) {
    if (recorder_ && staged_) recorder_->name_thread("ahead");
    const bool more = (*read_)(rows);
    if (more && !staged_) scratch_.begin(rows.rows);
    return more;
  }

  // After the first step, by whose values it is planned.
  void place_values(deeprec::step_state& state) {
    if (!how_.memory_plan || how_.parts != 1) return;
    const deeprec::value_plan plan =
        staged_ ? plan_memory(*staged_).or_throw() : plan_memory(*alone_, state).or_throw();
    if (staged_) {
      deeprec::place_values(*staged_, plan).or_throw();
    } else {
      deeprec::place_values(state, plan).or_throw();
    }
    values_.values = plan.bytes;
    values_.values_apart = plan.apart_bytes;
  }

  graph_options how_;
  // Of the training. What runs ahead of it makes rows that are resolved there and used here: their memory is
  // the default's, which is thread-safe.
  step_scratch scratch_;
  memory_use values_{};
  graph_step_of<Source> step_;
  std::string passes_;  // what they did, in words
  deeprec::flat_graph flat_;
  deeprec::stage_cut cut_;
  std::optional<deeprec::trace_recorder> recorder_;
  std::optional<part_times> times_;
  std::optional<deeprec::staged_program> staged_;
  std::optional<deeprec::step_program> alone_;
  std::optional<deeprec::step_state> state_;
  const reader_of<Source>* read_ = nullptr;
  index_t steps_ = 0;
  std::vector<double> seconds_of_;  // of each op
  double seconds_ = 0;
};

template <class Source>
graph_training<Source>::graph_training(const make_step<Source>& make, const graph_options& how)
    : body_(std::make_unique<body>(make, how)) {}
template <class Source>
graph_training<Source>::~graph_training() = default;

template <class Source>
deeprec::pipeline_statistics graph_training<Source>::run(deeprec::thread_pool& pool,
                                                         const reader_of<Source>& read,
                                                         const std::function<void(index_t)>& trained,
                                                         stopwatch& watch) {
  return body_->run(pool, read, trained, watch);
}
template <class Source>
std::string graph_training<Source>::explain() const {
  return body_->explain();
}
template <class Source>
memory_use graph_training<Source>::memory() const {
  return body_->memory();
}
template <class Source>
void graph_training<Source>::write_trace() const {
  body_->write_trace();
}

template <class Source>
void predict_by_graph(deeprec::executor_ref pool, const std::type_identity_t<make_step<Source>>& make,
                      const reader_of<Source>& fill,
                      const std::function<void(matrix_view<const float>, matrix_view<const float>)>& each) {
  const graph_step_of<Source> step = make(fill);
  const deeprec::step_program program = deeprec::step_program::compile(step.graph).or_throw();
  deeprec::step_state state = program.make_state();
  settle(step);
  step_context on(pool);
  try {
    while (program.run(on, state).or_throw())
      each(state.get(step.logits).view(), state.get(step.labels).view());
  } catch (const std::exception& wrong) {
    rethrow_innermost(wrong);
  }
}

template class graph_training<raw_rows>;
template class graph_training<history_batch>;
template void predict_by_graph<raw_rows>(
    deeprec::executor_ref, const make_step<raw_rows>&, const reader_of<raw_rows>&,
    const std::function<void(matrix_view<const float>, matrix_view<const float>)>&);
template void predict_by_graph<history_batch>(
    deeprec::executor_ref, const make_step<history_batch>&, const reader_of<history_batch>&,
    const std::function<void(matrix_view<const float>, matrix_view<const float>)>&);

}  // namespace ctr
