// Shapes of what is pooled, for the ops that take bags.
#pragma once

#include "tensorflow/core/framework/shape_inference.h"

namespace deeprec_tf {

/// Sets output 0 to (d0 ... dr-2, width), for bags whose inputs begin at `first`.
inline absl::Status set_pooled_shape(tensorflow::shape_inference::InferenceContext* c, int first,
                                     tensorflow::shape_inference::DimensionHandle width) {
  using tensorflow::shape_inference::DimensionHandle;
  using tensorflow::shape_inference::ShapeHandle;
  int weights = 0;
  bool ragged = false;
  if (absl::Status s = c->GetAttr("M", &weights); !s.ok()) return s;
  if (absl::Status s = c->GetAttr("ragged", &ragged); !s.ok()) return s;
  ShapeHandle indices, ids, shape, merged, leading, out;
  if (absl::Status s = c->WithRank(c->input(first), ragged ? 1 : 2, &indices); !s.ok()) return s;
  if (absl::Status s = c->WithRank(c->input(first + 1), 1, &ids); !s.ok()) return s;
  if (weights == 1) {
    if (absl::Status s = c->Merge(ids, c->input(first + 3), &merged); !s.ok()) return s;
  }
  if (ragged) {
    DimensionHandle bags = c->UnknownDim();
    if (c->ValueKnown(c->Dim(indices, 0))) {
      if (absl::Status s = c->Subtract(c->Dim(indices, 0), 1, &bags); !s.ok()) return s;
    }
    leading = c->Vector(bags);
  } else {
    if (absl::Status s = c->WithRank(c->input(first + 2), 1, &shape); !s.ok()) return s;
    if (absl::Status s = c->MakeShapeFromShapeTensor(first + 2, &leading); !s.ok()) return s;
    if (!c->RankKnown(leading)) {
      c->set_output(0, c->UnknownShape());
      return absl::OkStatus();
    }
    if (absl::Status s = c->WithRankAtLeast(leading, 2, &leading); !s.ok()) return s;
    if (absl::Status s = c->Subshape(leading, 0, -1, &leading); !s.ok()) return s;
  }
  if (absl::Status s = c->Concatenate(leading, c->Vector(width), &out); !s.ok()) return s;
  c->set_output(0, out);
  return absl::OkStatus();
}

}  // namespace deeprec_tf
