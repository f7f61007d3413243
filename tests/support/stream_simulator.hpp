// A device of in-order streams and events that runs a stream_plan: in every interleaving, in random ones, in
// time, and as vector clocks.
//
//   stream 0   start  record(start)  begin a  end a  record(a)             ...  wait(b)  finish
//   stream 1   wait(start)  begin b  end b  record(b)
//
// What is enqueued is what cuda_stream_pool enqueues. A wait for an event that was not recorded when the wait
// was enqueued does not wait, as with CUDA. Ops begin and end, so that two of them may overlap.
#pragma once

#include <deeprec/core/dtypes.hpp>
#include <deeprec/plan/stream_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace deeprec_test {

using deeprec::index_t;
using deeprec::stream_plan;

class stream_simulator {
 public:
  /// Op u ends before op v begins.
  using order = std::vector<std::pair<index_t, index_t>>;

  /// `ops`: the numbers of ops are below. Those that the plan lacks have ended before it starts.
  stream_simulator(const stream_plan& plan, index_t ops)
      : ops_(static_cast<std::size_t>(ops)), queues_(static_cast<std::size_t>(plan.streams)) {
    // Events: one for each op, and the start.
    std::vector<bool> recorded(ops_ + 1);
    const auto enqueue = [&](int stream, deed what, std::size_t of) {
      if (what == deed::wait && !recorded[of]) return;
      if (what == deed::record) recorded[of] = true;
      queues_[static_cast<std::size_t>(stream)].push_back({what, of});
    };
    enqueue(0, deed::begin, start());
    enqueue(0, deed::end, start());
    if (!plan.forks.empty()) enqueue(0, deed::record, ops_);
    for (const int s : plan.forks) enqueue(s, deed::wait, ops_);
    for (const stream_plan::step& step : plan.steps) {
      const auto op = static_cast<std::size_t>(step.op);
      for (const index_t u : step.waits) enqueue(step.stream, deed::wait, static_cast<std::size_t>(u));
      enqueue(step.stream, deed::begin, op);
      enqueue(step.stream, deed::end, op);
      if (step.recorded) enqueue(step.stream, deed::record, op);
      planned_.push_back(op);
    }
    for (const index_t u : plan.joins) enqueue(0, deed::wait, static_cast<std::size_t>(u));
    enqueue(0, deed::begin, finish());
    enqueue(0, deed::end, finish());
  }

  /// The first order that some run may break, by vector clocks; empty: none. With `ends` also that every op
  /// is between earlier and later work of stream 0. Says too where an op is there twice.
  [[nodiscard]] std::string fault(const order& edges, bool ends = true) const {
    // Of each op the clock when it begins, and its place: the steps of its stream when it has ended.
    std::vector<std::vector<std::size_t>> begins(ops_ + 2);
    std::vector<std::pair<std::size_t, std::size_t>> place(ops_ + 2, {queues_.size(), 0});
    std::vector<std::vector<std::size_t>> now(queues_.size(), std::vector<std::size_t>(queues_.size()));
    std::vector<std::vector<std::size_t>> events(ops_ + 1);
    std::string wrong;
    const bool ended = run([this](const state& s) { return first_enabled(s); },
                           [&](std::size_t stream, const command& c) {
                             std::vector<std::size_t>& clock = now[stream];
                             ++clock[stream];
                             if (c.what == deed::begin) {
                               if (!begins[c.of].empty())
                                 wrong = "op " + std::to_string(c.of) + " is there twice";
                               begins[c.of] = clock;
                             }
                             if (c.what == deed::end) place[c.of] = {stream, clock[stream]};
                             if (c.what == deed::record) events[c.of] = clock;
                             if (c.what == deed::wait) {
                               for (std::size_t s = 0; s < clock.size(); ++s)
                                 clock[s] = std::max(clock[s], events[c.of][s]);
                             }
                           });
    if (!ended) return "the streams wait for each other";
    if (!wrong.empty()) return wrong;
    const auto before = [&](std::size_t u, std::size_t v) {
      return place[u].first == queues_.size() || begins[v].empty() ||
             begins[v][place[u].first] >= place[u].second;
    };
    for (const auto& [u, v] : edges) {
      if (!before(static_cast<std::size_t>(u), static_cast<std::size_t>(v)))
        return std::to_string(u) + " before " + std::to_string(v);
    }
    for (const std::size_t v : planned_) {
      if (ends && !before(start(), v)) return "the start before " + std::to_string(v);
      if (ends && !before(v, finish())) return std::to_string(v) + " before the end";
    }
    return {};
  }

