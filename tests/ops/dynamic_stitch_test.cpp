#include <deeprec/ops/dynamic_stitch.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ops/support.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;
using namespace ops_test;

namespace {

struct library {
  index_t stream_above = never;
  template <class Context, class Index, class T>
  status operator()(const Context& ctx, const std::vector<array_view<const Index>>& indices,
                    const std::vector<matrix_view<const T>>& data, matrix_view<T> out) const {
    return streaming_above(stream_above, ctx,
                           [&](const Context& on) { return dynamic_stitch(on, indices, data, out); });
  }
};

// Operands with rows of random bytes, each in memory of its own that touches a page without access.
template <class Index, class T>
struct operands {
  std::vector<guarded<Index>> numbers;
  std::vector<guarded<T>> rows;
  std::vector<array_view<const Index>> indices;
  std::vector<matrix_view<const T>> data;

  void add(std::mt19937_64& random, const std::vector<Index>& list, index_t width, index_t gap) {
    const fence side = random() % 2 == 0 ? fence::before : fence::behind;
    const auto count = static_cast<index_t>(list.size());
    numbers.push_back(guarded<Index>::copy_of(list, side));
    rows.emplace_back(list.empty() ? 0 : static_cast<std::size_t>((count - 1) * (width + gap) + width), side);
    auto* const bytes = static_cast<unsigned char*>(static_cast<void*>(rows.back().data()));
    for (std::size_t i = 0; i < rows.back().size() * sizeof(T); ++i) {
      bytes[i] = static_cast<unsigned char>(random());
    }
    indices.emplace_back(numbers.back().data(), count);
    data.emplace_back(rows.back().data(), count, width, width + gap);
  }
};

// The oracle: one row after the other, into a copy of out's memory.
template <class Index, class T>
void stitch_by_memcpy(const operands<Index, T>& given, matrix_view<T> out) {
  for (std::size_t k = 0; k < given.data.size(); ++k) {
    for (index_t i = 0; i < given.data[k].extent(0); ++i) {
      std::memcpy(out.row(static_cast<index_t>(given.indices[k][i])), given.data[k].row(i),
                  static_cast<std::size_t>(out.extent(1)) * sizeof(T));
    }
  }
}

// True when out, its other rows and its gaps are what the oracle makes.
template <class Index, class T, class Context, class Implementation>
bool is_right(const Context& ctx, const Implementation& implementation, const operands<Index, T>& given,
              index_t rows, index_t width, index_t gap, fence side) {
  const auto size = rows == 0 ? std::size_t{0} : static_cast<std::size_t>((rows - 1) * (width + gap) + width);
  guarded<T> memory(size, side);
  std::memset(static_cast<void*>(memory.data()), 0x5a, size * sizeof(T));
  guarded<T> expected(size);
  std::memset(static_cast<void*>(expected.data()), 0x5a, size * sizeof(T));
  stitch_by_memcpy(given, matrix_view<T>(expected.data(), rows, width, width + gap));
  const status s =
      implementation(ctx, given.indices, given.data, matrix_view<T>(memory.data(), rows, width, width + gap));
  REQUIRE_MESSAGE(s.ok(), s.message());
  return size == 0 || std::memcmp(memory.data(), expected.data(), size * sizeof(T)) == 0;
}

// Some rows of out are named several times, some not at all, and some operands have no rows.
template <class Index, class T>
operands<Index, T> any_operands(std::mt19937_64& random, index_t rows, index_t width, index_t gap) {
  operands<Index, T> given;
  for (std::size_t k = 0; k < 1 + random() % 5; ++k) {
    std::vector<Index> list(k == 1 ? 0 : random() % 40);
    for (Index& i : list) i = static_cast<Index>(random() % static_cast<std::uint64_t>(rows));
    given.add(random, list, width, gap);
  }
  return given;
}

template <class Index>
void random_partition() {
  std::mt19937_64 random(seed() + 1);
  const index_t rows = 3000, width = 64;
  std::vector<float> matrix(static_cast<std::size_t>(rows * width)), out(matrix.size());
  std::iota(matrix.begin(), matrix.end(), 1.0F);
  std::vector<std::vector<Index>> lists(40);
  std::vector<std::vector<float>> parts(40);
  for (index_t b = 0; b < rows; ++b) {
    const std::size_t k = random() % 40;
    lists[k].push_back(static_cast<Index>(b));
    parts[k].insert(parts[k].end(), matrix.begin() + b * width, matrix.begin() + (b + 1) * width);
  }
  std::vector<array_view<Index>> indices;  // of elements that are not const
  std::vector<matrix_view<float>> data;
  for (std::size_t k = 0; k < lists.size(); ++k) {
    indices.emplace_back(lists[k]);
    data.emplace_back(parts[k].data(), static_cast<index_t>(lists[k].size()), width);
  }
  for (int threads = 1; threads <= 4; ++threads) {
    thread_pool pool(threads);
    out.assign(out.size(), 0);
    CHECK(dynamic_stitch(pool, indices, data, matrix_view(out.data(), rows, width)).ok());
    CHECK(out == matrix);
  }
}

}  // namespace

