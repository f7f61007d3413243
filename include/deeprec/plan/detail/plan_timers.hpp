// Events on the streams of a plan that say when its ops ran on the device, in milliseconds since its begin.
//
//   stream 0   |begin  [op 0]       [op 3]  end|      [ ]: the events of an op, where ops are timed
//   stream 1          [op 1] [op 2]     end|
//
// Not here: the launches (cuda_stream_pool.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Events of one kind, made on the device that is current.
class cuda_event_list {
 public:
  explicit cuda_event_list(bool timed) noexcept : timed_(timed) {}

  [[nodiscard]] status grow(std::size_t count) {
    events_.reserve(count);  // may throw, so it comes before an event is created
    while (events_.size() < count) {
      cudaEvent_t made{};
      if (const status s = cuda_runtime::make_event(made, timed_); !s) return s;
      events_.push_back(made);
    }
    return {};
  }
  void clear() noexcept {
    for (const cudaEvent_t e : events_) cuda_runtime::end_event(e);
    events_.clear();
  }
  [[nodiscard]] cudaEvent_t operator[](std::size_t i) const noexcept { return events_[i]; }

 private:
  bool timed_;
  std::vector<cudaEvent_t> events_;
};

/// @threads one thread at a time
class plan_timers {
 public:
  enum class timing : unsigned char { none, streams, ops };
  struct traced {
    index_t op;
    int stream;
  };

  /// Forgets the last plan. @param ops  the number of ops that are timed
  [[nodiscard]] status prepare(std::size_t streams, std::size_t ops) {
    ops_.clear();
    ops_.reserve(ops);
    if (const status s = of_ops_.grow(2 * ops); !s) return s;
    if (const status s = of_streams_.grow(streams + 1); !s) return s;
    used_.assign(streams, false);
    return {};
  }
  void clear() noexcept {
    of_streams_.clear();
    of_ops_.clear();
  }

  [[nodiscard]] status begin(cudaStream_t on) const noexcept {
    return cuda_runtime::record(of_streams_[0], on);
  }
  [[nodiscard]] status begin_op(cudaStream_t on) const noexcept {
    return cuda_runtime::record(of_ops_[2 * ops_.size()], on);
  }
  [[nodiscard]] status end_op(index_t op, int stream, cudaStream_t on) {
    const status s = cuda_runtime::record(of_ops_[2 * ops_.size() + 1], on);
    ops_.push_back({op, stream});
    return s;
  }
  void use(std::size_t stream) { used_[stream] = true; }
  [[nodiscard]] status end_stream(std::size_t stream, cudaStream_t on) const noexcept {
    return cuda_runtime::record(of_streams_[stream + 1], on);
  }

  /// Of the last plan; 0 where none was timed.
  [[nodiscard]] std::size_t streams() const noexcept { return used_.size(); }
  [[nodiscard]] bool was_used(std::size_t stream) const { return used_[stream]; }
  [[nodiscard]] const std::vector<traced>& ops() const noexcept { return ops_; }

  /// When the last op of a stream has ended. @pre the stream has been waited for
  [[nodiscard]] status read_stream(std::size_t stream, float& end) const noexcept {
    return cuda_runtime::milliseconds(end, of_streams_[0], of_streams_[stream + 1]);
  }
  /// When an op began and ended; waits for it.
  [[nodiscard]] status read_op(std::size_t i, float& begin, float& end) const noexcept {
    if (const status s = cuda_runtime::wait_for(of_ops_[2 * i + 1]); !s) return s;
    if (const status s = cuda_runtime::milliseconds(begin, of_streams_[0], of_ops_[2 * i]); !s) return s;
    return cuda_runtime::milliseconds(end, of_streams_[0], of_ops_[2 * i + 1]);
  }

 private:
  cuda_event_list of_streams_{true};  // the start, and the end of each stream
  std::vector<bool> used_;
  cuda_event_list of_ops_{true};  // the begin and the end of each op in ops_
  std::vector<traced> ops_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
