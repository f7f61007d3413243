// Where rows come from, in one order, as often as they are needed: text, plain or compressed, in files or
// pipes; synthetic.hpp has the other kind.
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
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/text_stream.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "models/ctr_data.hpp"
#include "opened_text.hpp"

namespace ctr {

class row_source {
 public:
  row_source() = default;
  row_source(const row_source&) = delete;
  row_source& operator=(const row_source&) = delete;
  virtual ~row_source() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Ids of the 26 columns. Rows have fingerprints, which id_of makes ids of.
  [[nodiscard]] virtual deeprec::criteo_format::table_sizes table_rows() const = 0;
  /// Before the first row again. Until the next call, rows are made on this executor.
  virtual void rewind(deeprec::executor_ref executor) = 0;
  /// The next rows, `most` of them but at the end; 0: there are no more.
  virtual index_t next(sparse_batch& rows, index_t most) = 0;
  /// Whether rewind() works for a second time.
  [[nodiscard]] virtual bool is_rewindable() const { return true; }
  /// Of all rows, as they are stored; 0: not known. And read since rewind().
  [[nodiscard]] virtual index_t bytes() const { return 0; }
  [[nodiscard]] virtual index_t bytes_read() const { return 0; }
};

/// Columns are read by their places. Throws a failure where a header has a name of Criteo's columns at the
/// place of another one.
inline void check_header(const std::string& path, std::string_view head,
                         const deeprec::criteo_format& format) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  std::string_view line = head.substr(0, head.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto layout = format.detect(line);
  if (!layout.has_header) return;
  std::vector<std::string> places;
  if (layout.id_columns > 0) places.emplace_back("id");
  if (layout.label_columns > 0) places.emplace_back("label");
  for (index_t n = 1; n <= integers; ++n) places.push_back('i' + std::to_string(n));
  for (index_t n = 1; n <= tokens; ++n) places.push_back('c' + std::to_string(n));
  for (std::size_t k = 0; k < places.size(); ++k) {
    const std::string_view field = line.substr(0, line.find(layout.delimiter));
    line.remove_prefix(std::min(field.size() + 1, line.size()));
    std::string name(field);
    if (name.size() > 1 && name.front() == '"' && name.back() == '"') name = name.substr(1, name.size() - 2);
    for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    if (name == places[k] || std::find(places.begin(), places.end(), name) == places.end()) continue;
    throw failure(path + ":1: column " + std::to_string(k + 1) + " must be " + places[k] + " (is " +
                  std::string(field) + "): columns are read by their places");
  }
}

/// Criteo's text, in files and pipes, one after the other; a pipe can be read once.
class text_rows final : public row_source {
 public:
  /// `inputs`: one a line, as files_of() has them; `memory`: bytes that the reader may take; `labels`:
  /// whether rows have one.
  text_rows(std::string inputs, index_t memory, deeprec::label_column labels = deeprec::label_column::present)
      : name_(std::move(inputs)), files_(files_of(name_)), bytes_(bytes_of(files_)) {
    format_.rows = deeprec::criteo_format::same_size(0);
    format_.missing_dense = std::numeric_limits<float>::quiet_NaN();
    format_.labels = labels;
    // A chunk is text and its rows, about as many bytes again: all chunks take a quarter of the memory.
    options_.chunks_in_flight = 8;
    options_.chunk_bytes = std::clamp<index_t>(memory / 4 / 8 / 2, 1 << 13, 1 << 18);
    std::replace(name_.begin(), name_.end(), '\n', ' ');
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] bool is_rewindable() const override {
    return std::none_of(files_.begin(), files_.end(), is_pipe);
  }
  /// Of a pipe next() returns the rows that have arrived, rather than wait for as many as it may.
  void take_as_they_arrive() { options_.batches = deeprec::stream_batches::arrived; }
  [[nodiscard]] deeprec::criteo_format::table_sizes table_rows() const override {
    return deeprec::criteo_format::same_size(index_t{1} << 17);
  }
  [[nodiscard]] index_t bytes() const override { return bytes_; }
  [[nodiscard]] index_t bytes_read() const override { return reader_->value().bytes_read(); }

  void rewind(deeprec::executor_ref executor) override {
    reader_.reset();
    executor_ = executor;
    std::vector<deeprec::text_input> inputs;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      auto text = std::make_unique<any_text>(files_[i]);
      if (i == is_plain_.size()) {  // the first time
        open(*text);
        check_header(files_[i], text->head(), format_);
        is_plain_.push_back(text->is_plain_file());
        if (!text->is_from_pipe()) text->close();
      }
      if (is_plain_[i]) text.reset();
      inputs.push_back({files_[i], std::move(text)});
    }
    reader_.emplace(read_texts(executor_, format_, std::move(inputs), options_));
    if (!*reader_) throw failure(reader_->fault().message());
  }
  index_t next(sparse_batch& rows, index_t most) override {
    const auto got = reader_->value().next(rows, most);
    if (!got) throw failure(got.fault().message());
    return got.value();
  }

 private:
  using reader = deeprec::batch_reader<deeprec::criteo_format, deeprec::executor_ref>;

  std::string name_;
  std::vector<std::string> files_;
  index_t bytes_;
  std::vector<bool> is_plain_;  // of each file: it is text that is read in parallel
  deeprec::criteo_format format_;
  deeprec::reader_options options_;
  deeprec::inline_executor here_;
  deeprec::executor_ref executor_{here_};
  std::optional<deeprec::result<reader>> reader_;  // refers to executor_
};

}  // namespace ctr
