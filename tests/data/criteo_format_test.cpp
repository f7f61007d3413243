#include "data/criteo_oracle.hpp"

#include <cmath>

#include <deeprec/exec/inline_executor.hpp>

using namespace deeprec;
using namespace deeprec_test;

namespace {

criteo_format tab_format() {
  criteo_format format{.delimiter = '\t'};
  for (int s = 0; s < 26; ++s) format.rows[static_cast<std::size_t>(s)] = 100 + 1000 * s;
  return format;
}

/// A line of 40 fields: the label, "1" thirteen times, and "t" for each token.
std::string line_with(int field, const std::string& value, char delimiter = '\t') {
  std::string line;
  for (int f = 0; f < 40; ++f) {
    if (f > 0) line += delimiter;
    line += f == field ? value : f == 0 ? "0" : f <= 13 ? "1" : "cafe0123";
  }
  return line;
}
const std::string good_line = line_with(-1, "");

bool agrees(const criteo_format& format, std::string_view text, const oracle_answer& truth) {
  const outcome got = parse_all(format, text, malformed::drop);
  if (!got.sound || got.rows != truth.rows) return false;
  if (got.skipped != static_cast<index_t>(truth.bad_lines.size())) return false;
  if (truth.bad_lines.empty()) return got.first_skipped.empty();
  const std::string place = "<text>:" + std::to_string(truth.bad_lines[0]) + ":";
  return got.first_skipped.substr(0, place.size()) == place;
}

void check_fault(const std::string& text, const std::string& message) {
  const criteo_format format = tab_format();
  CHECK(parse_all(format, text).fault == message);
  const outcome skipped = parse_all(format, text, malformed::drop);
  CHECK(skipped.first_skipped == message);
  CHECK(skipped.sound);
}

}  // namespace

TEST_CASE("criteo: a line becomes a label, thirteen numbers and twenty-six ids") {
  std::string line = "1\t5\t-2\t\t260.0";
  for (int i = 5; i <= 13; ++i) {
    line += '\t';
    line += std::to_string(i * 1000);
  }
  for (int s = 0; s < 26; ++s) line += s == 3 ? "\t" : "\t68fd1e6" + std::to_string(s % 10);
  const criteo_format format = tab_format();
  sparse_batch batch;
  REQUIRE(parse_text(format, line, batch).or_throw().rows == 1);
  CHECK(batch.labels()[0] == 1.0F);
  CHECK(batch.dense()(0, 0) == 5.0F);
  CHECK(batch.dense()(0, 1) == -2.0F);
  CHECK(batch.dense()(0, 2) == 0.0F);
  CHECK(batch.dense()(0, 3) == 260.0F);
  CHECK(batch.dense()(0, 12) == 13000.0F);
  for (index_t s = 0; s < 26; ++s) {
    const std::string token = s == 3 ? "" : "68fd1e6" + std::to_string(s % 10);
    const auto bags = batch.feature(s);
    CHECK(bags.bags() == 1);
    CHECK(bags.id_count() == 1);
    CHECK(bags.weights() == nullptr);
    CHECK(bags.ids()[0] == hash_bucket(hash_bytes(token, static_cast<std::uint64_t>(s)),
                                       format.rows[static_cast<std::size_t>(s)]));
  }
}

TEST_CASE("criteo: a missing integer becomes missing_dense, a missing token is the empty string") {
  criteo_format format = tab_format();
  format.missing_dense = -1.0F;
  sparse_batch batch;
  (void)parse_text(format, std::string(39, '\t').insert(0, "0"), batch).or_throw();
  for (index_t i = 0; i < 13; ++i) CHECK(batch.dense()(0, i) == -1.0F);
  for (index_t s = 0; s < 26; ++s) {
    CHECK(batch.feature(s).ids()[0] == hash_bucket(hash_bytes("", static_cast<std::uint64_t>(s)),
                                                   format.rows[static_cast<std::size_t>(s)]));
  }
}

TEST_CASE("criteo: the fast parser agrees with the slow one at every alignment") {
  dice die(1);
  const criteo_format format = tab_format();
  for (int round = 0; round < 6; ++round) {
    const std::string text = random_criteo_text(die, 7);
    const oracle_answer truth = criteo_oracle(text, '\t', format);
    REQUIRE(truth.rows.size() == 7);
    for (std::size_t offset = 0; offset < 64; ++offset) {
      const tight_text copy(text, offset);
      CHECK(agrees(format, copy.view(), truth));
    }
  }
}

