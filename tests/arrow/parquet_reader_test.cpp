// Parquet files, which Arrow writes here, against the values that were written.
#include <deeprec/core/hash.hpp>
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/parquet_reader.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/interop/arrow_bags.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include <arrow/api.h>
#include <arrow/c/bridge.h>
#include <arrow/io/api.h>
#include <parquet/arrow/writer.h>

#include <doctest/doctest.h>

#include <unistd.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/seed.hpp"

using namespace deeprec;

namespace {

class folder {
 public:
  folder()
      : path_(std::filesystem::temp_directory_path() / ("deeprec_parquet_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

template <class Builder, class T>
std::shared_ptr<arrow::Array> array_of(const std::vector<std::optional<T>>& values) {
  Builder builder;
  for (const auto& v : values) (v ? builder.Append(*v) : builder.AppendNull()).ok();
  return builder.Finish().ValueOrDie();
}
template <class Builder, class T>
std::shared_ptr<arrow::Array> lists_of(const std::vector<std::optional<std::vector<T>>>& lists) {
  auto values = std::make_shared<Builder>();
  arrow::ListBuilder builder(arrow::default_memory_pool(), values);
  for (const auto& list : lists) {
    if (!list) {
      builder.AppendNull().ok();
      continue;
    }
    builder.Append().ok();
    for (const T& v : *list) values->Append(v).ok();
  }
  return builder.Finish().ValueOrDie();
}
using named_arrays = std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>;
void write(const std::string& path, const named_arrays& columns, std::int64_t rows_of_group = 1000) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const auto& [name, a] : columns) {
    fields.push_back(arrow::field(name, a->type()));
    arrays.push_back(a);
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  const auto out = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto with_types = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto s = parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, rows_of_group,
                                            parquet::default_writer_properties(), with_types);
  REQUIRE(s.ok());
  REQUIRE(out->Close().ok());
}

// Rows of a model, as they are written and as they must come.
struct rows_of_model {
  std::vector<std::optional<float>> labels;
  std::vector<std::optional<double>> ages;
  std::vector<std::optional<std::int32_t>> items;
  std::vector<std::optional<std::string>> cities;
  std::vector<std::optional<std::vector<std::int64_t>>> clicks;
  std::vector<std::optional<std::vector<float>>> factors;

