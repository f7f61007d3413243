#include "data/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

#include <deeprec/core/hash.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

using namespace deeprec;
using namespace deeprec_test;
using namespace std::string_literals;

namespace {

using table = std::vector<std::vector<std::string>>;

/// The plain way: rows of fields, byte by byte; none where a quote is where none may be.
std::optional<table> plain_csv(std::string_view text, char delimiter, char quote) {
  enum { begin, bare, quoted, closed } at = begin;
  table rows;
  std::vector<std::string> row(1);
  const auto end_row = [&] {
    if (row.size() > 1 || !row[0].empty() || at == closed) rows.push_back(row);
    row.assign(1, "");
    at = begin;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (at == quoted) {
      if (c == quote) {
        at = closed;
      } else {
        row.back() += c;
      }
    } else if (at == closed && c == quote) {
      row.back() += c;
      at = quoted;
    } else if (c == delimiter) {
      row.emplace_back();
      at = begin;
    } else if (c == '\n') {
      end_row();
    } else if (c == '\r' && (i + 1 == text.size() || text[i + 1] == '\n')) {
      continue;
    } else if (c == quote && at == begin) {
      at = quoted;
    } else if (c == quote || at == closed) {
      return std::nullopt;
    } else {
      row.back() += c;
      at = bare;
    }
  }
  if (at == quoted) return std::nullopt;
  if (row.size() > 1 || !row[0].empty() || at == closed) rows.push_back(row);
  return rows;
}

/// A field in a form that means its text: in quotes where that must be, or at random.
std::string written(const std::string& field, char delimiter, bool in_quotes) {
  if (!in_quotes && field.find_first_of("\"\n\r"s + delimiter) == std::string::npos) return field;
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + '"';
}

table random_table(dice& random, index_t rows, index_t columns) {
  table made;
  for (index_t r = 0; r < rows; ++r) {
    auto& row = made.emplace_back();
    for (index_t c = 0; c < columns; ++c) {
      std::string& field = row.emplace_back();
      const index_t size = random.one_in(30) ? random.below(200) : random.one_in(2) ? 8 : random.below(12);
      for (index_t i = 0; i < size; ++i)
        field += "abcdefg,;\t\"\n x"[random.one_in(6) ? random.below(14) : random.below(7)];
    }
  }
  return made;
}

std::string text_of(const table& rows, char delimiter, dice& random, bool all_in_quotes) {
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c > 0) text += delimiter;
      // An empty line is no row: a row of one empty field is written in quotes.
      const bool alone = row.size() == 1 && row[c].empty();
      text += written(row[c], delimiter, all_in_quotes || alone || random.one_in(4));
    }
    text += random.one_in(5) ? "\r\n" : "\n";
    if (random.one_in(20)) text += "\n";
  }
  return text;
}

/// All fields as 64-bit hashes, in another order than that of the file.
csv_format hashing(index_t columns, char delimiter) {
  csv_format format{.delimiter = delimiter, .header = csv_header::absent};
  for (index_t c = 0; c < columns; ++c) {
    csv_column column = csv_column::token("c" + std::to_string(c));
    column.position = columns - 1 - c;
    format.columns.push_back(column);
  }
  return format;
}

plain_rows hashes(const table& rows) {
  plain_rows made;
  for (const auto& row : rows) {
    plain_row& to = made.emplace_back();
    for (std::size_t c = 0; c < row.size(); ++c) {
      to.ids.push_back({static_cast<std::int64_t>(hash_bytes(row[row.size() - 1 - c], c))});
      to.weights.emplace_back();
    }
  }
  return made;
}

