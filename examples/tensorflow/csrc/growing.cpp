// Growing tables: lookups that insert or find keys, gradients by keys, optimizer steps, and contents for
// checkpoints.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>

#include "bag_shapes.hpp"
#include "bags_of.hpp"
#include "growing_contents.hpp"
#include "growing_resource.hpp"
#include "numbers.hpp"

namespace deeprec_tf { namespace {

using deeprec_packages::row_fact;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

// The table.

REGISTER_OP("DeeprecGrowingTable")
    .Output("table: resource")
    .Attr("width: int >= 1")
    .Attr("optimizer: {'sgd', 'adagrad', 'rowwise_adagrad', 'adam'}")
    .Attr("parameters: list(float)")
    .Attr("seed: int")
    .Attr("bound: float")
    .Attr("most_rows: int >= 1")
    .Attr("when_full: {'refuse', 'evict_least_recent', 'evict_least_frequent'}")
    .Attr("occurrences: int >= 1")
    .Attr("default_value: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

/// A new table in each run, which lives as long as its handles.
class growing_table_op : public guarded_op {
 public:
  explicit growing_table_op(OpKernelConstruction* context) : guarded_op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("width", &config_.width));
    OP_REQUIRES_OK(context, context->GetAttr("optimizer", &config_.optimizer));
    OP_REQUIRES_OK(context, context->GetAttr("parameters", &config_.parameters));
    OP_REQUIRES_OK(context, context->GetAttr("seed", &config_.seed));
    OP_REQUIRES_OK(context, context->GetAttr("bound", &config_.bound));
    OP_REQUIRES_OK(context, context->GetAttr("most_rows", &config_.most_rows));
    OP_REQUIRES_OK(context, context->GetAttr("when_full", &config_.full));
    OP_REQUIRES_OK(context, context->GetAttr("occurrences", &config_.occurrences));
    OP_REQUIRES_OK(context, context->GetAttr("default_value", &config_.default_value));
    const std::size_t wanted = config_.optimizer == "sgd" ? 0 : config_.optimizer == "adam" ? 3 : 2;
    OP_REQUIRES(context, config_.parameters.size() == wanted,
                absl::InvalidArgumentError("deeprec: parameters of " + config_.optimizer + " must be " +
                                           std::to_string(wanted)));
    OP_REQUIRES(context, config_.occurrences <= std::numeric_limits<std::uint32_t>::max(),
                absl::InvalidArgumentError("deeprec: occurrences must fit in 32 bits"));
  }

 private:
  void run(OpKernelContext* context) override {
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<tensorflow::ResourceHandle>()() = tensorflow::ResourceHandle::MakeRefCountingHandle(
        new growing_resource(config_), context->device()->name());
  }

  growing_config config_;
};
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingTable").Device(tensorflow::DEVICE_CPU), growing_table_op);

// Lookups. `anchor` is a variable that is not read: what a tape watches in the place of the table.

REGISTER_OP("DeeprecGrowingLookup")
    .Input("table: resource")
    .Input("anchor: resource")
    .DEEPREC_BAG_INPUTS.Attr("width: int >= 1")
    .Attr("insert: bool")
    .Attr("out_type: {float, half, bfloat16} = DT_FLOAT")
    .Output("pooled: out_type")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::int64_t width = 0;
      if (absl::Status s = c->GetAttr("width", &width); !s.ok()) return s;
      return set_pooled_shape(c, 2, c->MakeDim(width));
    });
REGISTER_OP("DeeprecGrowingRowGradients")
    .Input("gradient: out_type")
    .Input("table: resource")
    .DEEPREC_BAG_INPUTS.Attr("width: int >= 1")
    .Attr("out_type: {float, half, bfloat16} = DT_FLOAT")
    .Output("keys: int64")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::int64_t width = 0;
      if (absl::Status s = c->GetAttr("width", &width); !s.ok()) return s;
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->Matrix(c->UnknownDim(), c->MakeDim(width)));
      return absl::OkStatus();
    });
REGISTER_OP("DeeprecGrowingWeightGradients")
    .Input("gradient: out_type")
    .Input("table: resource")
    .DEEPREC_BAG_INPUTS.Attr("width: int >= 1")
    .Attr("out_type: {float, half, bfloat16} = DT_FLOAT")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(3));
      return absl::OkStatus();
    });

