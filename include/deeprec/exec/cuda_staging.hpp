// Transfer of batches to a CUDA device: pinned buffers, a copy stream, slices of one device buffer.
//
//   cuda_staging staging(copy_stream.get());
//   packed_layout layout;
//   const auto ids = layout.add<std::int64_t>(n), offsets = layout.add<std::int64_t>(B + 1);
//   staging.acquire(layout.bytes(), slot);         ids.in(staging.host(slot)) ...    pack
//   staging.upload(slot, layout.bytes());          one copy
//   staging.use(slot, compute.get());
//   jagged_view<std::int64_t, std::int64_t, device_space> bags(offsets.in(staging.device(slot)), B, ...);
//   lookup(compute, ...);  staging.release(slot, compute.get());
#pragma once

#include <cuda_runtime_api.h>

#include <deeprec/core/config.hpp>
#include <deeprec/exec/device_staging.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/staging/packed_batch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @threads one thread at a time
using cuda_staging = detail::basic_device_staging<cuda_runtime>;

}}  // namespace deeprec::DEEPREC_ABI