template <class Format>
std::string fault_of(const Format& format, const std::string& text) {
  const outcome stopped = parse_all(format, text);
  const outcome skipped = parse_all(format, text, malformed::drop);
  CHECK(stopped.sound);
  CHECK(skipped.sound);
  CHECK((skipped.first_skipped == stopped.fault || skipped.fault == stopped.fault));
  const inline_executor here;
  for (const index_t chunk : {1, 7, 64, 1000}) {
    CHECK(read_all(read_text(here, format, text, {.chunk_bytes = chunk}).or_throw(), 3).fault ==
          stopped.fault);
  }
  return stopped.fault;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("csv: columns by name, each of its use") {
  csv_column clicked = csv_column::label("clicked", csv_label::one_of);
  clicked.positive = {"yes", "y"};
  clicked.negative = {"no"};
  csv_column city = csv_column::token("city");
  const std::vector<std::string> cities = {"Rome", "New York, NY", "say \"hi\""};
  city.vocabulary = csv_vocabulary::of(cities).or_throw();
  csv_column age = csv_column::dense("age", csv_scale::standard);
  age.mean = 30;
  age.deviation = 10;
  age.missing = -5;
  csv_column price = csv_column::dense("price", csv_scale::quantile);
  price.quantiles = {0, 1, 1, 5};
  const csv_format format{
      .columns = {price, clicked, csv_column::tokens("tags", '|', 100), city,
                  csv_column::other("user", csv_use::group), csv_column::other("share", csv_use::weight),
                  csv_column::other("id", csv_use::name), age, csv_column::dense("n", csv_scale::log),
                  csv_column::other("unused", csv_use::ignored)},
      .missing = {"NA"}};
  const std::string text =
      "\xEF\xBB\xBFid,unread,\"city\",clicked,age,tags,n,share,user,price\r\n"
      "r1,\"\n\",\"New York, NY\",yes,40,a|b|a,3,0.5,u7,3\n"
      "\"r\"\"2\"\"\",,NA,no,NA,,-3,2,u8,0.5\r\n"
      "\n"
      ",x,\"say \"\"hi\"\"\",y,30,\"c||\",,1,u7,1\n"
      "r4,x,Paris,no,20.5,NA,1e2,1,,99";
  sparse_batch batch;
  const parsed_text done = parse_text(format, text, batch).or_throw();
  CHECK(done.rows == 4);
  CHECK(batch.labels()[0] == 1);
  CHECK(batch.labels()[1] == 0);
  CHECK(batch.labels()[2] == 1);
  const auto dense = batch.dense();
  REQUIRE(dense.extent(1) == 3);
  CHECK(dense(0, 0) == (2 + 0.5F) / 3);
  CHECK(dense(1, 0) == 0.5F / 3);
  CHECK(dense(2, 0) == 2 / 3.0F);
  CHECK(dense(3, 0) == 1);
  CHECK(dense(0, 1) == 1);
  CHECK(dense(1, 1) == -5);
  CHECK(dense(3, 1) == -0.95F);
  CHECK(dense(0, 2) == std::log1p(3.0F));
  CHECK(dense(1, 2) == -std::log1p(3.0F));
  CHECK(dense(2, 2) == 0);
  const plain_rows rows = to_plain(batch);
  const auto tag = [](const char* text_of_tag) { return hash_bucket(hash_bytes(text_of_tag, 0), 100); };
  CHECK(rows[0].ids == std::vector<std::vector<std::int64_t>>{{tag("a"), tag("b"), tag("a")}, {3}});
  CHECK(rows[1].ids == std::vector<std::vector<std::int64_t>>{{}, {0}});
  CHECK(rows[2].ids == std::vector<std::vector<std::int64_t>>{{tag("c")}, {4}});
  CHECK(rows[3].ids == std::vector<std::vector<std::int64_t>>{{}, {1}});
  REQUIRE(batch.groups().size() == 4);
  CHECK(batch.groups()[0] == batch.groups()[2]);
  CHECK(batch.groups()[0] == static_cast<std::int64_t>(hash_bytes("u7")));
  CHECK(batch.groups()[1] != batch.groups()[0]);
  REQUIRE(batch.row_weights().size() == 4);
  CHECK(batch.row_weights()[0] == 0.5F);
  CHECK(batch.row_weights()[1] == 2);
  CHECK(batch.name(0) == "r1");
  CHECK(batch.name(1) == "r\"2\"");
  CHECK(batch.name(2).empty());
  CHECK(batch.name(3) == "r4");
  CHECK(format.columns[3].table_rows() == 5);
  // Over readers: what rows have beside ids comes with them.
  thread_pool pool({.threads = 2});
  for (const index_t chunk : {1, 9, 40, 1000}) {
    for (const index_t most : {1, 3, 10}) {
      auto reader = read_text(pool, format, text, {.chunk_bytes = chunk}).or_throw();
      index_t at = 0;
      while (reader.next(batch, most).or_throw() > 0) {
        for (index_t r = 0; r < batch.rows(); ++r, ++at) {
          const char* const names[] = {"r1", "r\"2\"", "", "r4"};
          CHECK(batch.name(r) == names[at]);
          CHECK(batch.row_weights()[static_cast<std::size_t>(r)] == (at == 0 ? 0.5F : at == 1 ? 2.0F : 1.0F));
          CHECK(to_plain(batch)[static_cast<std::size_t>(r)] == rows[static_cast<std::size_t>(at)]);
        }
      }
      CHECK(at == 4);
    }
  }
}

TEST_CASE("csv: random tables, any chunk size, any ISA of the scan, against the plain way") {
  dice random(61);
  thread_pool pool({.threads = 3});
  const inline_executor here;
  for (int round = 0; round < 40; ++round) {
    const char delimiter = ",\t;"[round % 3];
    const index_t columns = 1 + random.below(round % 2 == 0 ? 5 : 90);
    const table rows = random_table(random, random.below(60), columns);
    const std::string text = text_of(rows, delimiter, random, round % 5 == 0);
    const auto read = plain_csv(text, delimiter, '"');
    REQUIRE(read);
    CHECK(*read == rows);
    const csv_format format = hashing(columns, delimiter);
    const plain_rows expected = hashes(rows);
    const tight_text tight(text, static_cast<std::size_t>(round % 3));
    const outcome whole = parse_all(format, tight.view());
    CHECK(whole.fault == "");
    CHECK(whole.rows == expected);
    const temporary_file file(text);
    for (const index_t chunk : {1, 2, 3, 5, 13, 64, 100, 1000, 100000}) {
      CAPTURE(chunk);
      const reader_options options{.chunk_bytes = chunk, .chunks_in_flight = 1 + random.below(5)};
      const outcome of_text =
          read_all(read_text(here, format, text, options).or_throw(), 1 + random.below(30));
      CHECK(of_text.fault == "");
      CHECK(of_text.sound);
      CHECK(of_text.rows == expected);
      CHECK(read_all(read_files(pool, format, {file.path(), file.path()}, options).or_throw(), 1000)
                .rows.size() == 2 * expected.size());
    }
  }
}

TEST_CASE("csv: a text of a few bytes that are changed has the rows of the plain way, or a fault") {
  dice random(64);
  int read = 0, refused = 0;
  for (int round = 0; round < 30000; ++round) {
    const index_t columns = 1 + random.below(4);
    const table rows = random_table(random, random.below(4), columns);
    std::string text;
    for (index_t c = 0; c < columns; ++c)
      text += c == 0 ? "\"a\"" : ",\"\"";  // it decides the number of fields
    text += '\n';
    const auto first = static_cast<index_t>(text.size());
    text += text_of(rows, ',', random, round % 2 == 0);
    for (index_t changes = random.below(4); changes > 0; --changes) {
      const auto at =
          static_cast<std::size_t>(first + random.below(static_cast<index_t>(text.size()) - first + 1));
      const std::string one(1, "\",\n\ra\"\""[random.below(7)]);
      if (random.one_in(2)) {
        text.insert(at, one);
      } else if (at < text.size()) {
        text.replace(at, 1, random.one_in(3) ? "" : one);
      }
    }
    CAPTURE(text);
    const auto plain = plain_csv(text, ',', '"');
    const bool fits = plain && std::all_of(plain->begin(), plain->end(), [&](const auto& row) {
                        return static_cast<index_t>(row.size()) == columns;
                      });
    csv_format format = hashing(columns, ',');
    const index_t unread = random.one_in(3) && columns > 1 ? random.below(columns) : -1;
    if (unread >= 0) format.columns[static_cast<std::size_t>(unread)].use = csv_use::ignored;
    const tight_text tight(text, static_cast<std::size_t>(round % 3));
    const outcome got = parse_all(format, tight.view());
    REQUIRE((got.fault == "") == fits);
    ++(fits ? read : refused);
    if (!fits || unread >= 0) continue;
    REQUIRE(got.rows == hashes(*plain));
  }
  CHECK(read > 10000);
  CHECK(refused > 5000);
}

TEST_CASE("csv: every chunk size of one text with line ends in quotes") {
  dice random(62);
  const table rows = random_table(random, 12, 3);
  const std::string text = text_of(rows, ',', random, true);
  const plain_rows expected = hashes(rows);
  const inline_executor here;
  for (index_t chunk = 1; chunk <= static_cast<index_t>(text.size()) + 1; ++chunk) {
    const outcome got = read_all(
        read_text(here, hashing(3, ','), text, {.chunk_bytes = chunk, .chunks_in_flight = 3}).or_throw(), 5);
    CHECK(got.fault == "");
    CHECK(got.rows == expected);
  }
}

TEST_CASE("csv: Criteo's rows have Criteo's bits, quoted or not, by tab or comma") {
  dice random(63);
  csv_format format{.delimiter = '\t'};
  format.columns.push_back(csv_column::label("label"));
  std::vector<std::string> names = {"label"};
  for (int n = 1; n <= 13; ++n) {
    format.columns.push_back(csv_column::dense(names.emplace_back("I" + std::to_string(n))));
    format.columns.back().missing = -1;
  }
  for (int n = 1; n <= 26; ++n)
    format.columns.push_back(
        csv_column::token(names.emplace_back("C" + std::to_string(n)), n == 3 ? 0 : 1000 + n));
  criteo_format criteo{.missing_dense = -1};
  for (std::size_t n = 0; n < 26; ++n) criteo.rows[n] = n == 2 ? 0 : 1001 + static_cast<index_t>(n);
  table rows;
  for (int r = 0; r < 300; ++r) {
    auto& row = rows.emplace_back();
    row.push_back(random.one_in(3) ? "1" : "0");
    for (int n = 0; n < 13; ++n) {
      const index_t kind = random.below(12);
      row.push_back(kind == 0   ? ""
                    : kind == 1 ? "-" + std::to_string(random.below(30))
                    : kind == 2 ? std::to_string(random.below(1 << 30))
                    : kind == 3 ? "2.50"
                                : std::to_string(random.below(2000)));
    }
    for (int n = 0; n < 26; ++n) {
      char text[20];
      std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(random.bits()));
      row.push_back(random.one_in(10) ? "" : random.one_in(20) ? std::string(text) + "more" : text);
    }
  }
  std::string plain;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) plain += (c > 0 ? "\t" : "") + row[c];
    plain += '\n';
  }
  const outcome expected = parse_all(criteo, plain);
  REQUIRE(expected.rows.size() == 300);
  std::string head;
  for (const std::string& name : names) head += (head.empty() ? "" : "\t") + name;
  CHECK(parse_all(format, head + "\n" + plain).rows == expected.rows);
  // Other orders of the file's columns, in quotes, by commas.
  format.delimiter = ',';
  for (int round = 0; round < 4; ++round) {
    std::vector<std::size_t> order(40);
    for (std::size_t c = 0; c < 40; ++c) order[c] = c;
    for (std::size_t c = 39; c > 0 && round > 0; --c)
      std::swap(order[c], order[static_cast<std::size_t>(random.below(static_cast<index_t>(c) + 1))]);
    table ordered(301);
    for (const std::size_t c : order) {
      ordered[0].push_back(names[c]);
      for (std::size_t r = 0; r < 300; ++r) ordered[r + 1].push_back(rows[r][c]);
    }
    CHECK(parse_all(format, text_of(ordered, ',', random, round % 2 == 0)).rows == expected.rows);
  }
}

