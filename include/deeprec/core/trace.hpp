// Where calls of verbs and ops of plans are recorded: begin and end, by name. A context without a sink calls
// nothing.
//
//   class ranges final : public trace_sink {
//     void begin(const char* verb) noexcept override { nvtxRangePushA(verb); }
//     void end(const char*) noexcept override { nvtxRangePop(); }
//   };
//   ranges sink;  context ctx{pool};  ctx.trace = &sink;
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// An op of a plan (plan/task_plan.hpp), as a sink sees it.
struct traced_op {
  const char* name;  ///< lives as long as the plan
  index_t op;        ///< its number in the plan
  index_t bytes;     ///< that it moves; 0: not known
  int stream;        ///< on which it is enqueued; -1: it runs on the calling thread
};

/// Receives the begin and the end of each call of a verb. Calls nest: a verb can call other verbs. On a
/// stream they enclose the enqueueing, not the execution.
///
/// @threads called on the threads that call verbs, so thread-safe where several of them share a sink
/// @error   none: both functions are noexcept
class trace_sink {
 public:
  /// @param verb a string literal, such as "gemm"
  virtual void begin(const char* verb) noexcept = 0;
  /// Follows each begin(), in reverse order on a thread, also where the verb returns an error or throws.
  virtual void end(const char* verb) noexcept = 0;

  /// The same for an op of a plan, in which verbs nest. Without an override: begin(op.name).
  virtual void begin_op(const traced_op& op) noexcept { begin(op.name); }
  virtual void end_op(const traced_op& op) noexcept { end(op.name); }
  /// The end of an op and the begin of the next one on the same thread, for sinks that read a clock.
  virtual void next_op(const traced_op& ended, const traced_op& begun) noexcept {
    end_op(ended);
    begin_op(begun);
  }

 protected:
  trace_sink() = default;
  trace_sink(const trace_sink&) = default;
  trace_sink& operator=(const trace_sink&) = default;
  ~trace_sink() = default;
};

}}  // namespace deeprec::DEEPREC_ABI
