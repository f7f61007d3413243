// Views of arrays: what converts into what, where elements are, and which sizes are valid.

#define DEEPREC_CONTRACTS 1  // debug checks, whatever the build; the symbols are this file's own
#include <deeprec/core/array_view.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/space.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

using namespace deeprec;

namespace {

template <class From, class To>
constexpr bool converts = std::is_convertible_v<From, To> && std::is_constructible_v<To, From>;
template <class From, class To>
constexpr bool never = !std::is_convertible_v<From, To> && !std::is_constructible_v<To, From>;

using host = array_view<int>;
using device = array_view<int, device_space>;
using unified = array_view<int, unified_space>;
using host_const = array_view<const int>;
using device_const = array_view<const int, device_space>;

static_assert(never<host, device> && never<device, host> && never<host, unified> && never<device, unified>);
static_assert(converts<unified, host> && converts<unified, device>);
static_assert(never<device, host_const> && converts<unified, host_const> && converts<device, device_const>);
static_assert(converts<host, host_const> && never<host_const, host> && never<device_const, device>);
static_assert(never<array_view<float>, host> && never<array_view<unsigned>, host>);

// Containers and spans are host memory, with the rules of std::span.
static_assert(converts<std::vector<int>&, host> && converts<const std::vector<int>&, host_const>);
static_assert(never<const std::vector<int>&, host> && never<std::vector<int>, host>);
static_assert(converts<std::vector<int>, host_const>, "of an argument that lives as long as the call");
static_assert(converts<std::span<int>, host> && converts<std::span<int>, host_const>);
static_assert(converts<std::span<int, 4>, host> && never<std::span<const int>, host>);
static_assert(converts<std::array<int, 4>&, host> && converts<int (&)[4], host>);
static_assert(never<std::vector<int>&, device> && never<std::span<int>, device> &&
              never<std::span<int>, unified>);
static_assert(never<std::vector<bool>&, array_view<bool>> && never<std::vector<float>&, host>);

// And it is a span again, on the host only.
static_assert(converts<host, std::span<int>> && converts<host, std::span<const int>> &&
              converts<unified, std::span<int>> && never<device, std::span<int>>);
static_assert(std::ranges::contiguous_range<host> && std::ranges::borrowed_range<host> &&
              !std::ranges::range<device>);
static_assert(IdRange<host_const> && IdRange<device_const> && IdRange<std::vector<int>> &&
              !IdRange<array_view<float>>);
static_assert(std::is_same_v<decltype(id_view(device())), device_const> &&
              std::is_same_v<decltype(id_view(std::vector<int>())), host_const>);

static_assert(std::is_trivially_copyable_v<device> && sizeof(device) == 16);
static_assert(std::is_same_v<decltype(array_view(std::declval<std::vector<int>&>())), host> &&
              std::is_same_v<decltype(array_view(std::declval<const std::vector<int>&>())), host_const> &&
              std::is_same_v<decltype(array_view(std::declval<int*>(), 3)), host>);
static_assert(std::is_same_v<decltype(array_view(std::declval<unified&>())), unified> &&
              std::is_same_v<decltype(array_view(std::declval<device>())), device>);

[[noreturn]] void throw_violation(const contract_violation& violation) {
  throw std::logic_error(violation.condition);
}

}  // namespace

TEST_CASE("array_view: elements, parts and bytes of an array") {
  std::vector<std::int64_t> values{7, 1, 9, 4};
  const array_view<std::int64_t> all(values);
  CHECK(all.data() == values.data());
  CHECK(all.size() == 4);
  CHECK(all.size_bytes() == 32);
  all[2] = 8;
  CHECK(values[2] == 8);
  const array_view<const std::int64_t> part = all.subview(1, 2);
  CHECK(part.data() == values.data() + 1);
  CHECK(std::vector<std::int64_t>(part.begin(), part.end()) == std::vector<std::int64_t>{1, 8});
  CHECK(all.subview(4, 0).empty());
  CHECK(std::span<const std::int64_t>(part).size() == 2);
  CHECK(id_view(values).size() == 4);
  const array_view<float, device_space> none;
  CHECK(none.empty());
  CHECK(none.data() == nullptr);
  const array_view<float, device_space> elsewhere(reinterpret_cast<float*>(std::uintptr_t{64}), 10);
  CHECK(elsewhere.subview(3, 7).data() == elsewhere.data() + 3);
}

TEST_CASE("array_view: valid is false for null data, negative sizes and more than memory can hold") {
  double x = 0;
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  CHECK(array_view<double>().valid());
  CHECK(array_view<double>(&x, 1).valid());
  CHECK(array_view<double>(&x, 0).valid());
  CHECK_FALSE(array_view<double>(nullptr, 1).valid());
  CHECK_FALSE(array_view<double>(&x, -1).valid());
  CHECK(array_view<double, device_space>(&x, largest / 16).valid());
  CHECK_FALSE(array_view<double, device_space>(&x, largest / 4).valid());
  CHECK(array_view<double>(&x, largest).size_bytes() > 0);
}

TEST_CASE("array_view: an element or a part outside breaks the contract") {
  int values[3] = {1, 2, 3};
  const array_view<int> view(values);
  const violation_handler before = set_violation_handler(throw_violation);
  CHECK_THROWS_AS(static_cast<void>(view[3]), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(view[-1]), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(view.subview(2, 2)), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(view.subview(-1, 1)), std::logic_error);
  set_violation_handler(before);
}
