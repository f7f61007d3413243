// Everything for the host, and the device backends. Needs nvcc.
#pragma once

#include <deeprec/deeprec.hpp>
#include <deeprec/embedding/device_stages.cuh>
#include <deeprec/embedding/fused_lookup.cuh>
#include <deeprec/embedding/gradient.cuh>
#include <deeprec/embedding/lookup.cuh>
#include <deeprec/embedding/table_group.cuh>
#include <deeprec/embedding/update.cuh>
#include <deeprec/exec/cuda_staging.hpp>
#include <deeprec/exec/cuda_stream.hpp>
#include <deeprec/exec/cuda_stream_pool.hpp>
#include <deeprec/exec/warp_team.cuh>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/ops/row_select.cuh>
