// The inputs of a safe lookup as deeprec's views: a SparseTensor of any rank as bags; a table or its parts.
//
//   indices (N, r) of dense_shape (d0 ... dr-1)     d0 * ... * dr-2 bags, ids in the order of the indices
//   tables                                          tensors, or variables that are locked while they are read
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace deeprec_tf {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

using table_rows_view = deeprec::const_table_view<deeprec::plain_rows<float>>;

/// The inputs and attributes of a lookup and of its gradients. Tables: "float" or "resource".
#define DEEPREC_LOOKUP_INPUTS(type)                        \
  Input("tables: P * " type)                               \
      .Input("indices: int64")                             \
      .Input("ids: Tid")                                   \
      .Input("dense_shape: int64")                         \
      .Input("weights: M * float")                         \
      .Attr("P: int >= 1")                                 \
      .Attr("M: int >= 0 = 0")                             \
      .Attr("Tid: {int32, int64}")                         \
      .Attr("combiner: {'sum', 'mean', 'sqrtn'} = 'mean'") \
      .Attr("default_id: int = -1")                        \
      .Attr("max_norm: float = -1")                        \
      .Attr("partition_strategy: {'div', 'mod'} = 'div'")

/// The attributes of a lookup.
struct lookup_attributes {
  enum class division { sum, mean, sqrtn };

  explicit lookup_attributes(OpKernelConstruction* context) {
    std::string combiner, strategy;
    OP_REQUIRES_OK(context, context->GetAttr("combiner", &combiner));
    OP_REQUIRES_OK(context, context->GetAttr("partition_strategy", &strategy));
    OP_REQUIRES_OK(context, context->GetAttr("default_id", &default_id));
    OP_REQUIRES_OK(context, context->GetAttr("max_norm", &max_norm));
    combined = combiner == "sum" ? division::sum : combiner == "mean" ? division::mean : division::sqrtn;
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

  division combined = division::mean;
  bool by_mod = false;
  std::int64_t default_id = -1;  // below 0: empty bags become zeros
  float max_norm = -1;           // not above 0: none

 private:
  template <class F, class... Norm>
  auto visit_with(F& f, Norm... norm) const {
    namespace combiner = deeprec::combiner;
    const auto with_empty = [&](auto combined_by) {
      using deeprec::padding::prune;
      if (default_id < 0) return f(deeprec::pooling(combined_by, prune, norm...));
      return f(deeprec::pooling(combined_by, prune, deeprec::empty_bag::default_row{default_id}, norm...));
    };
    switch (combined) {
      case division::sum:
        return with_empty(combiner::sum);
      case division::mean:
        return with_empty(combiner::mean(combiner::by_weight));
      default:
        return with_empty(combiner::sqrtn);
    }
  }
};

/// The input "tables": tensors, or variables under their locks.
class tables_of {
 public:
  absl::Status open(OpKernelContext* context, const lookup_attributes& attributes) {
    by_mod_ = attributes.by_mod;
    int first = 0, end = 0;
    if (absl::Status s = context->op_kernel().InputRange("tables", &first, &end); !s.ok()) return s;
    variables_.reserve(static_cast<std::size_t>(end - first));
    for (int i = first; i < end; ++i) {
      if (context->input_dtype(i) != tensorflow::DT_RESOURCE) {
        if (absl::Status s = add(context->input(i)); !s.ok()) return s;
        continue;
      }
      // The lock instead of a reference: an update that finds one would copy the whole table.
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      const tensorflow::ResourceHandle handle = tensorflow::HandleFromInput(context, i);
      const absl::Status found = tensorflow::LookupResource(context, handle, &variable);
      if (!found.ok() || !variable->is_initialized)
        return absl::FailedPreconditionError("deeprec: a table must be initialized (variable '" +
                                             handle.name() + "' is not)");
      variables_.push_back(std::move(variable));
    }
    // In one order for all, so that no two ops wait for each other.
    std::vector<tensorflow::Var*> order;
    for (auto& variable : variables_) order.push_back(variable.get());
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (tensorflow::Var* variable : order) locks_.emplace_back(std::in_place, *variable->mu());
    for (auto& variable : variables_) {
      if (absl::Status s = add(*variable->tensor()); !s.ok()) return s;
    }
    for (std::size_t p = 0; p < parts_.size(); ++p) rows_ += parts_[p].rows();
    return check_parts();
  }

  [[nodiscard]] index_t rows() const { return rows_; }
  [[nodiscard]] index_t width() const { return parts_[0].format().width(); }
  [[nodiscard]] std::size_t count() const { return parts_.size(); }
  /// The part of a row, and its number there.
  [[nodiscard]] deeprec::part_place place_of(index_t id) const {
    if (parts_.size() == 1) return {0, id};
    const auto parts = static_cast<index_t>(parts_.size());
    return by_mod_ ? deeprec::partition_strategy::mod_place(id, parts)
                   : deeprec::partition_strategy::div_place(id, rows_, parts);
  }
  [[nodiscard]] const float* row(index_t id) const {
    const deeprec::part_place at = place_of(id);
    return reinterpret_cast<const float*>(parts_[static_cast<std::size_t>(at.part)].row(at.local));
  }

  /// Calls f with the row source.
  template <class F>
  auto visit(F&& f) const {
    namespace strategy = deeprec::partition_strategy;
    if (parts_.size() == 1) return f(parts_[0]);
    if (by_mod_) return f(deeprec::partitioned_table(parts_, strategy::mod));
    return f(deeprec::partitioned_table(parts_, strategy::div));
  }

 private:
  absl::Status add(const Tensor& tensor) {
    if (tensor.dtype() != tensorflow::DT_FLOAT)
      return absl::UnimplementedError("deeprec: a table must be of float32 (is of " +
                                      tensorflow::DataTypeString(tensor.dtype()) + ")");
    if (tensor.dims() != 2)
      return absl::InvalidArgumentError("deeprec: a table must have 2 dimensions (has " +
                                        std::to_string(tensor.dims()) + ")");
    const deeprec::matrix_view<const float> rows(tensor.flat<float>().data(), tensor.dim_size(0),
                                                 tensor.dim_size(1));
    parts_.push_back(deeprec::as_table(rows));
    if (parts_.back().format().width() != parts_[0].format().width())
      return absl::InvalidArgumentError("deeprec: parts of a table must have rows of one width (have " +
                                        std::to_string(parts_[0].format().width()) + " and " +
                                        std::to_string(tensor.dim_size(1)) + ")");
    return absl::OkStatus();
  }
  // A row is found by its number: parts of other sizes would be read beyond their ends.
  absl::Status check_parts() const {
    const auto parts = static_cast<index_t>(parts_.size());
    for (index_t p = 0; p < parts; ++p) {
      const index_t rows = parts_[static_cast<std::size_t>(p)].rows();
      const index_t wanted = rows_ / parts + (p < rows_ % parts ? 1 : 0);
      if (rows != wanted)
        return absl::InvalidArgumentError("deeprec: part " + std::to_string(p) + " of a table of " +
                                          std::to_string(rows_) + " rows must have " +
                                          std::to_string(wanted) + " (has " + std::to_string(rows) + ")");
    }
    return absl::OkStatus();
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<std::optional<tensorflow::tf_shared_lock>> locks_;
  std::vector<table_rows_view> parts_;
  index_t rows_ = 0;
  bool by_mod_ = false;
};

/// The inputs "indices", "ids", "dense_shape" and "weights".
class sparse_bags {
 public:
  using view = deeprec::jagged_view<std::int64_t, index_t>;

  absl::Status open(OpKernelContext* context) {
    const Tensor *indices = nullptr, *shape = nullptr;
    if (absl::Status s = context->input("indices", &indices); !s.ok()) return s;
    if (absl::Status s = context->input("dense_shape", &shape); !s.ok()) return s;
    if (absl::Status s = context->input("ids", &ids_); !s.ok()) return s;
    tensorflow::OpInputList weights;
    if (absl::Status s = context->input_list("weights", &weights); !s.ok()) return s;
    const index_t n = ids_->NumElements();
    if (indices->dims() != 2 || ids_->dims() != 1 || shape->dims() != 1 || indices->dim_size(0) != n ||
        indices->dim_size(1) != shape->dim_size(0) || shape->dim_size(0) < 2)
      return absl::InvalidArgumentError(
          "deeprec: sparse_ids must have indices (N, r), values (N) and a shape (r), r >= 2 (are " +
          indices->shape().DebugString() + ", " + ids_->shape().DebugString() + ", " +
          shape->shape().DebugString() + ")");
    if (weights.size() == 1) {
      if (weights[0].dims() != 1 || weights[0].dim_size(0) != n)
        return absl::InvalidArgumentError("deeprec: sparse_weights must have a value for each id (" +
                                          std::to_string(n) + "; have the shape " +
                                          weights[0].shape().DebugString() + ")");
      weights_ = weights[0].flat<float>().data();
    }
    for (index_t d = 0; d + 1 < shape->dim_size(0); ++d) {
      if (absl::Status s = leading_.AddDimWithStatus(shape->vec<std::int64_t>()(d)); !s.ok()) return s;
    }
    if (absl::Status s = find_bags(indices->flat<std::int64_t>().data(), indices->dim_size(1)); !s.ok())
      return s;
    if (ids_->dtype() == tensorflow::DT_INT32) {
      const auto narrow = ids_->flat<std::int32_t>();
      wide_.assign(narrow.data(), narrow.data() + n);
    }
    return absl::OkStatus();
  }

  [[nodiscard]] index_t bags() const { return leading_.num_elements(); }
  [[nodiscard]] index_t id_count() const { return ids_->NumElements(); }
  /// (d0 ... dr-2)
  [[nodiscard]] const tensorflow::TensorShape& leading() const { return leading_; }
  [[nodiscard]] view batch() const {
    const std::int64_t* const ids =
        ids_->dtype() == tensorflow::DT_INT32 ? wide_.data() : ids_->flat<std::int64_t>().data();
    return {offsets_.data(), bags(), ids, id_count(), weights_};
  }

 private:
  // Bags in row-major order of the leading indices, which must ascend.
  absl::Status find_bags(const std::int64_t* indices, index_t rank) {
    offsets_.resize(static_cast<std::size_t>(bags()) + 1);
    if (rank == 2) {
      const index_t rows = bags();
      return fill_offsets([=](index_t k) {
        const std::int64_t row = indices[2 * k];
        return row >= 0 && row < rows ? row : -1;
      });
    }
    const tensorflow::TensorShape& leading = leading_;
    return fill_offsets([=, &leading](index_t k) {
      index_t bag = 0;
      for (index_t d = 0; d + 1 < rank; ++d) {
        const std::int64_t size = leading.dim_size(static_cast<int>(d)), i = indices[k * rank + d];
        if (i < 0 || i >= size) return index_t{-1};
        bag = bag * size + i;
      }
      return bag;
    });
  }
  /// bag_of(k): the bag of entry k, -1 where its indices are outside of the shape.
  template <class BagOf>
  absl::Status fill_offsets(BagOf bag_of) {
    const index_t n = id_count(), count = bags();
    index_t* const offsets = offsets_.data();
    index_t next = 0;  // the first bag whose offset is not known
    for (index_t k = 0; k < n; ++k) {
      const index_t bag = bag_of(k);
      if (bag + 1 < next || bag < 0) return bad_bag(k, bag, next - 1);
      while (next <= bag) offsets[next++] = k;
    }
    while (next <= count) offsets[next++] = n;
    return absl::OkStatus();
  }
  static absl::Status bad_bag(index_t k, index_t bag, index_t before) {
    if (bag < 0)
      return absl::InvalidArgumentError("deeprec: indices of sparse_ids must be within its shape (position " +
                                        std::to_string(k) + " is not)");
    return absl::InvalidArgumentError("deeprec: rows of sparse_ids must ascend (position " +
                                      std::to_string(k) + ", row " + std::to_string(bag) + " after " +
                                      std::to_string(before) + ")");
  }

  const Tensor* ids_ = nullptr;
  const float* weights_ = nullptr;
  tensorflow::TensorShape leading_;
  std::pmr::vector<index_t> offsets_{scratch()};
  std::pmr::vector<std::int64_t> wide_{scratch()};
};

}  // namespace deeprec_tf
