// The bags of a batch as deeprec's view: a SparseTensor of any rank, or a RaggedTensor of two dimensions.
//
//   indices (N, r) of dense_shape (d0 ... dr-1)     d0 * ... * dr-2 bags, ids in the order of the indices
//   row splits (B+1)                                B bags
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>

#include "lookup_attributes.hpp"

namespace deeprec_tf {

/// The inputs "indices", "ids", "dense_shape" and "weights".
class bags_of {
 public:
  using view = deeprec::jagged_view<std::int64_t, index_t>;

  absl::Status open(tensorflow::OpKernelContext* context, const bag_attributes& attributes) {
    const tensorflow::Tensor *indices = nullptr, *shape = nullptr;
    if (absl::Status s = context->input("indices", &indices); !s.ok()) return s;
    if (absl::Status s = context->input("dense_shape", &shape); !s.ok()) return s;
    if (absl::Status s = context->input("ids", &given_ids_); !s.ok()) return s;
    tensorflow::OpInputList weights;
    if (absl::Status s = context->input_list("weights", &weights); !s.ok()) return s;
    if (given_ids_->dims() != 1) return ids_shape();
    if (weights.size() == 1) {
      if (weights[0].dims() != 1 || weights[0].dim_size(0) != id_count())
        return absl::InvalidArgumentError("deeprec: sparse_weights must have a value for each id (" +
                                          std::to_string(id_count()) + "; have the shape " +
                                          weights[0].shape().DebugString() + ")");
      weights_ = weights[0].flat<float>().data();
    }
    if (given_ids_->dtype() == tensorflow::DT_INT32) {
      const auto narrow = given_ids_->flat<std::int32_t>();
      wide_.assign(narrow.data(), narrow.data() + id_count());
      ids_ = wide_.data();
    } else {
      ids_ = given_ids_->flat<std::int64_t>().data();
    }
    if (attributes.ragged) return take_splits(*indices);
    sort_ = attributes.sort;
    return take_indices(*indices, *shape);
  }