TEST_CASE("csv: no quotes, a header that repeats what nobody reads, a label that may lack") {
  csv_format format{
      .columns = {csv_column::label("y"), csv_column::token("t", 50)}, .delimiter = '\t', .quote = '\0'};
  const std::string text = "y\tz\tt\tz\n1\t\"\t5\" pipe\t\n0\t\t\"\t\"\n";
  CHECK(parse_all(format, text).rows.size() == 2);
  CHECK(parse_all(format, text).rows[0].ids[0][0] == hash_bucket(hash_bytes("5\" pipe", 0), 50));
  format.labels = label_column::by_fields;
  const outcome got = parse_all(format, "t\nx\ny\n");
  CHECK(got.fault == "");
  CHECK(got.rows.size() == 2);
  CHECK(got.rows[0].label == 0);
  CHECK(parse_all(format, "").rows.empty());
  CHECK(parse_all(format, "").fault == "");
  CHECK(parse_all(format, "y\tt\n").rows.empty());
  CHECK(parse_all(format, "y\tt\n").fault == "");
}

TEST_CASE("csv: spaces around fields are no part of them where they are trimmed") {
  csv_format format{.columns = {csv_column::label("y"), csv_column::dense("n"), csv_column::token("t", 50)},
                    .missing = {"?"},
                    .trims = true};
  const outcome got = parse_all(format, "y, n,t \n 1 , 13,\tNew York \n0,?, ?\n1,  ,\" a \"\n");
  CHECK(got.fault == "");
  REQUIRE(got.rows.size() == 3);
  CHECK(got.rows[0].label == bits(1));
  CHECK(got.rows[0].dense == std::vector<std::uint32_t>{bits(13)});
  CHECK(got.rows[0].ids[0][0] == hash_bucket(hash_bytes("New York", 0), 50));
  CHECK(got.rows[1].dense == std::vector<std::uint32_t>{bits(0)});
  CHECK(got.rows[1].ids[0][0] == hash_bucket(hash_bytes("", 0), 50));
  CHECK(got.rows[2].dense == std::vector<std::uint32_t>{bits(0)});
  CHECK(got.rows[2].ids[0][0] == hash_bucket(hash_bytes("a", 0), 50));
  format.trims = false;
  CHECK(has(fault_of(format, "y,n,t\n 1,13,x\n"), "2:1"));
}