  /// The same, by a run of every interleaving: for small plans.
  [[nodiscard]] std::string fault_in_any_run(const order& edges) const {
    std::vector<std::vector<std::size_t>> needs(ops_ + 2);
    for (const auto& [u, v] : edges) {
      if (std::count(planned_.begin(), planned_.end(), static_cast<std::size_t>(u)) > 0)
        needs[static_cast<std::size_t>(v)].push_back(static_cast<std::size_t>(u));
    }
    for (const std::size_t v : planned_) {
      needs[v].push_back(start());
      needs[finish()].push_back(v);
    }
    std::set<std::vector<std::size_t>> seen;
    std::vector<std::vector<std::size_t>> open{std::vector<std::size_t>(queues_.size())};
    seen.insert(open.front());
    while (!open.empty()) {
      const std::vector<std::size_t> at = std::move(open.back());
      open.pop_back();
      const state s = state_at(at);
      for (std::size_t stream = 0; stream < queues_.size(); ++stream) {
        if (!enabled(s, stream)) continue;
        const command& c = queues_[stream][at[stream]];
        if (c.what == deed::begin) {
          for (const std::size_t u : needs[c.of]) {
            if (!s.ended[u]) return std::to_string(u) + " before " + std::to_string(c.of);
          }
        }
        std::vector<std::size_t> next = at;
        ++next[stream];
        if (seen.insert(next).second) open.push_back(std::move(next));
      }
    }
    return {};
  }

  /// One run in a random interleaving: calls f(op, begins).
  template <class F>
  bool run_at_random(std::mt19937_64& random, F f) const {
    return run([&](const state& s) { return pick(s, random); },
               [&](std::size_t, const command& c) {
                 if (c.of >= ops_ || (c.what != deed::begin && c.what != deed::end)) return;
                 f(static_cast<index_t>(c.of), c.what == deed::begin);
               });
  }

  /// When the last op has ended, if op v takes cost(v), a record or a wait `event`, and every stream has a
  /// processor of its own.
  template <class Cost>
  [[nodiscard]] double makespan(const Cost& cost, double event = 0) const {
    std::vector<double> time(queues_.size()), recorded(ops_ + 1);
    double last = 0;
    run([this](const state& s) { return first_enabled(s); },
        [&](std::size_t stream, const command& c) {
          double& t = time[stream];
          if (c.what == deed::end && c.of < ops_) t += cost(static_cast<index_t>(c.of));
          if (c.what == deed::record) recorded[c.of] = t += event;
          if (c.what == deed::wait) t = std::max(t, recorded[c.of]) + event;
          last = std::max(last, t);
        });
    return last;
  }

 private:
  enum class deed : std::uint8_t { begin, end, record, wait };
  struct command {
    deed what;
    std::size_t of;  // an op, or an event: that of an op, or ops_, the start
  };
  struct state {
    std::vector<std::size_t> at;
    std::vector<bool> recorded, ended;
  };

  // Work of stream 0 around the plan.
  [[nodiscard]] std::size_t start() const { return ops_; }
  [[nodiscard]] std::size_t finish() const { return ops_ + 1; }

  [[nodiscard]] state state_at(const std::vector<std::size_t>& at) const {
    state s{at, std::vector<bool>(ops_ + 1), std::vector<bool>(ops_ + 2)};
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      for (std::size_t i = 0; i < at[q]; ++i) take(s, queues_[q][i]);
    }
    return s;
  }
  static void take(state& s, const command& c) {
    if (c.what == deed::record) s.recorded[c.of] = true;
    if (c.what == deed::end) s.ended[c.of] = true;
  }
  [[nodiscard]] bool enabled(const state& s, std::size_t stream) const {
    if (s.at[stream] == queues_[stream].size()) return false;
    const command& c = queues_[stream][s.at[stream]];
    return c.what != deed::wait || s.recorded[c.of];
  }
  [[nodiscard]] std::size_t pick(const state& s, std::mt19937_64& random) const {
    std::vector<std::size_t> may;
    for (std::size_t stream = 0; stream < queues_.size(); ++stream) {
      if (enabled(s, stream)) may.push_back(stream);
    }
    return may.empty() ? queues_.size() : may[random() % may.size()];
  }
  [[nodiscard]] std::size_t first_enabled(const state& s) const {
    std::size_t stream = 0;
    while (stream < queues_.size() && !enabled(s, stream)) ++stream;
    return stream;
  }
  // True: every command ran.
  template <class Choose, class Each>
  bool run(const Choose& choose, const Each& each) const {
    state s = state_at(std::vector<std::size_t>(queues_.size()));
    while (true) {
      const std::size_t stream = choose(s);
      if (stream == queues_.size()) break;
      const command& c = queues_[stream][s.at[stream]++];
      take(s, c);
      each(stream, c);
    }
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      if (s.at[q] < queues_[q].size()) return false;
    }
    return true;
  }

  std::size_t ops_;
  std::vector<std::vector<command>> queues_;
  std::vector<std::size_t> planned_;
};

/// The plan without one of its waits, for each of them: f(plan).
template <class F>
void for_each_lost_wait(const stream_plan& plan, const F& f) {
  const auto without = [&](auto part, std::size_t i) {
    stream_plan less = plan;
    auto& list = part(less);
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    f(less);
  };
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    for (std::size_t w = 0; w < plan.steps[s].waits.size(); ++w)
      without([s](stream_plan& p) -> auto& { return p.steps[s].waits; }, w);
  }
  for (std::size_t i = 0; i < plan.forks.size(); ++i)
    without([](stream_plan& p) -> auto& { return p.forks; }, i);
  for (std::size_t i = 0; i < plan.joins.size(); ++i)
    without([](stream_plan& p) -> auto& { return p.joins; }, i);
}

}  // namespace deeprec_test
