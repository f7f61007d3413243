#include "data/support.hpp"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <set>

#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libffm_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/exec/inline_executor.hpp>

using namespace deeprec;
using namespace deeprec_test;

namespace {

plain_row row_of(float label, std::vector<std::vector<std::int64_t>> ids,
                 std::vector<std::vector<float>> weights) {
  plain_row row;
  row.label = bits(label);
  row.ids = std::move(ids);
  for (const auto& slot : weights) {
    auto& out = row.weights.emplace_back();
    for (const float w : slot) out.push_back(bits(w));
  }
  return row;
}

template <class Format>
std::string fault_of(const Format& format, const std::string& text) {
  const outcome stopped = parse_all(format, text);
  const outcome skipped = parse_all(format, text, malformed::drop);
  CHECK(stopped.sound);
  CHECK(skipped.sound);
  CHECK(skipped.first_skipped == stopped.fault);
  return stopped.fault;
}

}  // namespace

TEST_CASE("libsvm: labels, indices from 1, weights, comments") {
  const std::string text =
      "+1 3:0.5 17:1 40:-2.25   # a comment: 1:1\n"
      "# only a comment\n"
      "\n"
      "-1\t1:1e-3 \r\n"
      "0\n"
      "2.5 1:1 1:2";
  const outcome got = parse_all(libsvm_format{}, text);
  CHECK(got.fault == "");
  CHECK(got.sound);
  CHECK(got.rows == plain_rows{row_of(1, {{2, 16, 39}}, {{0.5F, 1, -2.25F}}), row_of(-1, {{0}}, {{1e-3F}}),
                               row_of(0, {{}}, {{}}), row_of(2.5F, {{0, 0}}, {{1, 2}})});
  CHECK(parse_all(libsvm_format{.base = libsvm_format::index_base::zero}, "1 0:1 7:1").rows ==
        plain_rows{row_of(1, {{0, 7}}, {{1, 1}})});
}

TEST_CASE("libsvm: any limit of a line is one") {
  const inline_executor executor;
  const std::string plain = "1 3:0.5\r\n0 4:1\n";
  for (const std::string& text :
       {plain, "\xEF\xBB\xBF" + plain, "\xEF\xBB\xBF" + plain.substr(0, 7) + "198765\n"}) {
    for (const index_t longest : {std::numeric_limits<index_t>::min(), index_t{-1}, index_t{0}, index_t{5},
                                  index_t{6}, index_t{7}, std::numeric_limits<index_t>::max()}) {
      CAPTURE(longest);
      sparse_batch batch;
      const parsed_text whole =
          parse_text(libsvm_format{}, text, batch, {.on_malformed = malformed::drop, .longest_line = longest})
              .or_throw();
      if (text.ends_with(plain)) {
        CHECK(whole.rows == (longest >= 7 ? 2 : longest >= 5 ? 1 : 0));
        CHECK(whole.skipped_lines == 2 - whole.rows);
      } else {
        CHECK(whole.rows == (longest >= 13 ? 1 : 0));
      }
      for (const index_t chunk : {1, 2, 3, 100}) {
        CAPTURE(chunk);
        const reader_options options{
            .on_malformed = malformed::drop, .chunk_bytes = chunk, .longest_line = longest};
        const outcome read = read_all(read_text(executor, libsvm_format{}, text, options).or_throw(), 1);
        CHECK(static_cast<index_t>(read.rows.size()) == whole.rows);
        CHECK(read.skipped == whole.skipped_lines);
      }
    }
  }
}