TEST_CASE("criteo: the fast parser agrees with the slow one on damaged text") {
  dice die(2);
  const criteo_format format = tab_format();
  int with_bad_lines = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::string text = damaged(die, random_criteo_text(die, 1 + static_cast<int>(die.below(6))));
    const oracle_answer truth = criteo_oracle(text, '\t', format);
    with_bad_lines += truth.bad_lines.empty() ? 0 : 1;
    const tight_text copy(text, static_cast<std::size_t>(die.below(64)));
    CAPTURE(round);
    REQUIRE(agrees(format, copy.view(), truth));
  }
  CHECK(with_bad_lines > 500);
}

TEST_CASE("criteo: where a table has 0 rows the id of a token is its hash, as the slow parser has it") {
  dice die(8);
  for (const bool mixed : {false, true}) {
    criteo_format format = tab_format();
    for (std::size_t s = 0; s < 26; ++s) {
      if (!mixed || s % 3 == 1) format.rows[s] = 0;
    }
    for (const char* header : {"", "\"a\""}) {  // quotes in the first line: another way through the parser
      std::string names;
      for (int f = 0; *header != '\0' && f < 40; ++f) names += (f == 0 ? "" : "\t") + std::string(header);
      for (int round = 0; round < 20; ++round) {
        const std::string lines = random_criteo_text(die, 7);
        oracle_answer truth = criteo_oracle(lines, '\t', format);
        REQUIRE(truth.rows.size() == 7);
        const tight_text copy(names.empty() ? lines : names + '\n' + lines, 3);
        const outcome got = parse_all(format, copy.view());
        CHECK(got.rows == truth.rows);
        truth.rows[2].ids[1][0] ^= 1;  // a bit that buckets don't have
        CHECK_FALSE(got.rows == truth.rows);
      }
    }
  }
  criteo_format format = tab_format();
  format.rows = criteo_format::same_size(0);
  CHECK(parse_all(format, line_with(14, "")).rows[0].ids[0][0] == static_cast<index_t>(hash_bytes("", 0)));
}

TEST_CASE("criteo: the comparison with the slow parser would catch a wrong one") {
  dice die(3);
  const std::string text = random_criteo_text(die, 20);
  const criteo_format format = tab_format();
  const oracle_answer truth = criteo_oracle(text, '\t', format);
  REQUIRE(agrees(format, text, truth));

  oracle_answer wrong_seed = truth;  // as if the column had not been the seed
  wrong_seed.rows[7].ids[4][0] = hash_bucket(hash_bytes("", 5), format.rows[4]);
  CHECK_FALSE(agrees(format, text, wrong_seed));
  oracle_answer wrong_sign = truth;
  for (plain_row& row : wrong_sign.rows) {
    for (std::uint32_t& value : row.dense) value &= 0x7fffffffU;
  }
  CHECK_FALSE(agrees(format, text, wrong_sign));
  CHECK_FALSE(agrees(format, text.substr(text.find('\n') + 1), truth));
  criteo_format other_missing = format;
  other_missing.missing_dense = 1.0F;
  CHECK_FALSE(agrees(other_missing, text, truth));
}

TEST_CASE("criteo: every short text of separators, digits and signs is parsed as the slow parser does") {
  // All texts of a few bytes put into the first integer, the last integer, and the last token.
  const criteo_format format = tab_format();
  const std::string bytes = "09-.+e\"x\r";
  std::string text;
  for (const int field : {1, 13, 39}) {
    for (std::size_t length = 0; length <= 4; ++length) {
      std::vector<std::size_t> digit(length, 0);
      for (;;) {
        std::string value;
        for (const std::size_t d : digit) value += bytes[d];
        text += line_with(field, value) + '\n';
        std::size_t i = 0;
        while (i < length && ++digit[i] == bytes.size()) digit[i++] = 0;
        if (i == length) break;
      }
    }
  }
  CHECK(agrees(format, text, criteo_oracle(text, '\t', format)));
}

TEST_CASE("criteo: only digits are digits, at every place of an integer") {
  const criteo_format format = tab_format();
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == '\n' || byte == '\t') continue;
    for (std::size_t place = 0; place < 8; ++place) {
      std::string value = "12345678";
      value[place] = static_cast<char>(byte);
      text += line_with(1, value) + '\n';
    }
    text += line_with(2, std::string(1, static_cast<char>(byte))) + '\n';
    text += line_with(0, std::string(1, static_cast<char>(byte))) + '\n';
  }
  CHECK(agrees(format, text, criteo_oracle(text, '\t', format)));
}