TEST_CASE("dynamic_stitch: the documentation's example") {
  /// [dynamic_stitch]
  const std::vector<std::int64_t> even{0, 2}, odd{1, 3};
  const std::vector<float> a{0, 1, 20, 21}, b{10, 11, 30, 31};  // (2, 2) each
  const std::vector<array_view<const std::int64_t>> indices{even, odd};
  const std::vector<matrix_view<const float>> data{{a.data(), 2, 2}, {b.data(), 2, 2}};
  std::vector<float> out(8);  // (4, 2)
  dynamic_stitch(inline_executor{}, indices, data, matrix_view(out.data(), 4, 2)).or_throw();
  /// [dynamic_stitch]
  CHECK(out == std::vector<float>{0, 1, 10, 11, 20, 21, 30, 31});
}

TEST_CASE_TEMPLATE("dynamic_stitch: any element type and width, every ISA, inside guard pages", T, char, f16,
                   float, double, twelve_bytes) {
  std::mt19937_64 random(seed());
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (index_t width = 0; width <= 140; width += width < 70 ? 1 : 14) {
        const index_t gap = width % 3;
        const fence side = random() % 2 == 0 ? fence::before : fence::behind;
        const auto wide = any_operands<std::int64_t, T>(random, 31, width, gap);
        CHECK_MESSAGE(is_right(on(here, which), library{stream_above}, wide, 31, width, gap, side),
                      to_string(which), " width ", width);
        const auto narrow = any_operands<std::int32_t, T>(random, 31, width, gap);
        CHECK_MESSAGE(is_right(on(here, which), library{stream_above}, narrow, 31, width, gap, side),
                      to_string(which), " width ", width);
      }
    }
  }
}

TEST_CASE("dynamic_stitch: rows of whole lines and long rows") {
  std::mt19937_64 random(seed() + 5);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (const index_t width : {64, 128, 512, 1024, 1000, 5000}) {
        operands<std::int64_t, char> given;
        std::vector<std::int64_t> list(300);
        for (std::int64_t& i : list) i = static_cast<std::int64_t>(random() % 400);
        given.add(random, list, width, 0);
        CHECK(is_right(on(here, which), library{stream_above}, given, 400, width, 0, fence::before));
      }
    }
  }
}

TEST_CASE("dynamic_stitch: a random partition restores the matrix") {
  random_partition<std::int64_t>();
  random_partition<std::int32_t>();
}

TEST_CASE("dynamic_stitch: the last row with an index stays, for any number of threads") {
  std::mt19937_64 random(seed() + 2);
  const index_t rows = 700, width = 33;
  for (const index_t named : {index_t{1}, index_t{50}, rows}) {  // many duplicates, few
    operands<std::int64_t, float> given;
    for (std::size_t k = 0; k < 30; ++k) {
      std::vector<std::int64_t> list(k % 7 == 3 ? 0 : 500 + random() % 500);
      for (std::int64_t& i : list) {
        i = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(named));
      }
      given.add(random, list, width, 2);
    }
    for (int threads = 1; threads <= 6; ++threads) {
      thread_pool pool(threads);
      for (const index_t stream_above : {never, always}) {
        CAPTURE(threads);
        CHECK(is_right(context(pool), library{stream_above}, given, rows, width, 1, fence::behind));
      }
    }
    CHECK(is_right(context<const marking_executor>(marking_executor{}), library{}, given, rows, width, 1,
                   fence::behind));
  }
}

TEST_CASE("dynamic_stitch: bits of NaN and -0 are kept") {
  const std::vector<std::uint32_t> bits{0x7f800001U, 0xffc12345U, 0x80000000U, 1U};
  std::vector<std::uint32_t> out(4);
  const std::vector<std::int32_t> list{1, 0};
  const std::vector<array_view<const std::int32_t>> indices{list};
  const auto* const floats = static_cast<const float*>(static_cast<const void*>(bits.data()));
  const std::vector<matrix_view<const float>> data{{floats, 2, 2}};
  inline_executor here;
  for (const isa which : runnable_isas()) {
    auto* const to = static_cast<float*>(static_cast<void*>(out.data()));
    CHECK(dynamic_stitch(on(here, which), indices, data, matrix_view(to, 2, 2)).ok());
    CHECK(out == std::vector<std::uint32_t>{bits[2], bits[3], bits[0], bits[1]});
  }
}