TEST_CASE("libsvm: bad lines are faults with their place, and leave nothing behind") {
  const libsvm_format format{.rows = 100};
  CHECK(fault_of(format, "1 1:1\n1 2:3 0:1\n") ==
        "<text>:2:7: malformed text: index 0 where indices count from 1");
  CHECK(fault_of(format, "1 2:3 101:1\n") == "<text>:1:7: malformed text: the id is beyond its table");
  CHECK(fault_of(format, "1 2:3 7\n") == "<text>:1:7: malformed text: not index:value");
  CHECK(fault_of(format, "1 2:3 -7:1\n") == "<text>:1:7: malformed text: not an unsigned integer");
  CHECK(fault_of(format, "1 2:3 :1\n") == "<text>:1:7: malformed text: a number is missing");
  CHECK(fault_of(format, "1 2:3 7:\n") == "<text>:1:9: malformed text: a number is missing");
  CHECK(fault_of(format, "1 2:3 7:1:2\n") == "<text>:1:9: malformed text: not a number");
  CHECK(fault_of(format, "1 qid:3 7:1\n").find("<text>:1:3: malformed text: a qid. Fix: ") == 0);
  CHECK(fault_of(format, "1 2:nan\n") == "<text>:1:5: malformed text: not a finite number");
  CHECK(fault_of(format, "one 2:3\n") == "<text>:1:1: malformed text: not a number");
  CHECK(fault_of(libsvm_format{}, "1 18446744073709551616:1\n") ==
        "<text>:1:3: malformed text: the integer does not fit in 64 bits");
  CHECK(fault_of(libsvm_format{}, "1 18446744073709551615:1\n") ==
        "<text>:1:3: malformed text: the id is beyond its table");
  CHECK(fault_of(format, std::string("1 2:3\n1 2:\0003\n", 12)) == "<text>:2:5: malformed text: a NUL byte");

  const outcome skipped = parse_all(format, "1 1:1\n1 2:3 0:1\n1 5:1\nx\n1 6:1", malformed::drop);
  CHECK(skipped.skipped == 2);
  CHECK(skipped.rows ==
        plain_rows{row_of(1, {{0}}, {{1}}), row_of(1, {{4}}, {{1}}), row_of(1, {{5}}, {{1}})});
  CHECK(parse_all(libsvm_format{.rows = -1}, "").fault.find("Fix:") != std::string::npos);
}

TEST_CASE("feasign: keys of 64 bits go to the slots that the format lists") {
  const std::string text =
      "0:1 4351255118977467729:3 16543128959394097760:29 10003478084564939135:29 7:5\n"
      "5:29 1:1 6:3\n"
      "1:1\n";
  const feasign_format format(std::vector<index_t>{29, 3});
  const outcome got = parse_all(format, text);
  CHECK(got.fault == "");
  const auto signed_key = [](std::uint64_t key) { return static_cast<std::int64_t>(key); };
  CHECK(got.rows == plain_rows{row_of(0,
                                      {{signed_key(16543128959394097760U), signed_key(10003478084564939135U)},
                                       {4351255118977467729}},
                                      {{}, {}}),
                               row_of(1, {{5}, {6}}, {{}, {}}), row_of(1, {{}, {}}, {{}, {}})});

  feasign_format hashed(std::vector<index_t>{29, 3});
  hashed.keys = token_use::hashed;
  CHECK(parse_all(hashed, "5:29 1:1").rows[0].ids[0][0] == signed_key(mix64(5)));
  hashed.rows = 1000;
  CHECK(parse_all(hashed, "5:29 1:1").rows[0].ids[0][0] == hash_bucket(mix64(5), 1000));

  feasign_format bare(std::vector<index_t>{1, 2});
  bare.label_fields = 2;
  CHECK(parse_all(bare, "1 0.5 7:1 8:2\n").rows == plain_rows{row_of(1, {{7}, {8}}, {{}, {}})});
  feasign_format unlabelled(std::vector<index_t>{1});
  unlabelled.label_slot = -1;
  CHECK(parse_all(unlabelled, "7:1\n").rows == plain_rows{row_of(0, {{7}}, {{}})});
}

