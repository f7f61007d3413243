// Parquet files to sparse batches: row groups are read in parallel, rows delivered in the order of the files.
// Needs Arrow's C++ library with Parquet: the component deeprec::arrow.
//
//   file  | row group 0 | row group 1 | ...     the columns that are asked for, by their names
//               │             │                 a row group for each thread: read and decoded
//               └─────────────┴──> next(batch, rows)       converted, in file order
//
//   parquet_columns columns{.label = "clicked", .dense = {"age", "price"},
//                           .features = {{"city"}, {"history", token_use::hashed, 100'000}}};
//   auto reader = read_parquet(pool, columns, {"day_0.parquet", "day_1.parquet"}).or_throw();
//   while (reader.next(batch, 8192).or_throw() > 0) train(batch);
//
// Not here: views of Arrow's arrays without a copy (interop/arrow_bags.hpp), writing.
#pragma once

#include <arrow/array.h>
#include <arrow/table.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/data/detail/arrow_columns.hpp>
#include <deeprec/data/detail/parquet_file.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A feature: a column of integers or text, dictionaries of them, or lists of them.
struct parquet_feature {
  std::string column{};
  token_use use = token_use::as_is;
  index_t rows = 0;       ///< of its table; 0: ids of 64 bits
  std::string weights{};  ///< a column of lists of float or double, as long as those of ids; empty: none
};

/// What is read of files.
///
/// @numerics an id that is hashed is that of its text, an integer in decimal digits, as text formats hash it:
///           hash_bucket(hash_bytes(text, seed = feature), rows), or bucket(text, feature, rows). A null is
///           the empty text, a list that is null an empty bag
struct parquet_columns {
  std::string label{};                      ///< numbers or booleans; empty: labels are 0
  std::vector<std::string> dense{};         ///< numbers or booleans
  std::vector<parquet_feature> features{};  ///< bags of one id where none is of lists
  float missing = 0.0F;                     ///< a dense value that is null
  bucket_function bucket = nullptr;         ///< computes rows of ids that are hashed; null: the hash
};

struct parquet_options {
  /// Row groups read at a time, whose columns are in memory as Arrow's. 0: one for each thread of the
  /// executor.
  int groups_in_flight = 0;
};

/// Delivers the rows of Parquet files as batches. Made by read_parquet(). Move-only.
///
/// @space   columns take memory from Arrow's pool
/// @threads one caller at a time; next() runs on the executor
template <class Executor>
class parquet_reader {
 public:
  parquet_reader(const context<Executor>& ctx, parquet_columns columns, const batch_shape& shape,
                 std::vector<detail::parquet_file> files, const parquet_options& options)
      : context_(ctx),
        columns_(std::move(columns)),
        shape_(shape),
        files_(std::move(files)),
        groups_(static_cast<std::size_t>(options.groups_in_flight > 0 ? options.groups_in_flight
                                                                      : ctx.executor->concurrency())) {
    for (const detail::parquet_file& file : files_) rows_ += file.rows();
  }

  /// Fills the batch with the next rows, max_rows of them unless the input ends or a bad row comes first.
  /// Returns their number; 0 at the end of the input.
  ///
  /// @post    rows before a bad one are delivered; the call after that reports the fault, as do all later
  ///          ones. On a fault the batch is empty
  /// @cost    reading, decoding, and a pass over the values
  /// @threads one caller at a time; runs on the executor
  /// @error   invalid_value with the row of the file, from 0: a label that is null, an id that is null,
  ///          negative text, or beyond its table, weights of another number than ids; io_error for a file
  ///          that is broken, with Arrow's words; out_of_memory; shape_mismatch (max_rows is not positive);
  ///          stopped
  result<index_t> next(sparse_batch& batch, index_t max_rows) {
    const detail::verb_call call(context_, "next");
    batch.clear();
    if (!call) return call.stopped();
    if (max_rows <= 0) return status(errc::shape_mismatch, "next: max_rows must be positive");
    const status s = detail::or_out_of_memory([&] {
      batch.reshape(shape_);
      return fill(batch, max_rows);
    });
    if (!s && batch.rows() == 0) return s;  // rows that were copied are delivered before
    rows_read_ += batch.rows();
    if (batch.rows() == 0 && fault_) return *fault_;
    return batch.rows();
  }

  /// Rows of all files, as their footers have it.
  [[nodiscard]] index_t rows() const noexcept { return rows_; }
  /// Rows delivered so far.
  [[nodiscard]] index_t rows_read() const noexcept { return rows_read_; }
  [[nodiscard]] const batch_shape& shape() const noexcept { return shape_; }

