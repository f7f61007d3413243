// Tensors as deeprec's views, without a copy. Everything is checked here; a tensor that does not fit is a
// Python exception that names it.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>

namespace deeprec_torch {

using deeprec::index_t;

inline void check_on_host(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu(), "deeprec: ", name, " must be on the CPU (is on ",
                              tensor.device().str(), ")");
}
/// Types are checked before they are converted: what integers or floats can't hold would be cut off.
inline void check_integers(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt, "deeprec: ", name,
                    " must be int64 or int32 (is ", at::toString(tensor.scalar_type()), ")");
}
inline void check_floats(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(at::isFloatingType(tensor.scalar_type()), "deeprec: ", name,
                    " must be of floating point (is ", at::toString(tensor.scalar_type()), ")");
}
inline void check_dimensions(const at::Tensor& tensor, const char* name, std::int64_t dimensions) {
  TORCH_CHECK_VALUE(tensor.dim() == dimensions, "deeprec: ", name, " must have ", dimensions,
                    dimensions == 1 ? " dimension" : " dimensions", " (has ", tensor.dim(), ")");
}
/// Keys of any shape, contiguous: numbers of 32 bits are extended by their sign.
inline at::Tensor as_keys(const at::Tensor& given, const char* name) {
  check_on_host(given, name);
  check_integers(given, name);
  return given.to(at::kLong).contiguous();
}
/// What as_keys returned, as the library takes keys.
inline std::span<const std::uint64_t> keys_in(const at::Tensor& keys) {
  return {static_cast<const std::uint64_t*>(keys.const_data_ptr()), static_cast<std::size_t>(keys.numel())};
}

/// Weights of ids, where there are any.
inline void check_weights_of(const at::Tensor& ids, const std::optional<at::Tensor>& weights,
                             const char* name, const char* name_of_ids) {
  if (!weights) return;
  check_floats(*weights, name);
  TORCH_CHECK_VALUE(weights->sym_sizes() == ids.sym_sizes(), "deeprec: ", name, " must have the shape of ",
                    name_of_ids, " (", weights->sym_sizes(), " for ", ids.sym_sizes(), ")");
}

/// The rows of a strided matrix whose rows are contiguous.
template <class T>
deeprec::matrix_view<T> matrix(const at::Tensor& tensor) {
  using element = std::remove_const_t<T>;
  auto* const data = static_cast<element*>(tensor.data_ptr());
  return {data, tensor.size(0), tensor.size(1), tensor.stride(0)};
}

/// The same values in rows that matrix() can view: itself where it can.
inline at::Tensor with_rows(const at::Tensor& tensor) {
  const bool apart = tensor.size(0) <= 1 || tensor.stride(0) >= tensor.size(1);
  const bool dense = tensor.size(1) <= 1 || tensor.stride(1) == 1;
  return apart && dense ? tensor : tensor.contiguous();
}

/// Calls f with the storage type of a tensor's elements.
template <class F>
decltype(auto) visit_element(at::ScalarType type, const char* name, F&& f) {
  switch (type) {
    case at::kFloat:
      return f(std::type_identity<float>{});
    case at::kHalf:
      return f(std::type_identity<deeprec::f16>{});
    case at::kBFloat16:
      return f(std::type_identity<deeprec::bf16>{});
    default:
      break;
  }
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str("deeprec: ", name, " must be float32, float16 or bfloat16 (is ", at::toString(type), ")"));
}

/// What bags_of takes, by its types and shapes: of tensors without values too.
inline void check_bags(const at::Tensor& ids, const std::optional<at::Tensor>& offsets,
                       const std::optional<at::Tensor>& weights, bool includes_last) {
  TORCH_CHECK_VALUE(ids.dim() == 1 || ids.dim() == 2, "deeprec: input must have 1 or 2 dimensions (has ",
                    ids.dim(), ")");
  check_integers(ids, "input");
  TORCH_CHECK_VALUE(offsets.has_value() == (ids.dim() == 1), "deeprec: offsets must be given for an input ",
                    "of 1 dimension, and only for it");
  if (offsets) {
    check_dimensions(*offsets, "offsets", 1);
    check_integers(*offsets, "offsets");
    TORCH_CHECK_VALUE(!includes_last || offsets->sym_size(0) > 0,
                      "deeprec: offsets must not be empty with include_last_offset");
  }
  check_weights_of(ids, weights, "per_sample_weights", "the input");
}

/// The bags of an EmbeddingBag: ids (N) with offsets (B), or (B+1) where the last is included, or ids (B,L).
/// Holds what it had to convert.
class bags_of {
 public:
  bags_of(const at::Tensor& ids, const std::optional<at::Tensor>& offsets,
          const std::optional<at::Tensor>& weights, bool includes_last)
      : includes_last_(includes_last) {
    check_on_host(ids, "input");
    check_bags(ids, offsets, weights, includes_last);
    const bool differ = offsets && offsets->scalar_type() != ids.scalar_type();
    const at::ScalarType type = differ ? at::kLong : ids.scalar_type();
    ids_ = ids.to(type).contiguous();
    if (offsets) {
      check_on_host(*offsets, "offsets");
      offsets_ = offsets->to(type).contiguous();
      // As PyTorch: the ids before the first offset would be in no bag.
      if (offsets_.size(0) > 0) {
        const std::int64_t first = type == at::kLong ? *offsets_.const_data_ptr<std::int64_t>()
                                                     : *offsets_.const_data_ptr<std::int32_t>();
        TORCH_CHECK_VALUE(first == 0, "deeprec: offsets[0] must be 0 (is ", first, ")");
      }
    }
    if (weights) {
      check_on_host(*weights, "per_sample_weights");
      weights_ = weights->to(at::kFloat).contiguous();
    }
  }

  [[nodiscard]] index_t bags() const {
    return ids_.dim() == 2 ? ids_.size(0) : offsets_.size(0) - (includes_last_ ? 1 : 0);
  }
  [[nodiscard]] index_t id_count() const { return ids_.numel(); }

  /// Calls f with the batch.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return ids_.scalar_type() == at::kLong ? visit_ids<std::int64_t>(f) : visit_ids<std::int32_t>(f);
  }

 private:
  template <class Id, class F>
  decltype(auto) visit_ids(F&& f) const {
    const Id* const ids = ids_.const_data_ptr<Id>();
    const float* const weights = weights_.defined() ? weights_.const_data_ptr<float>() : nullptr;
    if (ids_.dim() == 2) {
      return f(deeprec::fixed_hotness_view<Id>(ids, ids_.size(0), ids_.size(1), weights));
    }
    const Id* const offsets = offsets_.const_data_ptr<Id>();
    using view = deeprec::jagged_view<Id, Id>;
    return f(includes_last_ ? view(offsets, bags(), ids, ids_.numel(), weights)
                            : view::torch(offsets, bags(), ids, ids_.numel(), weights));
  }

  at::Tensor ids_;
  at::Tensor offsets_;
  at::Tensor weights_;
  bool includes_last_;
};

}  // namespace deeprec_torch
