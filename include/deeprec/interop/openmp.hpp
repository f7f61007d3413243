// OpenMP's threads as a bulk executor.
//
//   openmp_executor threads;                       // omp_get_max_threads() of them
//   lookup(threads, table, bags, combiner::sum, out);
//
// Inside a parallel region of the caller a call runs on the calling thread alone, unless nested regions
// are enabled (omp_set_max_active_levels). Not here: tasks, places, the device.
#pragma once

#if !defined(_OPENMP)
#  error "deeprec/interop/openmp.hpp needs OpenMP. Fix: compile with -fopenmp, link OpenMP::OpenMP_CXX."
#endif

#include <omp.h>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/interop/detail/bulk_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Bulk executor on OpenMP.
///
/// @threads every member is thread-safe; parallel_for may be nested
class openmp_executor {
 public:
  /// @param threads concurrency(); 0: omp_get_max_threads() of the calling thread, at construction
  explicit openmp_executor(int threads = 0) noexcept
      : concurrency_(threads > 0 ? threads : omp_get_max_threads()) {}

  [[nodiscard]] int concurrency() const noexcept { return concurrency_; }
  /// OpenMP's threads poll between regions, unless OMP_WAIT_POLICY or the number of threads forbids it.
  [[nodiscard]] static constexpr bool polls() noexcept { return true; }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    one parallel region where there is more than one piece; no allocation by this class
  /// @threads thread-safe; may be nested
  /// @error   no exception leaves the region: the one of the smallest begin is rethrown here, once no
  ///          body runs any more; pieces that had not begun are dropped
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    detail::run_pieces(n, grain, concurrency_, body, [](int width, const auto& run) {
#pragma omp parallel num_threads(width)
      run(omp_get_thread_num());
    });
  }

 private:
  int concurrency_;
};

static_assert(BulkExecutor<const openmp_executor>);

}}  // namespace deeprec::DEEPREC_ABI