TEST_CASE("criteo: integers of every length and sign are exact") {
  const criteo_format format = tab_format();
  std::string text;
  for (const char* sign : {"", "-"}) {
    for (const char digit : {'0', '1', '5', '9'}) {
      for (std::size_t length = 1; length <= 20; ++length) {
        text += line_with(1, sign + std::string(length, digit)) + '\n';
        text += line_with(13, sign + std::string(length, digit)) + '\n';
      }
    }
  }
  CHECK(agrees(format, text, criteo_oracle(text, '\t', format)));
}

TEST_CASE("criteo: print and parse again") {
  dice die(4);
  const criteo_format format = tab_format();
  std::string text;
  std::vector<std::vector<std::string>> printed;
  for (int i = 0; i < 200; ++i) {
    const std::string line = random_criteo_line(die);
    printed.push_back(split(line, '\t'));
    text += line + '\n';
  }
  sparse_batch batch;
  REQUIRE(parse_text(format, text, batch).or_throw().rows == 200);
  for (index_t r = 0; r < 200; ++r) {
    for (index_t i = 0; i < 13; ++i) {
      const std::string& field = printed[static_cast<std::size_t>(r)][static_cast<std::size_t>(1 + i)];
      char buffer[64];
      std::snprintf(buffer, sizeof(buffer), "%.9g", static_cast<double>(batch.dense()(r, i)));
      const float expected = field.empty() ? 0.0F : std::strtof(field.c_str(), nullptr);
      CHECK(std::strtof(buffer, nullptr) == expected);
    }
  }
}

TEST_CASE("criteo: tab, comma, header and Id column are found in the first line") {
  criteo_format format = tab_format();
  format.delimiter = '\0';
  std::string names = "label";
  for (int i = 1; i <= 13; ++i) names += ",I" + std::to_string(i);
  for (int i = 1; i <= 26; ++i) names += ",C" + std::to_string(i);
  const std::string comma = line_with(-1, "", ',');
  const plain_rows truth = parse_all(format, good_line).rows;
  REQUIRE(truth.size() == 1);
  CHECK(parse_all(format, comma).rows == truth);
  CHECK(parse_all(format, names + "\n" + comma + "\n").rows == truth);
  CHECK(parse_all(format, names + "\r\n" + comma + "\r\n").rows == truth);
  CHECK(parse_all(format, "Id," + names + "\n10090000," + comma).rows == truth);
  CHECK(parse_all(format, "\"id\"," + names + "\n10090000," + comma).rows == truth);
  CHECK(parse_all(format, "\xEF\xBB\xBF" + names + "\n" + comma).rows == truth);
  CHECK(parse_all(format, "\xEF\xBB\xBF" + comma).rows == truth);
  CHECK(parse_all(format, names).rows.empty());
  CHECK(parse_all(format, names + "\n").fault.empty());
  for (const std::string empty : {"\n", "\r\n\n", "\xEF\xBB\xBF\n"}) {
    CHECK(parse_all(format, empty + comma).rows == truth);
    CHECK(parse_all(format, empty + names + "\n" + comma).rows == truth);
    CHECK(parse_all(format, empty + names + "\n\n" + comma + "\n" + comma.substr(2))
              .fault.find(':' + std::to_string(std::count(empty.begin(), empty.end(), '\n') + 4) + ':') !=
          std::string::npos);
    const temporary_file file(empty + names + "\n" + comma);
    const inline_executor here;
    for (const index_t chunk : {1, 2, 100, 10000})
      CHECK(read_all(read_files(here, format, {file.path()}, {.chunk_bytes = chunk}).or_throw(), 3).rows ==
            truth);
  }

  format.ids = id_column::present;
  CHECK(parse_all(format, "7," + comma).rows == truth);
  CHECK_FALSE(parse_all(format, comma).fault.empty());
  format.ids = id_column::absent;
  CHECK(parse_all(format, "Id," + names + "\n10090000," + comma).fault.substr(0, 9) == "<text>:1:");

  format = tab_format();
  format.delimiter = ';';
  CHECK(parse_all(format, line_with(-1, "", ';')).rows == truth);
}

TEST_CASE("criteo: numbers that count the columns are a header, whatever counts in rows is not") {
  criteo_format format = tab_format();
  format.delimiter = '\0';
  const std::string comma = line_with(-1, "", ',') + "\n";
  const plain_rows truth = parse_all(format, good_line).rows;
  const auto numbers = [](int from, int to) {
    std::string line = std::to_string(from);
    for (int i = from + 1; i <= to; ++i) line += ',' + std::to_string(i);
    return line + "\n";
  };
  CHECK(parse_all(format, numbers(0, 39) + comma).rows == truth);
  CHECK(parse_all(format, numbers(1, 40) + comma).rows == truth);
  CHECK(parse_all(format, numbers(2, 41) + comma).fault.substr(0, 9) == "<text>:1:");
  CHECK(parse_all(format, numbers(0, 40) + comma).fault.substr(0, 9) == "<text>:1:");
  std::string almost = numbers(0, 39);
  almost[almost.size() - 2] = '8';
  CHECK(parse_all(format, almost + comma).rows.size() == 2);
  CHECK(parse_all(format, comma + numbers(0, 39)).rows.size() == 2);
  format.labels = label_column::by_fields;
  CHECK(parse_all(format, numbers(0, 38) + comma.substr(2)).rows.size() == 1);
}

