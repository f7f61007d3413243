// Parquet to sparse batches, on one core, beside Arrow's own read of the same columns, which decodes them and
// stops there.
//
//   parquet/flat    400,000 rows: a label, 13 floats and 26 ids of 64 bits, as Criteo's tables have them
//   parquet/lists   2,000 rows of 200 lists of 0 to 500 ids, HybridBackend's shape: over_text, over the same
//                   rows as text, read by key_value_format
//
//   of_arrow        Arrow's time over ours; rows_per_second of ours
//
// Files are written by Arrow: Snappy, dictionaries where they pay, row groups of 65,536 and 128 rows. All
// values are summed on both sides before anything is timed.
#include <benchmark/benchmark.h>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/parquet_reader.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;

constexpr index_t batch_rows = 8192;

struct file {
  explicit file(const std::string& name) {
    const char* const folder = std::getenv("TMPDIR");
    path = std::string(folder != nullptr ? folder : "/tmp") + "/deeprec_" + std::to_string(::getpid()) + name;
  }
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  ~file() { std::filesystem::remove(path); }
  std::string path;
  parquet_columns columns;
};

void write(const std::string& path, const std::vector<std::string>& names,
           const std::vector<std::shared_ptr<arrow::Array>>& arrays, std::int64_t rows_of_group) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  for (std::size_t i = 0; i < names.size(); ++i) fields.push_back(arrow::field(names[i], arrays[i]->type()));
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  const auto out = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto snappy = parquet::WriterProperties::Builder().compression(arrow::Compression::SNAPPY)->build();
  if (!parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, rows_of_group, snappy).ok() ||
      !out->Close().ok())
    std::abort();
}
template <class Builder, class Next>
std::shared_ptr<arrow::Array> column(index_t rows, const Next& next) {
  Builder builder;
  for (index_t i = 0; i < rows; ++i) {
    if (!builder.Append(next(i)).ok()) std::abort();
  }
  return builder.Finish().ValueOrDie();
}

const file& flat() {
  static const auto made = [] {
    auto to = std::make_unique<file>("_flat.parquet");
    constexpr index_t rows = 400'000;
    std::mt19937_64 random(1);
    std::vector<std::string> names{"label"};
    std::vector<std::shared_ptr<arrow::Array>> arrays{
        column<arrow::FloatBuilder>(rows, [&](index_t) { return static_cast<float>(random() % 2); })};
    for (int d = 0; d < 13; ++d) {
      names.push_back("dense" + std::to_string(d));
      to->columns.dense.push_back(names.back());
      arrays.push_back(column<arrow::FloatBuilder>(
          rows, [&](index_t) { return static_cast<float>(random() % 5000) / 7; }));
    }
    for (std::size_t f = 0; f < std::size(deeprec_bench::criteo_rows); ++f) {
      names.push_back("id" + std::to_string(f));
      to->columns.features.push_back({names.back()});
      const double most = static_cast<double>(deeprec_bench::criteo_rows[f]);
      arrays.push_back(column<arrow::Int64Builder>(rows, [&](index_t) {  // few rows have most of the ids
        const double u = static_cast<double>(random() >> 11U) / 9007199254740992.0;
        return static_cast<std::int64_t>(most * u * u * u * u);
      }));
    }
    to->columns.label = "label";
    write(to->path, names, arrays, 65536);
    return to;
  }();
  return *made;
}

