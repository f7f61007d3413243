// PyTorch's intra-op threads as a bulk executor. This header includes nothing of PyTorch: the caller passes
// the function.
//
//   torch_executor threads{[](std::int64_t b, std::int64_t e, std::int64_t g, const auto& f) {
//                            at::parallel_for(b, e, g, f);
//                          },
//                          at::get_num_threads()};
//   lookup(threads, table, bags, combiner::sum, out);
//
// Any function will do that calls f(begin, end) for ranges which cover [b, e), on any threads, and then
// returns. Inside a parallel region of PyTorch at::parallel_for runs on the calling thread, and so does a
// call through this executor.
//
// at::parallel_for is a serial loop in a unit that is compiled without -fopenmp, where PyTorch was built with
// OpenMP. Where ATen/Parallel.h is included before this header, such a unit does not compile.
#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/interop/detail/bulk_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Bulk executor on a function like at::parallel_for.
///
/// @threads as the function: at::parallel_for may be called from any thread, and nested
template <class ParallelFor>
class torch_executor {
 public:
  /// @param threads concurrency(): at::get_num_threads()
  torch_executor(ParallelFor parallel_for, int threads)
      : call_(std::move(parallel_for)), concurrency_(threads > 1 ? threads : 1) {
#if defined(AT_PARALLEL_OPENMP) && !defined(_OPENMP)
    static_assert(sizeof(ParallelFor) == 0 || AT_PARALLEL_OPENMP == 0,
                  "deeprec::torch_executor: at::parallel_for is a serial loop in this unit. Fix: compile it "
                  "with -fopenmp.");
#endif
  }

  [[nodiscard]] int concurrency() const noexcept { return concurrency_; }
  /// OpenMP's threads poll between regions, unless OMP_WAIT_POLICY or the number of threads forbids it.
  [[nodiscard]] static constexpr bool polls() noexcept { return true; }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  /// `worker` is an index of the range that at::parallel_for splits, not a thread.
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    one at::parallel_for over at most concurrency() indices; pieces are shared out as
  ///          workers become free, so bags of unequal length balance
  /// @threads as the function
  /// @error   no exception of a body reaches PyTorch: the one of the smallest begin is rethrown here,
  ///          once no body runs any more; pieces that had not begun are dropped
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    detail::run_pieces(n, grain, concurrency_, body, [this](int width, const auto& run) {
      call_(std::int64_t{0}, std::int64_t{width}, std::int64_t{1},
            [&run](std::int64_t first, std::int64_t last) {
              for (std::int64_t worker = first; worker < last; ++worker) {
                run(static_cast<int>(worker));
              }
            });
    });
  }

 private:
  ParallelFor call_;
  int concurrency_;
};

}}  // namespace deeprec::DEEPREC_ABI