TEST_CASE("criteo: a field in quotes is malformed, at every place and length") {
  const std::string why = ": malformed text: a field in quotes. Fix: ";
  for (const int tokens : {0, 1, 2}) {
    criteo_format format = tab_format();
    format.tokens = tokens == 1 ? token_use::as_is : token_use::hashed;
    format.bucket = tokens == 2 ? plain_bucket : nullptr;
    std::string good = "1";
    for (int i = 0; i < 39; ++i) good += "\t7";
    for (const int place : {1, 7, 13, 14, 20, 39}) {
      for (std::size_t length = 1; length < 12; ++length) {
        std::string line = good;
        line.replace(static_cast<std::size_t>(2 * place), 1, '"' + std::string(length, '1') + '"');
        CHECK(parse_all(format, line + "\n" + good).fault.find(why) != std::string::npos);
        CHECK(parse_all(format, line + "\n" + good + "\n" + line, malformed::drop).rows.size() == 1);
        if (length == 6 && place >= 14) continue;  // seen where the first line has quotes as well
        CHECK(parse_all(format, good + "\n" + line).fault.find(why) != std::string::npos);
      }
      std::string names = "\"label\"";  // as R's write.csv has them
      for (int i = 0; i < 39; ++i) names += "\t\"V\"";
      std::string line = good;
      line.replace(static_cast<std::size_t>(2 * place), 1, "\"111111\"");
      CHECK(parse_all(format, names + "\n" + good).rows.size() == 1);
      CHECK(parse_all(format, names + "\n" + good + "\n" + line).fault.find(why) != std::string::npos);
    }
  }
  // Quotes that don't enclose the token belong to it.
  for (const char* token : {"\"abcdefg", "abcdefg\"", "\"", "a\"b"}) {
    CHECK(parse_all(tab_format(), line_with(20, token)).rows[0].ids[6][0] ==
          hash_bucket(hash_bytes(token, 6), tab_format().rows[6]));
  }
}

TEST_CASE("criteo: lines without a label are parsed as the slow parser does") {
  dice die(7);
  criteo_format format = tab_format();
  for (const label_column labels : {label_column::by_fields, label_column::absent}) {
    format.labels = labels;
    for (int round = 0; round < 6; ++round) {
      std::string text;
      for (int i = 0; i < 7; ++i) text += random_criteo_line(die).substr(2) + (i < 6 ? "\n" : "");
      const oracle_answer truth = criteo_oracle(text, '\t', format, 0, 0, 0);
      REQUIRE(truth.rows.size() == 7);
      for (std::size_t offset = 0; offset < 64; ++offset) {
        const tight_text copy(text, offset);
        CHECK(agrees(format, copy.view(), truth));
      }
    }
  }
  for (int round = 0; round < 500; ++round) {  // damaged, with the layout of the whole
    std::string text;
    for (index_t i = 1 + die.below(6); i > 0; --i) text += random_criteo_line(die).substr(2) + "\n";
    text = damaged(die, text);
    const tight_text copy(text, static_cast<std::size_t>(die.below(64)));
    CAPTURE(round);
    REQUIRE(agrees(format, copy.view(), criteo_oracle(text, '\t', format, 0, 0, 0)));
  }
}

