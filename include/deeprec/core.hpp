// The words of every interface: views, batches, status, context, executors, number formats.
#pragma once

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/process_mark.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/core/trace.hpp>