/// An op on bags of keys.
class keyed_op : public guarded_op {
 public:
  explicit keyed_op(OpKernelConstruction* context) : guarded_op(context), attributes_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  }

 private:
  void run(OpKernelContext* context) override {
    bags_of bags;
    OP_REQUIRES_OK(context, bags.open(context, attributes_));
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::shared));
    OP_REQUIRES(context, table.width() == width_,
                absl::InvalidArgumentError("deeprec: rows of the table must have " + std::to_string(width_) +
                                           " columns (have " + std::to_string(table.width()) + ")"));
    on(context, bags, table);
  }

 protected:
  virtual void on(OpKernelContext* context, const bags_of& bags, growing_use& table) = 0;
  /// Calls f with the resolved rows of the bags, or returns what is wrong with the bags.
  template <class Context, class Mode, class F>
  deeprec::status with_rows(const Context& ctx, growing_use& table, const bags_of& bags, Mode mode,
                            F&& f) const {
    return visit_division(attributes_.combined, [&](auto combined_by) -> deeprec::status {
      const auto batch = bags.batch();
      const auto rows = deeprec::resolve(ctx, table->rows(), batch, deeprec::pooling(combined_by), mode);
      if (!rows) return bags.in_input(rows.fault());
      return bags.in_input(f(rows.value()));
    });
  }

  bag_attributes attributes_;
  index_t width_ = 1;
};

class growing_lookup_op : public keyed_op {
 public:
  explicit growing_lookup_op(OpKernelConstruction* context) : keyed_op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("insert", &insert_));
  }

 private:
  void on(OpKernelContext* context, const bags_of& bags, growing_use& table) override {
    tensorflow::TensorShape shape = bags.leading();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(table.width()));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    float_rows pooled(out, bags.bags(), table.width());
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    const auto look_up = [&](const auto& rows) { return deeprec::lookup(ctx, rows, pooled.view()); };
    deeprec::status s = insert_ ? with_rows(ctx, table, bags, deeprec::keys::find_or_insert, look_up)
                                : with_rows(ctx, table, bags, deeprec::keys::find, look_up);
    if (s) s = pooled.write(ctx);
    OP_REQUIRES_OK(context, to_tensorflow(s));
  }

  bool insert_ = false;
};

class growing_gradient_op : public keyed_op {
 public:
  using keyed_op::keyed_op;

 private:
  void on(OpKernelContext* context, const bags_of& bags, growing_use& table) override {
    const Tensor& given = context->input(0);
    OP_REQUIRES(
        context, given.NumElements() == bags.bags() * table.width(),
        absl::InvalidArgumentError("deeprec: gradient must have the shape of the lookup's result (has " +
                                   given.shape().DebugString() + ")"));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    float_rows gradient(ctx, given, bags.bags(), table.width());
    OP_REQUIRES_OK(context, to_tensorflow(gradient.read()));
    write(context, bags, table, gradient.view());
  }

 protected:
  virtual void write(OpKernelContext* context, const bags_of& bags, growing_use& table,
                     deeprec::matrix_view<const float> gradient) = 0;
};

class growing_row_gradients_op : public growing_gradient_op {
 public:
  using growing_gradient_op::growing_gradient_op;

 private:
  void write(OpKernelContext* context, const bags_of& bags, growing_use& table,
             deeprec::matrix_view<const float> gradient) override {
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    deeprec::sparse_gradient made(scratch());
    OP_REQUIRES_OK(context,
                   to_tensorflow(with_rows(ctx, table, bags, deeprec::keys::find, [&](const auto& rows) {
                     return deeprec::row_gradients(ctx, rows, gradient, made);
                   })));
    const auto count = static_cast<index_t>(made.rows.size());
    Tensor *keys = nullptr, *values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &keys));
    OP_REQUIRES_OK(context, context->allocate_output(1, {count, table.width()}, &values));
    std::copy(made.rows.begin(), made.rows.end(), keys->flat<std::int64_t>().data());
    std::copy(made.values.begin(), made.values.end(), values->flat<float>().data());
  }
};

class growing_weight_gradients_op : public growing_gradient_op {
 public:
  using growing_gradient_op::growing_gradient_op;

 private:
  void write(OpKernelContext* context, const bags_of& bags, growing_use& table,
             deeprec::matrix_view<const float> gradient) override {
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {bags.id_count()}, &out));
    std::pmr::vector<float> made(static_cast<std::size_t>(bags.id_count()), scratch());
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    OP_REQUIRES_OK(context,
                   to_tensorflow(with_rows(ctx, table, bags, deeprec::keys::find, [&](const auto& rows) {
                     return deeprec::weight_gradients(ctx, rows, gradient, std::span<float>(made));
                   })));
    float* const to = out->flat<float>().data();
    for (std::size_t k = 0; k < made.size(); ++k) to[bags.entry(static_cast<index_t>(k))] = made[k];
  }
};
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingLookup").Device(tensorflow::DEVICE_CPU), growing_lookup_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingRowGradients").Device(tensorflow::DEVICE_CPU),
                        growing_row_gradients_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingWeightGradients").Device(tensorflow::DEVICE_CPU),
                        growing_weight_gradients_op);

