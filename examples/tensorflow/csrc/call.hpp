// What every op of the package shares: TensorFlow's threads as the executor of a verb, scratch memory that a
// thread keeps, and a fault as TensorFlow's status.
#pragma once

#define EIGEN_USE_THREADS

#include <new>
#include <stdexcept>
#include <string>

#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/interop/eigen_thread_pool.hpp>

#include "tensorflow/core/framework/op_kernel.h"
#include "thread_scratch.hpp"
#include "unsupported/Eigen/CXX11/Tensor"

namespace deeprec_tf {

using deeprec::index_t;
using deeprec_packages::call_on;
using deeprec_packages::scratch;

/// The intra-op threads of the session that runs the op.
inline deeprec::eigen_executor threads(tensorflow::OpKernelContext* context) {
  return deeprec::eigen_executor(context->eigen_device<Eigen::ThreadPoolDevice>());
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

/// An op that may run out of memory: no exception leaves it, ResourceExhausted is its status then.
class guarded_op : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    try {
      run(context);
    } catch (const std::bad_alloc&) {
      refuse(context);
    } catch (const std::length_error&) {
      refuse(context);
    }
  }

 private:
  virtual void run(tensorflow::OpKernelContext* context) = 0;
  static void refuse(tensorflow::OpKernelContext* context) {
    context->CtxFailure(absl::ResourceExhaustedError("deeprec: there is no memory for what this op needs"));
  }
};

}  // namespace deeprec_tf
