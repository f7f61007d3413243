// Times products of cuBLASLt's algorithms on the device, for gemm_tune().
#pragma once

#include <algorithm>
#include <limits>
#include <memory>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/detail/cuda_cublaslt_plan.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What gemm_tune() times: each algorithm's products as a graph, so that no time of the host is in between.
struct cublaslt_stopwatch {
  static constexpr int products = 6, rounds = 5;
  struct timed {
    std::shared_ptr<const cublaslt_plan> plan{};
    cuda_runtime::graph_exec exec = nullptr;
    float least = std::numeric_limits<float>::infinity();
  };

  cublaslt_stopwatch() = default;
  cublaslt_stopwatch(const cublaslt_stopwatch&) = delete;
  cublaslt_stopwatch& operator=(const cublaslt_stopwatch&) = delete;
  ~cublaslt_stopwatch() {
    for (const timed& t : of) {
      if (t.exec != nullptr) cuda_runtime::end_exec(t.exec);
    }
    for (const cuda_runtime::event e : {begin, end}) {
      if (e != nullptr) cuda_runtime::end_event(e);
    }
    if (beside != nullptr) cuda_runtime::end_stream(beside);
  }

  [[nodiscard]] status start() noexcept {
    if (const status s = cuda_runtime::make_stream(beside); !s) return s;
    if (const status s = cuda_runtime::make_event(begin, true); !s) return s;
    return cuda_runtime::make_event(end, true);
  }
  /// Makes the graph of several run(on). Returns the first failure: of a run, else of the capture.
  template <class Run>
  [[nodiscard]] status capture(timed& into, const Run& run) const {
    return cuda_runtime::capture(into.exec, beside, [&]() -> status {
      status ran;
      for (int i = 0; i < products && ran.ok(); ++i) ran = run(beside);
      return ran;
    });
  }
  [[nodiscard]] status time(timed& t, cudaStream_t on) const noexcept {
    // The first launch keeps the device busy while the host enqueues the second.
    if (const status s = cuda_runtime::launch(t.exec, on); !s) return s;
    if (const status s = cuda_runtime::record(begin, on); !s) return s;
    if (const status s = cuda_runtime::launch(t.exec, on); !s) return s;
    if (const status s = cuda_runtime::record(end, on); !s) return s;
    if (const status s = cuda_runtime::wait_for(end); !s) return s;
    float took = 0;
    if (const status s = cuda_runtime::milliseconds(took, begin, end); !s) return s;
    t.least = (std::min)(t.least, took);
    return {};
  }

  cuda_runtime::stream beside = nullptr;  ///< captures: the caller's may be the null stream
  cuda_runtime::event begin = nullptr, end = nullptr;
  timed of[cublaslt_choices::most];
  int count = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