// Lists, and the same rows as text.
struct list_files {
  file parquet{"_lists.parquet"}, text{"_lists.txt"};
  index_t features = 200;
};
const list_files& lists() {
  static const auto made = [] {
    auto to = std::make_unique<list_files>();
    constexpr index_t rows = 2000;
    std::mt19937_64 random(2);
    std::vector<std::string> lines(static_cast<std::size_t>(rows));
    std::vector<std::string> names;
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    for (index_t f = 0; f < to->features; ++f) {
      const auto values = std::make_shared<arrow::Int64Builder>();
      arrow::ListBuilder builder(arrow::default_memory_pool(), values);
      for (std::string& line : lines) {
        if (f > 0) line += '\t';
        if (!builder.Append().ok()) std::abort();
        const auto count = static_cast<int>(random() % 501);
        for (int k = 0; k < count; ++k) {
          const auto id = static_cast<std::int64_t>(random() % 100'000);
          if (!values->Append(id).ok()) std::abort();
          if (k > 0) line += ',';
          line += std::to_string(id);
        }
      }
      names.push_back("list" + std::to_string(f));
      to->parquet.columns.features.push_back({names.back()});
      arrays.push_back(builder.Finish().ValueOrDie());
    }
    write(to->parquet.path, names, arrays, 128);
    std::FILE* const out = std::fopen(to->text.path.c_str(), "wb");
    for (const std::string& line : lines) {
      if (out == nullptr || std::fwrite((line + '\n').data(), 1, line.size() + 1, out) != line.size() + 1)
        std::abort();
    }
    std::fclose(out);
    return to;
  }();
  return *made;
}

/// Of labels, dense values and ids.
struct sums {
  double numbers = 0;
  std::uint64_t ids = 0;
  index_t rows = 0;
  friend bool operator==(const sums&, const sums&) = default;
};
template <class Reader>
sums read_all(Reader&& reader, bool sum) {
  sums s;
  sparse_batch batch;
  while (reader.next(batch, batch_rows).or_throw() > 0) {
    s.rows += batch.rows();
    if (!sum) continue;
    for (const float label : batch.labels()) s.numbers += label;
    for (index_t i = 0; i < batch.rows(); ++i) {
      for (index_t c = 0; c < batch.dense().extent(1); ++c) s.numbers += batch.dense().row(i)[c];
    }
    for (index_t f = 0; f < batch.feature_count(); ++f) {
      const auto bags = batch.feature(f);
      for (index_t k = 0; k < bags.id_count(); ++k)
        s.ids += mix64(static_cast<std::uint64_t>(bags.ids()[k]) + static_cast<std::uint64_t>(f));
    }
  }
  return s;
}
sums ours(const file& f, bool sum = false) {
  inline_executor here;
  return read_all(read_parquet(here, f.columns, {f.path}).or_throw(), sum);
}
sums as_text(const list_files& f, bool sum = false) {
  inline_executor here;
  return read_all(read_files(here, key_value_format{.features = f.features}, {f.text.path}).or_throw(), sum);
}
// Row group by row group, on this thread.
sums arrows(const file& f, bool sum = false) {
  sums s;
  const auto bytes = arrow::io::ReadableFile::Open(f.path).ValueOrDie();
  const auto reader = parquet::arrow::OpenFile(bytes, arrow::default_memory_pool()).ValueOrDie();
  reader->set_use_threads(false);
  for (int g = 0; g < reader->num_row_groups(); ++g) {
    std::shared_ptr<arrow::Table> table;
    if constexpr (requires { reader->ReadRowGroup(g).status(); })
      table = reader->ReadRowGroup(g).ValueOrDie();
    s.rows += table->num_rows();
    if (!sum) continue;
    std::uint64_t feature = 0;
    for (const auto& column : table->columns()) {
      for (const auto& chunk : column->chunks()) {
        if (chunk->type_id() == arrow::Type::FLOAT) {
          const auto& values = static_cast<const arrow::FloatArray&>(*chunk);
          for (std::int64_t i = 0; i < values.length(); ++i) s.numbers += values.Value(i);
          continue;
        }
        const arrow::Array& ids = chunk->type_id() == arrow::Type::LIST
                                      ? *static_cast<const arrow::ListArray&>(*chunk).values()
                                      : *chunk;
        const auto& values = static_cast<const arrow::Int64Array&>(ids);
        for (std::int64_t i = 0; i < values.length(); ++i)
          s.ids += mix64(static_cast<std::uint64_t>(values.Value(i)) + feature);
      }
      if (column->type()->id() != arrow::Type::FLOAT) ++feature;
    }
  }
  return s;
}

void flat_columns(benchmark::State& state) {
  const file& f = flat();
  const sums expected = arrows(f, true), made = ours(f, true);
  if (made.ids != expected.ids || made.rows != expected.rows ||
      std::abs(made.numbers - expected.numbers) > 1e-9 * std::abs(expected.numbers))
    return state.SkipWithError("wrong answer: not the values that Arrow reads");
  for (auto _ : state) {
    deeprec_bench::figures figures("parquet/flat");
    figures.sample([&] {
      const double seconds = figures.pair("of_arrow", "", [&] { ours(f); }, [&] { arrows(f); }).first;
      figures.note("rows_per_second", static_cast<double>(expected.rows) / seconds);
    });
    figures.report(state);
  }
}
BENCHMARK(flat_columns)->Name("parquet/flat")->Iterations(1)->UseManualTime();

void list_columns(benchmark::State& state) {
  const list_files& f = lists();
  const sums expected = arrows(f.parquet, true);
  if (!(ours(f.parquet, true) == expected) || !(as_text(f, true) == expected))
    return state.SkipWithError("wrong answer: not the values that Arrow reads");
  for (auto _ : state) {
    deeprec_bench::figures figures("parquet/lists");
    figures.sample([&] {
      const double seconds =
          figures.pair("of_arrow", "", [&] { ours(f.parquet); }, [&] { arrows(f.parquet); }).first;
      figures.pair("over_text", "", [&] { ours(f.parquet); }, [&] { as_text(f); });
      figures.note("milliseconds", seconds * 1e3);
      figures.note("bytes_of_text", static_cast<double>(std::filesystem::file_size(f.text.path)) /
                                        static_cast<double>(std::filesystem::file_size(f.parquet.path)));
    });
    figures.report(state);
  }
}
BENCHMARK(list_columns)->Name("parquet/lists")->Iterations(1)->UseManualTime();

}  // namespace