 private:
  // A row group in memory.
  struct loaded_group {
    loaded_group() = default;
    loaded_group(std::size_t of_file, int number, index_t row)
        : file(of_file), group(number), first_row(row) {}
    std::size_t file = 0;
    int group = 0;
    index_t first_row = 0;  // of the file
    index_t used = 0;
    std::shared_ptr<::arrow::Table> table;
    std::optional<fault> end;  // in the place of its rows
    [[nodiscard]] index_t rows() const { return table == nullptr ? 0 : table->num_rows(); }
  };

  status fill(sparse_batch& batch, index_t max_rows) {
    while (batch.rows() < max_rows && !fault_) {
      if (head_ == filled_) {
        if (!load_next()) break;
        continue;
      }
      loaded_group& group = groups_[head_];
      const index_t count = (std::min)(group.rows() - group.used, max_rows - batch.rows());
      if (count > 0) {
        if (const status s = convert(group, count, batch); !s) return s;
      }
      if (group.used < group.rows() && !group.end) continue;
      if (group.end) fault_ = std::move(group.end);
      group.table.reset();
      ++head_;
    }
    return {};
  }
  // The next row groups; false at the end.
  bool load_next() {
    head_ = filled_ = 0;
    for (loaded_group& to : groups_) {
      while (file_ < files_.size() && group_ == files_[file_].groups()) {
        ++file_;
        group_ = 0;
        first_row_ = 0;
      }
      if (file_ == files_.size()) break;
      to = loaded_group(file_, group_, first_row_);
      first_row_ += files_[file_].rows_of(group_++);
      ++filled_;
    }
    if (filled_ == 0) return false;
    context_.executor->parallel_for(static_cast<index_t>(filled_), index_t{1},
                                    [this](index_t begin, index_t end, int) {
                                      for (index_t i = begin; i < end; ++i) {
                                        loaded_group& to = groups_[static_cast<std::size_t>(i)];
                                        auto table = files_[to.file].read(to.group);
                                        if (table)
                                          to.table = std::move(table).value();
                                        else
                                          to.end = table.fault();
                                      }
                                    });
    return true;
  }

  // The next `count` rows of a group, or those before a bad one.
  status convert(loaded_group& group, index_t count, sparse_batch& batch) {
    if (const status s = batch.reserve_rows(count); !s) return s;
    const auto array_of = [&](const std::string& name) -> const ::arrow::Array& {
      return *group.table->GetColumnByName(name)->chunk(0);
    };
    const std::size_t features = columns_.features.size();
    bags_.resize(features);
    for (std::size_t f = 0; f < features && shape_.bags == bag_size::any; ++f) {
      const index_t ids = detail::ids_in(array_of(columns_.features[f].column), group.used, count);
      if (const status s = batch.next_bags(static_cast<index_t>(f), ids, bags_[f]); !s) return s;
    }
    // The label, dense columns, features.
    ends_.assign(1 + columns_.dense.size() + features, {count, nullptr});
    const auto convert_column = [&](std::size_t piece) {
      if (piece == 0) {
        if (columns_.label.empty())
          std::fill_n(batch.next_label(), count, 0.0F);
        else
          ends_[0] = detail::copy_numbers(array_of(columns_.label), group.used, count, batch.next_label(), 1,
                                          nullptr);
      } else if (piece <= columns_.dense.size()) {
        const std::size_t d = piece - 1;
        detail::copy_numbers(array_of(columns_.dense[d]), group.used, count, batch.next_dense() + d,
                             shape_.dense_columns, &columns_.missing);
      } else {
        const std::size_t f = piece - 1 - columns_.dense.size();
        const parquet_feature& feature = columns_.features[f];
        const auto number = static_cast<index_t>(f);
        const ::arrow::Array& values = array_of(feature.column);
        const detail::id_maker ids(number, feature.use, feature.rows, columns_.bucket);
        ends_[piece] = shape_.bags == bag_size::one
                           ? ids.make(values, group.used, count, batch.next_id(number))
                           : detail::make_bags(ids, values,
                                               feature.weights.empty() ? nullptr : &array_of(feature.weights),
                                               group.used, count, bags_[f]);
      }
    };
    const auto pieces = static_cast<index_t>(ends_.size());
    // The rows of a small batch are not worth waking a thread for.
    const index_t grain = count < 512 ? pieces : (std::max)(index_t{1}, pieces / 16);
    context_.executor->parallel_for(pieces, grain, [&](index_t begin, index_t end, int) {
      for (index_t p = begin; p < end; ++p) convert_column(static_cast<std::size_t>(p));
    });
    const auto first_bad = std::min_element(ends_.begin(), ends_.end(),
                                            [](const auto& a, const auto& b) { return a.rows < b.rows; });
    batch.commit_columns(first_bad->rows);
    group.used += first_bad->rows;
    if (first_bad->reason == nullptr) return {};
    fault_place place{};
    const auto column = static_cast<index_t>(first_bad - ends_.begin()) - 1 - shape_.dense_columns;
    place.table = column < 0 ? -1 : column;
    place.row = group.first_row + group.used;
    group.end.emplace(status(errc::invalid_value, first_bad->reason, place).in_operation("next"),
                      files_[group.file].path());
    return {};
  }