// Steps.

REGISTER_OP("DeeprecGrowingApply")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("values: float")
    .Input("learning_rate: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); });

class growing_apply_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    const Tensor &keys = context->input(1), &values = context->input(2), &rate = context->input(3);
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::exclusive));
    const index_t count = keys.NumElements(), width = table.width();
    OP_REQUIRES(
        context,
        keys.dims() == 1 && values.dims() == 2 && values.dim_size(0) == count && values.dim_size(1) == width,
        absl::InvalidArgumentError("deeprec: a gradient of the table must have keys (U) and values (U, " +
                                   std::to_string(width) + ") (has " + keys.shape().DebugString() + " and " +
                                   values.shape().DebugString() + ")"));
    OP_REQUIRES(context, rate.NumElements() == 1,
                absl::InvalidArgumentError("deeprec: learning_rate must be one number (has the shape " +
                                           rate.shape().DebugString() + ")"));
    const float by = rate.flat<float>()(0);
    OP_REQUIRES(context, by >= 0 && std::isfinite(by),
                absl::InvalidArgumentError("deeprec: learning_rate must be finite and not negative (is " +
                                           std::to_string(by) + ")"));
    const std::int64_t* const at = keys.flat<std::int64_t>().data();
    const float* const from = values.flat<float>().data();
    OP_REQUIRES_OK(context, check_finite(at, from, count, width));
    growing_resource& resource = table.resource();
    table->begin_step(static_cast<std::uint64_t>(resource.applied + 1));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    // A key that has no row, since it was not admitted or was erased, has no step.
    const deeprec::fixed_hotness_view<std::int64_t> bags(at, count, 1);
    const deeprec::matrix_view<const float> gradient(from, count, width);
    const deeprec::status s =
        resource.config.visit_optimizer(by, resource.applied + 1, [&](const auto& optimizer) {
          return deeprec::update(ctx, table->rows(), bags, deeprec::combiner::sum, gradient, optimizer);
        });
    OP_REQUIRES_OK(context, to_tensorflow(s));
    ++resource.applied;
  }

  /// Of the gradients, and of their sums over a key.
  static absl::Status check_finite(const std::int64_t* keys, const float* values, index_t count,
                                   index_t width) {
    float largest = 0;
    for (index_t k = 0; k < count; ++k) {
      const std::span row(values + k * width, static_cast<std::size_t>(width));
      if (absl::Status s = check_finite(keys[k], row); !s.ok()) return s;
      for (const float x : row) largest = std::max(largest, std::abs(x));
    }
    if (static_cast<double>(largest) * static_cast<double>(count) <= std::numeric_limits<float>::max()) {
      return absl::OkStatus();  // no sum can be larger
    }
    std::unordered_map<std::int64_t, std::vector<float>> sums;
    for (index_t k = 0; k < count; ++k) {
      std::vector<float>& sum = sums[keys[k]];
      sum.resize(static_cast<std::size_t>(width));
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += values[k * width + static_cast<index_t>(j)];
      if (absl::Status s = check_finite(keys[k], sum); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  static absl::Status check_finite(std::int64_t key, std::span<const float> row) {
    const auto bad = std::find_if_not(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
    if (bad == row.end()) return absl::OkStatus();
    return absl::InvalidArgumentError("deeprec: a gradient of the table must be finite (key " +
                                      std::to_string(key) + ", column " + std::to_string(bad - row.begin()) +
                                      " is " + std::to_string(*bad) + ")");
  }
};
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingApply").Device(tensorflow::DEVICE_CPU), growing_apply_op);

// Rows.

REGISTER_OP("DeeprecGrowingRows")
    .Input("table: resource")
    .Input("keys: int64")
    .Attr("width: int >= 1")
    .Output("rows: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::int64_t width = 0;
      tensorflow::shape_inference::ShapeHandle out;
      if (absl::Status s = c->GetAttr("width", &width); !s.ok()) return s;
      if (absl::Status s = c->Concatenate(c->input(1), c->Vector(width), &out); !s.ok()) return s;
      c->set_output(0, out);
      return absl::OkStatus();
    });
REGISTER_OP("DeeprecGrowingSize")
    .Input("table: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("DeeprecGrowingErase")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("erased: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("DeeprecGrowingEvict")
    .Input("table: resource")
    .Input("steps: int64")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

class growing_rows_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    const Tensor& keys = context->input(1);
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::shared));
    tensorflow::TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(table.width()));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    auto executor = threads(context);
    const auto ctx = call_on(executor);
    const std::span<const std::int64_t> list(keys.flat<std::int64_t>().data(),
                                             static_cast<std::size_t>(keys.NumElements()));
    const deeprec::matrix_view<float> rows(out->flat<float>().data(), keys.NumElements(), table.width());
    OP_REQUIRES_OK(context, to_tensorflow(deeprec::gather(ctx, table->rows(), list, rows)));
  }
};

