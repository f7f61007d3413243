// Ops of a plan that are run one by one: each with its span in a trace and a look at the stop token before
// it, and the fault of the one that fails.
#pragma once

#include <string>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The fault of a task, with the op's name in its text.
inline fault task_fault(const task_plan& plan, index_t op, const status& why) {
  fault_place place = why.place();
  std::string text = std::string(plan.name(op)) + ": " + (why.detail() == nullptr ? "" : why.detail());
  if (why.detail() == nullptr) text.resize(text.size() - 2);
  if (place.item >= 0) text += " (item " + std::to_string(place.item) + ")";
  place.item = op;
  return {status(why.code(), why.detail(), place), std::string(), std::move(text)};
}

/// Reports ops that follow each other on one thread; the last one ends with the scope.
class op_spans {
 public:
  op_spans(const task_plan& plan, trace_sink* sink) noexcept : plan_(plan), sink_(sink) {}
  op_spans(const op_spans&) = delete;
  op_spans& operator=(const op_spans&) = delete;
  ~op_spans() { end(); }
  void begin(index_t op) noexcept {
    if (sink_ == nullptr) return;
    traced_op& begun = ops_[now_ == 0 ? 1 : 0];
    begun = {plan_.name(op), op, plan_.bytes(op), -1};
    if (now_ < 0) {
      sink_->begin_op(begun);
    } else {
      sink_->next_op(ops_[now_], begun);
    }
    now_ = now_ == 0 ? 1 : 0;
  }
  void end() noexcept {
    if (now_ >= 0) sink_->end_op(ops_[now_]);
    now_ = -1;
  }

 private:
  const task_plan& plan_;
  trace_sink* sink_;
  traced_op ops_[2];  // the one that runs, and the next
  int now_ = -1;
};

// Every task of a row with its span, and a look at the stop token before it; false: failed, or stopped with
// failure.why ok.
inline bool run_watched(const environment& env, op_spans& spans, row_runner run, const task_row& row,
                        row_failure& failure) {
  for (index_t i = 0; i < row.count; ++i) {
    failure.at = i;
    if (env.stop != nullptr && env.stop->stop_requested()) return false;
    spans.begin(row.ops[i]);
    row_failure of_one;
    // An exception leaves failure.at as it is: the op that threw.
    if (!run({row.states + i, row.ops + i, 1, row.step, row.function}, of_one)) {
      failure.why = of_one.why;
      return false;
    }
  }
  return true;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