TEST_CASE("csv: blanks around quotes are left out where fields are trimmed") {
  for (const char delimiter : {',', '\t', ' '}) {
    const auto by = [&](std::string text) {
      for (char& c : text) c = c == ',' ? delimiter : c;
      return text;
    };
    const std::string blank = delimiter == ' ' ? "\t" : " ";
    csv_format format{.columns = {csv_column::label("y"), csv_column::token("t"), csv_column::token("u")},
                      .delimiter = delimiter,
                      .trims = true};
    const auto hashes_of = [](const char* t, const char* u) {
      return std::vector<std::vector<std::int64_t>>{{static_cast<std::int64_t>(hash_bytes(t, 0))},
                                                    {static_cast<std::int64_t>(hash_bytes(u, 1))}};
    };
    const std::string text =
        by("\"y\"" + blank + "," + blank + "\"t\",u\n" + "\"1\"" + blank + "," + blank + "\"a,b\"" + blank +
           "," + blank + "\"c\"" + blank + "\n" + "0," + blank + "\"say \"\"hi\"\"\"" + blank + ",d\r\n" +
           "0,\"\"" + blank + "," + blank + "\"e\nf\"" + blank + "\r\n" + "\"1\",\"g\",\"h\"\n");
    const outcome got = parse_all(format, text);
    CHECK(got.fault == "");
    REQUIRE(got.rows.size() == 4);
    CHECK(got.rows[0].label == bits(1));
    CHECK(got.rows[0].ids == hashes_of(by("a,b").c_str(), "c"));
    CHECK(got.rows[1].ids == hashes_of(by("say \"hi\"").c_str(), "d"));
    CHECK(got.rows[2].ids == hashes_of("", "e\nf"));
    CHECK(got.rows[3].ids == hashes_of("g", "h"));
    const std::string head = by("y,t,u\n");
    CHECK(has(fault_of(format, head + by("1," + blank + "\"a\"" + blank + "b,c\n")),
              "2:8: malformed text: text behind a closing quote"));
    CHECK(
        has(fault_of(format, head + by("1," + blank + "\"a,c\n")), "2:4: malformed text: the quote is not"));
    CHECK(has(fault_of(format, head + by("1," + blank + "a\"b,c\n")),
              "2:5: malformed text: a quote in a field"));
    format.trims = false;
    CHECK(has(fault_of(format, head + by("1,\"a\"" + blank + ",c\n")), "text behind a closing quote"));
    CHECK(has(fault_of(format, head + by("1," + blank + "\"a\",c\n")), "a quote in a field"));
  }
}