  context<Executor> context_;
  parquet_columns columns_;
  batch_shape shape_;
  std::vector<detail::parquet_file> files_;
  std::vector<loaded_group> groups_;
  std::vector<sparse_batch::bag_column> bags_;
  std::vector<detail::column_end> ends_;
  std::optional<fault> fault_;
  std::size_t head_ = 0, filled_ = 0;  // of groups_
  std::size_t file_ = 0;               // the next row group
  int group_ = 0;
  index_t first_row_ = 0;
  index_t rows_ = 0, rows_read_ = 0;
};

namespace detail {

// The columns that are read, and why the type of one is refused.
inline std::vector<std::string> names_of(const parquet_columns& columns) {
  std::vector<std::string> names;
  if (!columns.label.empty()) names.push_back(columns.label);
  names.insert(names.end(), columns.dense.begin(), columns.dense.end());
  for (const parquet_feature& f : columns.features) {
    names.push_back(f.column);
    if (!f.weights.empty()) names.push_back(f.weights);
  }
  return names;
}

}  // namespace detail

/// A reader of files, in sequence. The footer of every file is read here, so that a file that is missing, or
/// has other columns, is reported before the first batch.
///
/// @pre     the executor outlives the reader
/// @cost    opens and closes each file
/// @threads reentrant
/// @error   io_error, with Arrow's words or the column: a file that is missing or not Parquet, a column that
///          it lacks, has twice, or has of a type that is not taken; unsupported: no columns, a column named
///          twice, rows below 0, a bucket function without rows; out_of_memory
template <class Context>
auto read_parquet(Context&& context_or_executor, parquet_columns columns, std::vector<std::string> paths,
                  const parquet_options& options = {}) {
  static_assert(std::is_lvalue_reference_v<Context> || detail::is_context<std::remove_cvref_t<Context>>,
                "deeprec::read_parquet: the executor is a temporary, and the reader keeps a reference to it. "
                "Fix: give the executor a name.");
  const auto ctx = detail::as_context(context_or_executor);
  using executor = std::remove_reference_t<decltype(*ctx.executor)>;
  using reader = parquet_reader<executor>;
  return detail::or_out_of_memory([&]() -> result<reader> {
    const std::vector<std::string> names = detail::names_of(columns);
    if (names.empty()) return status(errc::unsupported, "read_parquet: columns must be named (none is)");
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
          names.begin() + static_cast<std::ptrdiff_t>(i)) {
        return fault(errc::unsupported,
                     "read_parquet: a column must be named once ('" + names[i] + "' comes twice)");
      }
    }
    bool lists = false, weighted = false;
    for (const parquet_feature& f : columns.features) {
      weighted = weighted || !f.weights.empty();
      if (f.rows < 0 || (f.rows == 0 && columns.bucket != nullptr && f.use == token_use::hashed)) {
        return fault(errc::unsupported, "read_parquet: rows of '" + f.column +
                                            "' must be 0 or more, and above 0 for a bucket function (are " +
                                            std::to_string(f.rows) + ")");
      }
    }
    std::vector<detail::parquet_file> files;
    const auto accepts = [&](const std::string& name, const ::arrow::DataType& type) -> const char* {
      for (const parquet_feature& f : columns.features) {
        const ::arrow::DataType* const element = detail::element_type(type);
        if (name == f.weights) {
          return element != nullptr && detail::is_number(*element) ? nullptr : "lists of numbers";
        }
        if (name != f.column) continue;
        lists = lists || element != nullptr;
        if (!f.weights.empty() && element == nullptr) return "lists, as it has weights";
        return detail::has_ids(element != nullptr ? *element : type) ? nullptr
                                                                     : "integers, text, or lists of them";
      }
      return detail::is_number(type) ? nullptr : "numbers or booleans";
    };
    for (std::string& path : paths) {
      const bool had = lists;
      lists = false;
      auto& file = files.emplace_back(std::move(path));
      if (auto opened = file.open(names, accepts); !opened) return opened.fault();
      if (files.size() > 1 && lists != had) {
        return fault(errc::io_error, "the columns must be lists in all files, or in none", file.path());
      }
    }
    const batch_shape shape{.dense_columns = static_cast<index_t>(columns.dense.size()),
                            .features = static_cast<index_t>(columns.features.size()),
                            .bags = lists ? bag_size::any : bag_size::one,
                            .weights = weighted ? id_weights::present : id_weights::absent};
    return reader(ctx, std::move(columns), shape, std::move(files), options);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
