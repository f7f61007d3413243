// What a fault says of itself.

#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

#include <doctest/doctest.h>
#include <any>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

using namespace deeprec;

TEST_CASE("status: the default is success") {
  const status s;
  CHECK(s.ok());
  CHECK(static_cast<bool>(s));
  CHECK(s.code() == errc::ok);
  CHECK(s.message() == "ok");
  CHECK(s.in_table(3).place() == fault_place{});
  CHECK_NOTHROW(s.or_throw());
  static_assert(std::is_trivially_copyable_v<status>);
  static_assert(!std::is_convertible_v<status, bool>);
}

TEST_CASE("status: the message names the place, outermost first") {
  const status bad(errc::id_out_of_range, {.bag = 17, .position = 402, .value = -1});
  CHECK(bad.message() == "id out of range: bag 17, position 402, value -1");
  CHECK(bad.in_table(3).message() == "id out of range: table 3, bag 17, position 402, value -1");
  CHECK(bad.place().table == -1);
  CHECK(status(errc::shape_mismatch, "out must not be null").message() ==
        "shape mismatch: out must not be null");
  CHECK(status(errc::offsets_decreasing, {.bag = 4, .value = 9}).message() ==
        "offsets decrease: bag 4, value 9");
  CHECK(status(errc::weight_is_nan, {.bag = 0, .position = 7}).message() ==
        "weight is not a number: bag 0, position 7");
  CHECK(status(errc::invalid_value, "labels", {.position = 12}).message() ==
        "invalid value: labels; position 12");
  CHECK(status(errc::invalid_value, "used and not released", {.item = 0}).message() ==
        "invalid value: used and not released; item 0");
  CHECK(detail::expect_size(3, std::size_t{3}, "f: sizes must be equal").ok());
  const status size =
      detail::expect_size(32, std::size_t{64}, "lookup: out.extent(1) must be the row width D");
  CHECK(size.message() ==
        "shape mismatch: lookup: out.extent(1) must be the row width D (is 32, must be 64)");
  CHECK(size.in_table(2).message() ==
        "shape mismatch: lookup: out.extent(1) must be the row width D; table 2 (is 32, must be 64)");
  CHECK(detail::expect_size(-1, 0, "f").message() == "shape mismatch: f (is -1, must be 0)");
  CHECK(status(errc::id_out_of_range, {.position = 12, .value = -3}).message() ==
        "id out of range: position 12, value -3");
  CHECK(status(errc::id_out_of_range,
               {.bag = 0, .position = 0, .value = std::numeric_limits<std::int64_t>::min()})
            .message() == "id out of range: bag 0, position 0, value -9223372036854775808");
}

TEST_CASE("status: the message names the operation, once, and a place in a file first") {
  const status bad(errc::id_out_of_range, {.table = 1, .bag = 17, .position = 402, .value = -1});
  CHECK(bad.in_operation("lookup").message() ==
        "id out of range: lookup: table 1, bag 17, position 402, value -1");
  CHECK(bad.in_operation("lookup").place() == bad.place());
  CHECK(bad.place().operation == nullptr);
  CHECK(std::string(bad.in_operation("gather").in_operation("fused_lookup").place().operation) == "gather");
  CHECK(status(errc::closed, nullptr).in_operation("take").message() == "closed: take");
  const status named(errc::shape_mismatch, "gather: out must not be null");
  CHECK(named.in_operation("gather").message() == named.message());
  CHECK(named.in_operation("gath").message() == "shape mismatch: gath: gather: out must not be null");
  CHECK(status(errc::invalid_value, "labels", {.position = 12, .rank = 3}).in_operation("auc").message() ==
        "invalid value: auc: labels; rank 3, position 12");
  CHECK(status().in_operation("lookup").ok());
  CHECK(status().in_operation("lookup").place().operation == nullptr);
  CHECK(status(errc::parse_error, "not a number", {.line = 812, .column = 44}).message() ==
        ":812:44: malformed text: not a number");
  CHECK(status(errc::invalid_value, "quantize", {.row = 2, .column = 0}).message() ==
        "invalid value: quantize; row 2, column 0");
  CHECK(status(errc::parse_error, "the line is too long", {.line = 1, .at_most = 80}).message() ==
        ":1: malformed text: the line is too long (must be at most 80)");
}

TEST_CASE("status: places are the same where every number is") {
  const fault_place place{.operation = "a", .table = 1, .bag = 2};
  CHECK(place == fault_place{.operation = "b", .table = 1, .bag = 2});
  index_t fault_place::* const numbers[] = {
      &fault_place::table, &fault_place::bag,     &fault_place::position, &fault_place::value,
      &fault_place::row,   &fault_place::line,    &fault_place::column,   &fault_place::item,
      &fault_place::is,    &fault_place::must_be, &fault_place::at_most};
  for (const auto number : numbers) {
    fault_place other = place;
    other.*number += 5;
    CHECK(place != other);
  }
  fault_place other = place;
  other.rank = 0;
  CHECK(place != other);
}

