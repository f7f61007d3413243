// The gradients of a safe lookup: of the rows that a batch used, each once, and of its weights.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <deeprec/embedding/training/gradient.hpp>

#include "sparse_lookup.hpp"
#include "tensorflow/core/framework/shape_inference.h"

namespace deeprec_tf { namespace {

using tensorflow::shape_inference::InferenceContext;

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

REGISTER_OP("DeeprecSafeLookupRowGradients")
    .Input("gradient: float")
    .DEEPREC_LOOKUP_INPUTS("float")
    .Output("rows: P * int64")
    .Output("values: P * float")
    .SetShapeFn(rows_shape);
REGISTER_OP("DeeprecResourceSafeLookupRowGradients")
    .Input("gradient: float")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("rows: P * int64")
    .Output("values: P * float")
    .SetIsStateful()
    .SetShapeFn(rows_shape);
REGISTER_OP("DeeprecSafeLookupWeightGradients")
    .Input("gradient: float")
    .DEEPREC_LOOKUP_INPUTS("float")
    .Output("values: float")
    .SetShapeFn(weights_shape);
REGISTER_OP("DeeprecResourceSafeLookupWeightGradients")
    .Input("gradient: float")
    .DEEPREC_LOOKUP_INPUTS("resource")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn(weights_shape);

class gradient_op : public guarded_op {
 public:
  explicit gradient_op(OpKernelConstruction* context) : guarded_op(context), attributes_(context) {}

 private:
  void run(OpKernelContext* context) override {
    sparse_bags bags;
    OP_REQUIRES_OK(context, bags.open(context));
    tables_of tables;
    OP_REQUIRES_OK(context, tables.open(context, attributes_));
    const Tensor& given = context->input(0);
    OP_REQUIRES(
        context, given.NumElements() == bags.bags() * tables.width(),
        absl::InvalidArgumentError("deeprec: gradient must have the shape of the lookup's result (has " +
                                   given.shape().DebugString() + ")"));
    const deeprec::matrix_view<const float> gradient(given.flat<float>().data(), bags.bags(), tables.width());
    write(context, bags, tables, gradient);
  }

 protected:
  virtual void write(OpKernelContext* context, const sparse_bags& bags, const tables_of& tables,
                     deeprec::matrix_view<const float> gradient) = 0;
  lookup_attributes attributes_;
};

class row_gradients_op : public gradient_op {
 public:
  using gradient_op::gradient_op;

 private:
  void write(OpKernelContext* context, const sparse_bags& bags, const tables_of& tables,
             deeprec::matrix_view<const float> gradient) override {
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    deeprec::sparse_gradient made(scratch());
    OP_REQUIRES_OK(context, to_tensorflow(attributes_.visit_unclipped([&](const auto& pooling) {
                     return deeprec::row_gradients(ctx, tables.rows(), bags.batch(), pooling, gradient, made);
                   })));
    if (attributes_.max_norm > 0) pass_through_norm(tables, made);
    put(context, tables, made);
  }

  // The derivative of x * cap / |x| of each row x that is longer than the cap: row by row, since rows are
  // scaled before they are pooled.
  void pass_through_norm(const tables_of& tables, deeprec::sparse_gradient& made) const {
    const index_t width = tables.width();
    for (std::size_t u = 0; u < made.rows.size(); ++u) {
      const float* const row = tables.row(made.rows[u]);
      float* const g = made.values.data() + static_cast<index_t>(u) * width;
      double squares = 0, along = 0;
      for (index_t j = 0; j < width; ++j) {
        squares += static_cast<double>(row[j]) * row[j];
        along += static_cast<double>(row[j]) * g[j];
      }
      const double norm = std::sqrt(squares);
      if (!(norm > attributes_.max_norm)) continue;
      const double scale = attributes_.max_norm / norm;
      for (index_t j = 0; j < width; ++j)
        g[j] = static_cast<float>(scale * (g[j] - row[j] * along / squares));
    }
  }

  static void put(OpKernelContext* context, const tables_of& tables, const deeprec::sparse_gradient& made) {
    const index_t width = tables.width();
    const auto parts = static_cast<index_t>(tables.count());
    std::vector<index_t> count(tables.count());
    for (const index_t row : made.rows) ++count[static_cast<std::size_t>(tables.place_of(row).part)];
    std::vector<std::int64_t*> rows;
    std::vector<float*> values;
    for (index_t p = 0; p < parts; ++p) {
      Tensor *of_rows = nullptr, *of_values = nullptr;
      const index_t n = count[static_cast<std::size_t>(p)];
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(p), {n}, &of_rows));
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(parts + p), {n, width}, &of_values));
      rows.push_back(of_rows->flat<std::int64_t>().data());
      values.push_back(of_values->flat<float>().data());
    }
    if (parts == 1) {
      std::copy(made.rows.begin(), made.rows.end(), rows[0]);
      std::copy(made.values.begin(), made.values.end(), values[0]);
      return;
    }
    for (std::size_t u = 0; u < made.rows.size(); ++u) {
      const deeprec::part_place at = tables.place_of(made.rows[u]);
      const auto p = static_cast<std::size_t>(at.part);
      *rows[p]++ = at.local;
      std::copy_n(made.values.data() + static_cast<index_t>(u) * width, width, values[p]);
      values[p] += width;
    }
  }
};

class weight_gradients_op : public gradient_op {
 public:
  using gradient_op::gradient_op;

 private:
  void write(OpKernelContext* context, const sparse_bags& bags, const tables_of& tables,
             deeprec::matrix_view<const float> gradient) override {
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {bags.id_count()}, &out));
    const std::span<float> to(out->flat<float>().data(), static_cast<std::size_t>(bags.id_count()));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    OP_REQUIRES_OK(context, to_tensorflow(tables.visit([&](const auto& table) {
                     return attributes_.visit([&](const auto& pooling) {
                       return deeprec::weight_gradients(ctx, table, bags.batch(), pooling, gradient, to);
                     });
                   })));
  }
};

REGISTER_KERNEL_BUILDER(Name("DeeprecSafeLookupRowGradients").Device(tensorflow::DEVICE_CPU),
                        row_gradients_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecResourceSafeLookupRowGradients").Device(tensorflow::DEVICE_CPU),
                        row_gradients_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecSafeLookupWeightGradients").Device(tensorflow::DEVICE_CPU),
                        weight_gradients_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecResourceSafeLookupWeightGradients").Device(tensorflow::DEVICE_CPU),
                        weight_gradients_op);

}}  // namespace deeprec_tf
