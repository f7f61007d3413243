// Where rows come from, in one order, as often as they are needed: text, plain or compressed, in files or
// pipes, and Parquet (parquet_rows.hpp); synthetic.hpp has the other kind.
//
//   rewind() ── next(batch, 4096) ── next(batch, 4096) ── ... ── 0, the end
//
// What goes wrong is thrown as a failure.
#pragma once

#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/text_stream.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "data_schema.hpp"
#include "models/ctr_data.hpp"
#include "opened_text.hpp"
#include "options.hpp"
#include "parquet_rows.hpp"

namespace ctr {

/// Rows that cannot be parsed: --skip-bad.
struct skipped_rows {
  index_t count = 0;
  std::vector<std::string> first{};  ///< file, line, column, and the reason

  void add(const skipped_rows& more) {
    count += more.count;
    first.insert(first.end(), more.first.begin(), more.first.end());
  }
};

class row_source {
 public:
  row_source() = default;
  row_source(const row_source&) = delete;
  row_source& operator=(const row_source&) = delete;
  virtual ~row_source() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual const ctr_columns& columns() const = 0;
  [[nodiscard]] virtual deeprec::batch_shape shape() const = 0;
  /// Ids of each column of tokens. Rows have fingerprints, which id_of makes ids of.
  ///
  /// @param others  of columns whose data doesn't tell; none: 2^17
  [[nodiscard]] virtual std::vector<index_t> table_rows(std::optional<index_t> others = {}) const = 0;
  /// Before the first row again. Until the next call, rows are made on this executor.
  virtual void rewind(deeprec::executor_ref executor) = 0;
  /// The next rows, `most` of them but at the end; 0: there are no more.
  virtual index_t next(sparse_batch& rows, index_t most) = 0;
  /// Whether rewind() works for a second time.
  [[nodiscard]] virtual bool is_rewindable() const { return true; }
  /// Of a pipe next() returns the rows that have arrived, rather than wait for as many as it may.
  virtual void take_as_they_arrive() {}
  /// Of all rows, as they are stored; 0: not known. And read since rewind().
  [[nodiscard]] virtual index_t bytes() const { return 0; }
  [[nodiscard]] virtual index_t bytes_read() const { return 0; }
  /// Rows that were left out since rewind(), and where the first ones are.
  [[nodiscard]] virtual skipped_rows skipped() const { return {}; }
};

/// Columns are read by their places. Throws a failure where a header has a name of Criteo's columns at the
/// place of another one.
inline void check_header(const std::string& path, std::string_view head,
                         const deeprec::criteo_format& format) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  std::string_view line;
  index_t number = 0;
  while (line.empty() && !head.empty()) {
    line = head.substr(0, head.find('\n'));
    head.remove_prefix(std::min(line.size() + 1, head.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
  }
  const auto layout = format.detect(line);
  if (!layout.has_header) return;
  std::vector<std::string> places;
  if (layout.id_columns > 0) places.emplace_back("id");
  if (layout.label_columns > 0) places.emplace_back("label");
  for (int n = 1; n <= 13; ++n) places.push_back('i' + std::to_string(n));
  for (int n = 1; n <= 26; ++n) places.push_back('c' + std::to_string(n));
  for (std::size_t k = 0; k < places.size(); ++k) {
    const std::string_view field = line.substr(0, line.find(layout.delimiter));
    line.remove_prefix(std::min(field.size() + 1, line.size()));
    std::string name(field);
    if (name.size() > 1 && name.front() == '"' && name.back() == '"') name = name.substr(1, name.size() - 2);
    for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    if (name == places[k] || std::find(places.begin(), places.end(), name) == places.end()) continue;
    throw failure(path + ':' + std::to_string(number) + ": column " + std::to_string(k + 1) + " must be " +
                  places[k] + " (is " + std::string(field) + "): columns are read by their places");
  }
}

/// What files of rows have in common, whatever their format.
class file_rows : public row_source {
 public:
  /// `inputs`: one a line, as files_of() has them; `given`: the ids of each column of tokens, 0 where
  /// --table-rows decides; `most_bad`: rows that may be left out.
  file_rows(std::string inputs, const deeprec::batch_shape& shape, ctr_columns columns,
            std::vector<index_t> given, index_t most_bad)
      : name_(std::move(inputs)),
        files_(files_of(name_)),
        bytes_(bytes_of(files_)),
        shape_(shape),
        columns_(std::move(columns)),
        given_(std::move(given)),
        most_bad_(most_bad) {
    std::replace(name_.begin(), name_.end(), '\n', ' ');
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const ctr_columns& columns() const override { return columns_; }
  [[nodiscard]] deeprec::batch_shape shape() const override { return shape_; }
  [[nodiscard]] std::vector<index_t> table_rows(std::optional<index_t> others) const override {
    std::vector<index_t> sizes = given_;
    std::replace(sizes.begin(), sizes.end(), index_t{0}, others.value_or(index_t{1} << 17));
    return sizes;
  }
  [[nodiscard]] index_t bytes() const override { return bytes_; }

 protected:
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  [[nodiscard]] deeprec::malformed on_malformed() const {
    return most_bad_ > 0 ? deeprec::malformed::drop : deeprec::malformed::fault;
  }
  /// Throws a failure where more rows were left out than may be.
  void check(const skipped_rows& skipped) const {
    if (skipped.count <= most_bad_) return;
    throw failure(skipped.first.front() + ": the first of " + std::to_string(skipped.count) +
                  " bad rows, or more (--skip-bad " + std::to_string(most_bad_) + ')');
  }

 private:
  std::string name_;
  std::vector<std::string> files_;
  index_t bytes_;
  deeprec::batch_shape shape_;
  ctr_columns columns_;
  std::vector<index_t> given_;
  index_t most_bad_;
};

/// The number of a word of a vocabulary becomes a fingerprint that has it as its id.
inline void spread_words(const deeprec::csv_format& format, const sparse_batch& rows) {
  index_t feature = 0;
  for (const deeprec::csv_column& column : format.columns) {
    if (column.use != deeprec::csv_use::token) continue;
    const auto bags = rows.feature(feature++);
    if (column.vocabulary == nullptr) continue;
    auto* const ids = const_cast<std::int64_t*>(bags.ids());  // they are those of `rows`
    for (index_t k = 0; k < bags.id_count(); ++k) ids[k] = fingerprint_of(ids[k], column.vocabulary->rows());
  }
}

/// Text, in files and pipes, one after the other; a pipe can be read once.
template <class Format>
class text_rows final : public file_rows {
 public:
  /// `memory`: bytes that the reader may take; the others as file_rows has them.
  text_rows(std::string inputs, index_t memory, Format format, ctr_columns columns,
            std::vector<index_t> given, index_t most_bad)
      : file_rows(std::move(inputs), format.shape(), std::move(columns), std::move(given), most_bad),
        format_(std::move(format)) {
    options_.on_malformed = on_malformed();
    // A chunk is text and its rows, about as many bytes again: all chunks take a quarter of the memory.
    options_.chunks_in_flight = 8;
    options_.chunk_bytes = std::clamp<index_t>(memory / 4 / 8 / 2, 1 << 13, 1 << 18);
  }
  [[nodiscard]] bool is_rewindable() const override {
    return std::none_of(files().begin(), files().end(), is_pipe);
  }
  void take_as_they_arrive() override { options_.batches = deeprec::stream_batches::arrived; }
  [[nodiscard]] index_t bytes_read() const override { return reader_->value().bytes_read(); }
  [[nodiscard]] skipped_rows skipped() const override {
    skipped_rows made{.count = reader_->value().skipped_lines()};
    for (const deeprec::fault& one : reader_->value().first_skipped()) made.first.push_back(one.message());
    return made;
  }

  void rewind(deeprec::executor_ref executor) override {
    reader_.reset();
    executor_ = executor;
    std::vector<deeprec::text_input> inputs;
    for (std::size_t i = 0; i < files().size(); ++i) {
      const std::string& file = files()[i];
      auto text = std::make_unique<any_text>(file);
      if (i == is_plain_.size()) {  // the first time
        open(*text);
        if constexpr (std::is_same_v<Format, deeprec::criteo_format>)
          check_header(file, text->head(), format_);
        is_plain_.push_back(text->is_plain_file());
        if (!text->is_from_pipe()) text->close();
      }
      if (is_plain_[i]) text.reset();
      inputs.push_back({file, std::move(text)});
    }
    reader_.emplace(read_texts(executor_, format_, std::move(inputs), options_));
    if (!*reader_) throw failure(reader_->fault().message());
  }
  index_t next(sparse_batch& rows, index_t most) override {
    const auto got = reader_->value().next(rows, most);
    if (!got) throw failure(got.fault().message() + column_of(got.fault()));
    if (reader_->value().skipped_lines() > 0) check(skipped());
    if constexpr (std::is_same_v<Format, deeprec::csv_format>) spread_words(format_, rows);
    return got.value();
  }

 private:
  using reader = deeprec::batch_reader<Format, deeprec::executor_ref>;

  /// Of a fault of a header: which column it lacks, or has twice.
  [[nodiscard]] std::string column_of(const deeprec::fault& found) const {
    if constexpr (std::is_same_v<Format, deeprec::csv_format>) {
      const index_t item = found.place().item;
      if (item >= 0) return " (column " + format_.columns[static_cast<std::size_t>(item)].name + ')';
    }
    return {};
  }

  std::vector<bool> is_plain_;  // of each file: it is text that is read in parallel
  Format format_;
  deeprec::reader_options options_;
  deeprec::inline_executor here_;
  deeprec::executor_ref executor_{here_};
  std::optional<deeprec::result<reader>> reader_;  // refers to executor_
};

/// What a row source is read for: predictions may want names of rows, and want neither weights nor groups.
enum class text_use : unsigned char { train, predict, evaluate };

/// Rows of text or of Parquet, by the schema of the options or as Criteo's. Of those to predict the label may
/// lack.
inline std::unique_ptr<row_source> file_rows_of(const options& o, const std::string& inputs, index_t memory,
                                                text_use use = text_use::train) {
  const auto labels =
      use == text_use::predict ? deeprec::label_column::by_fields : deeprec::label_column::present;
  const bool is_parquet = any_is_parquet(inputs);
  if (o.columns != nullptr) {
    deeprec::csv_format format = o.columns->format;
    format.labels = labels;
    const bool predicts = use == text_use::predict;
    for (deeprec::csv_column& column : format.columns) {
      const bool is_wanted = column.use == deeprec::csv_use::name ? predicts && o.writes_names()
                             : column.use == deeprec::csv_use::weight || column.use == deeprec::csv_use::group
                                 ? !predicts
                                 : true;
      if (!is_wanted) column.use = deeprec::csv_use::ignored;
    }
    if (is_parquet) return parquet_rows_of(inputs, std::move(format), o.columns.get(), o.skip_bad);
    return std::make_unique<text_rows<deeprec::csv_format>>(inputs, memory, std::move(format),
                                                            o.columns->columns, o.columns->rows, o.skip_bad);
  }
  if (is_parquet) return parquet_rows_of(inputs, {}, nullptr, 0);
  deeprec::criteo_format format;
  format.rows = deeprec::criteo_format::same_size(0);
  format.missing_dense = std::numeric_limits<float>::quiet_NaN();
  format.labels = labels;
  ctr_columns columns;
  std::vector<index_t> given(static_cast<std::size_t>(columns.tokens), 0);
  return std::make_unique<text_rows<deeprec::criteo_format>>(inputs, memory, format, std::move(columns),
                                                             std::move(given), o.skip_bad);
}

}  // namespace ctr