  [[nodiscard]] index_t bags() const { return leading_.num_elements(); }
  [[nodiscard]] index_t id_count() const { return given_ids_->NumElements(); }
  /// (d0 ... dr-2)
  [[nodiscard]] const tensorflow::TensorShape& leading() const { return leading_; }
  [[nodiscard]] view batch() const { return {offsets_, bags(), ids_, id_count(), weights_}; }
  /// The entry of the input that is id `k` of the batch.
  [[nodiscard]] index_t entry(index_t k) const {
    return order_.empty() ? k : order_[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] bool sorted() const { return !order_.empty(); }
  /// A fault of a verb on the batch, with its place in the input.
  [[nodiscard]] deeprec::status in_input(const deeprec::status& s) const {
    if (s.ok() || order_.empty()) return s;
    deeprec::fault_place place = s.place();
    if (place.position >= 0 && place.position < id_count()) place.position = entry(place.position);
    return {s.code(), s.detail(), place};
  }

 private:
  absl::Status ids_shape() const {
    return absl::InvalidArgumentError("deeprec: values of sparse_ids must have the shape (N) (have " +
                                      given_ids_->shape().DebugString() + ")");
  }

  absl::Status take_splits(const tensorflow::Tensor& splits) {
    if (splits.dims() != 1 || splits.dim_size(0) < 1)
      return absl::InvalidArgumentError("deeprec: row_splits of sparse_ids must have the shape (B+1) (have " +
                                        splits.shape().DebugString() + ")");
    const std::int64_t* const at = splits.flat<std::int64_t>().data();
    const index_t count = splits.dim_size(0) - 1;
    if (at[0] != 0 || at[count] != id_count())
      return absl::InvalidArgumentError("deeprec: row_splits of sparse_ids must begin with 0 and end with " +
                                        std::to_string(id_count()) + ", the number of ids (are " +
                                        std::to_string(at[0]) + " and " + std::to_string(at[count]) + ")");
    for (index_t b = 0; b < count; ++b) {
      if (at[b + 1] < at[b])
        return absl::InvalidArgumentError("deeprec: row_splits of sparse_ids must not descend (row " +
                                          std::to_string(b) + " is from " + std::to_string(at[b]) + " to " +
                                          std::to_string(at[b + 1]) + ")");
    }
    offsets_ = at;
    return leading_.AddDimWithStatus(count);
  }

  absl::Status take_indices(const tensorflow::Tensor& indices, const tensorflow::Tensor& shape) {
    if (indices.dims() != 2 || shape.dims() != 1 || indices.dim_size(0) != id_count() ||
        indices.dim_size(1) != shape.dim_size(0) || shape.dim_size(0) < 2)
      return absl::InvalidArgumentError(
          "deeprec: sparse_ids must have indices (N, r), values (N) and a shape (r), r >= 2 (are " +
          indices.shape().DebugString() + ", " + given_ids_->shape().DebugString() + ", " +
          shape.shape().DebugString() + ")");
    for (index_t d = 0; d + 1 < shape.dim_size(0); ++d) {
      if (absl::Status s = leading_.AddDimWithStatus(shape.vec<std::int64_t>()(d)); !s.ok()) return s;
    }
    const index_t rank = indices.dim_size(1);
    const std::int64_t* const at = indices.flat<std::int64_t>().data();
    if (rank == 2) {
      const index_t rows = bags();
      return fill_offsets([=](index_t k) {
        const std::int64_t row = at[2 * k];
        return row >= 0 && row < rows ? row : -1;
      });
    }
    return fill_offsets([=, this](index_t k) {
      index_t bag = 0;
      for (index_t d = 0; d + 1 < rank; ++d) {
        const std::int64_t size = leading_.dim_size(static_cast<int>(d)), i = at[k * rank + d];
        if (i < 0 || i >= size) return index_t{-1};
        bag = bag * size + i;
      }
      return bag;
    });
  }
  /// Bags in row-major order of the leading indices. bag_of(k): the bag of entry k, -1 where its indices are
  /// outside of the shape.
  template <class BagOf>
  absl::Status fill_offsets(BagOf bag_of) {
    const index_t n = id_count(), count = bags();
    made_.resize(static_cast<std::size_t>(count) + 1);
    offsets_ = made_.data();
    index_t next = 0;  // the first bag whose offset is not known
    for (index_t k = 0; k < n; ++k) {
      const index_t bag = bag_of(k);
      if (bag + 1 < next || bag < 0) return sort_ && bag >= 0 ? sort_bags(bag_of) : bad_bag(k, bag, next - 1);
      while (next <= bag) made_[static_cast<std::size_t>(next++)] = k;
    }
    while (next <= count) made_[static_cast<std::size_t>(next++)] = n;
    return absl::OkStatus();
  }
  /// Entries by their bags; those of one bag keep their order.
  template <class BagOf>
  absl::Status sort_bags(BagOf bag_of) {
    const auto n = static_cast<std::size_t>(id_count());
    made_.assign(made_.size(), 0);
    for (std::size_t k = 0; k < n; ++k) {
      const index_t bag = bag_of(static_cast<index_t>(k));
      if (bag < 0) return bad_bag(static_cast<index_t>(k), bag, 0);
      ++made_[static_cast<std::size_t>(bag) + 1];
    }
    for (std::size_t b = 1; b < made_.size(); ++b) made_[b] += made_[b - 1];
    std::pmr::vector<index_t> next(made_.begin(), made_.end(), scratch());
    order_.resize(n);
    std::pmr::vector<std::int64_t> ids(n, scratch());
    sorted_weights_.resize(weights_ == nullptr ? 0 : n);
    for (std::size_t k = 0; k < n; ++k) {
      const auto to =
          static_cast<std::size_t>(next[static_cast<std::size_t>(bag_of(static_cast<index_t>(k)))]++);
      order_[to] = static_cast<index_t>(k);
      ids[to] = ids_[k];
      if (weights_ != nullptr) sorted_weights_[to] = weights_[k];
    }
    wide_.swap(ids);
    ids_ = wide_.data();
    if (weights_ != nullptr) weights_ = sorted_weights_.data();
    return absl::OkStatus();
  }
  static absl::Status bad_bag(index_t k, index_t bag, index_t before) {
    if (bag < 0)
      return absl::InvalidArgumentError("deeprec: indices of sparse_ids must be within its shape (position " +
                                        std::to_string(k) + " is not)");
    return absl::InvalidArgumentError("deeprec: rows of sparse_ids must ascend (position " +
                                      std::to_string(k) + ", row " + std::to_string(bag) + " after " +
                                      std::to_string(before) + "); sort=True takes them in any order");
  }

  const tensorflow::Tensor* given_ids_ = nullptr;
  const std::int64_t* ids_ = nullptr;
  const float* weights_ = nullptr;
  const index_t* offsets_ = nullptr;
  tensorflow::TensorShape leading_;
  bool sort_ = false;
  std::pmr::vector<index_t> made_{scratch()};       // offsets of a SparseTensor
  std::pmr::vector<std::int64_t> wide_{scratch()};  // ids, where they are not those of the input
  std::pmr::vector<float> sorted_weights_{scratch()};
  std::pmr::vector<index_t> order_{scratch()};  // of entries that were sorted
};

}  // namespace deeprec_tf