TEST_CASE("dynamic_stitch: the first index out of range is named, and nothing is written") {
  std::mt19937_64 random(seed() + 3);
  const index_t rows = 1000, width = 40;
  std::vector<std::vector<std::int64_t>> lists(8);
  for (auto& list : lists) {
    list.resize(3000);
    for (std::int64_t& i : list) i = static_cast<std::int64_t>(random() % 1000);
  }
  const std::vector<float> row(static_cast<std::size_t>(width), 1);
  std::vector<float> out(static_cast<std::size_t>(rows * width), 7);
  const std::vector<float> before = out;
  struct bad_index {
    std::size_t table, position;
    std::int64_t value;
  };
  for (const bad_index first : {bad_index{0, 0, -1}, bad_index{0, 2999, 1000}, bad_index{5, 17, -7},
                                bad_index{7, 2999, std::numeric_limits<std::int64_t>::min()},
                                bad_index{2, 1, std::numeric_limits<std::int64_t>::max()}}) {
    auto bad = lists;
    bad[first.table][first.position] = first.value;
    for (std::size_t k = first.table + 1; k < bad.size(); ++k) bad[k][0] = 5000;  // later ones too
    std::vector<array_view<const std::int64_t>> indices;
    for (const auto& list : bad) indices.emplace_back(list);
    // One row for all: a stride of 0.
    const std::vector<matrix_view<const float>> data(8, {row.data(), 3000, width, 0});
    for (int threads = 1; threads <= 5; ++threads) {
      thread_pool pool(threads);
      const status s = dynamic_stitch(pool, indices, data, matrix_view(out.data(), rows, width));
      CHECK(s.code() == errc::id_out_of_range);
      CHECK(s.place().table == static_cast<index_t>(first.table));
      CHECK(s.place().position == static_cast<index_t>(first.position));
      CHECK(s.place().value == first.value);
      CHECK(out == before);
    }
  }
  // 32 bits, and an output without rows or columns.
  const std::vector<std::int32_t> list{0, -1};
  const std::vector<array_view<const std::int32_t>> indices{list};
  inline_executor here;
  const std::vector<matrix_view<const float>> no_columns{{nullptr, 2, 0}};
  CHECK(dynamic_stitch(here, indices, no_columns, matrix_view<float>(nullptr, 4, 0)).place().value == -1);
  const status s = dynamic_stitch(here, indices, std::vector<matrix_view<const float>>{{row.data(), 2, 4}},
                                  matrix_view<float>(nullptr, 0, 4));
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().position == 0);
}

TEST_CASE("dynamic_stitch: operands that do not fit are named, and nothing is written") {
  inline_executor here;
  const std::vector<std::int64_t> two{0, 1}, three{0, 1, 2};
  std::vector<float> a(64, 1), out(64, 7);
  using lists = std::vector<array_view<const std::int64_t>>;
  using matrices = std::vector<matrix_view<const float>>;
  const matrix_view<float> o(out.data(), 4, 8);
  const matrix_view<const float> rows_2(a.data(), 2, 8);
  const auto refused = [&](const status& s, errc code, index_t table, std::string_view text) {
    CHECK(s.code() == code);
    CHECK(s.place().table == table);
    CHECK_MESSAGE(std::string_view(s.detail()).starts_with(text), s.message());
    CHECK(out == std::vector<float>(64, 7));
  };
  refused(dynamic_stitch(here, lists{two, two}, matrices{rows_2}, o), errc::shape_mismatch, -1,
          "dynamic_stitch: data.size()");
  refused(dynamic_stitch(here, lists{two, three}, matrices{rows_2, rows_2}, o), errc::shape_mismatch, 1,
          "dynamic_stitch: data[k].extent(0)");
  refused(dynamic_stitch(here, lists{two, two}, matrices{rows_2, {a.data(), 2, 7}}, o), errc::shape_mismatch,
          1, "dynamic_stitch: data[k].extent(1)");
  refused(dynamic_stitch(here, lists{two}, matrices{{a.data() + 8, 2, 8, -8}}, o), errc::shape_mismatch, 0,
          "dynamic_stitch: data[k].stride(0)");
  refused(dynamic_stitch(here, lists{{nullptr, 2}}, matrices{rows_2}, o), errc::shape_mismatch, 0,
          "dynamic_stitch: indices[k]");
  refused(dynamic_stitch(here, lists{two}, matrices{{nullptr, 2, 8}}, o), errc::shape_mismatch, 0,
          "dynamic_stitch: data[k] must not be null");
  refused(dynamic_stitch(here, lists{two}, matrices{rows_2}, matrix_view<float>(nullptr, 4, 8)),
          errc::shape_mismatch, -1, "dynamic_stitch: out must not be null");
  refused(dynamic_stitch(here, lists{two}, matrices{rows_2}, matrix_view(out.data(), 4, 8, 7)),
          errc::shape_mismatch, -1, "dynamic_stitch: out.stride(0)");
  refused(dynamic_stitch(here, lists{two, two}, matrices{rows_2, {out.data() + 31, 2, 8}}, o),
          errc::unsupported, 1, "dynamic_stitch: out must not overlap data[k]");
  auto* const own = static_cast<std::int64_t*>(static_cast<void*>(out.data()));
  refused(dynamic_stitch(here, lists{two, {own + 15, 2}}, matrices{rows_2, rows_2}, o), errc::unsupported, 1,
          "dynamic_stitch: out must not overlap indices[k]");
  CHECK(dynamic_stitch(here, lists{}, matrices{}, o).ok());
  CHECK(dynamic_stitch(here, lists{{nullptr, 0}}, matrices{{nullptr, 0, 8}}, o).ok());
  CHECK(out == std::vector<float>(64, 7));
}

