// Lists of entries: the first fault with its place, TensorFlow's indices, and the space in the type.

#include <deeprec/core/coo_view.hpp>

#include <doctest/doctest.h>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

using namespace deeprec;

namespace {

template <class From, class To>
constexpr bool never = !std::is_convertible_v<From, To> && !std::is_constructible_v<To, From>;
template <class Space>
using in = coo_view<std::int64_t, std::int32_t, Space>;
static_assert(never<in<host_space>, in<device_space>> && never<in<device_space>, in<host_space>>);
static_assert(std::is_convertible_v<in<unified_space>, in<host_space>> &&
              std::is_convertible_v<in<unified_space>, in<device_space>>);
template <class View>
constexpr bool can_validate = requires(const View& v) { v.validate(); };
static_assert(can_validate<in<host_space>> && can_validate<in<unified_space>> &&
              !can_validate<in<device_space>>);

}  // namespace

TEST_CASE_TEMPLATE("coo_view: the first row outside of the batch is named", Row, std::int32_t, std::uint32_t,
                   std::int64_t, std::uint64_t) {
  std::vector<Row> rows{2, 0, 2, 3};
  const std::vector<std::int32_t> ids{9, -1, 4, 1};
  const auto validate = [&](index_t bags) {
    return coo_view<std::int32_t, Row>(rows.data(), ids.data(), 4, bags).validate();
  };
  CHECK(validate(4).ok());
  CHECK(validate(3).code() == errc::invalid_value);
  CHECK(validate(3).place() == fault_place{.position = 3, .value = 3});
  CHECK(validate(3).message() ==
        "invalid value: coo_view: the row of an entry must be in [0, B); position 3, value 3");
  CHECK(validate(0).place() == fault_place{.position = 0, .value = 2});
  for (const Row bad : {static_cast<Row>(-1), std::numeric_limits<Row>::max()}) {
    rows[1] = bad;
    CHECK(validate(4).place() == fault_place{.position = 1, .value = static_cast<std::int64_t>(bad)});
  }
}

TEST_CASE("coo_view: null pointers and negative sizes are reported, and no entries are fine") {
  const std::vector<std::int64_t> memory(4);
  CHECK(coo_view<>().validate().ok());
  CHECK(coo_view<>(nullptr, nullptr, 0, 7).validate().ok());
  CHECK(coo_view<>(nullptr, memory.data(), 2, 7).validate().message() ==
        "shape mismatch: coo_view: rows must not be null");
  CHECK(coo_view<>(memory.data(), nullptr, 2, 7).validate().message() ==
        "shape mismatch: coo_view: ids must not be null");
  CHECK(coo_view<>(memory.data(), memory.data(), -1, 7).validate().code() == errc::shape_mismatch);
  CHECK(coo_view<>(memory.data(), memory.data(), 0, -1).validate().code() == errc::shape_mismatch);
  for (const int bits : {60, 61, 62}) {
    const index_t many = index_t{1} << bits;
    CHECK(coo_view<>(memory.data(), memory.data(), many, 7).validate_shape().code() == errc::shape_mismatch);
    CHECK(coo_view<>::tensorflow(memory.data(), memory.data(), many / 2, 7).validate_shape().code() ==
          errc::shape_mismatch);
  }
}

TEST_CASE("coo_view: the indices of a tf.SparseTensor are read in place") {
  const std::vector<std::int64_t> indices{0, 5, 2, 0, 1, 9};  // (3, 2): bag, column
  const std::vector<std::int64_t> ids{7, 8, 9};
  const std::vector<float> weights{1, 2, 3};
  const auto coo = coo_view<>::tensorflow(indices.data(), ids.data(), 3, 3, weights.data());
  CHECK(coo.validate().ok());
  CHECK(coo.row(0) == 0);
  CHECK(coo.row(1) == 2);
  CHECK(coo.row(2) == 1);
  CHECK(coo.weights() == weights.data());
  CHECK(coo_view<>::tensorflow(indices.data(), ids.data(), 3, 2).validate().place() ==
        fault_place{.position = 1, .value = 2});
  const coo_view<std::int64_t, std::int64_t, unified_space> shared =
      coo_view<std::int64_t, std::int64_t, unified_space>::tensorflow(indices.data(), ids.data(), 3, 3);
  CHECK(coo_view<>(shared).row(1) == 2);
}
