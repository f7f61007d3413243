// What every op of the package shares: TensorFlow's threads as the executor of a verb, scratch memory that a
// thread keeps, and a fault as TensorFlow's status.
#pragma once

#define EIGEN_USE_THREADS

#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>

#include <deeprec/core/context.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/interop/eigen_thread_pool.hpp>

#include "tensorflow/core/framework/op_kernel.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace deeprec_tf {

using deeprec::index_t;

/// The intra-op threads of the session that runs the op.
inline deeprec::eigen_executor threads(tensorflow::OpKernelContext* context) {
  return deeprec::eigen_executor(context->eigen_device<Eigen::ThreadPoolDevice>());
}

/// The scratch memory of the calling thread, which keeps what it was given.
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

/// InvalidArgument for what the caller gave, ResourceExhausted, Unimplemented, and Internal for the rest.
inline absl::Status to_tensorflow(const deeprec::status& s) {
  using deeprec::errc;
  if (s) return absl::OkStatus();
  const std::string text = "deeprec: " + s.message();
  switch (s.code()) {
    case errc::id_out_of_range:
    case errc::shape_mismatch:
    case errc::offsets_negative:
    case errc::offsets_decreasing:
    case errc::offsets_beyond_ids:
    case errc::weight_is_nan:
    case errc::invalid_value:
    case errc::parse_error:
      return absl::InvalidArgumentError(text);
    case errc::unsupported:
      return absl::UnimplementedError(text);
    case errc::out_of_memory:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

/// Calls f. No exception may leave an op: sizes come from the caller, and memory for them may be refused.
template <class F>
void without_exceptions(tensorflow::OpKernelContext* context, F&& f) {
  const auto refused = [&] {
    context->CtxFailure(
        absl::ResourceExhaustedError("deeprec: memory for the batch must be had (is refused)"));
  };
  try {
    f();
  } catch (const std::bad_alloc&) {
    refused();
  } catch (const std::length_error&) {
    refused();
  }
}

}  // namespace deeprec_tf
