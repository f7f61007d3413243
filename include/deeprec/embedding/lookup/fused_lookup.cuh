// fused_lookup of entries in any order on a CUDA stream: sorted by their row, then pooled.
//
//   fused_lookup(stream, device_table, device_entries, combiner::mean, device_out).or_throw();   // enqueued
//
//   entries ──radix sort, over the bits of B only──> bags, in scratch ──lookup──> out (B,D)
//
// The sizes of bags stay on the device, so the call can be captured once its scratch is allocated. An
// entry with a row outside the batch is left out, and synchronize() reports it. The host can't see
// whether rows are in order already, so they are always sorted. For bags (jagged_view) lookup.cuh is
// enough.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/lookup/fused_lookup.cuh needs nvcc. Fix: include fused_lookup.hpp in host code."
#endif

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/device_batches.cuh>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/support/scratch_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class Context, class Source, class Id, class Row, MemorySpace Space, class Pooling, class Out,
          MemorySpace OutSpace>
[[gnu::visibility("hidden")]] status fused_lookup_on(cuda_backend, const Context& ctx, const Source& table,
                                                     const coo_view<Id, Row, Space>& entries,
                                                     const Pooling& pooling, matrix_view<Out, OutSpace> out) {
  // The host's checks, before anything is enqueued.
  if (const status s = detail::lookup_shapes(table.format().width(), entries, pooling, out); !s) return s;
  const index_t n = entries.id_count();
  detail::scratch_layout layout;
  const std::size_t offsets = layout.add<index_t>(entries.bags() + 1);
  const std::size_t ids = layout.add<Id>(n);
  const std::size_t weights = layout.add<float>(entries.weights() == nullptr ? 0 : n);
  cuda_executor::scratch_scope kept(*ctx.executor);
  std::byte* base = nullptr;
  if (const status s = kept.take(layout.bytes(), base); !s) return s;
  const auto place = [&](std::size_t at) { return static_cast<void*>(base + at); };
  jagged_out<Id, index_t, device_space> bags{
      {static_cast<index_t*>(place(offsets)), entries.bags() + 1}, {static_cast<Id*>(place(ids)), n}, {}};
  if (entries.weights() != nullptr) bags.weights = {static_cast<float*>(place(weights)), n};
  if (const status s = to_jagged(ctx, entries, bags); !s) return s;
  return lookup(ctx, table, bags.view(), pooling, out);
}

}}  // namespace deeprec::DEEPREC_ABI