TEST_CASE("feasign: bad lines are faults with their place") {
  const feasign_format format(feasign_format::slots(2, 10));
  CHECK(fault_of(format, "1:1 5:2\n5:2 6:3\n") == "<text>:2:8: malformed text: the line has no label");
  CHECK(fault_of(format, "2:1 5:2\n") == "<text>:1:1: malformed text: the label is neither 0 nor 1");
  CHECK(fault_of(format, "1:1 5:2 7\n") == "<text>:1:9: malformed text: not feasign:slot");
  CHECK(fault_of(format, "1:1 5:2 x:2\n") == "<text>:1:9: malformed text: not an unsigned integer");
  CHECK(fault_of(format, "1:1 5:2 7:x\n") == "<text>:1:11: malformed text: not an unsigned integer");
  CHECK(fault_of(format, "1:1 5:2 7:\n") == "<text>:1:11: malformed text: a number is missing");
  CHECK(fault_of(format, "1:1 5:2 -7:3\n") == "<text>:1:9: malformed text: not an unsigned integer");
  CHECK(fault_of(format, "1:1 5:2 18446744073709551616:3\n") ==
        "<text>:1:9: malformed text: the integer does not fit in 64 bits");
  CHECK(parse_all(format, "1:1 5:2 18446744073709551615:3\n").rows[0].ids[1][0] == -1);
  CHECK(parse_all(format, "1:1 5:2 7:18446744073709551615\n").rows.size() == 1);
  const outcome skipped = parse_all(format, "1:1 5:2\n1:1 6:2 x\n0:1 7:2\n", malformed::drop);
  CHECK(skipped.rows.size() == 2);
  CHECK(skipped.rows[1].ids[0] == std::vector<std::int64_t>{7});
  CHECK(parse_all(feasign_format(std::vector<index_t>{3, 3}), "").fault.find("Fix:") != std::string::npos);
  CHECK(parse_all(feasign_format(std::vector<index_t>{-1}), "").fault.find("Fix:") != std::string::npos);
  feasign_format bounded(feasign_format::slots(2, 10));
  bounded.rows = 5;
  CHECK(fault_of(bounded, "1:1 5:2\n") == "<text>:1:5: malformed text: the id is beyond its table");
}

TEST_CASE("feasign: slot_order_silent: slot:feasign is malformed, and what is ignored is counted") {
  feasign_format format(feasign_format::slots(1, 26));
  format.label_fields = 1;
  const std::string swapped = "0 1:737395 2:210498 3:903564\n";
  const std::string why =
      ": malformed text: slot:feasign: no slot is listed, each feasign is. Fix: pairs = slot_feasign";
  CHECK(fault_of(format, "1 7:26\n" + swapped) == "<text>:2:3" + why);
  CHECK(fault_of(feasign_format(feasign_format::slots(2, 25)), "1:0 2:210498 3:903564\n") ==
        "<text>:1:1" + why);
  // Lines that may be meant: of one field, or with a feasign that is no slot.
  sparse_batch batch;
  const auto parsed =
      parse_text(format, "0 7:5\n0 1:99\n1 1:99 27:98\n1\n1 3:99 2:4 3:99\n", batch).or_throw();
  CHECK(parsed.rows == 5);
  CHECK(parsed.ignored_fields == 5);
  const inline_executor here;
  const std::string text = "0 7:5\n0 1:99\n" + swapped + "1 1:99 27:98\n1 3:99 2:4\n";
  for (const index_t chunk : {1, 10, 1000}) {
    auto reader =
        read_text(here, format, text, {.on_malformed = malformed::drop, .chunk_bytes = chunk}).or_throw();
    CHECK(read_all(reader, 2).rows.size() == 4);
    CHECK(reader.skipped_lines() == 1);
    CHECK(reader.ignored_fields() == 4);
  }
}

TEST_CASE("feasign: a function of the caller computes the rows of keys, from their digits") {
  feasign_format format(std::vector<index_t>{29, 3});
  format.keys = token_use::hashed;
  format.rows = 1000;
  format.bucket = plain_bucket;
  const std::string text = "0:1 18446744073709551615:3 007:29 0:29 7:5\n1:1\n";
  const outcome got = parse_all(format, text);
  CHECK(got.fault == "");
  CHECK(got.rows == plain_rows{row_of(0,
                                      {{plain_bucket("7", 0, 1000), plain_bucket("0", 0, 1000)},
                                       {plain_bucket("18446744073709551615", 1, 1000)}},
                                      {{}, {}}),
                               row_of(1, {{}, {}}, {{}, {}})});
  CHECK(fault_of(format, "1:1 5:3\n1:1 5:3 x:3\n") == "<text>:2:9: malformed text: not an unsigned integer");
  format.bucket = [](std::string_view token, int, index_t rows) noexcept -> index_t {
    return token == "5" ? rows : 0;
  };
  CHECK(fault_of(format, "1:1 6:3\n1:1 6:3 5:3\n") ==
        "<text>:2:9: malformed text: the id is beyond its table");
  const auto reason = [&] { return std::string_view(format.check().detail()); };
  CHECK(format.check().ok());
  format.rows = 0;
  CHECK(reason() == "feasign_format: rows must be above 0 where bucket is set (is 0)");
  format.keys = token_use::as_is;
  CHECK(reason() == "feasign_format: keys must be hashed where bucket is set (are as_is)");
}

