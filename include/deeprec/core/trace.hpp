// Where calls of verbs are recorded: begin and end, by name. A context without a sink calls nothing.
//
//   class ranges final : public trace_sink {
//     void begin(const char* verb) noexcept override { nvtxRangePushA(verb); }
//     void end(const char*) noexcept override { nvtxRangePop(); }
//   };
//   ranges sink;  context ctx{pool};  ctx.trace = &sink;
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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

 protected:
  trace_sink() = default;
  trace_sink(const trace_sink&) = default;
  trace_sink& operator=(const trace_sink&) = default;
  ~trace_sink() = default;
};

}}  // namespace deeprec::DEEPREC_ABI
