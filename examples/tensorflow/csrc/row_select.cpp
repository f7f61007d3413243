// tf.where with a condition for each row, as an op that reads the chosen rows only.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <deeprec/ops/row_select.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace deeprec_tf { namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status select_shape(InferenceContext* c) {
  ShapeHandle condition, x, y, row;
  if (absl::Status s = c->WithRank(c->input(0), 1, &condition); !s.ok()) return s;
  if (absl::Status s = c->WithRankAtLeast(c->input(1), 1, &x); !s.ok()) return s;
  if (absl::Status s = c->WithRankAtLeast(c->input(2), 1, &y); !s.ok()) return s;
  const DimensionHandle rows = c->Dim(condition, 0);
  for (const ShapeHandle operand : {x, y}) {
    DimensionHandle same;
    if (!c->RankKnown(operand) || c->Value(c->Dim(operand, 0)) == 1) continue;
    if (c->ValueKnown(c->Dim(operand, 0))) {
      if (absl::Status s = c->Merge(rows, c->Dim(operand, 0), &same); !s.ok()) return s;
    }
  }
  if (!c->RankKnown(x) || !c->RankKnown(y)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  ShapeHandle of_x, of_y, rest;
  if (absl::Status s = c->Subshape(x, 1, &of_x); !s.ok()) return s;
  if (absl::Status s = c->Subshape(y, 1, &of_y); !s.ok()) return s;
  if (absl::Status s = c->Merge(of_x, of_y, &rest); !s.ok()) return s;
  if (absl::Status s = c->Concatenate(c->Vector(rows), rest, &row); !s.ok()) return s;
  c->set_output(0, row);
  return absl::OkStatus();
}

REGISTER_OP("DeeprecRowSelect")
    .Input("condition: bool")
    .Input("x: T")
    .Input("y: T")
    .Output("z: T")
    .Attr(
        "T: {float, double, half, bfloat16, int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool, "
        "complex64, complex128}")
    .SetShapeFn(select_shape);

class row_select_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    const Tensor &condition = context->input(0), &x = context->input(1), &y = context->input(2);
    OP_REQUIRES(context, condition.dims() == 1 && x.dims() >= 1 && y.dims() >= 1,
                absl::InvalidArgumentError("deeprec: condition must be (B), x and y (B, ...) (are " +
                                           shapes(context)));
    const index_t rows = condition.dim_size(0);
    tensorflow::TensorShape of_x = x.shape(), of_y = y.shape();
    of_x.set_dim(0, 1);
    of_y.set_dim(0, 1);
    const auto fits = [&](const Tensor& operand) {
      return operand.dim_size(0) == rows || operand.dim_size(0) == 1;
    };
    OP_REQUIRES(context, of_x == of_y && fits(x) && fits(y),
                absl::InvalidArgumentError("deeprec: x and y must have " + std::to_string(rows) +
                                           " rows, or one, of one shape (are " + shapes(context)));
    tensorflow::TensorShape shape = of_x;
    shape.set_dim(0, rows);
    Tensor* out = nullptr;
    // In place where nobody else needs an operand: only the rows that change are then written.
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1, 2}, 0, shape, &out));
    if (out->NumElements() == 0) return;
    const index_t bytes = static_cast<index_t>(out->TotalBytes()) / rows;
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    const std::span<const bool> flags(condition.flat<bool>().data(), static_cast<std::size_t>(rows));
    OP_REQUIRES_OK(context,
                   to_tensorflow(deeprec::row_select(
                       ctx, deeprec::array_view<const bool>(flags), bytes_of<const std::byte>(x, bytes),
                       bytes_of<const std::byte>(y, bytes), bytes_of<std::byte>(*out, bytes))));
  }

  template <class Byte>
  static deeprec::matrix_view<Byte> bytes_of(const Tensor& tensor, index_t width) {
    return {reinterpret_cast<Byte*>(const_cast<char*>(tensor.tensor_data().data())), tensor.dim_size(0),
            width};
  }
  static std::string shapes(OpKernelContext* context) {
    return context->input(0).shape().DebugString() + ", " + context->input(1).shape().DebugString() + ", " +
           context->input(2).shape().DebugString() + ")";
  }
};

REGISTER_KERNEL_BUILDER(Name("DeeprecRowSelect").Device(tensorflow::DEVICE_CPU), row_select_op);

}}  // namespace deeprec_tf