TEST_CASE("feasign: Baidu's demo has 10 rows in 300 slots") {
  const std::string path = real_file_path("baidu/slot_dnn_feasign64_demo10.txt");
  if (path.empty()) return;
  const std::string text = content_of(path);
  const outcome got = parse_all(feasign_format(feasign_format::slots(2, 300)), text);
  REQUIRE(got.rows.size() == 10);
  // The same by streams: every key of every slot, in order.
  std::istringstream lines(text);
  std::string line;
  for (const plain_row& row : got.rows) {
    REQUIRE(std::getline(lines, line));
    std::vector<std::vector<std::int64_t>> ids(300);
    std::istringstream fields(line);
    std::uint64_t key = 0;
    char colon = 0;
    std::size_t slot = 0;
    float label = -1;
    while (fields >> key >> colon >> slot) {
      if (slot == 1) {
        label = static_cast<float>(key);
      } else {
        ids[slot - 2].push_back(static_cast<std::int64_t>(key));
      }
    }
    CHECK(row.ids == ids);
    CHECK(row.label == bits(label));
  }
}

TEST_CASE("key:value: fields, pairs, keys alone, empty bags") {
  const key_value_format format{.features = 3, .label_field = 0};
  const outcome got = parse_all(format, "1\t3:0.5,17,40:2\t\t8\n\n-0.5\t\t\t\r\n");
  CHECK(got.fault == "");
  CHECK(got.rows == plain_rows{row_of(1, {{3, 17, 40}, {}, {8}}, {{0.5F, 1, 2}, {}, {1}}),
                               row_of(-0.5F, {{}, {}, {}}, {{}, {}, {}})});
  const key_value_format single{};
  CHECK(parse_all(single, "2,10\n\n0,8").rows ==
        plain_rows{row_of(0, {{2, 10}}, {{1, 1}}), row_of(0, {{}}, {{}}), row_of(0, {{0, 8}}, {{1, 1}})});
  const key_value_format spaces{
      .features = 2, .field_delimiter = ';', .pair_delimiter = ' ', .value_delimiter = '='};
  CHECK(parse_all(spaces, "  1=2   3 ;4").rows == plain_rows{row_of(0, {{1, 3}, {4}}, {{2, 1}, {1}})});
  const key_value_format last{.features = 1, .label_field = 1};
  CHECK(parse_all(last, "7\t1").rows == plain_rows{row_of(1, {{7}}, {{1}})});
  const key_value_format names{.features = 1, .keys = token_use::hashed, .rows = 50};
  CHECK(parse_all(names, "red:2,blue").rows[0].ids[0] ==
        std::vector<std::int64_t>{hash_bucket(hash_bytes("red", 0), 50),
                                  hash_bucket(hash_bytes("blue", 0), 50)});
}

TEST_CASE("key:value: a function of the caller computes the rows of keys") {
  key_value_format format{.features = 2, .keys = token_use::hashed, .rows = 50, .bucket = plain_bucket};
  const outcome got = parse_all(format, "red:2,blue\tred\r\n\t\x80:1\n");
  CHECK(got.fault == "");
  CHECK(got.rows == plain_rows{row_of(0,
                                      {{plain_bucket("red", 0, 50), plain_bucket("blue", 0, 50)},
                                       {plain_bucket("red", 1, 50)}},
                                      {{2, 1}, {1}}),
                               row_of(0, {{}, {plain_bucket("\x80", 1, 50)}}, {{}, {1}})});
  CHECK(fault_of(format, "a\tb\na\tb,:1\n") == "<text>:2:5: malformed text: a key is missing");
  format.bucket = [](std::string_view token, int, index_t rows) noexcept -> index_t {
    return token == "b" ? -1 : rows - 1;
  };
  CHECK(fault_of(format, "a\ta\na\ta,b:1\n") == "<text>:2:5: malformed text: the id is beyond its table");
  const auto reason = [&] { return std::string_view(format.check().detail()); };
  CHECK(format.check().ok());
  format.rows = 0;
  CHECK(reason() == "key_value_format: rows must be above 0 where bucket is set (is 0)");
  format.keys = token_use::as_is;
  CHECK(reason() == "key_value_format: keys must be hashed where bucket is set (are as_is)");
}

