// What every op of the package shares: TensorFlow's threads as the executor of a verb, scratch memory that a
// thread keeps, and a fault as TensorFlow's status.
#pragma once

#define EIGEN_USE_THREADS

#include <pthread.h>

#include <atomic>
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
inline absl::Status to_tensorflow(deeprec::errc code, const std::string& message) {
  using deeprec::errc;
  const std::string text = "deeprec: " + message;
  switch (code) {
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
inline absl::Status to_tensorflow(const deeprec::status& s) {
  return s.ok() ? absl::OkStatus() : to_tensorflow(s.code(), s.message());
}
template <class T>
absl::Status to_tensorflow(const deeprec::result<T>& r) {
  return r.ok() ? absl::OkStatus() : to_tensorflow(r.code(), r.message());
}

/// Whether this process was forked from one in which an op of this library had run: TensorFlow's threads are
/// not in it.
inline std::atomic<bool>& forked_after_use() {
  static std::atomic<bool> forked = false;
  return forked;
}
inline void watch_forks() {
  static const int watching = ::pthread_atfork(nullptr, nullptr, [] { forked_after_use() = true; });
  static_cast<void>(watching);
}

/// An op that no exception leaves: where memory is refused, ResourceExhausted is its status.
class guarded_op : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    watch_forks();
    if (forked_after_use().load(std::memory_order_relaxed)) {
      context->CtxFailure(absl::FailedPreconditionError(
          "deeprec: a process that was forked after TensorFlow was used has none of its threads: begin it by "
          "multiprocessing's spawn or forkserver"));
      return;
    }
    try {
      run(context);
    } catch (const std::bad_alloc&) {
      refuse(context);
    } catch (const std::length_error&) {
      refuse(context);
    } catch (const deeprec::error& fault) {
      context->CtxFailure(to_tensorflow(fault.code(), fault.what()));
    }
  }

 private:
  virtual void run(tensorflow::OpKernelContext* context) = 0;
  static void refuse(tensorflow::OpKernelContext* context) {
    context->CtxFailure(absl::ResourceExhaustedError("deeprec: there is no memory for what this op needs"));
  }
};

}  // namespace deeprec_tf
