// What the threads of a segment share, what each of them counts, and how it ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/pipeline/pipeline_options.hpp>
#include <deeprec/pipeline/stages.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct stage_tally {
  std::uint64_t items = 0;
  std::uint64_t left_out = 0;
  std::uint64_t bad = 0;
  double busy_ns = 0;  // of timed items, each times the items that it stands for
};

/// What one thread counted in its segment of Stages stages.
template <std::size_t Stages>
struct segment_tally {
  std::array<stage_tally, Stages> stages{};
  double input_ns = 0;
  double output_ns = 0;
  double elapsed_ns = 0;
};

/// How a segment ended.
enum class segment_end : unsigned char {
  input,   ///< no more items, or the failure of a stage before it
  failed,  ///< a stage of this segment failed
  halted,  ///< cancelled from outside
};

/// What the threads of a parallel segment share.
struct segment_team {
  std::mutex turn;  // of the thread that takes
  std::uint64_t taken = 0;
  std::atomic<bool> over{false};   // nobody takes any more
  std::atomic<bool> ended{false};  // and somebody noted how it ended, so the end goes on
  std::atomic<int> working{0};
};

/// What all segments of a run share.
struct run_environment {
  const std::function<bad_item_action(const bad_item&)>* on_bad_item = nullptr;
  trace_sink* trace = nullptr;
  std::atomic<bool> stopped{false};
};

/// A call of a stage in a trace.
struct trace_range {
  trace_sink* sink;
  const char* name;
  trace_range(trace_sink* to, const char* what) noexcept : sink(to), name(what) { sink->begin(name); }
  trace_range(const trace_range&) = delete;
  trace_range& operator=(const trace_range&) = delete;
  ~trace_range() { sink->end(name); }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