TEST_CASE("csv: empty lines before the header and the first row are ignored, in files and streams") {
  const inline_executor here;
  thread_pool pool({.threads = 2});
  csv_format format{.columns = {csv_column::label("y"), csv_column::token("t", 50)}};
  for (const bool has_header : {true, false}) {
    for (const char quote : {'"', '\0'}) {
      format.header = has_header ? csv_header::present : csv_header::absent;
      format.quote = quote;
      const std::string rows = std::string(has_header ? "y,t\n" : "") + "1,a\n\n0,b\n";
      const plain_rows expected = parse_all(format, rows).rows;
      REQUIRE(expected.size() == 2);
      for (const std::string& mark : {""s, "\xEF\xBB\xBF"s}) {
        for (const std::string& empty : {"\n"s, "\r\n\n"s, std::string(5000, '\n') + "\r\n"}) {
          const std::string text = mark + empty + rows;
          const outcome got = parse_all(format, text);
          CHECK(got.fault == "");
          CHECK(got.rows == expected);
          const auto lines = std::count(empty.begin(), empty.end(), '\n') + (has_header ? 1 : 0);
          const std::string place = ":" + std::to_string(lines + 4) + ":1: malformed text: the label is";
          CHECK(has(parse_all(format, text + "7,c\n").fault, place.c_str()));
          const temporary_file file(text), bad(text + "7,c\n");
          const std::string other = std::string(has_header ? "x,t\n" : "1\n") + "1,a\n";
          const temporary_file lacking(mark + empty + other);
          const std::string second = ":" + std::to_string(std::count(empty.begin(), empty.end(), '\n') + 1) +
                                     ": malformed text: the " + (has_header ? "header" : "first row") +
                                     " lacks";
          CHECK(has(parse_all(format, mark + empty + other).fault, second.c_str()));
          for (const index_t chunk : {1, 2, 3, 5, 100, 4096, 100000}) {
            const reader_options options{.chunk_bytes = chunk, .longest_line = 64};
            CHECK(read_all(read_text(here, format, text, options).or_throw(), 3).rows == expected);
            const outcome of_files =
                read_all(read_files(pool, format, {file.path(), file.path()}, options).or_throw(), 3);
            CHECK(of_files.fault == "");
            CHECK(of_files.rows.size() == 4);
            auto stream = std::make_unique<file_stream>(file.path());
            const outcome of_stream =
                read_all(read_stream(here, format, "stream", std::move(stream), options).or_throw(), 3);
            CHECK(of_stream.fault == "");
            CHECK(of_stream.rows == expected);
            const auto fault_in = [&](const temporary_file& in) {
              return read_all(read_files(here, format, {in.path()}, options).or_throw(), 3).fault;
            };
            CHECK(has(fault_in(bad), place.c_str()));
            CHECK(has(fault_in(lacking), second.c_str()));
          }
        }
        for (const std::string& none : {""s, "\n"s, "\n\r\n"s}) {
          CHECK(parse_all(format, mark + none).fault == "");
          CHECK(parse_all(format, mark + none).rows.empty());
          for (const index_t chunk : {1, 100})
            CHECK(
                read_all(read_text(here, format, mark + none, {.chunk_bytes = chunk}).or_throw(), 3).fault ==
                "");
        }
      }
    }
  }
}

