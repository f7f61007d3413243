// tf.nn.safe_embedding_lookup_sparse as one op, on tensors and on resource variables, and the ops of its
// gradients: of the rows that a batch used, each once, and of its weights.
#include "bag_shapes.hpp"
#include "lookup_attributes.hpp"

namespace deeprec_tf { namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

/// (d0 ... dr-2, D)
absl::Status lookup_shape(InferenceContext* c) {
  int parts = 0;
  if (absl::Status s = c->GetAttr("P", &parts); !s.ok()) return s;
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
  return set_pooled_shape(c, parts, width);
}
absl::Status rows_shape(InferenceContext* c) {
  int parts = 0;
  if (absl::Status s = c->GetAttr("P", &parts); !s.ok()) return s;
  for (int p = 0; p < parts; ++p) {
    c->set_output(p, c->UnknownShapeOfRank(1));
    c->set_output(parts + p, c->UnknownShapeOfRank(2));
  }
  return absl::OkStatus();
}
absl::Status weights_shape(InferenceContext* c) {
  int parts = 0;
  if (absl::Status s = c->GetAttr("P", &parts); !s.ok()) return s;
  c->set_output(0, c->input(parts + 2));
  return absl::OkStatus();
}

REGISTER_OP("DeeprecSafeLookup")
    .DEEPREC_LOOKUP_INPUTS("T")
    .Output("pooled: out_type")
    .SetShapeFn(lookup_shape);
REGISTER_OP("DeeprecResourceSafeLookup")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("pooled: out_type")
    .SetIsStateful()
    .SetShapeFn(lookup_shape);

REGISTER_OP("DeeprecSafeLookupRowGradients")
    .Input("gradient: out_type")
    .DEEPREC_LOOKUP_INPUTS("T")
    .Output("rows: P * int64")
    .Output("values: P * T")
    .SetShapeFn(rows_shape);
REGISTER_OP("DeeprecResourceSafeLookupRowGradients")
    .Input("gradient: out_type")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("rows: P * int64")
    .Output("values: P * T")
    .SetIsStateful()
    .SetShapeFn(rows_shape);
REGISTER_OP("DeeprecSafeLookupWeightGradients")
    .Input("gradient: out_type")
    .DEEPREC_LOOKUP_INPUTS("T")
    .Output("values: float")
    .SetShapeFn(weights_shape);
REGISTER_OP("DeeprecResourceSafeLookupWeightGradients")
    .Input("gradient: out_type")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn(weights_shape);

}}  // namespace deeprec_tf
