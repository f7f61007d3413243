// Rows of a row group as rows of a batch: column by column of typed columns, or row by row by the rules of a
// csv_format, to which each value is its text. Part of parquet_reader.hpp.
#pragma once

#include <arrow/array.h>
#include <arrow/table.h>
#include <arrow/type.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/detail/arrow_columns.hpp>
#include <deeprec/data/detail/csv_plan.hpp>
#include <deeprec/data/detail/csv_values.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The rows of a group that were converted, and why the next one is bad.
struct rows_end {
  index_t rows = 0;
  const char* reason = nullptr;
  index_t column = -1;  ///< of the list of features, or of the format
};

/// Converts columns of types, one by one. Columns: parquet_columns.
template <class Columns>
class rows_of_types {
 public:
  rows_of_types(Columns columns, const batch_shape& shape) : columns_(std::move(columns)), shape_(shape) {}
  [[nodiscard]] const batch_shape& shape() const noexcept { return shape_; }
  /// Of a bad row of a file.
  [[nodiscard]] fault fault_of(const rows_end& bad, index_t row, const std::string& path) const {
    fault_place place{};
    place.table = bad.column;
    place.row = row;
    return {status(errc::invalid_value, bad.reason, place).in_operation("next"), path};
  }

  /// The next `count` rows, or those before a bad one.
  template <class Executor>
  status convert(Executor& executor, const ::arrow::Table& table, index_t first, index_t count,
                 sparse_batch& batch, rows_end& end) {
    if (const status s = batch.reserve_rows(count); !s) return s;
    const auto array_of = [&](const std::string& name) -> const ::arrow::Array& {
      return *table.GetColumnByName(name)->chunk(0);
    };
    const std::size_t features = columns_.features.size();
    bags_.resize(features);
    for (std::size_t f = 0; f < features && shape_.bags == bag_size::any; ++f) {
      const index_t ids = ids_in(array_of(columns_.features[f].column), first, count);
      if (const status s = batch.next_bags(static_cast<index_t>(f), ids, bags_[f]); !s) return s;
    }
    // The label, dense columns, features.
    ends_.assign(1 + columns_.dense.size() + features, {count, nullptr});
    const auto convert_column = [&](std::size_t piece) {
      if (piece == 0) {
        if (columns_.label.empty())
          std::fill_n(batch.next_label(), count, 0.0F);
        else
          ends_[0] = copy_numbers(array_of(columns_.label), first, count, batch.next_label(), 1, nullptr);
      } else if (piece <= columns_.dense.size()) {
        const std::size_t d = piece - 1;
        copy_numbers(array_of(columns_.dense[d]), first, count, batch.next_dense() + d, shape_.dense_columns,
                     &columns_.missing);
      } else {
        const std::size_t f = piece - 1 - columns_.dense.size();
        const auto& feature = columns_.features[f];
        const auto number = static_cast<index_t>(f);
        const ::arrow::Array& values = array_of(feature.column);
        const id_maker ids(number, feature.use, feature.rows, columns_.bucket);
        ends_[piece] =
            shape_.bags == bag_size::one
                ? ids.make(values, first, count, batch.next_id(number))
                : make_bags(ids, values, feature.weights.empty() ? nullptr : &array_of(feature.weights),
                            first, count, bags_[f]);
      }
    };
    const auto pieces = static_cast<index_t>(ends_.size());
    // The rows of a small batch are not worth waking a thread for.
    const index_t grain = count < 512 ? pieces : (std::max)(index_t{1}, pieces / 16);
    executor.parallel_for(pieces, grain, [&](index_t from, index_t to, int) {
      for (index_t p = from; p < to; ++p) convert_column(static_cast<std::size_t>(p));
    });
    const auto first_bad = std::min_element(ends_.begin(), ends_.end(),
                                            [](const auto& a, const auto& b) { return a.rows < b.rows; });
    batch.commit_columns(first_bad->rows);
    const auto column = static_cast<index_t>(first_bad - ends_.begin()) - 1 - shape_.dense_columns;
    end = {first_bad->rows, first_bad->reason, column < 0 ? -1 : column};
    return {};
  }

