#include "parquet_rows.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "opened_text.hpp"
#include "row_source.hpp"

#if TRAIN_CTR_HAS_ARROW
#  include <deeprec/data/parquet_reader.hpp>
#endif

namespace ctr {

namespace {

bool is_parquet(const std::string& path) {
  if (is_pipe(path)) return false;
  char begin[4] = {};
  std::ifstream in(path, std::ios::binary);
  return in.read(begin, sizeof begin) && std::string_view(begin, sizeof begin) == "PAR1";
}

#if TRAIN_CTR_HAS_ARROW
class parquet_rows final : public file_rows {
 public:
  parquet_rows(const std::string& inputs, deeprec::csv_format format, const data_schema& schema,
               index_t most_bad)
      : file_rows(inputs, format.shape(), schema.columns, schema.rows, most_bad), format_(std::move(format)) {
    const auto other = std::find_if_not(files().begin(), files().end(), is_parquet);
    if (other != files().end())
      throw failure(*other + ": must be a Parquet file, as others of its input are");
  }
  /// By rows: Arrow reads what it wants.
  [[nodiscard]] index_t bytes_read() const override {
    const auto& is = reader_->value();
    const double part = static_cast<double>(is.rows_read() + is.skipped_rows()) /
                        static_cast<double>(std::max<index_t>(is.rows(), 1));
    return static_cast<index_t>(part * static_cast<double>(bytes()));
  }
  [[nodiscard]] skipped_rows skipped() const override {
    skipped_rows made{.count = reader_->value().skipped_rows()};
    for (const deeprec::fault& one : reader_->value().first_skipped()) made.first.push_back(one.message());
    return made;
  }
  void rewind(deeprec::executor_ref executor) override {
    reader_.reset();
    executor_ = executor;
    reader_.emplace(read_parquet(executor_, format_, files(),
                                 {.on_malformed = on_malformed(),
                                  .groups_in_flight = std::min(executor_.concurrency(), most_groups)}));
    if (!*reader_) throw failure(reader_->fault().message());
  }
  index_t next(sparse_batch& rows, index_t most) override {
    const auto got = reader_->value().next(rows, most);
    if (!got) throw failure(got.fault().message());
    if (reader_->value().skipped_rows() > 0) check(skipped());
    spread_words(format_, rows);
    return got.value();
  }

 private:
  using opened = decltype(deeprec::read_parquet(std::declval<deeprec::executor_ref&>(), deeprec::csv_format(),
                                                std::vector<std::string>()));
  static constexpr int most_groups = 4;  // each is in memory as a whole

  deeprec::csv_format format_;
  deeprec::inline_executor here_;
  deeprec::executor_ref executor_{here_};
  std::optional<opened> reader_;  // refers to executor_
};
#endif

}  // namespace

bool any_is_parquet(const std::string& inputs) {
  const std::vector<std::string> files = files_of(inputs);
  return std::any_of(files.begin(), files.end(), is_parquet);
}

std::unique_ptr<row_source> parquet_rows_of(const std::string& inputs, deeprec::csv_format format,
                                            const data_schema* schema, index_t most_bad) {
  const std::vector<std::string> files = files_of(inputs);
  const std::string first = *std::find_if(files.begin(), files.end(), is_parquet) + ": is a Parquet file";
#if TRAIN_CTR_HAS_ARROW
  if (schema == nullptr) throw failure(first + ", whose columns must be known. Fix: --schema");
  if (format.header != deeprec::csv_header::present)
    throw failure(first + ", whose columns have names. Fix: a schema with names, and \"header\": true");
  return std::make_unique<parquet_rows>(inputs, std::move(format), *schema, most_bad);
#else
  static_cast<void>(schema);
  static_cast<void>(most_bad);
  static_cast<void>(format);
  throw failure(first +
                ", and this train_ctr was built without Arrow. Fix: cmake -DDEEPREC_ARROW=ON, or write it as "
                "text, such as pandas.read_parquet, to_csv");
#endif
}

}  // namespace ctr
