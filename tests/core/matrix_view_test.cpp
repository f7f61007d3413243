// Views: where an element lies, what converts into what, and what must not compile.

#define DEEPREC_CONTRACTS 1  // debug checks, whatever the build; the symbols are this file's own
#include <deeprec/core/contract.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>

#include <doctest/doctest.h>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

using namespace deeprec;

namespace {

template <class From, class To>
constexpr bool converts = std::is_convertible_v<From, To> && std::is_constructible_v<To, From>;
template <class From, class To>
constexpr bool never = !std::is_convertible_v<From, To> && !std::is_constructible_v<To, From>;

using host = matrix_view<float>;
using device = matrix_view<float, device_space>;
using unified = matrix_view<float, unified_space>;
using host_const = matrix_view<const float>;

static_assert(never<host, device> && never<device, host> && never<host, unified> && never<device, unified>);
static_assert(converts<unified, host> && converts<unified, device>);
static_assert(never<device, host_const> && converts<unified, host_const>);
static_assert(converts<host, host_const> && never<host_const, host>);
static_assert(never<matrix_view<double>, host> && never<matrix_view<int>, matrix_view<unsigned>>);
static_assert(reachable_as<unified_space, device_space> && !reachable_as<device_space, unified_space>);
static_assert(std::is_trivially_copyable_v<host> && sizeof(host) == 32);

struct broken_contract : std::logic_error {
  using std::logic_error::logic_error;
};
struct throwing_handler {
  violation_handler before =
      set_violation_handler([](const contract_violation& v) { throw broken_contract(v.condition); });
  throwing_handler() = default;
  throwing_handler(const throwing_handler&) = delete;
  throwing_handler& operator=(const throwing_handler&) = delete;
  ~throwing_handler() { set_violation_handler(before); }
};

}  // namespace

TEST_CASE("matrix_view: element (i, j) lies at data + i * stride + j") {
  std::vector<float> memory(3 * 5);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const matrix_view view(memory.data(), 3, 4, 5);
  static_assert(std::is_same_v<decltype(view), const host>);
  CHECK(view.extent(0) == 3);
  CHECK(view.extent(1) == 4);
  CHECK(view.stride(0) == 5);
  CHECK(view.stride(1) == 1);
  for (index_t i = 0; i < 3; ++i) {
    CHECK(view.row(i) == memory.data() + i * 5);
    for (index_t j = 0; j < 4; ++j) CHECK(view(i, j) == static_cast<float>(i * 5 + j));
  }
  view(2, 3) = -1;
  CHECK(memory[13] == -1);
}

TEST_CASE("matrix_view: slices of rows and columns share the memory") {
  std::vector<float> memory(6 * 4);
  const matrix_view view(memory.data(), 6, 4);
  const auto middle = view.rows(2, 3);
  CHECK(middle.extent(0) == 3);
  CHECK(middle.row(0) == view.row(2));
  const auto right = middle.columns(1, 2);
  CHECK(right.extent(1) == 2);
  CHECK(right.stride(0) == 4);
  CHECK(&right(1, 1) == &view(3, 2));
  CHECK(view.rows(6, 0).empty());
  CHECK(view.columns(4, 0).empty());
  CHECK(matrix_view<float>().empty());
}

TEST_CASE("matrix_view: null data, negative sizes and sizes that memory can't hold are reported") {
  std::vector<float> memory(12);
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  CHECK(host().validate().ok());
  CHECK(host(memory.data(), 3, 4).validate().ok());
  CHECK(host(memory.data() + 8, 3, 4, -4).validate().ok());
  CHECK(host(memory.data(), 1, 4, largest).validate().ok());
  CHECK(host(nullptr, 0, 4).validate().ok());
  CHECK(host(nullptr, largest, 0).validate().ok());
  CHECK(device(memory.data(), 3, 4).validate().ok());
  CHECK(host(nullptr, 3, 4).validate().code() == errc::shape_mismatch);
  CHECK(host(memory.data(), -3, 4).validate().code() == errc::shape_mismatch);
  CHECK(host(memory.data(), 3, -4).validate().code() == errc::shape_mismatch);
  for (const index_t many : {largest, largest / 2, index_t{1} << 62, index_t{1} << 61}) {
    CAPTURE(many);
    for (const index_t other : {index_t{1}, index_t{2}, index_t{4}, index_t{8}, largest}) {
      CHECK(host(memory.data(), many, other).validate().code() == errc::shape_mismatch);
      CHECK(host(memory.data(), other, many).validate().code() == errc::shape_mismatch);
    }
    CHECK(host(memory.data(), 2, 4, many).validate().code() == errc::shape_mismatch);
    CHECK(host(memory.data(), 3, 4, -many).validate().code() == errc::shape_mismatch);
  }
}

TEST_CASE("matrix_view: debug builds report what a correct program can't do") {
  const throwing_handler handler;
  std::vector<float> memory(6);
  const matrix_view view(memory.data(), 2, 3);
  CHECK_THROWS_AS((void)view(2, 0), broken_contract);
  CHECK_THROWS_AS((void)view(0, 3), broken_contract);
  CHECK_THROWS_AS((void)view(-1, 0), broken_contract);
  CHECK_THROWS_AS((void)view.rows(1, 2), broken_contract);
  CHECK_THROWS_AS((void)view.columns(-1, 2), broken_contract);
  CHECK_NOTHROW((void)view(1, 2));
}