/// An op that leaves one number.
class counting_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::exclusive));
    const deeprec::result<index_t> counted = count(context, table);
    OP_REQUIRES_OK(context, to_tensorflow(counted));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<std::int64_t>()() = counted.value();
  }
  virtual deeprec::result<index_t> count(OpKernelContext* context, growing_use& table) = 0;
};
class growing_size_op : public counting_op {
 public:
  using counting_op::counting_op;

 private:
  deeprec::result<index_t> count(OpKernelContext*, growing_use& table) override { return table->size(); }
};
class growing_erase_op : public counting_op {
 public:
  using counting_op::counting_op;

 private:
  deeprec::result<index_t> count(OpKernelContext* context, growing_use& table) override {
    const auto given = context->input(1).flat<std::int64_t>();
    const std::vector<std::uint64_t> keys(given.data(), given.data() + given.size());
    auto executor = threads(context);
    return table->erase(call_on(executor), keys);
  }
};
class growing_evict_op : public counting_op {
 public:
  using counting_op::counting_op;

 private:
  deeprec::result<index_t> count(OpKernelContext* context, growing_use& table) override {
    const auto steps = context->input(1).flat<std::int64_t>();
    if (steps.size() != 1 || steps(0) < 0)
      return deeprec::status(deeprec::errc::invalid_value, "evict: steps must be one number from 0 on");
    auto executor = threads(context);
    return deeprec::evict_rows(call_on(executor), *table,
                               deeprec::evict::step_ttl{static_cast<std::uint64_t>(steps(0))});
  }
};
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingRows").Device(tensorflow::DEVICE_CPU), growing_rows_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingSize").Device(tensorflow::DEVICE_CPU), growing_size_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingErase").Device(tensorflow::DEVICE_CPU), growing_erase_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingEvict").Device(tensorflow::DEVICE_CPU), growing_evict_op);

// Contents, in ascending order of the keys: rows (R,D), state (R,S), facts (R,2): steps and frequencies;
// applied: the steps of the optimizer, whose name is `owner`.

REGISTER_OP("DeeprecGrowingExport")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("rows: float")
    .Output("state: float")
    .Output("facts: int64")
    .Output("applied: int64")
    .Output("owner: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(1));
      for (const int i : {1, 2, 3}) c->set_output(i, c->UnknownShapeOfRank(2));
      c->set_output(4, c->Scalar());
      c->set_output(5, c->Scalar());
      return absl::OkStatus();
    });
REGISTER_OP("DeeprecGrowingImport")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("rows: float")
    .Input("state: float")
    .Input("facts: int64")
    .Input("applied: int64")
    .Input("owner: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); });

void copy_floats(float* to, const float* from, index_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

class growing_export_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::exclusive));
    const auto pinned = table->rows().guard();
    const auto listed = deeprec_packages::facts_of(*table);
    OP_REQUIRES_OK(context, to_tensorflow(listed));
    const std::vector<row_fact>& all = listed.value();
    const auto count = static_cast<index_t>(all.size());
    const deeprec::f32_rows& format = table->format();
    const index_t width = table.width(), state = format.state_floats();
    Tensor *keys = nullptr, *rows = nullptr, *states = nullptr, *facts = nullptr, *applied = nullptr,
           *owner = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &keys));
    OP_REQUIRES_OK(context, context->allocate_output(1, {count, width}, &rows));
    OP_REQUIRES_OK(context, context->allocate_output(2, {count, state}, &states));
    OP_REQUIRES_OK(context, context->allocate_output(3, {count, 2}, &facts));
    OP_REQUIRES_OK(context, context->allocate_output(4, {}, &applied));
    OP_REQUIRES_OK(context, context->allocate_output(5, {}, &owner));
    for (index_t k = 0; k < count; ++k) {
      const row_fact& one = all[static_cast<std::size_t>(k)];
      keys->flat<std::int64_t>()(k) = one.key;
      copy_floats(rows->flat<float>().data() + k * width, reinterpret_cast<const float*>(one.row), width);
      copy_floats(states->flat<float>().data() + k * state, format.state(const_cast<std::byte*>(one.row)),
                  state);
      facts->flat<std::int64_t>()(2 * k) = one.step;
      facts->flat<std::int64_t>()(2 * k + 1) = one.frequency;
    }
    applied->scalar<std::int64_t>()() = table.resource().applied;
    owner->scalar<tensorflow::tstring>()() = table.resource().config.optimizer;
  }
};

