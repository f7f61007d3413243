// Rows kept once and laid out again, against a std::map of byte strings.
#include <deeprec/ops/dedup_rows.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory_resource>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::guarded;
using deeprec_test::seed;

namespace {

struct three_bytes {
  unsigned char b[3];
};

template <class T, class Index>
bool agrees(matrix_view<const T> in, const unique_rows<Index>& out) {
  std::map<std::string, std::size_t> numbers;
  std::vector<index_t> first;
  if (static_cast<index_t>(out.inverse.size()) != in.extent(0)) return false;
  for (index_t b = 0; b < in.extent(0); ++b) {
    std::string bytes(static_cast<std::size_t>(in.extent(1)) * sizeof(T), '\0');
    if (!bytes.empty()) std::memcpy(bytes.data(), in.row(b), bytes.size());
    const auto [found, is_new] = numbers.try_emplace(bytes, first.size());
    if (is_new) first.push_back(b);
    if (static_cast<std::size_t>(out.inverse[static_cast<std::size_t>(b)]) != found->second) return false;
  }
  return std::vector<index_t>(out.rows.begin(), out.rows.end()) == first;
}

/// Rows of `width` elements drawn from `kinds` different ones, in memory with `gap` elements between them
/// that ends at a guard page.
template <class T>
struct random_rows {
  random_rows(std::mt19937_64& random, index_t rows, index_t width, index_t gap, index_t kinds)
      : memory(static_cast<std::size_t>(rows > 0 ? rows * (width + gap) - gap : 0)),
        view(memory.data(), rows, width, width + gap) {
    std::memset(static_cast<void*>(memory.data()), 0xee, memory.size() * sizeof(T));
    for (index_t b = 0; b < rows; ++b) {
      std::mt19937_64 of_kind(random() % static_cast<std::uint64_t>(kinds));
      for (index_t j = 0; j < width; ++j) {
        const std::uint64_t bits = of_kind();
        std::memcpy(static_cast<void*>(&view(b, j)), &bits, sizeof(T));
      }
    }
  }
  guarded<T> memory;
  matrix_view<T> view;
};

template <class T, class Index>
void check_type(std::uint64_t salt) {
  std::mt19937_64 random(seed() + salt);
  unique_rows<Index> out;
  for (const index_t rows : {0, 1, 17, 900}) {
    for (const index_t width : {0, 1, 3, 16, 33}) {
      for (const index_t gap : {0, 5}) {
        for (const index_t kinds : {1, 10, 100'000}) {
          CAPTURE(rows);
          CAPTURE(width);
          CAPTURE(kinds);
          const random_rows<T> in(random, rows, width, gap, kinds);
          REQUIRE(dedup_rows(inline_executor{}, in.view, out).ok());
          CHECK(agrees<T>(in.view, out));
          // Taken apart and laid out again.
          const auto few = static_cast<index_t>(out.rows.size());
          guarded<T> once(static_cast<std::size_t>(few * width));
          guarded<T> again(static_cast<std::size_t>(rows * width));
          const matrix_view<T> kept(once.data(), few, width), laid(again.data(), rows, width);
          REQUIRE(gather_rows(inline_executor{}, in.view, out.rows, kept).ok());
          REQUIRE(gather_rows(inline_executor{}, kept, out.inverse, laid).ok());
          bool same = true;
          for (index_t b = 0; b < rows && width > 0; ++b) {
            same &=
                std::memcmp(laid.row(b), in.view.row(b), static_cast<std::size_t>(width) * sizeof(T)) == 0;
          }
          CHECK(same);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("dedup_rows: rows of any type are kept once, in order, and gather_rows lays them out again") {
  check_type<float, std::int64_t>(320);
  check_type<three_bytes, std::int32_t>(321);
  check_type<std::int64_t, std::uint32_t>(322);
  check_type<bf16, std::int32_t>(323);
}

TEST_CASE("dedup_rows: rows are compared by their bytes") {
  std::vector<float> values{0.0F, -0.0F, std::nanf("1"), std::nanf("1"), std::nanf("2")};
  unique_rows<> out;
  REQUIRE(dedup_rows(inline_executor{}, matrix_view(values.data(), 5, 1), out).ok());
  CHECK(out.rows == std::pmr::vector<std::int64_t>{0, 1, 2, 4});
  CHECK(out.inverse == std::pmr::vector<std::int64_t>{0, 1, 2, 2, 3});
}

TEST_CASE("dedup_rows, gather_rows: 1 to 8 threads give the same, over many pieces") {
  std::mt19937_64 random(seed() + 324);
  const random_rows<float> in(random, 40'000, 24, 3, 9000);
  unique_rows<std::int32_t> expected, out;
  REQUIRE(dedup_rows(inline_executor{}, in.view, expected).ok());
  CHECK(agrees<float>(in.view, expected));
  for (const int threads : {1, 2, 3, 8}) {
    thread_pool pool(threads);
    REQUIRE(dedup_rows(pool, in.view, out).ok());
    CHECK(out.rows == expected.rows);
    CHECK(out.inverse == expected.inverse);
    std::vector<float> once(out.rows.size() * 24), again(40'000 * 24);
    const matrix_view kept(once.data(), static_cast<index_t>(out.rows.size()), 24);
    const matrix_view laid(again.data(), 40'000, 24);
    REQUIRE(gather_rows(pool, in.view, out.rows, kept).ok());
    REQUIRE(gather_rows(pool, kept, out.inverse, laid).ok());
    bool same = true;
    for (index_t b = 0; b < 40'000; ++b) same &= std::memcmp(laid.row(b), in.view.row(b), 96) == 0;
    CHECK(same);
  }
}

TEST_CASE("dedup_rows: the comparison catches a row that was merged with another one") {
  std::mt19937_64 random(seed() + 325);
  const random_rows<float> in(random, 200, 8, 0, 100'000);
  unique_rows<> out;
  // A dedup that looks at the first seven columns only.
  auto narrow = in.view;
  for (index_t j = 0; j < 7; ++j) narrow(5, j) = narrow(3, j);
  REQUIRE(dedup_rows(inline_executor{}, in.view.columns(0, 7), out).ok());
  CHECK_FALSE(agrees<float>(in.view, out));
}

TEST_CASE("dedup_rows: rows that were chosen against its hash are compared no more often than others") {
  struct counted_rows : detail::row_keys<std::uint64_t, std::int64_t> {
    std::size_t* compared;
    bool same(index_t k, std::uint32_t number) const {
      ++*compared;
      return row_keys::same(k, number);
    }
  };
  constexpr index_t n = 4000;
  std::vector<std::uint64_t> memory;
  for (std::uint64_t k = 0; k < n; ++k) {
    // hash_bytes multiplies by (first word ^ key[1]): 0, whatever the second word and the seed are.
    memory.insert(memory.end(), {detail::hash_key[1], k, 1, 2});
  }
  const matrix_view<const std::uint64_t> rows(memory.data(), n, 4);
  std::vector<std::uint64_t> hashes(n);
  inline_executor here;
  detail::hash_rows(context(here), rows, hashes.data());
  std::pmr::vector<std::int64_t> first;
  std::vector<std::uint32_t> table(detail::key_entries(n));
  std::vector<std::int64_t> numbers(n);
  std::size_t compared = 0;
  const counted_rows keys{{rows, hashes.data(), first}, &compared};
  detail::number_keys(std::span<std::uint32_t>(table), n, keys, numbers.data());
  CHECK(first.size() == n);
  CHECK(compared < 8 * n);
}

TEST_CASE("dedup_rows: sizes that memory can't hold, and null rows, are a shape mismatch") {
  const std::vector<double> memory(8);
  unique_rows<> out;
  out.rows = {5};
  const inline_executor here;
  for (const index_t width : {index_t{1} << 60, index_t{1} << 61, index_t{1} << 62}) {  // of 8 bytes each
    CHECK(dedup_rows(here, matrix_view<const double>(memory.data(), 2, width), out).code() ==
          errc::shape_mismatch);
  }
  CHECK(dedup_rows(here, matrix_view<const double>(nullptr, 2, 4), out).code() == errc::shape_mismatch);
  CHECK(dedup_rows(here, matrix_view<const double>(memory.data(), -1, 4), out).code() ==
        errc::shape_mismatch);
  CHECK(out.rows == std::pmr::vector<std::int64_t>{5});
}

TEST_CASE("gather_rows: the first number outside is named, and nothing is written") {
  std::vector<float> rows{1, 2, 3, 4};  // (2, 2)
  std::vector<float> memory(200'000 * 2, -1.0F);
  const matrix_view from(rows.data(), 2, 2);
  const matrix_view to(memory.data(), 200'000, 2);
  std::vector<std::int32_t> numbers(200'000);
  numbers[199'999] = 2;
  numbers[150'000] = -1;
  for (const int threads : {1, 4}) {
    thread_pool pool(threads);
    const status s = gather_rows(pool, from, numbers, to);
    CHECK(s.message() ==
          "id out of range: gather_rows: inverse must be in [0, U); position 150000, value -1");
    CHECK(memory == std::vector<float>(200'000 * 2, -1.0F));
  }
  const inline_executor here;
  CHECK(gather_rows(here, from, numbers, to.rows(0, 5)).code() == errc::shape_mismatch);
  CHECK(gather_rows(here, from.columns(0, 1), numbers, to).code() == errc::shape_mismatch);
  CHECK(gather_rows(here, matrix_view(rows.data(), 0, 2), std::vector<int>{0}, to.rows(0, 1)).code() ==
        errc::id_out_of_range);
  CHECK(gather_rows(here, matrix_view(rows.data(), 0, 2), std::vector<int>{}, to.rows(0, 0)).ok());
}

TEST_CASE("dedup_rows: the users of a batch") {
  const inline_executor here;
  const auto model = [](matrix_view<const float> in, matrix_view<float> to) {
    for (index_t b = 0; b < in.extent(0); ++b) to(b, 0) = in(b, 0) + 10 * in(b, 1);
  };
  std::vector<float> memory{1, 2, 3, 4, 1, 2, 1, 2, 3, 4};
  std::vector<float> room(10), results(5), scores(5);
  const matrix_view users(memory.data(), 5, 2);
  //! [dedup_rows]
  unique_rows<> found;
  dedup_rows(here, users, found).or_throw();
  const auto few = static_cast<index_t>(found.rows.size());
  const matrix_view kept(room.data(), few, 2);
  gather_rows(here, users, found.rows, kept).or_throw();
  model(kept, matrix_view(results.data(), few, 1));  // for every user once
  gather_rows(here, matrix_view(results.data(), few, 1), found.inverse, matrix_view(scores.data(), 5, 1))
      .or_throw();
  //! [dedup_rows]
  CHECK(few == 2);
  CHECK(scores == std::vector<float>{21, 43, 21, 21, 43});
}
