// Jagged batches: the first fault of the offsets, with its place, for every type of id and offset.

#include <deeprec/core/jagged_view.hpp>

#include <doctest/doctest.h>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

using namespace deeprec;

namespace {

template <class From, class To>
constexpr bool never = !std::is_convertible_v<From, To> && !std::is_constructible_v<To, From>;
template <class Space>
using in = jagged_view<std::int64_t, std::int32_t, Space>;
static_assert(never<in<host_space>, in<device_space>> && never<in<device_space>, in<host_space>> &&
              never<in<host_space>, in<unified_space>>);
static_assert(std::is_convertible_v<in<unified_space>, in<host_space>> &&
              std::is_convertible_v<in<unified_space>, in<device_space>>);
template <class View>
constexpr bool can_validate = requires(const View& v) { v.validate(); };
static_assert(can_validate<in<host_space>> && can_validate<in<unified_space>> &&
              !can_validate<in<device_space>>);

template <class Offset>
status validate(std::initializer_list<Offset> offsets, index_t ids) {
  const std::vector<Offset> list(offsets);
  const std::vector<std::uint32_t> memory(64);
  return jagged_view<std::uint32_t, Offset>(list.data(), static_cast<index_t>(list.size()) - 1, memory.data(),
                                            ids)
      .validate();
}

bool is(const status& s, errc code, index_t bag, std::int64_t value) {
  return s.code() == code && s.place() == fault_place{.bag = bag, .value = value};
}

}  // namespace

TEST_CASE_TEMPLATE("jagged_view: the first fault of the offsets is named", Offset, std::int32_t,
                   std::uint32_t, std::int64_t, std::uint64_t) {
  using list = std::initializer_list<Offset>;
  constexpr Offset most = std::numeric_limits<Offset>::max();
  CHECK(validate(list{0, 3, 5, 5, 6}, 6).ok());
  CHECK(validate(list{0, 3, 5, 5, 6}, 7).ok());
  CHECK(validate(list{2, 3, 6}, 6).ok());
  CHECK(validate(list{0}, 6).ok());
  CHECK(validate(list{0, 0, 0}, 0).ok());
  CHECK(is(validate(list{0, 3, 2, 6}, 6), errc::offsets_decreasing, 1, 2));
  CHECK(is(validate(list{0, 6, 5, 4}, 6), errc::offsets_decreasing, 1, 5));
  CHECK(is(validate(list{3, 2}, 6), errc::offsets_decreasing, 0, 2));
  CHECK(is(validate(list{0, 3, 7}, 6), errc::offsets_beyond_ids, 1, 7));
  CHECK(is(validate(list{0, 7, 8}, 6), errc::offsets_beyond_ids, 0, 7));
  CHECK(is(validate(list{7, 7, 7}, 6), errc::offsets_beyond_ids, 0, 7));
  CHECK(is(validate(list{0, 9, 3}, 6), errc::offsets_beyond_ids, 0, 9));
  CHECK(is(validate(list{0, 1}, 0), errc::offsets_beyond_ids, 0, 1));
  CHECK(is(validate(list{0, most}, 6), errc::offsets_beyond_ids, 0, static_cast<std::int64_t>(most)));
  CHECK(is(validate(list{0, most, 2}, 6), errc::offsets_beyond_ids, 0, static_cast<std::int64_t>(most)));
  CHECK(is(validate(list{most, 2}, 6), errc::offsets_beyond_ids, 0, static_cast<std::int64_t>(most)));
}

TEST_CASE_TEMPLATE("jagged_view: a negative first offset is named, a later one decreases", Offset,
                   std::int32_t, std::int64_t) {
  using list = std::initializer_list<Offset>;
  CHECK(is(validate(list{-1, 3}, 6), errc::offsets_negative, 0, -1));
  CHECK(is(validate(list{-5, -3}, 6), errc::offsets_negative, 0, -5));
  CHECK(is(validate(list{0, -1, 3}, 6), errc::offsets_decreasing, 0, -1));
  CHECK(is(validate(list{0, 2, std::numeric_limits<Offset>::min()}, 6), errc::offsets_decreasing, 1,
           static_cast<std::int64_t>(std::numeric_limits<Offset>::min())));
}

TEST_CASE("jagged_view: an unsigned offset beyond 2^63 does not pass as a small one") {
  using list = std::initializer_list<std::uint64_t>;
  constexpr auto half = std::uint64_t{1} << 63;
  CHECK(validate(list{0, half}, 6).code() == errc::offsets_beyond_ids);
  CHECK(validate(list{half, half + 1}, 6).code() == errc::offsets_beyond_ids);
  CHECK(validate(list{0, ~std::uint64_t{0}}, 6).code() == errc::offsets_beyond_ids);
}

TEST_CASE("jagged_view: null pointers and negative sizes are a shape mismatch") {
  const std::int64_t offsets[] = {0, 1};
  const std::int64_t ids[] = {4};
  using view = jagged_view<>;
  CHECK(view().validate().ok());
  CHECK(view(nullptr, 0, nullptr, 0).validate().ok());
  CHECK(view(nullptr, 1, ids, 1).validate().code() == errc::shape_mismatch);
  CHECK(view(offsets, 1, nullptr, 1).validate().code() == errc::shape_mismatch);
  CHECK(view(offsets, -1, ids, 1).validate().code() == errc::shape_mismatch);
  CHECK(view(offsets, 1, ids, -1).validate().code() == errc::shape_mismatch);
  CHECK(view(offsets, 1, ids, 1).validate().ok());
}