TEST_CASE("criteo: the first line decides whether lines have a label") {
  criteo_format format = tab_format();
  format.delimiter = '\0';
  std::string names = "I1";
  for (int i = 2; i <= 13; ++i) names += ",I" + std::to_string(i);
  for (int i = 1; i <= 26; ++i) names += ",C" + std::to_string(i);
  const std::string with = line_with(0, "1", ','), without = with.substr(2);
  const plain_rows labelled = parse_all(format, with).rows;
  REQUIRE(labelled.size() == 1);
  plain_rows unlabelled = labelled;
  unlabelled[0].label = bits(0.0F);
  CHECK_FALSE(parse_all(format, without).fault.empty());

  format.labels = label_column::by_fields;
  CHECK(parse_all(format, with).rows == labelled);
  CHECK(parse_all(format, "label," + names + "\n" + with).rows == labelled);
  CHECK(parse_all(format, "Id,label," + names + "\n10090000," + with).rows == labelled);
  CHECK(parse_all(format, without).rows == unlabelled);
  CHECK(parse_all(format, names + "\n" + without).rows == unlabelled);
  CHECK(parse_all(format, "Id," + names + "\n10090000," + without).rows == unlabelled);
  CHECK(parse_all(format, names).rows.empty());

  const auto fault = [&](const std::string& text) { return parse_all(format, text).fault; };
  CHECK(fault(with + "\n" + without) == "<text>:2:" + std::to_string(without.size() + 1) +
                                            ": malformed text: wrong number of fields (is 39, must be 40)");
  CHECK(fault(without + "\n" + with) == "<text>:2:" + std::to_string(with.rfind(',') + 2) +
                                            ": malformed text: wrong number of fields (is 40, must be 39)");
  CHECK(fault(without.substr(2) + "\n" + without).find("<text>:1:") == 0);
  CHECK(fault(with + ",x\n" + with).find("<text>:1:") == 0);
  CHECK(fault("7," + without + "\n7," + without).find("<text>:1:1: malformed text: the label") == 0);

  format.ids = id_column::present;
  CHECK(fault("7," + without).empty());
  CHECK(parse_all(format, "7," + without).rows == unlabelled);
  CHECK(parse_all(format, "7," + with).rows == labelled);
  format.ids = id_column::absent;
  format.labels = label_column::absent;
  CHECK(parse_all(format, without).rows == unlabelled);
  CHECK(fault(with).find("(is 40, must be 39)") != std::string::npos);
}

TEST_CASE("criteo: lines of nothing but separators find room, with and without a label") {
  criteo_format format = tab_format();
  format.labels = label_column::by_fields;
  for (const char* label : {"", "1\t"}) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += label + std::string(38, '\t') + "\n";
    sparse_batch batch;
    REQUIRE(parse_text(format, text, batch).or_throw().rows == 1000);
    CHECK(is_sound(batch));
  }
}

TEST_CASE("criteo: of several files some have labels, read in chunks") {
  dice die(8);
  criteo_format format = tab_format();
  format.labels = label_column::by_fields;
  std::string with, without;
  for (int i = 0; i < 40; ++i) {
    const std::string line = random_criteo_line(die);
    with += line + "\n";
    without += line.substr(2) + "\n";
  }
  plain_rows truth = criteo_oracle(without, '\t', format, 0, 0, 0).rows;
  REQUIRE(truth.size() == 40);
  const plain_rows labelled = criteo_oracle(with, '\t', format).rows;
  truth.insert(truth.end(), labelled.begin(), labelled.end());
  const temporary_file first(without), second(with);
  const inline_executor executor;
  auto reader = read_files(executor, format, {first.path(), second.path()}, {.chunk_bytes = 700}).or_throw();
  CHECK(read_all(reader, 17).rows == truth);
}

TEST_CASE("criteo: tokens may be taken as the row numbers that they are") {
  criteo_format format = tab_format();
  format.tokens = token_use::as_is;
  format.rows = criteo_format::same_size(20'000'000);
  std::string line = "0";
  for (int i = 0; i < 13; ++i) line += "\t1";
  for (int s = 0; s < 26; ++s)
    line += s == 0 ? "\t84.0" : s == 1 ? "\t1.0020301E7" : s == 2 ? "\t7" : "\t0.0";
  sparse_batch batch;
  REQUIRE(parse_text(format, line, batch).or_throw().rows == 1);
  CHECK(batch.feature(0).ids()[0] == 84);
  CHECK(batch.feature(1).ids()[0] == 10020301);
  CHECK(batch.feature(2).ids()[0] == 7);
  CHECK(batch.feature(25).ids()[0] == 0);
  const auto replaced = [&](const std::string& token) {
    std::string text = line;
    text.replace(text.find("84.0"), 4, token);
    return parse_all(format, text).fault;
  };
  CHECK(replaced("19999999").empty());
  CHECK(replaced("20000000") == "<text>:1:29: malformed text: the id is beyond its table");
  CHECK(replaced("-1") == "<text>:1:29: malformed text: an id is negative");
  CHECK(replaced("1.5") == "<text>:1:29: malformed text: not an integer");
  CHECK(replaced("") == "<text>:1:29: malformed text: an id is missing");
  CHECK(replaced("\"\"") == "<text>:1:29: malformed text: an id is missing");
  CHECK(replaced("1e999") == "<text>:1:29: malformed text: not an id");
  CHECK(replaced("nan") == "<text>:1:29: malformed text: not an integer");
  CHECK(replaced("99999999999999999999") ==
        "<text>:1:29: malformed text: the integer does not fit in 64 bits");
}

