// tf.nn.safe_embedding_lookup_sparse as one op, on tensors and on resource variables.
#include <deeprec/embedding/lookup/lookup.hpp>

#include "sparse_lookup.hpp"
#include "tensorflow/core/framework/shape_inference.h"

namespace deeprec_tf { namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

/// (d0 ... dr-2, D)
absl::Status lookup_shape(InferenceContext* c) {
  int parts = 0, weights = 0;
  if (absl::Status s = c->GetAttr("P", &parts); !s.ok()) return s;
  if (absl::Status s = c->GetAttr("M", &weights); !s.ok()) return s;
  DimensionHandle width = c->UnknownDim();
  for (int i = 0; i < parts; ++i) {
    ShapeHandle table = c->input(i);
    if (const auto* of_handle = c->input_handle_shapes_and_types(i)) {
      if (of_handle->size() != 1) continue;
      table = (*of_handle)[0].shape;
    } else if (c->RankKnown(table) && c->Rank(table) == 0) {
      continue;  // a handle of which nothing is known
    }
    if (absl::Status s = c->WithRank(table, 2, &table); !s.ok()) return s;
    if (absl::Status s = c->Merge(width, c->Dim(table, 1), &width); !s.ok()) return s;
  }
  ShapeHandle indices, ids, shape, given;
  if (absl::Status s = c->WithRank(c->input(parts), 2, &indices); !s.ok()) return s;
  if (absl::Status s = c->WithRank(c->input(parts + 1), 1, &ids); !s.ok()) return s;
  if (absl::Status s = c->WithRank(c->input(parts + 2), 1, &shape); !s.ok()) return s;
  if (weights == 1) {
    if (absl::Status s = c->Merge(ids, c->input(parts + 3), &given); !s.ok()) return s;
  }
  ShapeHandle dense;
  if (absl::Status s = c->MakeShapeFromShapeTensor(parts + 2, &dense); !s.ok()) return s;
  if (!c->RankKnown(dense)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  if (absl::Status s = c->WithRankAtLeast(dense, 2, &dense); !s.ok()) return s;
  if (absl::Status s = c->Subshape(dense, 0, -1, &dense); !s.ok()) return s;
  ShapeHandle out;
  if (absl::Status s = c->Concatenate(dense, c->Vector(width), &out); !s.ok()) return s;
  c->set_output(0, out);
  return absl::OkStatus();
}

REGISTER_OP("DeeprecSafeLookup")
    .DEEPREC_LOOKUP_INPUTS("float")
    .Output("pooled: float")
    .SetShapeFn(lookup_shape);
REGISTER_OP("DeeprecResourceSafeLookup")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("pooled: float")
    .SetIsStateful()
    .SetShapeFn(lookup_shape);

class safe_lookup_op : public guarded_op {
 public:
  explicit safe_lookup_op(OpKernelConstruction* context) : guarded_op(context), attributes_(context) {}

 private:
  void run(OpKernelContext* context) override {
    sparse_bags bags;
    OP_REQUIRES_OK(context, bags.open(context));
    tables_of tables;
    OP_REQUIRES_OK(context, tables.open(context, attributes_));
    tensorflow::TensorShape shape = bags.leading();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(tables.width()));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    const deeprec::matrix_view<float> rows(out->flat<float>().data(), bags.bags(), tables.width());
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    OP_REQUIRES_OK(context, to_tensorflow(tables.visit([&](const auto& table) {
                     return attributes_.visit([&](const auto& pooling) {
                       return deeprec::lookup(ctx, table, bags.batch(), pooling, rows);
                     });
                   })));
  }

  lookup_attributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("DeeprecSafeLookup").Device(tensorflow::DEVICE_CPU), safe_lookup_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecResourceSafeLookup").Device(tensorflow::DEVICE_CPU), safe_lookup_op);

}}  // namespace deeprec_tf
