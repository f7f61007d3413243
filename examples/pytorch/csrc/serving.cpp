// Lookups in tables that are given as tensors: what a program that was exported calls. It has the rows as its
// own constants, and needs this library for the op alone.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

#include "call.hpp"
#include "dispatch.hpp"
#include "features.hpp"
#include "keyed_batch.hpp"
#include "tensors.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Calls f with the format of a number: its place in FORMATS of configs.py.
template <class F>
void visit_format(std::int64_t number, index_t width, F&& f) {
  switch (number) {
    case 0:
      return f(deeprec::f32_rows(width), at::kFloat);
    case 1:
      return f(deeprec::f16_rows(width), at::kHalf);
    case 2:
      return f(deeprec::bf16_rows(width), at::kBFloat16);
    case 3:
      return f(deeprec::int8_rows(width), at::kByte);
    case 4:
      return f(deeprec::int4_rows(width), at::kByte);
    default:
      TORCH_CHECK_VALUE(false, "deeprec: formats must be from 0 to 4 (is ", number, ")");
  }
}

struct table_list {
  at::TensorList rows;
  at::IntArrayRef formats, widths, of_feature, poolings;

  void check() const {
    TORCH_CHECK_VALUE(
        formats.size() == rows.size() && widths.size() == rows.size() && poolings.size() == of_feature.size(),
        "deeprec: formats and widths must be those of ", rows.size(), " tables, and poolings of ",
        of_feature.size(), " features (are ", formats.size(), ", ", widths.size(), " and ", poolings.size(),
        ")");
    for (const std::int64_t t : of_feature) {
      TORCH_CHECK_VALUE(t >= 0 && t < static_cast<std::int64_t>(rows.size()),
                        "deeprec: tables of features must be below ", rows.size(), " (is ", t, ")");
    }
    for (const std::int64_t width : widths)
      TORCH_CHECK_VALUE(width > 0, "deeprec: widths must be positive (is ", width, ")");
  }
  [[nodiscard]] std::int64_t total_width() const {
    std::int64_t all = 0;
    for (const std::int64_t t : of_feature) all += widths[static_cast<std::size_t>(t)];
    return all;
  }
};

template <class Format>
deeprec::const_table_view<Format> rows_in(const Tensor& rows, const Format& format, at::ScalarType type) {
  check_on_host(rows, "rows");
  TORCH_CHECK_VALUE(
      rows.dim() == 2 && rows.scalar_type() == type && rows.is_contiguous() &&
          rows.size(1) * static_cast<std::int64_t>(rows.element_size()) == format.stride_bytes(),
      "deeprec: rows must be contiguous, of ", at::toString(type), " and ", format.stride_bytes(),
      " bytes each (are ", at::toString(rows.scalar_type()), " ", rows.sizes(), ")");
  return {static_cast<const std::byte*>(rows.const_data_ptr()), rows.size(0), format};
}

Tensor pooled_lookup(at::TensorList rows, const Tensor& ids, const Tensor& offsets,
                     const OptionalTensor& weights, at::IntArrayRef formats, at::IntArrayRef widths,
                     at::IntArrayRef of_feature, at::IntArrayRef poolings, std::int64_t keys,
                     at::IntArrayRef positions) {
  const table_list tables{rows, formats, widths, of_feature, poolings};
  tables.check();
  TORCH_CHECK_VALUE(keys > 0, "deeprec: keys must be positive (is ", keys, ")");
  const batch_tensors batch(ids, offsets, weights);
  const std::int64_t bags = (offsets.size(0) - 1) / keys, total = tables.total_width();
  const keyed_batch view = batch.view(static_cast<std::int64_t>(of_feature.size()), bags, keys, positions);
  Tensor out = at::empty({bags, total}, at::TensorOptions(at::kFloat));
  auto executor = threads();
  const auto ctx = call_on(executor);
  float* columns = out.data_ptr<float>();
  for (std::size_t f = 0; f < of_feature.size(); ++f) {
    const auto t = static_cast<std::size_t>(of_feature[f]);
    const deeprec::matrix_view<float> part(columns, bags, widths[t], total);
    visit_format(formats[t], widths[t], [&](const auto& format, at::ScalarType type) {
      const auto table = rows_in(rows[t], format, type);
      const deeprec::status s =
          poolings[f] == 0 ? deeprec::lookup(ctx, table, view.feature(f), deeprec::combiner::sum, part)
                           : deeprec::lookup(ctx, table, view.feature(f), deeprec::combiner::mean, part);
      naming_features([&] { raise_on_fault(s ? s : s.in_table(static_cast<index_t>(f))); },
                      [](std::size_t) { return std::string_view(); });
    });
    columns += widths[t];
  }
  return out;
}

Tensor pooled_shape(at::TensorList rows, const Tensor& ids, const Tensor& offsets,
                    const OptionalTensor& weights, at::IntArrayRef formats, at::IntArrayRef widths,
                    at::IntArrayRef of_feature, at::IntArrayRef poolings, std::int64_t keys,
                    at::IntArrayRef) {
  const table_list tables{rows, formats, widths, of_feature, poolings};
  tables.check();
  check_batch(ids, offsets, weights);
  return at::empty_symint({(offsets.sym_size(0) - 1) / keys, tables.total_width()},
                          offsets.options().dtype(at::kFloat));
}

Tensor lookup_without_derivatives(at::TensorList rows, const Tensor& ids, const Tensor& offsets,
                                  const OptionalTensor& weights, at::IntArrayRef formats,
                                  at::IntArrayRef widths, at::IntArrayRef of_feature,
                                  at::IntArrayRef poolings, std::int64_t keys, at::IntArrayRef positions) {
  static const auto called = op<decltype(pooled_lookup)>("deeprec::pooled_lookup");
  for (const Tensor& table : rows) refuse_derivatives(table, "rows");
  if (weights) refuse_derivatives(*weights, "weights of a batch");
  const at::AutoDispatchBelowADInplaceOrView below;
  return called.call(rows, ids, offsets, weights, formats, widths, of_feature, poolings, keys, positions);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  m.def(
      "pooled_lookup(Tensor[] rows, Tensor values, Tensor offsets, Tensor? weights, int[] formats, "
      "int[] widths, int[] table_of_feature, int[] poolings, int keys, int[] positions) -> Tensor");
}
TORCH_LIBRARY_IMPL(deeprec, CPU, m) { m.impl("pooled_lookup", pooled_lookup); }
TORCH_LIBRARY_IMPL(deeprec, Meta, m) { m.impl("pooled_lookup", pooled_shape); }
TORCH_LIBRARY_IMPL(deeprec, Autograd, m) { m.impl("pooled_lookup", lookup_without_derivatives); }

}  // namespace deeprec_torch
