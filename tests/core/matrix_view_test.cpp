// Views: where an element lies, what converts into what, and what must not compile.

#define DEEPREC_CONTRACTS 1  // debug checks, whatever the build; the symbols are this file's own
#include <deeprec/core/contract.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

#include <doctest/doctest.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
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

TEST_CASE("matrix_view: validate names the rule that is broken") {
  std::vector<float> memory(12);
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  constexpr index_t most = (most_size - 1) / 8;  // elements of up to 8 bytes
  constexpr auto permitted = row_overlap::permitted;
  const auto says = [](const auto& view, std::string_view text, row_overlap overlap = row_overlap::refused) {
    const status s = view.validate("x must not be null", overlap);
    return detail::well_formed(view) == view.validate().ok() && s.code() == errc::shape_mismatch &&
           s.message().find(text) != std::string::npos;
  };
  const auto fits = [](const auto& view) {
    return view.validate().ok() && detail::well_formed(view) && view.validate("", permitted).ok();
  };

  CHECK(fits(host()));
  CHECK(fits(host(memory.data(), 3, 4)));
  CHECK(fits(host(memory.data(), 3, 2, 4)));
  CHECK(fits(device(memory.data(), 3, 4)));
  static_assert(host().validate().ok());

  const auto extents = "extents must not be negative";
  CHECK(says(host(memory.data(), -3, 4), extents));
  CHECK(says(host(memory.data(), 3, -4), extents));
  CHECK(says(host(nullptr, -1, 0), extents));
  CHECK(says(host(memory.data(), -largest - 1, largest), extents));

  CHECK(says(host(nullptr, 3, 4), "x must not be null"));
  CHECK(host(nullptr, 3, 4).validate().message().find("data must not be null") != std::string::npos);

  const auto stride = "the row stride must be at least the columns";
  for (const index_t step : {index_t{3}, index_t{0}, index_t{-4}, -largest, -largest - 1}) {
    CAPTURE(step);
    CHECK(says(host(memory.data() + 8, 2, 4, step), stride));
    CHECK(fits(host(memory.data(), 1, 4, step)));  // of one row the stride means nothing
    if (step >= 0) {
      CHECK(host(memory.data(), 3, 4, step).validate("", permitted).ok());
    } else {
      CHECK(says(host(memory.data() + 8, 3, 4, step), "the row stride must not be negative", permitted));
    }
  }
  CHECK(fits(host(memory.data(), 1, 4, largest)));

  const auto too_large = "elements must fit in memory";
  for (const index_t many : {largest, largest / 2, index_t{1} << 61, most + 1}) {
    CAPTURE(many);
    for (const index_t other : {index_t{1}, index_t{2}, index_t{4}, index_t{8}, largest}) {
      for (const row_overlap overlap : {row_overlap::refused, permitted}) {
        CHECK(says(host(memory.data(), many, other), too_large, overlap));
        CHECK(says(host(memory.data(), other, many), too_large, overlap));
        CHECK(says(host(memory.data(), 2, 4, many), too_large, overlap));
      }
      CHECK(says(host(memory.data(), many, other, 0), too_large, permitted));
    }
  }
  // The largest that fits, in each direction; small elements and large ones.
  CHECK(fits(host(memory.data(), most, 1)));
  CHECK(fits(host(memory.data(), 1, most)));
  CHECK(fits(host(memory.data(), 2, 4, most - 4)));
  CHECK(says(host(memory.data(), 2, 4, most - 3), too_large));
  char byte = 0;
  CHECK(fits(matrix_view<char>(&byte, most, 1)));
  CHECK(says(matrix_view<char>(&byte, most + 1, 1), too_large));
  struct wide {
    double x[4];
  };
  wide four{};
  CHECK(fits(matrix_view<wide>(&four, most / 4, 1)));
  CHECK(says(matrix_view<wide>(&four, most / 4 + 1, 1), too_large));

  // Without elements, data and stride mean nothing.
  CHECK(fits(host(nullptr, 0, 4)));
  CHECK(fits(host(nullptr, largest, 0)));
  CHECK(fits(host(nullptr, 0, largest, -largest)));
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
