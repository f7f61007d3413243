// What a fault says of itself.

#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

#include <doctest/doctest.h>
#include <limits>
#include <memory>
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

TEST_CASE("status: every code has a sentence of its own") {
  for (int code = 0; code <= static_cast<int>(errc::producer_failed); ++code) {
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

  const io_fault fault{errc::parse_error, "day_0.tsv", 812, 44, "'x' is no number"};
  CHECK(fault.message() == "day_0.tsv:812:44: malformed text: 'x' is no number");
  CHECK(io_fault{errc::io_error, "a.txt", 0, 0, ""}.message() == "a.txt: input or output error");
  CHECK(io_fault{errc::parse_error, "", 3, 0, ""}.message() == ":3: malformed text");
  result<int> bad(fault);
  CHECK_FALSE(bad.ok());
  CHECK(bad.fault().line == 812);
  CHECK_THROWS_WITH_AS(bad.or_throw(), "day_0.tsv:812:44: malformed text: 'x' is no number", error);
  CHECK_THROWS_AS(std::move(bad).or_throw(), error);
}

TEST_CASE("result: a value that only moves comes out whole") {
  result<std::unique_ptr<int>> made(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(made).or_throw();
  CHECK(*taken == 5);
}
