// An arena of oneTBB as a bulk executor.
//
//   tbb::task_arena arena(8);
//   tbb_executor threads(arena);
//   lookup(threads, table, bags, combiner::sum, out);
//
// A thread that waits inside a call runs work of that call only (this_task_arena::isolate), so bodies never
// nest on one stack. Not here: flow graphs, priorities, cancellation.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/interop/detail/bulk_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Bulk executor on a task_arena, which it refers to and which must outlive it.
///
/// @threads every member is thread-safe; parallel_for may be nested
class tbb_executor {
 public:
  explicit tbb_executor(tbb::task_arena& arena) : arena_(&arena) { arena.initialize(); }

  /// The arena's slots, the caller's included.
  [[nodiscard]] int concurrency() const noexcept { return arena_->max_concurrency(); }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    one task of oneTBB for each worker where there is more than one piece
  /// @threads thread-safe; may be nested
  /// @error   no exception reaches oneTBB: the one of the smallest begin is rethrown here, once no body
  ///          runs any more; pieces that had not begun are dropped
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    detail::run_pieces(n, grain, concurrency(), body, [this](int width, const auto& run) {
      arena_->execute([width, &run] {
        tbb::this_task_arena::isolate([width, &run] {
          tbb::parallel_for(0, width, 1, [&run](int worker) { run(worker); }, tbb::simple_partitioner{});
        });
      });
    });
  }

 private:
  tbb::task_arena* arena_;
};

static_assert(BulkExecutor<const tbb_executor>);

}}  // namespace deeprec::DEEPREC_ABI