/// Replaces what the table holds; after a fault it is as before.
class growing_import_op : public guarded_op {
 public:
  using guarded_op::guarded_op;

 private:
  void run(OpKernelContext* context) override {
    growing_use table;
    OP_REQUIRES_OK(context, table.open(context, growing_use::access::exclusive));
    growing_resource& resource = table.resource();
    const Tensor &keys = context->input(1), &rows = context->input(2), &states = context->input(3),
                 &facts = context->input(4), &applied = context->input(5), &owner = context->input(6);
    const index_t count = keys.NumElements(), width = table.width(), state = table->format().state_floats();
    const auto fits = [&](const Tensor& given, index_t columns) {
      return given.dims() == 2 && given.dim_size(0) == count && given.dim_size(1) == columns;
    };
    OP_REQUIRES(
        context, owner.NumElements() == 1 && applied.NumElements() == 1,
        absl::InvalidArgumentError("deeprec: applied and owner of a growing table must be one value"));
    const std::string name(owner.flat<tensorflow::tstring>()(0));
    OP_REQUIRES(
        context, name == resource.config.optimizer,
        absl::InvalidArgumentError("deeprec: the checkpoint of a growing table must be of its optimizer, " +
                                   resource.config.optimizer + " (is of " + name + ")"));
    OP_REQUIRES(
        context, keys.dims() == 1 && fits(rows, width) && fits(states, state) && fits(facts, 2),
        absl::InvalidArgumentError(
            "deeprec: the checkpoint of a growing table must have keys (R), rows (R, " +
            std::to_string(width) + "), state (R, " + std::to_string(state) + ") and facts (R, 2) (has " +
            keys.shape().DebugString() + ", " + rows.shape().DebugString() + ", " +
            states.shape().DebugString() + " and " + facts.shape().DebugString() + ")"));
    const std::span<const std::int64_t> list(keys.flat<std::int64_t>().data(),
                                             static_cast<std::size_t>(count));
    std::vector<std::int64_t> steps, frequencies;
    for (index_t k = 0; k < count; ++k) {
      const std::int64_t step = facts.flat<std::int64_t>()(2 * k),
                         often = facts.flat<std::int64_t>()(2 * k + 1);
      OP_REQUIRES(
          context, step >= 0 && often >= 0 && often < (std::int64_t{1} << 24),
          absl::InvalidArgumentError("deeprec: facts of a growing table must be a step from 0 on and a "
                                     "frequency from 0 to 2^24 - 1 (of key " +
                                     std::to_string(list[static_cast<std::size_t>(k)]) + " are " +
                                     std::to_string(step) + " and " + std::to_string(often) + ")"));
      steps.push_back(step);
      frequencies.push_back(often);
    }
    auto made = resource.make();
    OP_REQUIRES_OK(
        context, to_tensorflow(deeprec_packages::insert_keys(*made, list, steps.data(), frequencies.data())));
    OP_REQUIRES(context, made->size() == count,
                absl::InvalidArgumentError(
                    "deeprec: a growing table must have room for all keys of its checkpoint, "
                    "which differ (of " +
                    std::to_string(count) + ", " + std::to_string(made->size()) + " have a row)"));
    made->begin_step(static_cast<std::uint64_t>(std::max<std::int64_t>(applied.flat<std::int64_t>()(0), 0)));
    {
      const auto pinned = made->rows().guard();
      std::vector<const std::byte*> places(list.size());
      made->rows().find(list.data(), count, places.data());
      for (index_t k = 0; k < count; ++k) {
        auto* const row = const_cast<std::byte*>(places[static_cast<std::size_t>(k)]);
        copy_floats(reinterpret_cast<float*>(row), rows.flat<float>().data() + k * width, width);
        copy_floats(made->format().state(row), states.flat<float>().data() + k * state, state);
      }
    }
    resource.table = std::move(made);
    resource.applied = applied.flat<std::int64_t>()(0);
  }
};
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingExport").Device(tensorflow::DEVICE_CPU), growing_export_op);
REGISTER_KERNEL_BUILDER(Name("DeeprecGrowingImport").Device(tensorflow::DEVICE_CPU), growing_import_op);

}}  // namespace deeprec_tf