TEST_CASE("criteo: a function of the caller computes the rows of tokens, and nothing else changes") {
  criteo_format format = tab_format();
  format.bucket = plain_bucket;
  format.missing_dense = -1.0F;
  const std::string of_nine = "cafe01234", of_forty(40, '7'), most(1024, 'x'), high = "\x80\xff";
  const std::pair<std::string, std::string> fields[] = {{"cafe0123", "cafe0123"},
                                                        {"", ""},
                                                        {"\"\"", ""},
                                                        {of_nine, of_nine},
                                                        {of_forty, of_forty},
                                                        {most, most},
                                                        {"\"a", "\"a"},
                                                        {high, high},
                                                        {"1", "1"},
                                                        {"\"", "\""}};
  constexpr std::size_t kinds = std::size(fields);
  for (const int labels : {0, 1}) {
    for (std::size_t shift = 0; shift < kinds; ++shift) {
      for (const char* const end : {"", "\n", "\r\n"}) {
        CAPTURE(labels);
        CAPTURE(shift);
        std::string line = labels == 1 ? "1\t5\t-2\t" : "5\t-2\t";
        for (int i = 4; i <= 13; ++i) line += "\t1" + std::to_string(i);
        for (std::size_t s = 0; s < 26; ++s) line += '\t' + fields[(s + shift) % kinds].first;
        format.labels = labels == 1 ? label_column::present : label_column::absent;
        const outcome got = parse_all(format, line + end);
        REQUIRE(got.rows.size() == 1);
        CHECK(agrees(format, line + end, criteo_oracle(line + end, '\t', format, 0, 0, labels)));
        for (std::size_t s = 0; s < 26; ++s) {
          CHECK(got.rows[0].ids[s] ==
                std::vector<std::int64_t>{
                    plain_bucket(fields[(s + shift) % kinds].second, static_cast<int>(s), format.rows[s])});
        }
        criteo_format built_in = format;
        built_in.bucket = nullptr;
        plain_rows same = parse_all(built_in, line + end).rows;
        REQUIRE(same.size() == 1);
        CHECK(same != got.rows);
        same[0].ids = got.rows[0].ids;
        CHECK(same == got.rows);
      }
    }
  }
}

TEST_CASE("criteo: with a function of the caller the fast parser agrees with the slow one on damaged text") {
  dice die(9);
  criteo_format format = tab_format();
  format.bucket = plain_bucket;
  format.longest_token = 30;
  int with_bad_lines = 0;
  for (int round = 0; round < 700; ++round) {
    const std::string text = damaged(die, random_criteo_text(die, 1 + static_cast<int>(die.below(6))));
    const oracle_answer truth = criteo_oracle(text, '\t', format);
    with_bad_lines += truth.bad_lines.empty() ? 0 : 1;
    const tight_text copy(text, static_cast<std::size_t>(die.below(64)));
    CAPTURE(round);
    REQUIRE(agrees(format, copy.view(), truth));
  }
  CHECK(with_bad_lines > 200);
}

TEST_CASE("criteo: faults keep their place with a function of the caller") {
  criteo_format format = tab_format();
  format.bucket = plain_bucket;
  const std::string before = good_line + "\n" + good_line + "\n";
  const auto fault_of = [&](const std::string& line) { return parse_all(format, before + line).fault; };
  CHECK(fault_of(line_with(14, std::string(1025, 'x'))) ==
        "<text>:3:29: malformed text: the token is too long");
  CHECK(fault_of(line_with(2, "1a")) == "<text>:3:5: malformed text: not a number");
  CHECK(fault_of(line_with(0, "2")) == "<text>:3:1: malformed text: the label is neither 0 nor 1");
  // Rows outside of the table, of the tokens "x" and "y" only.
  format.bucket = [](std::string_view token, int, index_t rows) noexcept -> index_t {
    return token == "x" ? rows : token == "y" ? -1 : rows - 1;
  };
  CHECK(fault_of(good_line).empty());
  CHECK(fault_of(line_with(15, "x")) == "<text>:3:38: malformed text: the id is beyond its table");
  CHECK(fault_of(line_with(14, "y")) == "<text>:3:29: malformed text: the id is beyond its table");
  const outcome skipped = parse_all(format, before + line_with(15, "x") + "\n" + good_line, malformed::drop);
  CHECK(skipped.rows.size() == 3);
  CHECK(skipped.skipped == 1);
}

