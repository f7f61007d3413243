// The tables of a safe lookup as one row source: tensors, or variables that are locked while they are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

#include "lookup_attributes.hpp"
#include "numbers.hpp"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace deeprec_tf {

/// The input "tables": tensors, or variables under their locks.
template <class T>
class tables_of {
  using part_view = deeprec::const_table_view<deeprec::plain_rows<T>>;

 public:
  absl::Status open(tensorflow::OpKernelContext* context, const lookup_attributes& attributes) {
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
  [[nodiscard]] const T* row(index_t id) const {
    const deeprec::part_place at = place_of(id);
    return reinterpret_cast<const T*>(parts_[static_cast<std::size_t>(at.part)].row(at.local));
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
  absl::Status add(const tensorflow::Tensor& tensor) {
    if (tensor.dtype() != type_of<T>)
      return absl::InvalidArgumentError("deeprec: a table must be of " +
                                        tensorflow::DataTypeString(type_of<T>) + " (is of " +
                                        tensorflow::DataTypeString(tensor.dtype()) + ")");
    if (tensor.dims() != 2)
      return absl::InvalidArgumentError("deeprec: a table must have 2 dimensions (has " +
                                        std::to_string(tensor.dims()) + ")");
    parts_.push_back(deeprec::as_table(matrix_of<const T>(tensor, tensor.dim_size(0), tensor.dim_size(1))));
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
  std::vector<part_view> parts_;
  index_t rows_ = 0;
  bool by_mod_ = false;
};

}  // namespace deeprec_tf