TEST_CASE("parse_text: a fault is a status with its place, whatever was skipped before it") {
  sparse_batch batch;
  const key_value_format format{.features = 2, .rows = 100};
  const auto stopped = parse_text(format, "1\t2\n1\n", batch);
  REQUIRE(!stopped);
  CHECK(stopped.fault().file() == "<text>");
  CHECK(stopped.fault().reason() == "wrong number of fields");
  const status as_status = stopped.fault();
  CHECK(as_status.code() == errc::parse_error);
  CHECK(as_status.place() == fault_place{.line = 2, .column = 2, .is = 1, .must_be = 2});
  const auto skipped = parse_text(format, "1\t2\n1\n\n1\t2\n", batch, {.on_malformed = malformed::drop});
  REQUIRE(skipped);
  REQUIRE(skipped.value().first_skipped);
  CHECK(skipped.value().first_skipped->place() == as_status.place());
  const auto too_long = parse_text(format, "1\t2,3,4,5\n", batch, {.longest_line = 4});
  REQUIRE(!too_long);
  CHECK(too_long.fault().place() == fault_place{.line = 1, .at_most = 4});
  const status wrong = key_value_format{.features = 0}.check();
  CHECK(wrong.code() == errc::unsupported);
  CHECK(parse_text(key_value_format{.features = 0}, "", batch).fault().message() == wrong.message());
}

TEST_CASE("key:value: bad lines are faults with their place") {
  const key_value_format format{.features = 2, .rows = 100};
  CHECK(fault_of(format, "1\t2\n1\n") ==
        "<text>:2:2: malformed text: wrong number of fields (is 1, must be 2)");
  CHECK(fault_of(format, "1\t2\t3\t4\n") ==
        "<text>:1:5: malformed text: wrong number of fields (is 4, must be 2)");
  CHECK(fault_of(format, "1\t2:x\n") == "<text>:1:5: malformed text: not a number");
  CHECK(fault_of(format, "1\t2:\n") == "<text>:1:5: malformed text: a number is missing");
  CHECK(fault_of(format, "1\t:5\n") == "<text>:1:3: malformed text: a key is missing");
  CHECK(fault_of(format, "1\t2,,3\n") == "<text>:1:5: malformed text: a key is missing");
  CHECK(fault_of(format, "1\t2,\n") == "<text>:1:5: malformed text: a key is missing");
  CHECK(fault_of(format, "1\t2,100\n") == "<text>:1:5: malformed text: the id is beyond its table");
  CHECK(fault_of(format, "1\t2,-1\n") == "<text>:1:5: malformed text: not an unsigned integer");
  CHECK(fault_of(format, "1\t2,99999999999999999999\n") ==
        "<text>:1:5: malformed text: the integer does not fit in 64 bits");
  const outcome skipped = parse_all(format, "1\t2\n3,4\tx\n5\t6\n", malformed::drop);
  CHECK(skipped.rows == plain_rows{row_of(0, {{1}, {2}}, {{1}, {1}}), row_of(0, {{5}, {6}}, {{1}, {1}})});
  CHECK(parse_all(key_value_format{.pair_delimiter = '\t'}, "").fault.find("Fix:") != std::string::npos);
  CHECK(parse_all(key_value_format{.pair_delimiter = '5'}, "").fault.find("Fix:") != std::string::npos);
  CHECK(parse_all(key_value_format{.features = 0}, "").fault.find("Fix:") != std::string::npos);
}