TEST_CASE("criteo: bad options are named, with the fix") {
  criteo_format format = tab_format();
  format.rows[3] = -1;
  CHECK(parse_all(format, good_line).fault.find("Fix:") != std::string::npos);
  format.rows[3] = 0;
  CHECK(format.check().ok());
  format.tokens = token_use::as_is;
  CHECK(parse_all(format, good_line).fault.find("Fix:") != std::string::npos);
  format.tokens = token_use::hashed;
  format.bucket = plain_bucket;
  CHECK(parse_all(format, good_line).fault.find("Fix:") != std::string::npos);
  format = tab_format();
  format.delimiter = '0';
  CHECK(parse_all(format, good_line).fault.find("Fix:") != std::string::npos);
  format = tab_format();
  format.bucket = plain_bucket;
  CHECK(format.check().ok());
  format.tokens = token_use::as_is;
  CHECK(format.check().code() == errc::unsupported);
  CHECK(parse_all(format, good_line)
            .fault.find("criteo_format: tokens must be hashed where bucket is set (are as_is)") !=
        std::string::npos);
}

TEST_CASE("criteo: bad lines are faults with their place") {
  const std::string before = good_line + "\n" + good_line + "\n";
  SUBCASE("39 fields") {
    const std::string line = good_line.substr(0, good_line.rfind('\t'));
    check_fault(before + line + "\n", "<text>:3:" + std::to_string(line.size() + 1) +
                                          ": malformed text: wrong number of fields (is 39, must be 40)");
  }
  SUBCASE("41 fields") {
    check_fault(before + good_line + "\tx\n",
                "<text>:3:" + std::to_string(good_line.size() + 2) +
                    ": malformed text: wrong number of fields (is 41, must be 40)");
  }
  SUBCASE("more fields than anyone counts") {
    check_fault(before + good_line + std::string(300, '\t') + "\n" + good_line,
                "<text>:3:" + std::to_string(good_line.size() + 2) +
                    ": malformed text: wrong number of fields (is 340, must be 40)");
  }
  SUBCASE("a NUL byte") {
    std::string line = good_line;
    line[100] = '\0';
    check_fault(before + line, "<text>:3:101: malformed text: a NUL byte");
  }
  SUBCASE("a number that is none") {
    check_fault(before + line_with(2, "1a"), "<text>:3:5: malformed text: not a number");
    check_fault(before + line_with(2, "-"), "<text>:3:5: malformed text: not a number");
    check_fault(before + line_with(2, " 1"), "<text>:3:5: malformed text: not a number");
    check_fault(before + line_with(2, "0x10"), "<text>:3:5: malformed text: not a number");
    check_fault(before + line_with(2, "1.2.3"), "<text>:3:5: malformed text: not a number");
    check_fault(before + line_with(2, "nan"), "<text>:3:5: malformed text: not a finite number");
    check_fault(before + line_with(2, "-inf"), "<text>:3:5: malformed text: not a finite number");
    check_fault(before + line_with(2, "1e99"), "<text>:3:5: malformed text: the number is too large");
  }
  SUBCASE("an integer beyond 64 bits") {
    check_fault(before + line_with(2, "9223372036854775808"),
                "<text>:3:5: malformed text: the integer does not fit in 64 bits");
    check_fault(before + line_with(2, "-99999999999999999999999"),
                "<text>:3:5: malformed text: the integer does not fit in 64 bits");
  }
  SUBCASE("a label that is neither 0 nor 1") {
    check_fault(before + line_with(0, "2"), "<text>:3:1: malformed text: the label is neither 0 nor 1");
    check_fault(before + line_with(0, "-1"), "<text>:3:1: malformed text: the label is neither 0 nor 1");
    check_fault(before + line_with(0, "0.5"), "<text>:3:1: malformed text: the label is neither 0 nor 1");
    check_fault(before + line_with(0, ""), "<text>:3:1: malformed text: a number is missing");
    check_fault(before + line_with(0, "yes"), "<text>:3:1: malformed text: not a number");
    check_fault(line_with(0, ""), "<text>:1:1: malformed text: a number is missing");
  }
  SUBCASE("a token too long") {
    check_fault(before + line_with(14, std::string(1025, 'x')),
                "<text>:3:29: malformed text: the token is too long");
    CHECK(parse_all(tab_format(), line_with(14, std::string(1024, 'x'))).fault.empty());
  }
  SUBCASE("a header in the middle") {
    std::string names = "label";
    for (int i = 0; i < 39; ++i) names += "\tname";
    check_fault(before + names + "\n" + good_line, "<text>:3:1: malformed text: not a number");
  }
  SUBCASE("the first of several") {
    check_fault(before + line_with(0, "7") + "\n" + line_with(1, "x") + "\nrubbish\n",
                "<text>:3:1: malformed text: the label is neither 0 nor 1");
  }
}