 private:
  Columns columns_;
  batch_shape shape_;
  std::vector<sparse_batch::bag_column> bags_;
  std::vector<column_end> ends_;
};

/// The text of a value: of a null the empty one, of a number its shortest decimal one, 1 and 0 of booleans.
inline std::string_view text_of(const ::arrow::Array& a, index_t i, char (&digits)[40]) {
  if (a.IsNull(i)) return {};
  if (a.type_id() == ::arrow::Type::DICTIONARY) {
    const auto& coded = static_cast<const ::arrow::DictionaryArray&>(a);
    return text_of(*coded.dictionary(), coded.GetValueIndex(i), digits);
  }
  std::string_view text;
  if (with_text(a, [&](const auto& values) { text = values.GetView(i); })) return text;
  with_numbers(a, [&](const auto& values) {
    const char* const end = std::to_chars(std::begin(digits), std::end(digits), +values.Value(i)).ptr;
    text = {digits, static_cast<std::size_t>(end - digits)};
  });
  return text;
}

/// Converts row by row, by the rules of a format.
class rows_of_format {
 public:
  explicit rows_of_format(csv_format format) : format_(std::move(format)), shape_(format_.shape()) {}
  [[nodiscard]] const batch_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] fault fault_of(const rows_end& bad, index_t row, const std::string& path) const {
    const std::string& name = format_.columns[static_cast<std::size_t>(bad.column)].name;
    return {errc::invalid_value,
            std::string(bad.reason) + " (row " + std::to_string(row) + ", column '" + name + "')", path};
  }

  /// The same, on the caller's thread.
  template <class Executor>
  status convert(const Executor&, const ::arrow::Table& table, index_t first, index_t count,
                 sparse_batch& batch, rows_end& end) const {
    csv_plan plan;
    std::vector<const ::arrow::Array*> arrays;
    std::int32_t dense = 0, features = 0;
    for (std::size_t c = 0; c < format_.columns.size(); ++c) {
      const csv_column& column = format_.columns[c];
      const std::int32_t out = column.use == csv_use::dense   ? dense++
                               : column.use == csv_use::token ? features++
                                                              : 0;
      if (column.use == csv_use::ignored) continue;
      const auto values = table.GetColumnByName(column.name);
      if (values == nullptr) continue;  // a label that may lack
      plan.column.push_back(static_cast<std::int32_t>(c));
      plan.out.push_back(out);
      plan.labelled |= column.use == csv_use::label;
      arrays.push_back(values->chunk(0).get());
    }
    plan.fields = static_cast<int>(arrays.size());
    const csv_rules rules{format_.columns,   format_.missing, format_.longest_token,
                          format_.delimiter, format_.quote,   format_.trims};
    csv_values values(rules, plan, batch);
    for (index_t i = 0; i < count; ++i) {
      end.rows = i;
      if (!values.room()) {
        if (const status s = values.reserve((count - i) * (std::max)(plan.fields, 2)); !s) return s;
      }
      const char* reason = nullptr;
      std::size_t f = 0;
      for (; f < arrays.size(); ++f) {
        reason = field_reason(values, f, *arrays[f], first + i);
        if (reason != nullptr) break;
      }
      if (reason == nullptr) {
        values.finish_row();
        continue;
      }
      values.drop_row();
      if (values.no_room()) return values.close(no_room_for_rows);
      end = {i, reason, plan.column[f]};
      return values.close({});
    }
    end.rows = count;
    return values.close({});
  }

 private:
  static const char* field_reason(csv_values& values, std::size_t f, const ::arrow::Array& a, index_t i) {
    char digits[40];
    if (element_type(*a.type()) == nullptr) return values.field_reason(f, text_of(a, i, digits));
    const list_ranges lists(a);
    const index_t first = lists.begin(i), end = lists.end(i);
    for (index_t k = first; k < end; ++k) {
      const std::string_view text = text_of(*lists.values, k, digits);
      if (const char* const reason = values.element_reason(f, text, end - first)) return reason;
    }
    return nullptr;
  }

  csv_format format_;
  batch_shape shape_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