TEST_CASE("dynamic_stitch: memory") {
  std::vector<std::int64_t> list(20000);
  std::iota(list.begin(), list.end(), 0);
  const std::vector<float> rows(20000 * 16, 3);
  std::vector<float> out(rows.size(), 7);
  const std::vector<array_view<const std::int64_t>> indices{list};
  const std::vector<matrix_view<const float>> data{{rows.data(), 20000, 16}};
  const matrix_view<float> to(out.data(), 20000, 16);
  allowance none{.left = 0};
  refusing_resource refusing(none);
  thread_pool pool({.threads = 3, .oversubscribe = true});  // shares its work on one processor too
  context many{pool};
  many.memory = &refusing;
  CHECK(dynamic_stitch(many, indices, data, to).code() == errc::out_of_memory);
  CHECK(out == std::vector<float>(rows.size(), 7));
  inline_executor here;
  context one{here};
  one.memory = &refusing;
  CHECK(dynamic_stitch(one, indices, data, to).ok());  // one thread needs none
  CHECK(out == rows);
  watching_resource watching;
  marking_executor marking;
  context watched{marking};
  watched.memory = &watching;
  CHECK(dynamic_stitch(watched, indices, data, to).ok());
  CHECK(watching.allocations == 1);
  CHECK(watching.misplaced == 0);
}

namespace {

enum class mistake { first_stays, last_row_lost, unnamed_cleared, one_byte_too_far };

struct broken {
  mistake which;
  template <class Context, class Index, class T>
  status operator()(const Context&, const std::vector<array_view<const Index>>& indices,
                    const std::vector<matrix_view<const T>>& data, matrix_view<T> out) const {
    const auto bytes = static_cast<std::size_t>(out.extent(1)) * sizeof(T);
    std::vector<bool> named(static_cast<std::size_t>(out.extent(0)));
    for (std::size_t k = 0; k < data.size(); ++k) {
      const index_t rows = data[k].extent(0) - (which == mistake::last_row_lost && data[k].extent(0) > 0);
      for (index_t i = 0; i < rows; ++i) {
        const auto b = static_cast<std::size_t>(indices[k][i]);
        if (which == mistake::first_stays && named[b]) continue;
        named[b] = true;
        std::memcpy(out.row(indices[k][i]), data[k].row(i), bytes);
      }
    }
    for (index_t b = 0; b < out.extent(0); ++b) {
      if (which == mistake::unnamed_cleared && !named[static_cast<std::size_t>(b)]) {
        std::memset(static_cast<void*>(out.row(b)), 0, bytes);
      }
    }
    if (which == mistake::one_byte_too_far) reinterpret_cast<char*>(out.row(0))[bytes] = 0;
    return {};
  }
};

}  // namespace

TEST_CASE("dynamic_stitch: broken variants are caught") {
  for (const mistake which :
       {mistake::first_stays, mistake::last_row_lost, mistake::unnamed_cleared, mistake::one_byte_too_far}) {
    std::mt19937_64 random(seed() + 4);
    inline_executor here;
    int caught = 0;
    for (int i = 0; i < 20; ++i) {
      operands<std::int64_t, float> given;
      std::vector<std::int64_t> list(40);
      for (std::int64_t& x : list) x = static_cast<std::int64_t>(random() % 50);
      given.add(random, list, 9, 0);
      caught += !is_right(context(here), broken{which}, given, 50, 9, 2, fence::behind);
    }
    CHECK_MESSAGE(caught >= 15, static_cast<int>(which));
  }
}