TEST_CASE(
    "jagged_view, fixed_hotness_view: more bags or ids than memory can hold are a shape mismatch, and no "
    "number wraps") {
  const std::int64_t numbers[] = {0, 1, 2, 3};
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  for (const index_t many : {largest, largest / 2, index_t{1} << 62, index_t{1} << 61, index_t{1} << 60}) {
    CAPTURE(many);
    CHECK(jagged_view<>(numbers, 1, numbers, many).validate().code() == errc::shape_mismatch);
    CHECK(jagged_view<>(numbers, many, numbers, 1).validate().code() == errc::shape_mismatch);
    CHECK(jagged_view<>::torch(numbers, many, numbers, many).validate().code() == errc::shape_mismatch);
    CHECK_FALSE(jagged_view<>(numbers, many, numbers, many).is_one_hot());
    CHECK_FALSE(fixed_hotness_view<>(numbers, many, 1).is_one_hot());
    for (const index_t other : {index_t{1}, index_t{2}, index_t{4}, index_t{8}, largest}) {
      CHECK(fixed_hotness_view<>(numbers, many, other).validate().code() == errc::shape_mismatch);
      CHECK(fixed_hotness_view<>(numbers, other, many).validate().code() == errc::shape_mismatch);
      CHECK(fixed_hotness_view<>(numbers, other, many).id_count() > 0);
    }
    CHECK(fixed_hotness_view<>(nullptr, many, 0).validate().ok());
    CHECK(fixed_hotness_view<>(nullptr, 0, many).validate().ok());
    CHECK(fixed_hotness_view<std::int32_t>(nullptr, -many, many).validate().code() == errc::shape_mismatch);
  }
  CHECK(fixed_hotness_view<>(numbers, 2, 2).validate().ok());
  CHECK(fixed_hotness_view<>(numbers, 2, 2).id_count() == 4);
}

TEST_CASE("jagged_view: a slice is a batch that shares ids and weights") {
  const std::int32_t offsets[] = {0, 3, 5, 5, 6};
  const std::int64_t ids[] = {7, 1, 9, 4, 4, 8};
  const float weights[] = {1, 2, 3, 4, 5, 6};
  const jagged_view<std::int64_t, std::int32_t> all(offsets, 4, ids, 6, weights);
  CHECK(all.first_position() == 0);
  CHECK(all.end_position() == 6);
  const auto middle = all.slice(1, 2);
  CHECK(middle.bags() == 2);
  CHECK(middle.first_position() == 3);
  CHECK(middle.end_position() == 5);
  CHECK(middle.ids() == all.ids());
  CHECK(middle.weights() == all.weights());
  CHECK(middle.id_count() == 6);
  CHECK(middle.validate().ok());
  CHECK(all.slice(4, 0).validate().ok());
  CHECK(all.slice(4, 0).end_position() == 0);
  for (index_t first = 0; first <= 4; ++first) {
    for (index_t count = 0; first + count <= 4; ++count) {
      CHECK(all.slice(first, count).validate().ok());
    }
  }
}

TEST_CASE_TEMPLATE("jagged_view: one wrong offset is seen at every place of every length", Offset,
                   std::int32_t, std::uint32_t, std::int64_t, std::uint64_t) {
  const std::vector<std::int64_t> ids(64);
  for (index_t bags = 1; bags <= 35; ++bags) {
    CAPTURE(bags);
    std::vector<Offset> offsets;
    for (index_t b = 0; b <= bags; ++b) offsets.push_back(static_cast<Offset>(b + 3));
    const jagged_view<std::int64_t, Offset> batch(offsets.data(), bags, ids.data(), 64);
    const auto implied = jagged_view<std::int64_t, Offset>::torch(offsets.data(), bags, ids.data(), bags + 3);
    CHECK(batch.validate().ok());
    CHECK(batch.is_one_hot());
    CHECK(implied.is_one_hot());
    for (std::size_t place = 0; place < offsets.size(); ++place) {
      CAPTURE(place);
      const Offset right = offsets[place];
      offsets[place] = static_cast<Offset>(right + 1);  // in order still: the next bag is empty
      CHECK(batch.validate().ok());
      CHECK_FALSE(batch.is_one_hot());
      if (place < offsets.size() - 1) {
        offsets[place] = static_cast<Offset>(right + 2);  // beyond the next one
        CHECK(is(batch.validate(), errc::offsets_decreasing, static_cast<index_t>(place),
                 static_cast<std::int64_t>(right) + 1));
        CHECK_FALSE(implied.is_one_hot());
      }
      offsets[place] = right;
    }
  }
  const std::vector<Offset> gap{0, 1, 3, 4};
  CHECK_FALSE(jagged_view<std::int64_t, Offset>(gap.data(), 3, ids.data(), 64).is_one_hot());
}