TEST_CASE("csv: rows without a header have as many fields as were given, or lack the label") {
  const auto hash = [](const char* text, std::uint64_t feature) {
    return static_cast<std::int64_t>(hash_bytes(text, feature));
  };
  for (const std::size_t label_at : {0U, 1U, 2U}) {
    csv_format format{.header = csv_header::absent, .field_count = 3};
    format.columns = {csv_column::token("t"), csv_column::token("u")};
    format.columns.insert(format.columns.begin() + static_cast<std::ptrdiff_t>(label_at),
                          csv_column::label("y"));
    std::vector<std::string> fields = {"a", "b"};
    fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(label_at), "1");
    const std::string row = fields[0] + ',' + fields[1] + ',' + fields[2] + '\n';
    for (const label_column labels : {label_column::present, label_column::by_fields}) {
      format.labels = labels;
      const outcome got = parse_all(format, row);
      CHECK(got.fault == "");
      REQUIRE(got.rows.size() == 1);
      CHECK(got.rows[0].label == bits(1));
      CHECK(got.rows[0].ids == std::vector<std::vector<std::int64_t>>{{hash("a", 0)}, {hash("b", 1)}});
      for (const char* const other : {"1,a,b,c\n", "1\n"}) {
        const std::string fault = fault_of(format, other);
        CHECK(has(fault, "<text>:1: malformed text: the first row has another number of fields"));
        CHECK(has(fault, other[1] == ',' ? "(is 4, must be 3)" : "(is 1, must be 3)"));
      }
    }
    const outcome got = parse_all(format, "a,b\nc,d\n");
    CHECK(got.fault == "");
    REQUIRE(got.rows.size() == 2);
    CHECK(got.rows[0].label == 0);
    CHECK(got.rows[1].ids == std::vector<std::vector<std::int64_t>>{{hash("c", 0)}, {hash("d", 1)}});
    CHECK(has(fault_of(format, "a,b\n1,a,b\n"), "<text>:2:5: malformed text: wrong number of fields"));
    format.labels = label_column::present;
    CHECK(has(fault_of(format, "a,b\n"), "(is 2, must be 3)"));
    format.field_count = 0;
    CHECK(has(fault_of(format, "a,b\n"), "the first row lacks a column"));
  }
}

TEST_CASE("csv: faults have line and column, and what to do") {
  const csv_format format{
      .columns = {csv_column::label("y"), csv_column::dense("x"), csv_column::token("t", 50)}};
  const std::string head = "y,x,t\n1,2,a\n";
  CHECK(
      has(fault_of(format, "y,x\n1,2\n"), "<text>:1: malformed text: the header lacks a column of the list"));
  CHECK(has(fault_of(format, "y,x,t,x\n1,2,a,2\n"), "the header has a column of the list twice"));
  CHECK(has(fault_of(format, "\n1,2,a\n"), "the header lacks a column"));
  CHECK(has(fault_of(format, head + "1,2\n"), "<text>:3:4: malformed text: wrong number of fields"));
  CHECK(has(fault_of(format, head + "1,2,a,b\n"), "<text>:3:7: malformed text: wrong number of fields"));
  CHECK(has(fault_of(format, head + "2,2,a\n"), "<text>:3:1: malformed text: the label is neither 0 nor 1"));
  CHECK(has(fault_of(format, head + "1,zwei,a\n"), "<text>:3:3: malformed text: not a number"));
  CHECK(has(fault_of(format, head + "1,2,5\" pipe\n1,2,\"\n"),
            "<text>:3:6: malformed text: a quote in a field that"));
  CHECK(has(fault_of(format, head + "1,2,\"a\"b\n"),
            "<text>:3:8: malformed text: text behind a closing quote"));
  CHECK(has(fault_of(format, head + "1,\"2\n\",a\n"), "<text>:3:3: malformed text: not a number"));
  CHECK(has(fault_of(format, head + "\"1\",\"2\",\"a\nb\"\n1,x,c\n"),
            "<text>:5:3: malformed text: not a number"));
  CHECK(has(fault_of(format, head + "1,2,a\n0,1,\"never\nclosed,\n1,2,3\n"),
            "<text>:4:5: malformed text: the quote is not closed"));
  CHECK(has(fault_of(format, head + "1,2,a\0b\n"s), "<text>:3:6: malformed text: a NUL byte"));
  CHECK(has(fault_of(format, "\xff\xfey\0,\0"s), "UTF-16"));
  // Of one bad row only that one is dropped; a quote that stays open takes what is behind it.
  const outcome dropped = parse_all(format, head + "1,x,b\n0,\"3\",c\n0,2,\"d\n1,2,e\n", malformed::drop);
  CHECK(dropped.rows.size() == 2);
  CHECK(dropped.skipped == 2);
  csv_column words = csv_column::label("y", csv_label::one_of);
  words.positive = {"good"};
  words.negative = {"bad"};
  CHECK(has(fault_of(csv_format{.columns = {words}}, "y\ngood\nugly\n"),
            "<text>:3:1: malformed text: the label is none of its words"));
  CHECK(has(fault_of(csv_format{.columns = {csv_column::dense("x"), csv_column::other("w", csv_use::weight)}},
                     "w,x\n-1,2\n"),
            "<text>:2:1: malformed text: the weight of a row is negative"));
}