TEST_CASE("criteo: odd but good text") {
  const criteo_format format = tab_format();
  const plain_rows one = parse_all(format, good_line).rows;
  REQUIRE(one.size() == 1);
  const auto twice = [&] {
    plain_rows rows = one;
    rows.push_back(one[0]);
    return rows;
  }();
  CHECK(parse_all(format, "").rows.empty());
  CHECK(parse_all(format, "").fault.empty());
  CHECK(parse_all(format, "\n\r\n\n").rows.empty());
  CHECK(parse_all(format, "\n\r\n\n").skipped == 0);
  CHECK(parse_all(format, good_line + "\n" + good_line).rows == twice);
  CHECK(parse_all(format, good_line + "\r\n" + good_line + "\r\n").rows == twice);
  CHECK(parse_all(format, good_line + "\n\n\n" + good_line + "\n\n").rows == twice);
  CHECK(parse_all(format, line_with(0, "0.0")).rows == one);
  CHECK(parse_all(format, line_with(5, "+1")).rows == one);
  CHECK(parse_all(format, line_with(5, "1.")).rows == one);
  CHECK(parse_all(format, line_with(5, "1e0")).rows == one);
  CHECK(parse_all(format, line_with(39, "\"\"")).rows == parse_all(format, line_with(39, "")).rows);
  CHECK(parse_all(format, line_with(3, "\"\"")).rows == parse_all(format, line_with(3, "")).rows);
  CHECK(parse_all(format, line_with(39, "\r")).rows == parse_all(format, line_with(39, "")).rows);
}

TEST_CASE("criteo: no line is lost beside bad ones") {
  dice die(5);
  const criteo_format format = tab_format();
  std::string text;
  index_t good = 0;
  index_t bad = 0;
  for (int i = 0; i < 3000; ++i) {
    if (die.one_in(7)) {
      ++bad;
      text += die.one_in(2) ? "rubbish\n" : line_with(4, "x") + "\n";
    } else {
      ++good;
      text += random_criteo_line(die) + "\n";
    }
  }
  const outcome got = parse_all(format, text, malformed::drop);
  CHECK(static_cast<index_t>(got.rows.size()) == good);
  CHECK(got.skipped == bad);
}

TEST_CASE("criteo: random bytes never do harm") {
  dice die(6);
  criteo_format format;
  for (int round = 0; round < 300; ++round) {
    std::string text(static_cast<std::size_t>(die.below(3000)), '\0');
    for (char& c : text) c = static_cast<char>(die.bits());
    const tight_text copy(text, static_cast<std::size_t>(die.below(64)));
    const outcome skipped = parse_all(format, copy.view(), malformed::drop);
    CHECK(skipped.sound);
    CHECK(skipped.rows.empty());
    if (text.size() > 2) CHECK(skipped.skipped > 0);
    CHECK(parse_all(format, copy.view()).sound);
  }
}

TEST_CASE("criteo: the real files hold what is known of them") {
  criteo_format format;
  if (const std::string path = real_file_path("criteo/criteo_kaggle_merged_24k.tsv"); !path.empty()) {
    const std::string text = content_of(path);
    sparse_batch batch;
    REQUIRE(parse_text(format, text, batch).or_throw().rows == 24583);
    double positive = 0;
    for (const float label : batch.labels()) positive += static_cast<double>(label);
    CHECK(std::fabs(positive / 24583 - 0.231) < 0.0005);
    CHECK(agrees(format, text, criteo_oracle(text, '\t', format)));
  }
  if (const std::string path = real_file_path("criteo/criteo_kaggle_deepctr200.csv"); !path.empty()) {
    const std::string text = content_of(path);
    const oracle_answer truth = criteo_oracle(text, ',', format, 1);
    CHECK(truth.rows.size() == 200);
    CHECK(agrees(format, text, truth));
  }
  if (const std::string path = real_file_path("criteo/criteo_kaggle_fullvocab_ids_rows90000.csv");
      !path.empty()) {
    const std::string text = content_of(path);
    format.tokens = token_use::as_is;
    format.rows = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                   93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                   2173,  4,    7046547,  18,      15,  286181, 105,     142572};
    const oracle_answer truth = criteo_oracle(text, ',', format, 1, 1);
    CHECK(truth.rows.size() == 10000);
    CHECK(agrees(format, text, truth));
  }
}