TEST_CASE("key:value and libsvm: print and parse again") {
  dice die(31);
  std::string pairs;
  std::string svm;
  plain_rows pair_rows;
  plain_rows svm_rows;
  for (int r = 0; r < 300; ++r) {
    plain_row row = row_of(static_cast<float>(r % 7) - 3, {{}, {}, {}}, {{}, {}, {}});
    plain_row flat = row_of(static_cast<float>(r % 7) - 3, {{}}, {{}});
    pairs += std::to_string(r % 7 - 3);
    svm += std::to_string(r % 7 - 3);
    for (std::size_t s = 0; s < 3; ++s) {
      pairs += '\t';
      for (index_t k = die.below(5); k > 0; --k) {
        const auto id = static_cast<std::int64_t>(die.bits() >> (1 + die.below(63)));
        auto weight = std::bit_cast<float>(static_cast<std::uint32_t>(die.bits()));
        if (!(weight < 1e38F && weight > -1e38F)) weight = 0.1F;
        char text[80];
        std::snprintf(text, sizeof(text), "%lld:%.9g", static_cast<long long>(id),
                      static_cast<double>(weight));
        pairs += text + std::string(k > 1 ? "," : "");
        svm += std::string(" ") + text;
        row.ids[s].push_back(id);
        row.weights[s].push_back(bits(weight));
        flat.ids[0].push_back(id);
        flat.weights[0].push_back(bits(weight));
      }
    }
    pairs += '\n';
    svm += '\n';
    pair_rows.push_back(row);
    svm_rows.push_back(flat);
  }
  CHECK(parse_all(key_value_format{.features = 3, .label_field = 0}, pairs).rows == pair_rows);
  CHECK(parse_all(libsvm_format{.base = libsvm_format::index_base::zero}, svm).rows == svm_rows);
}