TEST_CASE("csv: weights of rows, and what takes the place of a missing one") {
  csv_format format{.columns = {csv_column::token("t", 9), csv_column::other("w", csv_use::weight)},
                    .missing = {"NA"}};
  const auto refused = [&](const std::string& weight, const std::string& why) {
    const std::string expected = "<text>:3:3: malformed text: " + why;
    CHECK(has(fault_of(format, "t,w\na,0\nb," + weight + "\n"), expected.c_str()));
  };
  for (const char* const absent : {"", "NA", "\"\""}) refused(absent, "the weight of a row is missing");
  for (const char* const negative : {"-1", "-1e-30"}) refused(negative, "the weight of a row is negative");
  for (const char* const no_number : {"nan", "inf", "-inf"}) refused(no_number, "not a finite number");
  refused("1e39", "the number is too large");
  refused("two", "not a number");
  refused("1048577", "the weight of a row is above 2^20");
  format.columns[1].missing = 2.5F;
  sparse_batch batch;
  REQUIRE(parse_text(format, "t,w\na,\nb,NA\nc,1048576\nd,0\ne,-0\nf,0.1\n", batch).or_throw().rows == 6);
  const float expected[] = {2.5F, 2.5F, 0x1p20F, 0, 0, 0.1F};
  for (std::size_t i = 0; i < 6; ++i) CHECK(batch.row_weights()[i] == expected[i]);
  refused("nan", "not a finite number");
  for (const float bad : {-1.0F, std::nanf(""), INFINITY, 0x1.1p20F}) {
    format.columns[1].missing = bad;
    CHECK(has(std::string(format.check().detail()), "the weight of a missing one must be in [0, 2^20]"));
    CHECK(format.check().place().item == 1);
  }
}

TEST_CASE("csv: what a schema must not be") {
  const auto refusal = [](const csv_format& format) {
    return std::string(format.check().ok() ? "" : format.check().detail());
  };
  CHECK(refusal({.columns = {csv_column::token("a")}}).empty());
  CHECK(has(refusal({}), "no column is used"));
  CHECK(has(refusal({.columns = {csv_column::dense("a"), csv_column::token("b"), csv_column::token("a")}}),
            "listed twice"));
  csv_column first = csv_column::token("a"), second = csv_column::token("b");
  first.position = 1;
  CHECK(has(refusal({.columns = {first, second}, .header = csv_header::absent}), "listed twice"));
  CHECK(has(refusal({.columns = {csv_column::label("a"), csv_column::label("b")}}), "two columns are label"));
  CHECK(has(refusal({.columns = {csv_column::token("a")}, .delimiter = '"'}), "two characters"));
  for (const index_t wrong : {-1, 1})
    CHECK(has(refusal({.columns = {csv_column::token("a"), csv_column::token("b")},
                       .header = csv_header::absent,
                       .field_count = wrong}),
              "field_count must be"));
  CHECK(has(refusal({.columns = {csv_column::token("a")}, .field_count = 1}), "field_count must be"));
  CHECK(has(refusal({.columns = {csv_column::token("a", -1)}}), "rows of a table are negative"));
  CHECK(has(refusal({.columns = {csv_column::tokens("a", '"')}}), "a separator"));
  csv_column scaled = csv_column::dense("a", csv_scale::quantile);
  CHECK(has(refusal({.columns = {scaled}}), "quantiles must be"));
  scaled.quantiles = {2, 1};
  CHECK(has(refusal({.columns = {scaled}}), "quantiles must be"));
  scaled.scale = csv_scale::standard;
  scaled.deviation = 0;
  CHECK(has(refusal({.columns = {scaled}}), "deviation must be"));
  CHECK(has(refusal({.columns = {csv_column::label("y", csv_label::one_of)}}), "has no words"));
  const std::vector<std::string> twice = {"a", "b", "a"};
  CHECK_FALSE(csv_vocabulary::of(twice));
  const std::vector<std::string> many(static_cast<std::size_t>(csv_vocabulary::most) + 1);
  CHECK(has(csv_vocabulary::of(many).fault().message(), "at most 2^24"));
}

