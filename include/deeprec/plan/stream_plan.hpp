// Assigns the ops of a training step to n in-order streams, with the fewest waits between them.
//
//   a ─> b ─> d        stream 0    a  b ────> d         the chains of a minimum path cover become streams;
//   a ─> c ─> d        stream 1      (a) c ──/          a wait only where stream order does not suffice
//
//   task_list work;
//   { auto here = work.on_stream(1); work.add({a}); }         tf.stream(1): scopes nest, the inner applies
//   { auto here = work.colocate_with(a); work.add({}); }      tf.colocate_with
//   plan_streams(work, 4, plan).or_throw();                   or a task_plan, which runs on threads as well
//
// Pure host code: cuda_stream_pool.hpp runs a plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/detail/stream_dealer.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The order and the stream of every op. Stream 0 is the caller's: work enqueued on it before runs before the
/// plan, work enqueued on it afterwards runs after the plan.
///
/// @threads immutable once made; thread-safe
struct stream_plan {
  struct step {
    index_t op;
    int stream;
    std::vector<index_t> waits;  ///< ops on other streams that must end first
    bool recorded = false;       ///< another stream waits for the end of this op
  };

  int streams = 0;
  std::vector<step> steps;     ///< in the order in which they are enqueued
  std::vector<int> forks;      ///< streams whose first step waits for the start of the plan
  std::vector<index_t> joins;  ///< ops that stream 0 waits for at the end
  std::uint64_t topology = 0;  ///< equal for equal plans: the key of a cached graph

  /// The number of waits between streams, without those at the start and at the end.
  [[nodiscard]] index_t waits() const noexcept {
    index_t all = 0;
    for (const step& s : steps) all += static_cast<index_t>(s.waits.size());
    return all;
  }
};

/// Assigns the ops of a step to streams.
///
/// @post     every op starts after those it needs; no wait is redundant. Parts of the work without an edge
///           between them wait for each other only where they share a stream
/// @numerics deterministic: the same plan for the same work
/// @cost     O(n^2) bits and time for n ops, 16 bytes for each pair of chains, and O(n * edges) at worst for
///           the chains: made once, run many times
/// @threads  reentrant
/// @error    invalid_value: a stream outside [0, streams) (item = the op, value = the stream), streams below
///           1; detail() names it. On an error `plan` is unchanged
/// @example  @snippet tests/host_cuda/stream_plan_test.cpp stream_plan
/// @source   minimum path cover of the transitive reduction: Nimble (Kwon et al., NeurIPS 2020)
[[nodiscard]] inline status plan_streams(const task_plan& tasks, int streams, stream_plan& plan) {
  const index_t n = tasks.size();
  if (streams < 1)
    return {errc::invalid_value, "plan_streams: streams must be at least 1", {.value = streams}};
  for (index_t v = 0; v < n; ++v) {
    if (tasks.stream(v) >= streams || tasks.stream(v) < -1) {
      return {errc::invalid_value,
              "plan_streams: the stream of an op must be below the number of streams",
              {.value = tasks.stream(v), .item = v}};
    }
  }
  const detail::stream_work work(tasks);
  detail::stream_dealer dealer(work, streams);
  const std::vector<int> stream_of = dealer.deal();
  const std::vector<digraph::number> order = dealer.launch_order();

  stream_plan made;
  made.streams = streams;
  made.steps.resize(static_cast<std::size_t>(n));
  // Op n represents the earlier work of stream 0.
  std::vector<index_t> step_of(static_cast<std::size_t>(n) + 1), at(static_cast<std::size_t>(n) + 1);
  const auto stream = [&](index_t u) { return u == n ? 0 : stream_of[static_cast<std::size_t>(u)]; };
  const auto step = [&](index_t u) { return step_of[static_cast<std::size_t>(u)]; };
  detail::stream_clocks clocks(n + 1, streams);
  step_of[static_cast<std::size_t>(n)] = clocks.enqueue(n, 0);
  at[static_cast<std::size_t>(n)] = -1;
  const auto latest_first = [&](index_t a, index_t b) {
    return at[static_cast<std::size_t>(a)] > at[static_cast<std::size_t>(b)];
  };
  std::vector<index_t> last(static_cast<std::size_t>(streams), -1);
  const auto record = [&](index_t op) {
    made.steps[static_cast<std::size_t>(at[static_cast<std::size_t>(op)])].recorded = true;
  };
  std::uint64_t topology = mix64(static_cast<std::uint64_t>(streams));
  const auto stir = [&](std::uint64_t x) { topology = mix64(topology ^ (x + 0x9e3779b97f4a7c15)); };
  for (index_t i = 0; i < n; ++i) {
    const index_t v = order[static_cast<std::size_t>(i)];
    stream_plan::step& here = made.steps[static_cast<std::size_t>(i)];
    here.op = v;
    here.stream = stream(v);
    at[static_cast<std::size_t>(v)] = i;
    std::vector<index_t> after = work.at(v).after;
    std::sort(after.begin(), after.end(), latest_first);
    after.push_back(n);
    here.waits = clocks.waits(here.stream, after, stream, step);
    if (!here.waits.empty() && here.waits.back() == n) {
      here.waits.pop_back();
      made.forks.push_back(here.stream);
    }
    for (const index_t u : here.waits) record(u);
    step_of[static_cast<std::size_t>(v)] = clocks.enqueue(v, here.stream);
    last[static_cast<std::size_t>(here.stream)] = v;
    const auto op = [&](index_t place) {
      return static_cast<std::uint64_t>(work.op[static_cast<std::size_t>(place)]);
    };
    stir(op(v) << 20 | static_cast<std::uint64_t>(here.stream));
    for (const index_t u : here.waits) stir(~op(u));
  }
  std::erase(last, index_t{-1});
  std::sort(last.begin(), last.end(), latest_first);
  made.joins = clocks.waits(0, last, stream, step);
  for (const index_t u : made.joins) record(u);
  made.topology = topology;
  const auto number = [&](index_t& place) { place = work.op[static_cast<std::size_t>(place)]; };
  for (stream_plan::step& s : made.steps) {
    number(s.op);
    for (index_t& u : s.waits) number(u);
  }
  for (index_t& u : made.joins) number(u);
  plan = std::move(made);
  return {};
}

/// The same, for a list: compiles it first.
///
/// @cost    as above, and task_plan::compile
/// @threads reentrant
/// @error   as above; what task_plan::compile refuses, without the names of the ops
[[nodiscard]] inline status plan_streams(const task_list& work, int streams, stream_plan& plan) {
  const result<task_plan> tasks = task_plan::compile(work, task_order::as_added);
  if (!tasks) return tasks.fault();
  return plan_streams(tasks.value(), streams, plan);
}

}}  // namespace deeprec::DEEPREC_ABI
