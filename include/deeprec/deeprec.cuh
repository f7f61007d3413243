// Everything for the host, and the device backends. Needs nvcc.
#pragma once

#include <deeprec/deeprec.hpp>
#include <deeprec/embedding/batches/device_batches.cuh>
#include <deeprec/embedding/groups/lookup_features.cuh>
#include <deeprec/embedding/lookup/fused_lookup.cuh>
#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/embedding/training/gradient.cuh>
#include <deeprec/embedding/training/update.cuh>
#include <deeprec/exec/cuda/cuda_staging.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/cuda_workspace.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/memory/cuda_stream_memory.hpp>
#include <deeprec/ops/row_select.cuh>
#include <deeprec/plan/cuda_stream_pool.hpp>
