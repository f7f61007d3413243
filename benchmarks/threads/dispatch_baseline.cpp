#define EIGEN_USE_THREADS
#include <omp.h>

#include <atomic>
#include <unsupported/Eigen/CXX11/ThreadPool>
#if HAVE_TBB
#  include <oneapi/tbb/parallel_for.h>
#  include <oneapi/tbb/partitioner.h>
#  include <oneapi/tbb/task_arena.h>
#endif

#include "threads/baseline.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using dispatch_bench::pool_of_two;

class openmp final : public pool_of_two {
 public:
  void run(void (*work)(void*, long), void* context) override {
#pragma omp parallel for num_threads(2) schedule(static, 1)
    for (long piece = 0; piece < 2; ++piece) work(context, piece);
  }
};

// The caller runs one piece and waits at a barrier, as ThreadPoolDevice::parallelFor does.
class eigen final : public pool_of_two {
 public:
  void run(void (*work)(void*, long), void* context) override {
    Eigen::Barrier both(1);
    pool_.Schedule([&] {
      work(context, 1);
      both.Notify();
    });
    work(context, 0);
    both.Wait();
  }

 private:
  Eigen::ThreadPool pool_{1};
};

#if HAVE_TBB
class onetbb final : public pool_of_two {
 public:
  void run(void (*work)(void*, long), void* context) override {
    arena_.execute([&] {
      oneapi::tbb::parallel_for(
          0L, 2L, 1L, [&](long piece) { work(context, piece); }, oneapi::tbb::static_partitioner());
    });
  }

 private:
  oneapi::tbb::task_arena arena_{2};
};
#endif

}  // namespace

std::vector<dispatch_bench::named_pool> make_pools() {
  std::vector<dispatch_bench::named_pool> all;
  all.push_back({"openmp", std::make_unique<openmp>()});
  all.push_back({"eigen", std::make_unique<eigen>()});
#if HAVE_TBB
  all.push_back({"tbb", std::make_unique<onetbb>()});
#endif
  return all;
}

}  // namespace DEEPREC_BASELINE_NS