TEST_CASE("status: every code has a sentence of its own") {
  for (int code = 0; code <= static_cast<int>(errc::stopped); ++code) {
    const std::string text = to_string(static_cast<errc>(code));
    CHECK(text != "unknown error");
    for (int other = 0; other < code; ++other) CHECK(text != to_string(static_cast<errc>(other)));
  }
  CHECK(to_string(static_cast<errc>(250)) == std::string("unknown error"));
}

TEST_CASE("status: or_throw throws the message and the code") {
  const status bad(errc::id_out_of_range, {.bag = 1, .position = 2, .value = 3});
  try {
    bad.or_throw();
    FAIL("no exception");
  } catch (const error& e) {
    CHECK(e.code() == errc::id_out_of_range);
    CHECK(e.what() == bad.message());
  }
}

TEST_CASE("result: holds a value or says file, line and column") {
  result<int> good(7);
  CHECK(good.ok());
  CHECK(good.value() == 7);
  CHECK(good.or_throw() == 7);
  good.or_throw() = 8;
  CHECK(good.value() == 8);

  const status why(errc::parse_error, "'x' is no number", {.line = 812, .column = 44});
  CHECK(fault(why, "day_0.tsv").message() == "day_0.tsv:812:44: malformed text: 'x' is no number");
  CHECK(fault(errc::io_error, "", "a.txt").message() == "a.txt: input or output error");
  CHECK(fault(errc::io_error, "busy").in_file("a.txt").in_operation("save").message() ==
        "a.txt: input or output error: save: busy");
  CHECK(fault(why).message() == why.message());
  CHECK(fault(why).reason() == "'x' is no number");
  result<int> bad(fault(why, "day_0.tsv"));
  CHECK_FALSE(bad.ok());
  CHECK(bad.code() == errc::parse_error);
  CHECK(good.code() == errc::ok);
  CHECK(bad.fault().place().line == 812);
  const status as_status = bad.fault();
  CHECK(as_status.message() == why.message());
  CHECK_THROWS_WITH_AS(bad.or_throw(), "day_0.tsv:812:44: malformed text: 'x' is no number", error);
  CHECK_THROWS_AS(std::move(bad).or_throw(), error);
}

TEST_CASE("result: what converts to the value is a value") {
  const auto next = [](int k) -> result<std::optional<std::string>> {
    if (k == 0) return std::nullopt;
    if (k == 1) return std::string("one");
    if (k == 2) return "two";
    if (k == 3) return status(errc::closed, "three");
    return fault(status(errc::io_error, "four"), "file");
  };
  CHECK((next(0).ok() && !next(0).value().has_value()));
  CHECK(next(1).value() == "one");
  CHECK(next(2).value() == "two");
  CHECK(next(3).code() == errc::closed);
  CHECK(next(4).code() == errc::io_error);
  const result<index_t> number = 7;
  CHECK(number.value() == 7);
  // A type that is made from anything: a fault and a status are no value of it.
  const auto anything = [](int k) -> result<std::any> {
    const fault refused(status(errc::io_error, "five"), "file");
    const status closed(errc::closed, "six");
    if (k == 0) return refused;
    if (k == 1) return closed;
    return 5;
  };
  CHECK(anything(0).code() == errc::io_error);
  CHECK(anything(1).code() == errc::closed);
  CHECK(std::any_cast<int>(anything(2).value()) == 5);
}

TEST_CASE("result: a value that only moves comes out whole") {
  result<std::unique_ptr<int>> made(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(made).or_throw();
  CHECK(*taken == 5);
}

TEST_CASE("result: a status is enough, and a value is not needed") {
  const auto half = [](int n) -> result<int> {
    if (n % 2 != 0) return status(errc::invalid_value, "half: n must be even", {.value = n});
    return n / 2;
  };
  CHECK(half(4).value() == 2);
  CHECK(half(3).fault().message() == "invalid value: half: n must be even; value 3");
  CHECK(half(3).message() == half(3).fault().message());
  CHECK(half(4).message() == "ok");
  CHECK(result<void>().message() == "ok");
  CHECK(result<void>(status(errc::invalid_value, "half: n must be even")).message() ==
        "invalid value: half: n must be even");
  CHECK(result<void>().ok());
  CHECK(result<void>(status()).ok());
  CHECK(result<void>(status()).code() == errc::ok);
  CHECK_NOTHROW(result<void>().or_throw());
  const result<void> bad = fault(errc::io_error, "refused", "a.txt");
  CHECK_FALSE(bad.ok());
  CHECK(bad.code() == errc::io_error);
  CHECK_THROWS_WITH_AS(bad.or_throw(), "a.txt: input or output error: refused", error);
  CHECK(result<void>(status(errc::closed, nullptr)).code() == errc::closed);
}
