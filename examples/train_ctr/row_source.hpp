// Where rows come from, in one order, as often as they are needed: text, plain or compressed, in a file or a
// pipe; synthetic.hpp has the other kind.
//
//   rewind() ── next(batch, 4096) ── next(batch, 4096) ── ... ── 0, the end
//
// What goes wrong is thrown as a failure.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/text_stream.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>

#if DEEPREC_WITH_ZLIB
#  include <deeprec/data/gzip_stream.hpp>
#endif
#if DEEPREC_WITH_ZSTD
#  include <deeprec/data/zstd_stream.hpp>
#endif

#include "models/ctr_data.hpp"

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
};

/// Criteo's text, in a file, a gzip or zstd file, or a pipe ("-": that of the standard input), which can be
/// read once.
class text_rows final : public row_source {
 public:
  /// `memory`: bytes that the reader may take; `labels`: whether rows have one.
  text_rows(std::string path, index_t memory, deeprec::label_column labels = deeprec::label_column::present)
      : path_(std::move(path)) {
    format_.rows = deeprec::criteo_format::same_size(fingerprints);
    format_.missing_dense = std::numeric_limits<float>::quiet_NaN();
    format_.labels = labels;
    // A chunk is text and its rows, about as many bytes again: all chunks take a quarter of the memory.
    options_.chunks_in_flight = 8;
    options_.chunk_bytes = std::clamp<index_t>(memory / 4 / 8 / 2, 1 << 13, 1 << 18);
    struct stat facts;
    is_pipe_ = path_ == "-" || (::stat(path_.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode));
    if (!is_pipe_) packing_ = packing_of(path_);
  }
  [[nodiscard]] const std::string& name() const override { return path_; }
  [[nodiscard]] deeprec::criteo_format::table_sizes table_rows() const override {
    return deeprec::criteo_format::same_size(index_t{1} << 17);
  }

  void rewind(deeprec::executor_ref executor) override {
    if (is_pipe_ && reader_) {
      throw failure(path_ + ": a pipe can be read only once, and its rows don't fit --memory");
    }
    reader_.reset();
    executor_ = executor;
    reader_.emplace(open());
    if (!*reader_) throw failure(reader_->fault().message());
  }
  index_t next(sparse_batch& rows, index_t most) override {
    const auto got = reader_->value().next(rows, most);
    if (!got) throw failure(got.fault().message());
    return got.value();
  }

 private:
  enum class packing { none, gzip, zstd };
  using reader = deeprec::batch_reader<deeprec::criteo_format, deeprec::executor_ref>;

  /// By the first bytes.
  static packing packing_of(const std::string& path) {
    unsigned char begin[4] = {};
    if (std::FILE* file = std::fopen(path.c_str(), "re")) {
      const std::size_t got = std::fread(begin, 1, 4, file);
      std::fclose(file);
      if (got >= 2 && begin[0] == 0x1f && begin[1] == 0x8b) return packing::gzip;
      if (got == 4 && begin[0] == 0x28 && begin[1] == 0xb5 && begin[2] == 0x2f && begin[3] == 0xfd) {
        return packing::zstd;
      }
    }
    return packing::none;
  }
  [[nodiscard]] deeprec::result<reader> open() {
    if (path_ == "-") return stream(std::make_unique<deeprec::file_stream>(0));
    if (is_pipe_) return stream(std::make_unique<deeprec::file_stream>(path_));
    if (packing_ == packing::gzip) {
#if DEEPREC_WITH_ZLIB
      return stream(std::make_unique<deeprec::gzip_stream>(path_));
#else
      throw failure(path_ + ": is compressed by gzip, and this train_ctr was built without zlib");
#endif
    }
    if (packing_ == packing::zstd) {
#if DEEPREC_WITH_ZSTD
      return stream(std::make_unique<deeprec::zstd_stream>(path_));
#else
      throw failure(path_ + ": is compressed by zstd, and this train_ctr was built without libzstd");
#endif
    }
    return read_files(executor_, format_, {path_}, options_);
  }
  [[nodiscard]] deeprec::result<reader> stream(std::unique_ptr<deeprec::text_stream> from) {
    return read_stream(executor_, format_, path_, std::move(from), options_);
  }

  std::string path_;
  deeprec::criteo_format format_;
  deeprec::reader_options options_;
  bool is_pipe_ = false;
  packing packing_ = packing::none;
  deeprec::inline_executor here_;
  deeprec::executor_ref executor_{here_};
  std::optional<deeprec::result<reader>> reader_;  // refers to executor_
};

}  // namespace ctr