TEST_CASE("csv: 100,000 columns") {
  std::string head, row;
  for (int c = 0; c < 100000; ++c) {
    head += (c > 0 ? "," : "") + ("name" + std::to_string(c));
    row += c > 0 ? ",7" : "7";
  }
  const csv_format format{.columns = {csv_column::dense("name99999"), csv_column::token("name5", 0)}};
  const outcome got = parse_all(format, head + "\n" + row + "\n" + row + "\n");
  CHECK(got.fault == "");
  REQUIRE(got.rows.size() == 2);
  CHECK(got.rows[1].dense == std::vector<std::uint32_t>{bits(7)});
  CHECK(has(parse_all(format, head + "\n" + row + ",7\n").fault, "wrong number of fields"));
}

namespace {

/// "y,t\n0,a\n0,\"xxxx..." without an end.
class endless_quote final : public text_stream {
 public:
  explicit endless_quote(index_t bytes) : bytes_(bytes) {}
  [[nodiscard]] status open() noexcept override { return {}; }
  [[nodiscard]] status read(char* to, index_t bytes, index_t& got) noexcept override {
    constexpr std::string_view begin = "y,t\n0,a\n0,\"";
    got = 0;
    while (got < bytes && read_ < bytes_) {
      const auto at = static_cast<std::size_t>(read_++);
      to[got++] = at < begin.size() ? begin[at] : at % 64 == 0 ? '\n' : 'x';
    }
    return {};
  }
  void close() noexcept override {}
  [[nodiscard]] bool ready(std::chrono::milliseconds) noexcept override { return true; }

 private:
  index_t bytes_, read_ = 0;
};

class counting_resource final : public std::pmr::memory_resource {
 public:
  index_t held = 0, most = 0;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    held += static_cast<index_t>(bytes);
    most = std::max(most, held);
    return std::pmr::get_default_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
    held -= static_cast<index_t>(bytes);
    std::pmr::get_default_resource()->deallocate(at, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace

TEST_CASE("csv: a quote that is never closed, 100 MB of it, in bounded memory") {
  const csv_format format{.columns = {csv_column::label("y"), csv_column::token("t", 50)}};
  const inline_executor here;
  for (const malformed policy : {malformed::fault, malformed::drop}) {
    counting_resource memory;
    {
      context<const inline_executor> ctx(here);
      ctx.memory = &memory;
      auto reader = read_stream(ctx, format, "stream", std::make_unique<endless_quote>(100'000'000),
                                {.on_malformed = policy, .longest_line = 1 << 20})
                        .or_throw();
      const outcome got = read_all(reader, 100);
      CHECK(got.rows.size() == 1);
      const std::string& fault = policy == malformed::fault ? got.fault : got.first_skipped;
      CHECK(has(fault, "stream:3:3: malformed text: the quote is not closed"));
    }
    CHECK(memory.most < 8'000'000);
    CHECK(memory.held == 0);
  }
}

TEST_CASE("csv: Python's csv module reads the same fields") {
  if (std::system("python3 -c 'import csv' 2> /dev/null") != 0) {
    MESSAGE("SKIPPED: no python3, so its csv module read nothing");
    return;
  }
  dice random(64);
  for (int round = 0; round < 6; ++round) {
    const index_t columns = 1 + random.below(7);
    table rows = random_table(random, 200, columns);
    const char delimiter = round % 2 == 0 ? ',' : '\t';
    const temporary_file file(text_of(rows, delimiter, random, round % 3 == 0));
    const std::string command =
        "python3 -c \"import csv, sys\nfor row in csv.reader(open(sys.argv[1], newline=''), "
        "delimiter=sys.argv[2], strict=True):\n"
        "  if row: print(*[f.encode().hex() + '.' for f in row])\" " +
        file.path() + (delimiter == ',' ? " ," : " '\t'");
    FILE* const python = ::popen(command.c_str(), "r");
    REQUIRE(python != nullptr);
    std::string said;
    char block[4096];
    for (std::size_t got = 0; (got = std::fread(block, 1, sizeof block, python)) > 0;)
      said.append(block, got);
    REQUIRE(::pclose(python) == 0);
    table read;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      auto& row = read.emplace_back();
      for (std::string hex; fields >> hex;) {
        std::string& field = row.emplace_back();
        for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
          field += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
    }
    CHECK(read == rows);
    const inline_executor here;
    CHECK(
        read_all(read_files(here, hashing(columns, delimiter), {file.path()}, {.chunk_bytes = 50}).or_throw(),
                 100)
            .rows == hashes(read));
  }
}
