// The kernels of a safe lookup and of its gradients, for rows of one type.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/training/gradient.hpp>

#include "bags_of.hpp"
#include "tables_of.hpp"

namespace deeprec_tf {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <class T>
class safe_lookup_op : public guarded_op {
 public:
  explicit safe_lookup_op(OpKernelConstruction* context) : guarded_op(context), attributes_(context) {}

 private:
  void run(OpKernelContext* context) override {
    bags_of bags;
    OP_REQUIRES_OK(context, bags.open(context, attributes_));
    tables_of<T> tables;
    OP_REQUIRES_OK(context, tables.open(context, attributes_));
    tensorflow::TensorShape shape = bags.leading();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(tables.width()));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    float_rows rows(out, bags.bags(), tables.width());
    deeprec::status s = tables.visit([&](const auto& table) {
      return attributes_.visit([&](const auto& pooling) {
        return deeprec::lookup(ctx, table, bags.batch(), pooling, rows.view());
      });
    });
    if (s) s = rows.write(ctx);
    OP_REQUIRES_OK(context, to_tensorflow(bags.in_input(s)));
  }

  lookup_attributes attributes_;
};

template <class T>
class gradient_op : public guarded_op {
 public:
  explicit gradient_op(OpKernelConstruction* context) : guarded_op(context), attributes_(context) {}

 private:
  void run(OpKernelContext* context) override {
    bags_of bags;
    OP_REQUIRES_OK(context, bags.open(context, attributes_));
    tables_of<T> tables;
    OP_REQUIRES_OK(context, tables.open(context, attributes_));
    const Tensor& given = context->input(0);
    OP_REQUIRES(
        context, given.NumElements() == bags.bags() * tables.width(),
        absl::InvalidArgumentError("deeprec: gradient must have the shape of the lookup's result (has " +
                                   given.shape().DebugString() + ")"));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    float_rows gradient(ctx, given, bags.bags(), tables.width());
    OP_REQUIRES_OK(context, to_tensorflow(gradient.read()));
    write(context, bags, tables, gradient.view());
  }

 protected:
  virtual void write(OpKernelContext* context, const bags_of& bags, const tables_of<T>& tables,
                     deeprec::matrix_view<const float> gradient) = 0;
  lookup_attributes attributes_;
};

template <class T>
class row_gradients_op : public gradient_op<T> {
 public:
  using gradient_op<T>::gradient_op;

 private:
  void write(OpKernelContext* context, const bags_of& bags, const tables_of<T>& tables,
             deeprec::matrix_view<const float> gradient) override {
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    deeprec::sparse_gradient made(scratch());
    OP_REQUIRES_OK(context,
                   to_tensorflow(bags.in_input(this->attributes_.visit_unclipped([&](const auto& pooling) {
                     return deeprec::row_gradients(ctx, tables.rows(), bags.batch(), pooling, gradient, made);
                   }))));
    if (this->attributes_.max_norm > 0) pass_through_norm(tables, made);
    put(context, tables, made);
  }

  // The derivative of x * cap / |x| of each row x that is longer than the cap: row by row, since rows are
  // scaled before they are pooled.
  void pass_through_norm(const tables_of<T>& tables, deeprec::sparse_gradient& made) const {
    const index_t width = tables.width();
    const float most = this->attributes_.max_norm;
    for (std::size_t u = 0; u < made.rows.size(); ++u) {
      const T* const row = tables.row(made.rows[u]);
      float* const g = made.values.data() + static_cast<index_t>(u) * width;
      double squares = 0, along = 0;
      for (index_t j = 0; j < width; ++j) {
        const double x = static_cast<float>(row[j]);
        squares += x * x;
        along += x * g[j];
      }
      const double norm = std::sqrt(squares);
      if (!(norm > most)) continue;
      const double scale = most / norm;
      for (index_t j = 0; j < width; ++j)
        g[j] = static_cast<float>(scale * (g[j] - static_cast<float>(row[j]) * along / squares));
    }
  }

  static void put(OpKernelContext* context, const tables_of<T>& tables,
                  const deeprec::sparse_gradient& made) {
    const index_t width = tables.width();
    const auto parts = static_cast<index_t>(tables.count());
    std::vector<index_t> count(tables.count());
    for (const index_t row : made.rows) ++count[static_cast<std::size_t>(tables.place_of(row).part)];
    std::vector<std::int64_t*> rows;
    std::vector<T*> values;
    for (index_t p = 0; p < parts; ++p) {
      Tensor *of_rows = nullptr, *of_values = nullptr;
      const index_t n = count[static_cast<std::size_t>(p)];
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(p), {n}, &of_rows));
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(parts + p), {n, width}, &of_values));
      rows.push_back(of_rows->flat<std::int64_t>().data());
      values.push_back(matrix_of<T>(*of_values, n, width).data_handle());
    }
    const auto copy = [](const float* from, index_t n, T* to) {
      std::transform(from, from + n, to, [](float value) { return T(value); });
    };
    if (parts == 1) {
      std::copy(made.rows.begin(), made.rows.end(), rows[0]);
      copy(made.values.data(), static_cast<index_t>(made.values.size()), values[0]);
      return;
    }
    for (std::size_t u = 0; u < made.rows.size(); ++u) {
      const deeprec::part_place at = tables.place_of(made.rows[u]);
      const auto p = static_cast<std::size_t>(at.part);
      *rows[p]++ = at.local;
      copy(made.values.data() + static_cast<index_t>(u) * width, width, values[p]);
      values[p] += width;
    }
  }
};

template <class T>
class weight_gradients_op : public gradient_op<T> {
 public:
  using gradient_op<T>::gradient_op;

 private:
  void write(OpKernelContext* context, const bags_of& bags, const tables_of<T>& tables,
             deeprec::matrix_view<const float> gradient) override {
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {bags.id_count()}, &out));
    float* const to = out->flat<float>().data();
    std::pmr::vector<float> sorted(bags.sorted() ? static_cast<std::size_t>(bags.id_count()) : 0, scratch());
    const std::span<float> made(bags.sorted() ? sorted.data() : to,
                                static_cast<std::size_t>(bags.id_count()));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    OP_REQUIRES_OK(context, to_tensorflow(bags.in_input(tables.visit([&](const auto& table) {
                     return this->attributes_.visit([&](const auto& pooling) {
                       return deeprec::weight_gradients(ctx, table, bags.batch(), pooling, gradient, made);
                     });
                   }))));
    for (std::size_t k = 0; k < sorted.size(); ++k) to[bags.entry(static_cast<index_t>(k))] = sorted[k];
  }
};

/// The kernels of rows of T, on tensors and on variables.
#define DEEPREC_SAFE_LOOKUP_KERNELS(T)                                                      \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecSafeLookup", safe_lookup_op, T);                       \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecResourceSafeLookup", safe_lookup_op, T);               \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecSafeLookupRowGradients", row_gradients_op, T);         \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecResourceSafeLookupRowGradients", row_gradients_op, T); \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecSafeLookupWeightGradients", weight_gradients_op, T);   \
  DEEPREC_SAFE_LOOKUP_KERNEL("DeeprecResourceSafeLookupWeightGradients", weight_gradients_op, T)
#define DEEPREC_SAFE_LOOKUP_KERNEL(op, kernel, type)                                                  \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU).TypeConstraint("T", type_of<type>), \
                          kernel<type>)

}  // namespace deeprec_tf
