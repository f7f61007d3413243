// Types of elements: TensorFlow's and deeprec's, whose bits are the same.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/cast.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace deeprec_tf {

template <class T>
inline constexpr tensorflow::DataType type_of = tensorflow::DT_FLOAT;
template <>
inline constexpr tensorflow::DataType type_of<deeprec::f16> = tensorflow::DT_HALF;
template <>
inline constexpr tensorflow::DataType type_of<deeprec::bf16> = tensorflow::DT_BFLOAT16;

/// Calls f with a value of deeprec's type.
template <class F>
auto visit_type(tensorflow::DataType type, F&& f) {
  if (type == tensorflow::DT_HALF) return f(deeprec::f16());
  if (type == tensorflow::DT_BFLOAT16) return f(deeprec::bf16());
  return f(float());
}

/// The elements of a tensor of type_of<T> as rows.
template <class T>
deeprec::matrix_view<T> matrix_of(const tensorflow::Tensor& tensor, index_t rows, index_t width) {
  return {reinterpret_cast<T*>(const_cast<char*>(tensor.tensor_data().data())), rows, width};
}

/// Copies rows of float to a tensor of any of the types.
template <class Context>
deeprec::status narrow(const Context& ctx, deeprec::matrix_view<const float> from, tensorflow::Tensor& to) {
  return visit_type(to.dtype(), [&](auto element) {
    return deeprec::cast(ctx, from, matrix_of<decltype(element)>(to, from.extent(0), from.extent(1)));
  });
}

/// Rows of float that an output or an input of any of the types becomes: its own memory where it is of float.
class float_rows {
 public:
  /// An output, which write() fills.
  float_rows(tensorflow::Tensor* out, index_t rows, index_t width) : out_(out), rows_(rows), width_(width) {
    reserve();
  }
  /// An input.
  template <class Context>
  float_rows(const Context& ctx, const tensorflow::Tensor& in, index_t rows, index_t width)
      : rows_(rows), width_(width) {
    if (in.dtype() == tensorflow::DT_FLOAT) {
      data_ = const_cast<float*>(in.flat<float>().data());
      return;
    }
    reserve();
    visit_type(in.dtype(), [&](auto element) {
      read_ = deeprec::cast(ctx, matrix_of<const decltype(element)>(in, rows, width), view());
    });
  }

  [[nodiscard]] deeprec::matrix_view<float> view() { return {data_, rows_, width_}; }
  [[nodiscard]] const deeprec::status& read() const { return read_; }
  template <class Context>
  deeprec::status write(const Context& ctx) {
    return values_.empty() ? deeprec::status() : narrow(ctx, view(), *out_);
  }

 private:
  void reserve() {
    if (out_ != nullptr && out_->dtype() == tensorflow::DT_FLOAT) {
      data_ = out_->flat<float>().data();
      return;
    }
    values_.resize(static_cast<std::size_t>(rows_ * width_));
    data_ = values_.data();
  }

  tensorflow::Tensor* out_ = nullptr;
  index_t rows_ = 0, width_ = 0;
  float* data_ = nullptr;
  std::pmr::vector<float> values_{scratch()};
  deeprec::status read_;
};

}  // namespace deeprec_tf