  void add(std::mt19937_64& random) {
    labels.emplace_back(static_cast<float>(random() % 2));
    ages.push_back(random() % 5 == 0 ? std::nullopt
                                     : std::optional(static_cast<double>(random() % 1000) / 8));
    items.emplace_back(static_cast<std::int32_t>(random() % 50));
    cities.push_back(random() % 6 == 0 ? std::nullopt : std::optional("city" + std::to_string(random() % 9)));
    std::vector<std::int64_t> ids;
    std::vector<float> weights;
    for (auto n = random() % 4; n > 0; --n) {
      ids.push_back(static_cast<std::int64_t>(random()));
      weights.push_back(static_cast<float>(random() % 7));
    }
    const bool absent = random() % 7 == 0;
    clicks.push_back(absent ? std::nullopt : std::optional(ids));
    factors.push_back(absent ? std::nullopt : std::optional(weights));
  }
  [[nodiscard]] named_arrays arrays(std::size_t first, std::size_t count) const {
    const auto part = [&](const auto& all) {
      return std::remove_cvref_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                                all.begin() + static_cast<std::ptrdiff_t>(first + count));
    };
    return {{"clicked", array_of<arrow::FloatBuilder>(part(labels))},
            {"unused", array_of<arrow::DoubleBuilder>(part(ages))},
            {"age", array_of<arrow::DoubleBuilder>(part(ages))},
            {"city", array_of<arrow::StringBuilder>(part(cities))},
            {"city_number", array_of<arrow::StringDictionaryBuilder>(part(cities))},
            {"item", array_of<arrow::Int32Builder>(part(items))},
            {"clicks", lists_of<arrow::Int64Builder>(part(clicks))},
            {"factors", lists_of<arrow::FloatBuilder>(part(factors))}};
  }
};
std::int64_t hashed(const std::string& token, std::uint64_t feature, index_t rows) {
  const std::uint64_t h = hash_bytes(token, feature);
  return rows == 0 ? static_cast<std::int64_t>(h) : static_cast<std::int64_t>(hash_bucket(h, rows));
}

const parquet_columns one_id{.label = "clicked",
                             .dense = {"age"},
                             .features =
                                 {
                                     {"item", token_use::as_is, 50},
                                     {"city", token_use::hashed, 100},
                                     {"city_number", token_use::hashed},
                                 },
                             .missing = -1.0F};

std::string refusal(const parquet_columns& columns, std::vector<std::string> files) {
  inline_executor here;
  const auto reader = read_parquet(here, columns, std::move(files));
  return reader ? "ok" : reader.message();
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("read_parquet: flat columns of numbers, text and dictionaries, for any batch and executor") {
  const folder here;
  std::mt19937_64 random(deeprec_test::seed());
  rows_of_model rows;
  for (int i = 0; i < 100; ++i) rows.add(random);
  write(here.file("a"), rows.arrays(0, 60), 7);
  write(here.file("b"), rows.arrays(60, 0));
  write(here.file("c"), rows.arrays(60, 40), 64);
  for (const index_t most : {1, 6, 64, 1000}) {
    for (const int threads : {1, 3}) {
      CAPTURE(most);
      thread_pool pool(threads);
      auto reader = read_parquet(pool, one_id, {here.file("a"), here.file("b"), here.file("c")}).or_throw();
      CHECK(reader.rows() == 100);
      CHECK(reader.shape().bags == bag_size::one);
      sparse_batch batch;
      std::size_t row = 0;
      while (reader.next(batch, most).or_throw() > 0) {
        CHECK(batch.rows() == std::min<index_t>(most, static_cast<index_t>(100 - row)));
        for (index_t i = 0; i < batch.rows(); ++i, ++row) {
          CHECK(batch.labels()[static_cast<std::size_t>(i)] == *rows.labels[row]);
          CHECK(batch.dense().row(i)[0] == static_cast<float>(rows.ages[row].value_or(-1.0)));
          CHECK(batch.feature(0).ids()[i] == *rows.items[row]);
          const std::string city = rows.cities[row].value_or("");
          CHECK(batch.feature(1).ids()[i] == hashed(city, 1, 100));
          CHECK(batch.feature(2).ids()[i] == hashed(city, 2, 0));
        }
      }
      CHECK(row == 100);
      CHECK(reader.rows_read() == 100);
    }
  }
}

TEST_CASE("read_parquet: lists are bags, beside columns of one id; weights; integers that are hashed") {
  const folder here;
  std::mt19937_64 random(deeprec_test::seed() + 1);
  rows_of_model rows;
  for (int i = 0; i < 90; ++i) rows.add(random);
  write(here.file("a"), rows.arrays(0, 90), 16);
  for (const bool weighted : {false, true}) {
    const parquet_columns columns{.label = "clicked",
                                  .features = {{"clicks", token_use::as_is, 0, weighted ? "factors" : ""},
                                               {"item", token_use::hashed, 1000}}};
    inline_executor one;
    auto reader = read_parquet(one, columns, {here.file("a")}, {.groups_in_flight = 2}).or_throw();
    CHECK(reader.shape().bags == bag_size::any);
    CHECK((reader.shape().weights == id_weights::present) == weighted);
    sparse_batch batch;
    std::size_t row = 0;
    while (reader.next(batch, 25).or_throw() > 0) {
      const auto clicks = batch.feature(0), items = batch.feature(1);
      for (index_t i = 0; i < batch.rows(); ++i, ++row) {
        const auto& expected = rows.clicks[row];
        const index_t begin = clicks.offsets()[i], end = clicks.offsets()[i + 1];
        REQUIRE(end - begin == (expected ? static_cast<index_t>(expected->size()) : 0));
        for (index_t k = begin; k < end; ++k) {
          CHECK(clicks.ids()[k] == (*expected)[static_cast<std::size_t>(k - begin)]);
          if (weighted)
            CHECK(clicks.weights()[k] == (*rows.factors[row])[static_cast<std::size_t>(k - begin)]);
        }
        REQUIRE(items.offsets()[i + 1] - items.offsets()[i] == 1);
        CHECK(items.ids()[items.offsets()[i]] == hashed(std::to_string(*rows.items[row]), 1, 1000));
        if (weighted) CHECK(items.weights()[items.offsets()[i]] == 1.0F);
      }
    }
    CHECK(row == 90);
  }
}

TEST_CASE("read_parquet: a bad row ends the rows, at its place in the file, in whichever column") {
  const folder here;
  using longs = std::vector<std::optional<std::int64_t>>;
  const auto ends = [&](const named_arrays& arrays, const parquet_columns& columns, index_t good,
                        const char* reason) {
    write(here.file("bad"), arrays, 2);
    thread_pool pool(2);
    auto reader = read_parquet(pool, columns, {here.file("bad")}).or_throw();
    sparse_batch batch;
    index_t rows = 0;
    auto made = reader.next(batch, 3);
    for (; made && made.value() > 0; made = reader.next(batch, 3)) rows += made.value();
    CHECK(rows == good);
    REQUIRE(!made);
    CHECK(made.code() == errc::invalid_value);
    CHECK(made.fault().place().row == good);
    CHECK(has(made.message(), reason));
    CHECK(has(made.message(), here.file("bad")));
    CHECK(batch.rows() == 0);
    CHECK(!reader.next(batch, 3));
  };
  const auto id = array_of<arrow::Int64Builder>(longs{1, 2, 3, 4, 9, 1});
  const auto absent = array_of<arrow::Int64Builder>(longs{1, 2, 3, std::nullopt, 9, 1});
  ends({{"y", absent}, {"x", id}}, {.label = "y", .features = {{"x"}}}, 3, "the value is null");
  ends({{"x", absent}}, {.features = {{"x"}}}, 3, "the id is null");
  ends({{"x", id}}, {.features = {{"x", token_use::as_is, 9}}}, 4, "the id is beyond its table");
  ends({{"y", absent}, {"x", id}}, {.label = "y", .features = {{"x", token_use::as_is, 3}}}, 2,
       "the id is beyond its table");
  ends({{"x", array_of<arrow::Int64Builder>(longs{1, -1})}}, {.features = {{"x", token_use::as_is, 9}}}, 1,
       "the id is beyond its table");
  ends({{"x", array_of<arrow::StringBuilder>(std::vector<std::optional<std::string>>{"1", "x1"})}},
       {.features = {{"x"}}}, 1, "");
  using lists = std::vector<std::optional<std::vector<std::int64_t>>>;
  const auto bags = lists_of<arrow::Int64Builder>(lists{{{1, 2}}, {{}}, {{3, 40}}, {{1}}});
  ends({{"x", bags}}, {.features = {{"x", token_use::as_is, 10}}}, 2, "the id is beyond its table");
  using factor_lists = std::vector<std::optional<std::vector<float>>>;
  const auto fewer = lists_of<arrow::FloatBuilder>(factor_lists{{{1, 2}}, {{}}, {{3}}, {{1}}});
  ends({{"x", bags}, {"w", fewer}}, {.features = {{"x", token_use::as_is, 0, "w"}}}, 2,
       "a weight for each id");
}

TEST_CASE("read_parquet: columns that a file lacks, has twice, or has of another type are named") {
  const folder here;
  const auto id = array_of<arrow::Int64Builder>(std::vector<std::optional<std::int64_t>>{1, 2});
  const auto real = array_of<arrow::DoubleBuilder>(std::vector<std::optional<double>>{1, 2});
  const auto nested = arrow::StructArray::Make({id}, std::vector<std::string>{"inner"}).ValueOrDie();
  const auto times = id->View(arrow::timestamp(arrow::TimeUnit::MICRO)).ValueOrDie();
  write(here.file("a"), {{"x", id}, {"y", real}, {"two", id}, {"two", id}, {"s", nested}, {"t", times}});
  const auto message = [&](const parquet_columns& columns) { return refusal(columns, {here.file("a")}); };
  CHECK(message({.label = "y", .features = {{"x"}}}) == "ok");
  CHECK(has(message({.features = {{"z"}}}), "must have a column 'z' (has none)"));
  CHECK(has(message({.features = {{"two"}}}), "'two' must come once"));
  CHECK(has(message({.dense = {"x"}, .features = {{"x"}}}), "'x' comes twice"));
  CHECK(has(message({.features = {{"y"}}}), "'y' must be of integers, text, or lists of them (is double)"));
  CHECK(has(message({.label = "s"}), "'s' must be of numbers or booleans (is struct"));
  CHECK(has(message({.features = {{"s"}}}), "'s' must be of integers"));
  CHECK(has(message({.dense = {"t"}}), "'t' must be of numbers"));
  CHECK(has(message({.features = {{"x", token_use::as_is, 0, "y"}}}), "'x' must be of lists"));
  CHECK(has(message({.features = {{"x", token_use::as_is, -1}}}), "rows of 'x'"));
  CHECK(has(message({}), "none is"));
  // Of files after the first.
  using lists = std::vector<std::optional<std::vector<std::int64_t>>>;
  write(here.file("b"), {{"y", real}});
  write(here.file("c"), {{"x", lists_of<arrow::Int64Builder>(lists{{{1}}})}});
  CHECK(has(refusal({.features = {{"x"}}}, {here.file("a"), here.file("b")}), here.file("b")));
  CHECK(has(refusal({.features = {{"x"}}}, {here.file("a"), here.file("c")}),
            "lists in all files, or in none"));
  CHECK(has(refusal({.features = {{"x"}}}, {here.file("none")}), here.file("none")));
}

TEST_CASE(
    "read_parquet: a file that is cut anywhere, or has other bytes, is a fault or other values, no crash") {
  const folder here;
  std::mt19937_64 random(deeprec_test::seed() + 2);
  rows_of_model rows;
  for (int i = 0; i < 12; ++i) rows.add(random);
  write(here.file("whole"), rows.arrays(0, 12), 5);
  std::ifstream in(here.file("whole"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto read = [&](const std::string& changed) {
    std::ofstream(here.file("changed"), std::ios::binary) << changed;
    inline_executor one;
    auto reader = read_parquet(one, one_id, {here.file("changed")});
    if (!reader) return reader.message();
    sparse_batch batch;
    auto made = reader.value().next(batch, 5);
    while (made && made.value() > 0) made = reader.value().next(batch, 5);
    return made.message();
  };
  CHECK(read(bytes) == "ok");
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string message = read(bytes.substr(0, n));
    CHECK(message != "ok");
    CHECK(has(message, here.file("changed")));
  }
  index_t faults = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1U << (random() % 8));
    faults += read(changed) == "ok" ? 0 : 1;
  }
  CHECK(faults > 100);
}

TEST_CASE("read_parquet: memory that is refused, at any allocation, is a fault; rows before it come") {
  const folder here;
  std::mt19937_64 random(deeprec_test::seed() + 3);
  rows_of_model rows;
  for (int i = 0; i < 40; ++i) rows.add(random);
  write(here.file("a"), rows.arrays(0, 40), 10);
  const parquet_columns columns{.label = "clicked", .features = {{"clicks"}, {"item"}}};
  index_t refusals = 0;
  for (index_t nth = 0;; ++nth) {
    allowance granted;
    refusing_resource memory(granted);
    inline_executor one;
    auto reader = read_parquet(one, columns, {here.file("a")}).or_throw();
    granted.left = nth;
    sparse_batch batch(&memory);
    index_t read = 0;
    auto made = reader.next(batch, 7);
    for (; made && made.value() > 0; made = reader.next(batch, 7)) read += made.value();
    if (granted.refused == 0) {
      CHECK(read == 40);
      break;
    }
    ++refusals;
    CHECK(made.code() == errc::out_of_memory);
    CHECK(read < 40);
  }
  CHECK(refusals > 3);
}

TEST_CASE("read_parquet: by a csv_format nothing is lost or comes twice where memory was refused") {
  const folder here;
  std::vector<std::optional<std::int64_t>> y, t;
  std::vector<std::optional<std::string>> names;
  for (int i = 0; i < 900; ++i) {
    y.emplace_back(i % 7 == 3 ? 2 : i % 2);  // of 2: a bad row
    t.emplace_back(i);
    names.emplace_back("a row that has a long name, and the number " + std::to_string(i));
  }
  write(here.file("a"),
        {{"y", array_of<arrow::Int64Builder>(y)},
         {"t", array_of<arrow::Int64Builder>(t)},
         {"n", array_of<arrow::StringBuilder>(names)}},
        500);
  inline_executor one;
  for (const bool bags : {false, true}) {
    const csv_format format{.columns = {csv_column::label("y"),
                                        bags ? csv_column::tokens("t", '|') : csv_column::token("t"),
                                        csv_column::other("n", csv_use::name)}};
    const auto open = [&] {
      return read_parquet(one, format, {here.file("a")}, {.on_malformed = malformed::drop}).or_throw();
    };
    const auto read = [](auto& reader, sparse_batch& batch, std::vector<std::string>& rows) {
      auto made = reader.next(batch, 400);
      for (; made && made.value() > 0; made = reader.next(batch, 400)) {
        for (index_t r = 0; r < batch.rows(); ++r)
          rows.push_back(std::string(batch.name(r)) + ' ' + std::to_string(batch.feature(0).ids()[r]));
      }
      return made.code();
    };
    std::vector<std::string> expected;
    sparse_batch plain;
    auto whole = open();
    REQUIRE(read(whole, plain, expected) == errc::ok);
    REQUIRE(expected.size() == 771);
    REQUIRE(whole.skipped_rows() == 129);
    index_t refusals = 0;
    for (index_t nth = 0;; ++nth) {
      allowance granted;
      refusing_resource memory(granted);
      auto reader = open();
      granted.left = nth;
      sparse_batch batch(&memory);
      std::vector<std::string> rows;
      const errc first = read(reader, batch, rows);
      if (granted.refused == 0) break;
      // Smaller batches may fit into what was granted.
      if (first != errc::ok) {
        CHECK(first == errc::out_of_memory);
        ++refusals;
      }
      granted.left = allowance::unlimited;
      REQUIRE(read(reader, batch, rows) == errc::ok);
      CHECK(rows == expected);
      CHECK(reader.skipped_rows() == 129);
    }
    CHECK(refusals > 5);
  }
}

TEST_CASE("from_arrow: lists that Arrow exports are bags in its memory") {
  using lists = std::vector<std::optional<std::vector<std::int64_t>>>;
  const auto a = lists_of<arrow::Int64Builder>(lists{{{5}}, {{}}, {{3, 4}}, {{1}}});
  ArrowArray array;
  ArrowSchema schema;
  REQUIRE(arrow::ExportArray(*a->Slice(1), &array, &schema).ok());
  jagged_view<std::int64_t, std::int32_t> bags;
  REQUIRE(from_arrow(schema, array, bags).ok());
  CHECK(bags.bags() == 3);
  const std::vector<std::int64_t> ids(bags.ids() + bags.offsets()[1], bags.ids() + bags.offsets()[2]);
  CHECK(ids == std::vector<std::int64_t>{3, 4});
  array.release(&array);
  schema.release(&schema);
}

namespace {

// A row as text: everything that a batch has of it.
std::string row_of(const sparse_batch& batch, index_t r) {
  const auto at = static_cast<std::size_t>(r);
  std::string text = std::to_string(batch.labels()[at]);
  for (index_t d = 0; d < batch.dense().extent(1); ++d)
    text += ' ' + std::to_string(std::bit_cast<std::uint32_t>(std::as_const(batch).dense()(r, d)));
  for (index_t s = 0; s < batch.feature_count(); ++s) {
    const auto bags = batch.feature(s);
    text += " |";
    for (auto k = bags.offsets()[r]; k < bags.offsets()[r + 1]; ++k)
      text += ' ' + std::to_string(bags.ids()[k]);
  }
  if (!batch.row_weights().empty())
    text += " w" + std::to_string(std::bit_cast<std::uint32_t>(batch.row_weights()[at]));
  if (!batch.groups().empty()) text += " g" + std::to_string(batch.groups()[at]);
  return text + " n" + std::string(batch.name(r));
}
template <class Reader>
std::vector<std::string> all_rows(Reader& reader, index_t most) {
  std::vector<std::string> rows;
  sparse_batch batch;
  while (reader.next(batch, most).or_throw() > 0) {
    CHECK(batch.rows() <= most);
    for (index_t r = 0; r < batch.rows(); ++r) rows.push_back(row_of(batch, r));
  }
  return rows;
}

}  // namespace

TEST_CASE("read_parquet: by a csv_format rows are those of the same table in text") {
  const folder here;
  const auto dense = [](const char* name, csv_scale scale) { return csv_column::dense(name, scale); };
  const std::vector<std::string> words = {"red", "green"};
  csv_column word = csv_column::token("word"), clicked = csv_column::label("clicked", csv_label::one_of),
             price = dense("price", csv_scale::standard), weight = csv_column::other("w", csv_use::weight);
  word.vocabulary = csv_vocabulary::of(words).or_throw();
  clicked.positive = {"7"};
  price.mean = 3;
  price.missing = -2;
  weight.missing = 0.5F;
  const std::vector<csv_column> flat = {dense("count", csv_scale::log),
                                        price,
                                        clicked,
                                        csv_column::token("city", 1000),
                                        csv_column::token("page"),
                                        word,
                                        weight,
                                        csv_column::other("user", csv_use::group),
                                        csv_column::other("id", csv_use::name),
                                        csv_column::other("unused", csv_use::ignored)};
  std::vector<csv_column> with_lists = flat;
  with_lists.push_back(csv_column::tokens("tags", '|', 50));
  with_lists.push_back(csv_column::tokens("numbers", '|'));

  std::mt19937_64 random(deeprec_test::seed() + 11);
  using strings = std::vector<std::optional<std::string>>;
  using longs = std::vector<std::optional<std::int64_t>>;
  longs clicks, counts, pages, users;
  std::vector<std::optional<double>> prices;
  std::vector<std::optional<float>> weights;
  strings cities, colours, ids;
  std::vector<std::optional<std::vector<std::string>>> tags;
  std::vector<std::optional<std::vector<std::int64_t>>> numbers;
  std::string text = "numbers,tags,id,user,w,word,page,city,clicked,price,count\n";
  const auto number = [](auto x) {
    char digits[40];
    return std::string(digits, std::to_chars(std::begin(digits), std::end(digits), x).ptr);
  };
  const auto or_empty = [&](const auto& v) { return v ? number(*v) : std::string(); };
  for (int r = 0; r < 700; ++r) {
    const auto absent = [&] { return random() % 6 == 0; };
    clicks.emplace_back(random() % 3 == 0 ? 7 : 4);
    counts.push_back(absent() ? std::nullopt : std::optional(static_cast<std::int64_t>(random() % 900) - 2));
    pages.push_back(absent() ? std::nullopt : std::optional(static_cast<std::int64_t>(random())));
    users.emplace_back(static_cast<std::int64_t>(random() % 20));
    prices.push_back(absent() ? std::nullopt : std::optional(static_cast<double>(random() % 100000) / 777));
    weights.push_back(absent() ? std::nullopt : std::optional(static_cast<float>(random() % 40) / 7));
    cities.push_back(absent() ? std::nullopt : std::optional("New York, " + std::to_string(random() % 9)));
    colours.push_back(std::vector<std::string>{"red", "green", "NA", "", "grey"}[random() % 5]);
    ids.emplace_back("row " + std::to_string(r));
    std::vector<std::string> some;
    std::vector<std::int64_t> few;
    std::string joined, added;
    for (auto n = random() % 4; n > 0; --n) {
      some.push_back("t" + std::to_string(random() % 30));
      joined += (joined.empty() ? "" : "|") + some.back();
    }
    for (auto n = random() % 3; n > 0; --n) {
      few.push_back(static_cast<std::int64_t>(random() % 100) - 50);
      added += (added.empty() ? "" : "|") + std::to_string(few.back());
    }
    tags.push_back(some.empty() && absent() ? std::nullopt : std::optional(some));
    numbers.emplace_back(few);
    text += added + ',' + joined + ",\"" + *ids.back() + "\"," + number(*users.back()) + ',' +
            or_empty(weights.back()) + ',' + *colours.back() + ',' + or_empty(pages.back()) + ",\"" +
            cities.back().value_or("") + "\"," + number(*clicks.back()) + ',' + or_empty(prices.back()) +
            ',' + or_empty(counts.back()) + '\n';
  }
  write(here.file("a"),
        {{"clicked", array_of<arrow::Int64Builder>(clicks)},
         {"count", array_of<arrow::Int64Builder>(counts)},
         {"page", array_of<arrow::Int64Builder>(pages)},
         {"user", array_of<arrow::Int64Builder>(users)},
         {"price", array_of<arrow::DoubleBuilder>(prices)},
         {"w", array_of<arrow::FloatBuilder>(weights)},
         {"city", array_of<arrow::StringDictionaryBuilder>(cities)},
         {"word", array_of<arrow::LargeStringBuilder>(colours)},
         {"id", array_of<arrow::StringBuilder>(ids)},
         {"tags", lists_of<arrow::StringBuilder>(tags)},
         {"numbers", lists_of<arrow::Int64Builder>(numbers)}},
        97);
  thread_pool pool({.threads = 2});
  for (const auto& columns : {flat, with_lists}) {
    const csv_format format{.columns = columns, .missing = {"NA", "-1"}};
    auto of_text = read_text(pool, format, text, {.chunk_bytes = 1 << 12}).or_throw();
    const std::vector<std::string> expected = all_rows(of_text, 1000);
    REQUIRE(expected.size() == 700);
    for (const index_t most : {1, 50, 1000}) {
      auto reader = read_parquet(pool, format, {here.file("a"), here.file("a")}).or_throw();
      CHECK(reader.rows() == 1400);
      std::vector<std::string> twice = expected;
      twice.insert(twice.end(), expected.begin(), expected.end());
      CHECK(all_rows(reader, most) == twice);
      CHECK(reader.rows_read() == 1400);
    }
  }
  // An element is one token, whatever it has within; an empty one is none, nor is one that is missing alone.
  using lists = std::vector<std::optional<std::vector<std::string>>>;
  write(here.file("b"), {{"y", array_of<arrow::Int64Builder>(longs{1, 0})},
                         {"t", lists_of<arrow::StringBuilder>(lists{{{"a|b", "", "NA"}}, {{"NA"}}})}});
  const csv_format one{.columns = {csv_column::label("y"), csv_column::tokens("t", '|')}, .missing = {"NA"}};
  auto reader = read_parquet(pool, one, {here.file("b")}).or_throw();
  sparse_batch batch;
  REQUIRE(reader.next(batch, 9).or_throw() == 2);
  REQUIRE(batch.feature(0).id_count() == 2);
  CHECK(batch.feature(0).ids()[0] == static_cast<std::int64_t>(hash_bytes("a|b", 0)));
  CHECK(batch.feature(0).ids()[1] == static_cast<std::int64_t>(hash_bytes("NA", 0)));
  CHECK(batch.feature(0).offsets()[1] == 2);
}

TEST_CASE("read_parquet: by a csv_format bad rows are named or left out, and columns refused") {
  const folder here;
  using longs = std::vector<std::optional<std::int64_t>>;
  using reals = std::vector<std::optional<double>>;
  const auto y = array_of<arrow::Int64Builder>(longs{1, 0, 2, 1, std::nullopt, 0, 1});
  const auto t = array_of<arrow::Int64Builder>(longs{1, 2, 3, 4, 5, 6, 7});
  const auto w = array_of<arrow::DoubleBuilder>(reals{1, 2, 3, -4, 5, std::nan(""), 7});
  write(here.file("a"), {{"y", y}, {"t", t}, {"w", w}}, 3);
  csv_format format{.columns = {csv_column::label("y"), csv_column::token("t", 9),
                                csv_column::other("w", csv_use::weight)}};
  inline_executor one;
  for (const bool bags : {false, true}) {
    format.columns[1].separator = bags ? '|' : '\0';
    sparse_batch batch;
    auto reader = read_parquet(one, format, {here.file("a")}).or_throw();
    CHECK(reader.next(batch, 9).or_throw() == 2);
    CHECK(batch.row_weights()[1] == 2);
    const auto bad = reader.next(batch, 9);
    REQUIRE(!bad);
    CHECK(has(bad.message(), here.file("a")));
    CHECK(has(bad.message(), "the label is neither 0 nor 1 (row 2, column 'y')"));
    CHECK(!reader.next(batch, 9));
    auto left = read_parquet(one, format, {here.file("a"), here.file("a")}, {.on_malformed = malformed::drop})
                    .or_throw();
    index_t rows = 0;
    while (left.next(batch, 2).or_throw() > 0) rows += batch.rows();
    CHECK(rows == 6);
    CHECK(left.skipped_rows() == 8);
    REQUIRE(left.first_skipped().size() == 4);
    CHECK(has(left.first_skipped()[1].message(), "the weight of a row is negative (row 3, column 'w')"));
    CHECK(has(left.first_skipped()[2].message(), "a number is missing (row 4, column 'y')"));
    CHECK(has(left.first_skipped()[3].message(), "not a finite number (row 5, column 'w')"));
  }
  // By columns as well.
  const parquet_columns by_columns{.label = "y", .features = {{"t", token_use::as_is, 7}}};
  auto some =
      read_parquet(one, by_columns, {here.file("a"), here.file("a")}, {.on_malformed = malformed::drop})
          .or_throw();
  std::vector<std::int64_t> ids;
  sparse_batch batch;
  while (some.next(batch, 4).or_throw() > 0)
    ids.insert(ids.end(), batch.feature(0).ids(), batch.feature(0).ids() + batch.rows());
  CHECK(ids ==
        std::vector<std::int64_t>{1, 2, 3, 4, 6, 1, 2, 3, 4, 6});  // a null label, 7 is beyond its table
  CHECK(some.skipped_rows() == 4);
  REQUIRE(some.first_skipped().size() == 4);
  CHECK(some.first_skipped()[3].place().row == 6);
  CHECK(has(some.first_skipped()[3].message(), "the id is beyond its table"));
  const auto refused = [&](const csv_format& of) {
    const auto made = read_parquet(one, of, {here.file("a")});
    return made ? std::string("ok") : made.message();
  };
  CHECK(has(refused({.columns = {csv_column::label("z"), csv_column::token("t")}}),
            "must have a column 'z' (has none)"));
  CHECK(refused({.columns = {csv_column::label("z"), csv_column::token("t")},
                 .labels = label_column::by_fields}) == "ok");
  CHECK(has(refused({.columns = {csv_column::label("y"), csv_column::token("w")}}),
            "'w' must be of integers or text (is double)"));
  CHECK(has(refused({.columns = {csv_column::label("y"), csv_column::tokens("w", '|')}}),
            "'w' must be of integers, text, or lists of them (is double)"));
  CHECK(has(refused({.columns = {csv_column::token("t")}, .header = csv_header::absent}), "must have names"));
  CHECK(has(refused({.columns = {csv_column::token("t"), csv_column::token("t")}}), "listed twice"));
}
