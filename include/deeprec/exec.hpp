// Executors: the calling thread, a pool, any other by reference.
#pragma once

#include <deeprec/exec/cuda/device_fault.hpp>
#include <deeprec/exec/cuda/stream_priority.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
