// Scratch memory for the ops of a framework's package: each thread keeps what it was given.
//
//   const auto ctx = deeprec_packages::call_on(executor);
//   lookup(ctx, table, bags, pooling, out);
#pragma once

#include <cstddef>
#include <memory_resource>

#include <deeprec/core/context.hpp>

namespace deeprec_packages {

/// The scratch memory of the calling thread.
///
/// @threads one resource for each thread: what it allocates must be freed by the same thread
inline std::pmr::memory_resource* scratch() {
  thread_local std::pmr::unsynchronized_pool_resource pool(
      {.max_blocks_per_chunk = 0, .largest_required_pool_block = std::size_t{1} << 24});
  return &pool;
}

/// A context on an executor, with the thread's scratch memory.
template <class Executor>
deeprec::context<Executor> call_on(Executor& executor) {
  deeprec::context<Executor> ctx(executor);
  ctx.memory = scratch();
  return ctx;
}

}  // namespace deeprec_packages
