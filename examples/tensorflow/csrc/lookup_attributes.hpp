// The inputs and attributes of a lookup and of its gradients.
#pragma once

#include <cstdint>
#include <string>

#include <deeprec/embedding/pooling.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace deeprec_tf {

/// The bags of a batch, as bags_of reads them, and how they are combined.
///
/// ragged: indices are the row splits (B+1), and dense_shape has no elements. sort: entries of a SparseTensor
/// may come in any order.
#define DEEPREC_BAG_INPUTS          \
  Input("indices: int64")           \
      .Input("ids: Tid")            \
      .Input("dense_shape: int64")  \
      .Input("weights: M * float")  \
      .Attr("M: int >= 0 = 0")      \
      .Attr("Tid: {int32, int64}")  \
      .Attr("ragged: bool = false") \
      .Attr("sort: bool = false")   \
      .Attr("combiner: {'sum', 'mean', 'sqrtn'} = 'mean'")

/// Those of a safe lookup. Tables: "T" or "resource", of rows of the type T. What was pooled, and its
/// gradient, is of the type out_type.
#define DEEPREC_LOOKUP_INPUTS(type)                         \
  Input("tables: P * " type)                                \
      .DEEPREC_BAG_INPUTS.Attr("P: int >= 1")               \
      .Attr("T: {float, half, bfloat16} = DT_FLOAT")        \
      .Attr("out_type: {float, half, bfloat16} = DT_FLOAT") \
      .Attr("default_id: int = -1")                         \
      .Attr("max_norm: float = -1")                         \
      .Attr("partition_strategy: {'div', 'mod'} = 'div'")

enum class division { sum, mean, sqrtn };

/// Calls f with the combiner.
template <class F>
auto visit_division(division by, F&& f) {
  namespace combiner = deeprec::combiner;
  switch (by) {
    case division::sum:
      return f(combiner::sum);
    case division::mean:
      return f(combiner::mean(combiner::by_weight));
    default:
      return f(combiner::sqrtn);
  }
}

/// The attributes of the bags.
struct bag_attributes {
  explicit bag_attributes(tensorflow::OpKernelConstruction* context) {
    std::string combiner;
    OP_REQUIRES_OK(context, context->GetAttr("combiner", &combiner));
    OP_REQUIRES_OK(context, context->GetAttr("ragged", &ragged));
    OP_REQUIRES_OK(context, context->GetAttr("sort", &sort));
    combined = combiner == "sum" ? division::sum : combiner == "mean" ? division::mean : division::sqrtn;
  }

  division combined = division::mean;
  bool ragged = false;
  bool sort = false;
};

/// The attributes of a safe lookup.
struct lookup_attributes : bag_attributes {
  explicit lookup_attributes(tensorflow::OpKernelConstruction* context) : bag_attributes(context) {
    std::string strategy;
    OP_REQUIRES_OK(context, context->GetAttr("partition_strategy", &strategy));
    OP_REQUIRES_OK(context, context->GetAttr("default_id", &default_id));
    OP_REQUIRES_OK(context, context->GetAttr("max_norm", &max_norm));
    OP_REQUIRES_OK(context, context->GetAttr("out_type", &out_type));
    by_mod = strategy == "mod";
  }

  /// Calls f with the pooling.
  template <class F>
  auto visit(F&& f) const {
    if (max_norm > 0) return visit_with(f, deeprec::max_norm{max_norm});
    return visit_with(f);
  }
  /// Without the norm: what gradients of rows need.
  template <class F>
  auto visit_unclipped(F&& f) const {
    return visit_with(f);
  }

  bool by_mod = false;
  std::int64_t default_id = -1;  // below 0: empty bags become zeros
  float max_norm = -1;           // not above 0: none
  tensorflow::DataType out_type = tensorflow::DT_FLOAT;

 private:
  template <class F, class... Norm>
  auto visit_with(F& f, Norm... norm) const {
    return visit_division(combined, [&](auto combined_by) {
      using deeprec::padding::prune;
      if (default_id < 0) return f(deeprec::pooling(combined_by, prune, norm...));
      return f(deeprec::pooling(combined_by, prune, deeprec::empty_bag::default_row{default_id}, norm...));
    });
  }
};

}  // namespace deeprec_tf
