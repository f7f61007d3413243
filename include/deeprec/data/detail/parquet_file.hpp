// A Parquet file: its row groups, and the columns that are read of it.
#pragma once

#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class parquet_file {
 public:
  explicit parquet_file(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int groups() const { return metadata_->num_row_groups(); }
  [[nodiscard]] index_t rows() const { return metadata_->num_rows(); }
  [[nodiscard]] index_t rows_of(int group) const { return metadata_->RowGroup(group)->num_rows(); }

  /// Reads the footer, and finds the columns by their names, of which one may lack. accepts(name, type)
  /// returns null, or why the type of a column is refused.
  template <class Accepts>
  result<void> open(const std::vector<std::string>& names, const Accepts& accepts,
                    const std::string& may_lack = {}) {
    return guarded([&]() -> result<void> {
      auto reader = open_reader();
      if (!reader) return reader.fault();
      metadata_ = reader.value()->parquet_reader()->metadata();
      columns_.clear();
      for (const std::string& name : names) {
        const ::parquet::arrow::SchemaField* found = nullptr;
        for (const auto& field : reader.value()->manifest().schema_fields) {
          if (field.field->name() != name) continue;
          if (found != nullptr) return refusal("the column '" + name + "' must come once (comes twice)");
          found = &field;
        }
        if (found == nullptr && name == may_lack) continue;
        if (found == nullptr) return refusal("the file must have a column '" + name + "' (has none)");
        if (const char* const why = accepts(name, *found->field->type())) {
          return refusal("the column '" + name + "' must be of " + why + " (is " +
                         found->field->type()->ToString() + ")");
        }
        add_leaves(*found);
      }
      return {};
    });
  }
  /// The columns of a row group, each in one piece.
  result<std::shared_ptr<::arrow::Table>> read(int group) const {
    using table = std::shared_ptr<::arrow::Table>;
    return guarded([&]() -> result<table> {
      auto reader = open_reader();
      if (!reader) return reader.fault();
      auto read = read_columns(*reader.value(), group, columns_);
      if (!read.ok()) return refusal(read.status());
      auto joined = (*read)->CombineChunks();
      if (!joined.ok()) return refusal(joined.status());
      for (const auto& column : (*joined)->columns()) {
        if (column->num_chunks() > 1)
          return refusal("a column of a row group must have less than 2 GiB of text");
      }
      return std::move(joined).ValueUnsafe();
    });
  }

 private:
  using reader_type = std::unique_ptr<::parquet::arrow::FileReader>;

  // A template: Arrow before 24 has other arguments.
  template <class Reader>
  static ::arrow::Result<std::shared_ptr<::arrow::Table>> read_columns(Reader& from, int group,
                                                                       const std::vector<int>& columns) {
    if constexpr (requires { from.ReadRowGroup(group, columns).status(); }) {
      return from.ReadRowGroup(group, columns);
    } else {
      std::shared_ptr<::arrow::Table> table;
      ARROW_RETURN_NOT_OK(from.ReadRowGroup(group, columns, &table));
      return table;
    }
  }
  /// In one line: words of Arrow have several.
  [[nodiscard]] fault refusal(std::string why) const {
    std::replace(why.begin(), why.end(), '\n', ' ');
    why.erase(why.find_last_not_of(' ') + 1);
    return {errc::io_error, std::move(why), path_};
  }
  [[nodiscard]] fault refusal(const ::arrow::Status& s) const {
    return s.IsOutOfMemory() ? fault(errc::out_of_memory, s.message(), path_) : refusal(s.message());
  }
  // What Parquet's library throws at broken bytes.
  template <class F>
  auto guarded(const F& f) const -> decltype(f()) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return fault(errc::out_of_memory, "memory must hold the row group (it was refused)", path_);
    } catch (const std::exception& e) {
      return refusal(std::string(e.what()));
    }
  }
  [[nodiscard]] result<reader_type> open_reader() const {
    const auto open = [&]() -> ::arrow::Result<reader_type> {
      ARROW_ASSIGN_OR_RAISE(auto bytes, ::arrow::io::ReadableFile::Open(path_));
      ::parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Open(std::move(bytes), ::parquet::default_reader_properties(), metadata_));
      return builder.Build();
    };
    auto opened = open();
    if (!opened.ok()) return refusal(opened.status());
    return std::move(opened).ValueUnsafe();
  }
  void add_leaves(const ::parquet::arrow::SchemaField& field) {
    if (field.column_index >= 0) columns_.push_back(field.column_index);
    for (const auto& child : field.children) add_leaves(child);
  }

  std::string path_;
  std::shared_ptr<::parquet::FileMetaData> metadata_;
  std::vector<int> columns_;  // leaves, in the order of the names
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