TEST_CASE("numbers: the quick way gives the bits of from_chars") {
  dice die(32);
  const auto same = [](const std::string& text) {
    float quick = 0;
    float exact = 0;
    const char* why = detail::parse_float(text, quick);
    const char* truth = detail::parse_float_slow(text, exact);
    return (why == nullptr) == (truth == nullptr) && (why != nullptr || bits(quick) == bits(exact));
  };
  index_t wrong = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text;
    const index_t length = die.below(10);
    for (index_t i = 0; i < length; ++i) text += "0123456789.-+e"[die.below(die.one_in(3) ? 14 : 11)];
    wrong += same(text) ? 0 : 1;
  }
  for (int whole = 0; whole < 3000; ++whole) {
    for (int decimals = 0; decimals < 1000; decimals += 7) {
      wrong += same(std::to_string(whole) + "." + std::to_string(decimals)) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  float value = 0;
  CHECK(detail::parse_float("1e-60", value) == nullptr);
  CHECK(value == 0.0F);
  CHECK(detail::parse_float("1e-999", value) == nullptr);
  CHECK(value == 0.0F);
  CHECK(detail::parse_float("1e-40", value) == nullptr);
  CHECK(value == 1e-40F);
  CHECK(detail::parse_float("16777217", value) == nullptr);
  CHECK(value == 16777216.0F);
}

namespace {

/// strtof's number, and whether there is one: neither text that goes on nor infinity.
bool float_oracle(const std::string& text, float& value) {
  char* end = nullptr;
  value = std::strtof(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(value);
}

/// An id: strtod's number, where that is in range, whole and below 2^53.
bool id_oracle(const std::string& text, std::int64_t& value) {
  char* end = nullptr;
  errno = 0;
  const double wide = std::strtod(text.c_str(), &end);
  if (errno != 0 || end != text.c_str() + text.size() || !(wide < 0x1p53) || wide != std::floor(wide))
    return false;
  value = static_cast<std::int64_t>(wide);
  return true;
}

}  // namespace

TEST_CASE("numbers: digits and exponents of any size, also those that fight each other") {
  dice die(33);
  const auto zeros = [](index_t count) { return std::string(static_cast<std::size_t>(count), '0'); };
  std::vector<std::string> texts{"1" + zeros(400) + "e-10",
                                 "0." + zeros(400) + "1",
                                 "0." + zeros(400) + "1e+500",
                                 "1" + zeros(400) + "e-400",
                                 "1" + zeros(400) + "e-500",
                                 "0." + zeros(700'000) + "1e700001",
                                 "1" + zeros(700'000) + "e-700000",
                                 "0." + zeros(70'000) + "1e700001",
                                 zeros(400) + "." + zeros(400) + "e+999",
                                 "0e99999999999999999999",
                                 "1e99999999999999999999",
                                 "1e-99999999999999999999",
                                 "1e4294967296",
                                 "1e-4294967297",
                                 "1e2147483648",
                                 "-1e-18446744073709551616",
                                 "1e18446744073709551617",
                                 "3.4028235e38",
                                 "3.4028236e38",
                                 "340282356779733661637539395458142568447",
                                 "340282356779733661637539395458142568448",
                                 "1.4e-45",
                                 "7.1e-46",
                                 "7.0e-46",
                                 "1e-45",
                                 "1.17549435e-38",
                                 "1e-38",
                                 "8388608.5" + zeros(1100) + "1",
                                 "8388608.5" + zeros(1100),
                                 "8388609.5" + zeros(1100),
                                 "16777217." + zeros(2000) + "1",
                                 std::string(5000, '9'),
                                 "." + std::string(5000, '9'),
                                 std::string(5000, '3') + "e-4990",
                                 "1" + zeros(2000) + "e",
                                 "1" + zeros(2000) + "e-",
                                 "1" + zeros(2000) + "x",
                                 zeros(2000) + "-",
                                 std::string(2000, '.'),
                                 zeros(1100) + ".5",
                                 "1" + zeros(38),
                                 "1" + zeros(39),
                                 "0.7006492321624085354618" + zeros(1200) + "e-45"};
  for (int round = 0; round < 20'000; ++round) {  // a number near the borders, written in some odd way
    std::string digits;
    for (index_t i = 1 + die.below(die.one_in(20) ? 900 : 12); i > 0; --i)
      digits += "0123456789"[die.below(10)];
    const index_t shift = die.below(die.one_in(30) ? 1500 : 60);
    const index_t near = die.one_in(2) ? 38 : die.one_in(2) ? -45 : 0;
    const index_t power = near - static_cast<index_t>(digits.size()) + die.below(5) - 2;
    const bool left = die.one_in(2);  // the point before all digits, or zeros behind them
    std::string text = die.one_in(2) ? "-" : "";
    text += left ? "0." + zeros(shift) + digits : digits + zeros(shift) + (die.one_in(2) ? "." : "");
    const index_t exponent = left ? power + static_cast<index_t>(digits.size()) + shift : power - shift;
    text += (die.one_in(2) ? "e" : "E") + std::string(exponent > 0 && die.one_in(2) ? "+" : "") +
            std::to_string(exponent);
    texts.push_back(text);
  }
  index_t accepted = 0;
  for (const std::string& text : texts) {
    INFO(text.substr(0, 60), " ... ", text.substr(text.size() - std::min<std::size_t>(text.size(), 20)));
    float value = 0, truth = 0;
    const char* why = detail::parse_float(text, value);
    const bool good = float_oracle(text, truth);
    REQUIRE((why == nullptr) == good);
    if (good) REQUIRE(bits(value) == bits(truth));
    accepted += good ? 1 : 0;
    if (text[0] == '-') continue;
    std::int64_t id = 0, true_id = 0;
    const bool is_id = id_oracle(text, true_id);
    REQUIRE((detail::parse_id(text, id) == nullptr) == is_id);
    if (is_id) REQUIRE(id == true_id);
  }
  CHECK(accepted > 10'000);
  CHECK(accepted < static_cast<index_t>(texts.size()) - 1000);
}

TEST_CASE("libsvm: qid is the group of a row") {
  const libsvm_format format{.groups = libsvm_format::query_ids::present};
  const std::string text = "2 qid:7 1:0.5 3:1 # a\n0 qid:7\n\n1\tqid:18446744073709551615\t2:1\n";
  sparse_batch batch;
  CHECK(parse_text(format, text, batch).or_throw().rows == 3);
  REQUIRE(batch.groups().size() == 3);
  CHECK(batch.groups()[0] == 7);
  CHECK(batch.groups()[1] == 7);
  CHECK(batch.groups()[2] == -1);
  CHECK(to_plain(batch) ==
        plain_rows{row_of(2, {{0, 2}}, {{0.5F, 1}}), row_of(0, {{}}, {{}}), row_of(1, {{1}}, {{1}})});
  const inline_executor here;
  auto reader = read_text(here, format, text, {.chunk_bytes = 1}).or_throw();
  for (const std::int64_t group : {7, 7, -1}) {
    CHECK(reader.next(batch, 1).or_throw() == 1);
    CHECK(batch.groups()[0] == group);
  }
  CHECK(fault_of(format, "1 qid:2 1:1\n1 1:1\n") == "<text>:2:3: malformed text: not qid:number");
  CHECK(fault_of(format, "1\n") == "<text>:1:2: malformed text: not qid:number");
  CHECK(fault_of(format, "1 qid:x\n").find("not an unsigned integer") != std::string::npos);
  CHECK(fault_of(libsvm_format{}, "1 qid:2 1:1\n").find("<text>:1:3: malformed text: a qid. Fix: groups") ==
        0);
}

TEST_CASE("libffm: fields are features") {
  const libffm_format format{.fields = 3, .rows = 20};
  const outcome got = parse_all(format, "1 0:3:1 0:9:0.5 2:14:1\n\n-1\t1:0:2e-1\r\n0\n");
  CHECK(got.fault == "");
  CHECK(got.rows == plain_rows{row_of(1, {{3, 9}, {}, {14}}, {{1, 0.5F}, {}, {1}}),
                               row_of(-1, {{}, {0}, {}}, {{}, {0.2F}, {}}),
                               row_of(0, {{}, {}, {}}, {{}, {}, {}})});
  CHECK(parse_all(libffm_format{.fields = 1, .first_field = 1}, "1 1:5:1\n").rows ==
        plain_rows{row_of(1, {{5}}, {{1}})});
  CHECK(fault_of(format, "1 3:1\n") == "<text>:1:3: malformed text: not field:index:value");
  CHECK(fault_of(format, "1 0:1:1 3:1:1\n") ==
        "<text>:1:9: malformed text: the field is beyond the fields of the format");
  CHECK(fault_of(format, "1 0:20:1\n") == "<text>:1:5: malformed text: the id is beyond its table");
  CHECK(fault_of(format, "1 0:x:1\n").find("<text>:1:5: malformed text: not an unsigned integer") == 0);
  CHECK(fault_of(format, "1 0:1:x\n") == "<text>:1:7: malformed text: not a number");
  CHECK(fault_of(format, "x 0:1:1\n") == "<text>:1:1: malformed text: not a number");
  CHECK(fault_of(libffm_format{.fields = 1, .first_field = 1}, "1 0:1:1\n").find("beyond the fields") !=
        std::string::npos);
  CHECK_FALSE(libffm_format{.fields = 0}.check().ok());
  CHECK_FALSE(libffm_format{.rows = -1}.check().ok());
  CHECK_FALSE(libffm_format{.first_field = 2}.check().ok());
}

TEST_CASE("feasign: slot:feasign by an option, with the rows of feasign:slot") {
  dice random(65);
  std::string by_sign, by_slot;
  for (int row = 0; row < 100; ++row) {
    const std::string label = random.one_in(3) ? "1" : "0";
    by_sign += label + ":1";
    by_slot += "1:" + label;
    for (index_t n = random.below(8); n > 0; --n) {
      const std::string sign = std::to_string(random.bits()), slot = std::to_string(2 + random.below(6));
      by_sign += " " + sign + ":" + slot;
      by_slot += " " + slot + ":" + sign;
    }
    by_sign += "\n";
    by_slot += "\n";
  }
  feasign_format format(feasign_format::slots(2, 5));
  const outcome expected = parse_all(format, by_sign);
  CHECK(expected.rows.size() == 100);
  format.pairs = feasign_format::pair_order::slot_feasign;
  CHECK(parse_all(format, by_slot).rows == expected.rows);
  CHECK(fault_of(format, "1:0 5\n") == "<text>:1:5: malformed text: not slot:feasign");
  CHECK(fault_of(format, "1:1 2:x\n").find("<text>:1:7: malformed text: not an unsigned integer") == 0);
  CHECK(fault_of(format, "0:1 777:2 778:3\n").find("feasign:slot: no slot is listed, each feasign is") !=
        std::string::npos);
}
