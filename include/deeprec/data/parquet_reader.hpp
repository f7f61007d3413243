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
// With a csv_format in place of the columns, rows are those of a table in text with the same values: the same
// labels, scales, vocabularies, missing values, weights, groups and names, bit for bit.
//
// Not here: views of Arrow's arrays without a copy (interop/arrow_bags.hpp), writing.
#pragma once

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
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/detail/arrow_columns.hpp>
#include <deeprec/data/detail/lasting_context.hpp>
#include <deeprec/data/detail/parquet_file.hpp>
#include <deeprec/data/detail/parquet_rows.hpp>
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
  /// Of bad rows. drop: those behind one in the same call are converted again by columns, not by a format.
  malformed on_malformed = malformed::fault;
  /// Row groups read at a time, whose columns are in memory as Arrow's. 0: one for each thread of the
  /// executor.
  int groups_in_flight = 0;
};

/// Delivers the rows of Parquet files as batches. Made by read_parquet(). Move-only.
///
/// @space   columns take memory from Arrow's pool
/// @threads one caller at a time; next() runs on the executor
template <class Executor, class Rows = detail::rows_of_types<parquet_columns>>
class parquet_reader {
 public:
  parquet_reader(const context<Executor>& ctx, Rows rows_of, std::vector<detail::parquet_file> files,
                 const parquet_options& options)
      : context_(ctx),
        rows_of_(std::move(rows_of)),
        files_(std::move(files)),
        options_(options),
        groups_(static_cast<std::size_t>(options.groups_in_flight > 0 ? options.groups_in_flight
                                                                      : ctx.executor->concurrency())) {
    for (const detail::parquet_file& file : files_) rows_ += file.rows();
  }

  /// Fills the batch with the next rows, max_rows of them unless the input ends or a bad row comes first.
  /// Returns their number; 0 at the end of the input.
  ///
  /// @post    rows before a bad one are delivered; the call after that reports the fault, as do all later
  ///          ones, unless bad rows are left out. On a fault the batch is empty; after out_of_memory the next
  ///          call goes on behind the rows that were delivered
  /// @cost    reading, decoding, and a pass over the values
  /// @threads one caller at a time; runs on the executor
  /// @error   invalid_value with the row of the file, from 0: a label that is null, an id that is null,
  ///          negative text, or beyond its table, weights of another number than ids; of a csv_format what it
  ///          has against a field, with the name of the column; io_error for a file
  ///          that is broken, with Arrow's words; out_of_memory; shape_mismatch (max_rows is not positive);
  ///          stopped
  result<index_t> next(sparse_batch& batch, index_t max_rows) {
    const detail::verb_call call(context_, "next");
    batch.clear();
    if (!call) return call.stopped();
    if (max_rows <= 0) return status(errc::shape_mismatch, "next: max_rows must be positive");
    const status s = detail::or_out_of_memory([&] {
      batch.reshape(rows_of_.shape());
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
  [[nodiscard]] const batch_shape& shape() const noexcept { return rows_of_.shape(); }
  /// Bad rows that were left out so far, and the first 4 of them, each with its file, row and column.
  [[nodiscard]] index_t skipped_rows() const noexcept { return skipped_; }
  [[nodiscard]] std::span<const fault> first_skipped() const noexcept { return first_skipped_; }

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
    detail::rows_end end;
    const status done = rows_of_.convert(*context_.executor, *group.table, group.used, count, batch, end);
    group.used += end.rows;  // some, too, where memory was refused
    if (end.reason == nullptr) return done;
    fault bad = rows_of_.fault_of(end, group.first_row + group.used, files_[group.file].path());
    if (options_.on_malformed != malformed::drop) {
      group.end = std::move(bad);
      return done;
    }
    if (first_skipped_.size() < 4) first_skipped_.push_back(std::move(bad));
    ++skipped_;
    ++group.used;
    return done;
  }

  context<Executor> context_;
  Rows rows_of_;
  std::vector<detail::parquet_file> files_;
  parquet_options options_;
  std::vector<loaded_group> groups_;
  std::optional<fault> fault_;
  std::size_t head_ = 0, filled_ = 0;  // of groups_
  std::size_t file_ = 0;               // the next row group
  int group_ = 0;
  index_t first_row_ = 0;
  index_t rows_ = 0, rows_read_ = 0;
  index_t skipped_ = 0;
  std::vector<fault> first_skipped_;
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
  const auto ctx = detail::lasting_context<Context>(context_or_executor);
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
    return reader(ctx, detail::rows_of_types<parquet_columns>(std::move(columns), shape), std::move(files),
                  options);
  });
}

/// The same for the columns of a format, which are found by their names. A value is as its text in a file of
/// text: a null as an empty field, an integer in decimal digits, a float or double as its shortest decimal
/// text, a boolean as 1 or 0. A column of tokens may be of lists: an element is one token, whatever it has
/// within; a null, an empty text, and a missing one that is alone are none.
///
/// @pre     the executor outlives the reader
/// @cost    opens and closes each file. next() converts value by value, on the caller's thread
/// @threads reentrant
/// @error   io_error: as above. Dense columns, weights and labels by numbers must be of numbers or booleans,
///          others of integers or text. unsupported, by format.check(), or where it has no header
template <class Context>
auto read_parquet(Context&& context_or_executor, csv_format format, std::vector<std::string> paths,
                  const parquet_options& options = {}) {
  const auto ctx = detail::lasting_context<Context>(context_or_executor);
  using executor = std::remove_reference_t<decltype(*ctx.executor)>;
  using reader = parquet_reader<executor, detail::rows_of_format>;
  return detail::or_out_of_memory([&]() -> result<reader> {
    if (const status s = format.check(); !s) return s;
    if (format.header != csv_header::present) {
      return status(errc::unsupported,
                    "read_parquet: columns must have names. Fix: a csv_format with csv_header::present");
    }
    std::vector<std::string> names;
    std::string may_lack;
    for (const csv_column& column : format.columns) {
      if (column.use != csv_use::ignored) names.push_back(column.name);
      if (column.use == csv_use::label && format.labels != label_column::present) may_lack = column.name;
    }
    const auto accepts = [&](const std::string& name, const ::arrow::DataType& type) -> const char* {
      const csv_column& column = *std::find_if(format.columns.begin(), format.columns.end(),
                                               [&](const csv_column& c) { return c.name == name; });
      if (column.use == csv_use::dense || column.use == csv_use::weight ||
          (column.use == csv_use::label && column.rule != csv_label::one_of))
        return detail::is_number(type) ? nullptr : "numbers or booleans";
      const ::arrow::DataType* const element = detail::element_type(type);
      if (column.use != csv_use::token || column.separator == '\0')
        return detail::has_ids(type) ? nullptr : "integers or text";
      return detail::has_ids(element != nullptr ? *element : type) ? nullptr
                                                                   : "integers, text, or lists of them";
    };
    std::vector<detail::parquet_file> files;
    for (std::string& path : paths) {
      auto& file = files.emplace_back(std::move(path));
      if (auto opened = file.open(names, accepts, may_lack); !opened) return opened.fault();
    }
    return reader(ctx, detail::rows_of_format(std::move(format)), std::move(files), options);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
