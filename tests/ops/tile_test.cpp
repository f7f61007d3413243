#include <deeprec/ops/tile.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ops/support.hpp"

using namespace deeprec;
using namespace deeprec_test;
using namespace ops_test;

namespace {

struct library {
  index_t stream_above = never;
  template <class Context, class T>
  status operator()(const Context& ctx, matrix_view<const T> in, index_t down, index_t across,
                    matrix_view<T> out) const {
    return streaming_above(stream_above, ctx,
                           [&](const Context& on) { return tile(on, in, down, across, out); });
  }
};

template <class T>
void fill(std::mt19937_64& random, matrix_view<T> m) {
  for (index_t i = 0; i < m.extent(0); ++i) {
    auto* const row = reinterpret_cast<unsigned char*>(m.row(i));
    for (std::size_t j = 0; j < static_cast<std::size_t>(m.extent(1)) * sizeof(T); ++j) {
      row[j] = static_cast<unsigned char>(random());
    }
  }
}

template <class T>
bool tiled(matrix_view<const T> in, matrix_view<const T> out) {
  for (index_t i = 0; i < out.extent(0); ++i) {
    const T* const row = in.row(i % in.extent(0));
    for (index_t j = 0; j < out.extent(1); j += in.extent(1)) {
      if (std::memcmp(out.row(i) + j, row, static_cast<std::size_t>(in.extent(1)) * sizeof(T)) != 0) {
        return false;
      }
    }
  }
  return true;
}

std::size_t elements(index_t rows, index_t columns, index_t stride) {
  return rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + columns);
}

// One shape: true when the result is right and nothing else was written, inside guard pages.
template <class T, class Context, class Implementation>
bool shape_is_right(std::mt19937_64& random, const Context& ctx, const Implementation& implementation,
                    fence side, index_t rows, index_t columns, index_t down, index_t across, index_t gap) {
  guarded<T> from(elements(rows, columns, columns + gap), side);
  guarded<T> to(elements(rows * down, columns * across, columns * across + gap), side);
  std::memset(static_cast<void*>(to.data()), 0x5a, to.size() * sizeof(T));
  const matrix_view<T> in(from.data(), rows, columns, columns + gap);
  const matrix_view<T> out(to.data(), rows * down, columns * across, columns * across + gap);
  fill(random, in);
  const status s = implementation(ctx, matrix_view<const T>(in), down, across, out);
  REQUIRE_MESSAGE(s.ok(), s.message());
  for (index_t i = 0; i + 1 < out.extent(0); ++i) {
    const auto* p = reinterpret_cast<const unsigned char*>(out.row(i) + out.extent(1));
    const auto* const end = reinterpret_cast<const unsigned char*>(out.row(i + 1));
    for (; p < end; ++p) {
      if (*p != 0x5a) return false;
    }
  }
  return tiled<T>(in, out);
}

}  // namespace

TEST_CASE("tile: the documentation's example") {
  /// [tile]
  const std::vector<int> in{1, 2, 3, 4};  // (2, 2)
  std::vector<int> out(24);               // (2 * 2, 2 * 3)
  tile(inline_executor{}, matrix_view(in.data(), 2, 2), 2, 3, matrix_view(out.data(), 4, 6)).or_throw();
  /// [tile]
  CHECK(out == std::vector<int>{1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4, 1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4});
}

TEST_CASE("tile: rows of 1 to 300 bytes, every ISA, both kinds of store, inside guard pages") {
  std::mt19937_64 random(seed());
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (index_t width = 1; width <= 300; ++width) {
        for (const index_t across : {1, 2, 3, 5, 65}) {
          const fence side = random() % 2 == 0 ? fence::before : fence::behind;
          const index_t gap = random() % 2 == 0 ? 0 : static_cast<index_t>(random() % 70);
          CHECK_MESSAGE(shape_is_right<char>(random, on(here, which), library{stream_above}, side, 3, width,
                                             2, across, gap),
                        to_string(which), " width ", width, " across ", across, " gap ", gap);
        }
      }
      for (const index_t width : {2047, 2048, 2049, 5000}) {
        for (const index_t across : {1, 2, 7}) {
          CHECK(shape_is_right<char>(random, on(here, which), library{stream_above}, fence::behind, 2, width,
                                     3, across, width % 3));
        }
      }
    }
  }
}

TEST_CASE("tile: every place of out within a cache line") {
  std::mt19937_64 random(seed() + 1);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (const index_t width : {10, 63, 64, 65, 100}) {
        std::vector<char> from(static_cast<std::size_t>(3 * width));
        const matrix_view<char> in(from.data(), 3, width);
        fill(random, in);
        for (std::size_t offset = 0; offset < 64; ++offset) {
          std::vector<char> memory(static_cast<std::size_t>(6 * 31 * width) + 128, 7);
          const matrix_view<char> out(memory.data() + offset, 6, 31 * width);
          CHECK(library{stream_above}(on(here, which), matrix_view<const char>(in), 2, 31, out).ok());
          bool right = tiled<char>(in, out);
          for (std::size_t i = 0; i < memory.size(); ++i) {
            if (i < offset || i >= offset + static_cast<std::size_t>(6 * 31 * width)) {
              right = right && memory[i] == 7;
            }
          }
          CHECK_MESSAGE(right, to_string(which), " width ", width, " offset ", offset);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("tile: any element type; bits are kept", T, char, f16, float, double, twelve_bytes) {
  std::mt19937_64 random(seed() + 2);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t columns : {1, 3, 50}) {
      CHECK(shape_is_right<T>(random, on(here, which), library{}, fence::behind, 7, columns, 2, 50, 0));
      CHECK(shape_is_right<T>(random, on(here, which), library{always}, fence::behind, 7, columns, 3, 11, 1));
    }
  }
}

TEST_CASE("tile: the same bits on 1 to 5 threads, also for outputs that are streamed by default") {
  std::mt19937_64 random(seed() + 3);
  std::vector<float> from(512 * 50), out(from.size() * 100);
  const matrix_view<float> in(from.data(), 512, 50);
  fill(random, in);
  for (int threads = 1; threads <= 5; ++threads) {
    thread_pool pool(threads);
    out.assign(out.size(), 0);
    const matrix_view<float> to(out.data(), 1024, 2500);
    CHECK(tile(pool, in, 2, 50, to).ok());
    CHECK(tiled<float>(in, to));
  }
}

TEST_CASE("tile: multiples of 0 and 1, empty matrices, one row for all") {
  inline_executor here;
  std::vector<int> in{1, 2, 3, 4}, out(8, 7);
  const matrix_view<const int> from(in.data(), 2, 2);
  CHECK(tile(here, from, 0, 3, matrix_view<int>(nullptr, 0, 6)).ok());
  CHECK(tile(here, from, 3, 0, matrix_view<int>(nullptr, 6, 0)).ok());
  CHECK(tile(here, matrix_view<const int>(nullptr, 0, 2), 5, 5, matrix_view<int>(nullptr, 0, 10)).ok());
  CHECK(out == std::vector<int>(8, 7));
  CHECK(tile(here, from, 1, 1, matrix_view(out.data(), 2, 2)).ok());
  CHECK(out == std::vector<int>{1, 2, 3, 4, 7, 7, 7, 7});
  CHECK(tile(here, matrix_view<const int>(in.data(), 2, 2, 0), 1, 2, matrix_view(out.data(), 2, 4)).ok());
  CHECK(out == std::vector<int>{1, 2, 1, 2, 1, 2, 1, 2});
}

TEST_CASE("tile: what does not fit or overlaps is refused, and nothing is written") {
  inline_executor here;
  std::vector<float> a(64), out(64, 7);
  using in = matrix_view<const float>;
  using to = matrix_view<float>;
  constexpr index_t huge = std::numeric_limits<index_t>::max();
  const auto refused = [&](const status& s, errc code, std::string_view text) {
    CHECK(s.code() == code);
    CHECK(std::string_view(s.detail()).starts_with(text));
    CHECK(out == std::vector<float>(64, 7));
  };
  refused(tile(here, in(a.data(), 2, 3), -1, 2, to(out.data(), 0, 6)), errc::shape_mismatch,
          "tile: row_multiple");
  refused(tile(here, in(a.data(), 2, 3), 2, -1, to(out.data(), 4, 0)), errc::shape_mismatch,
          "tile: column_multiple");
  refused(tile(here, in(a.data(), 2, 3), huge, 2, to(out.data(), -2, 6)), errc::shape_mismatch,
          "tile: in.extent times");
  refused(tile(here, in(a.data(), 2, 3), 2, huge / 2, to(out.data(), 4, 6)), errc::shape_mismatch,
          "tile: in.extent times");
  refused(tile(here, in(a.data(), 2, 3), 2, 2, to(out.data(), 5, 6)), errc::shape_mismatch,
          "tile: out.extent(0)");
  refused(tile(here, in(a.data(), 2, 3), 2, 2, to(out.data(), 4, 5)), errc::shape_mismatch,
          "tile: out.extent(1)");
  refused(tile(here, in(a.data() + 3, 2, 3, -3), 2, 2, to(out.data(), 4, 6)), errc::shape_mismatch,
          "tile: in.stride(0)");
  refused(tile(here, in(a.data(), 2, 3), 2, 2, to(out.data(), 4, 6, 5)), errc::shape_mismatch,
          "tile: out.stride(0)");
  refused(tile(here, in(a.data(), -2, 3), 2, 2, to(out.data(), -4, 6)), errc::shape_mismatch,
          "tile: in.extent");
  refused(tile(here, in(nullptr, 2, 3), 2, 2, to(out.data(), 4, 6)), errc::shape_mismatch,
          "tile: in must not be null");
  refused(tile(here, in(a.data(), 2, 3), 2, 2, to(nullptr, 4, 6)), errc::shape_mismatch,
          "tile: out must not be null");
  refused(tile(here, in(out.data(), 2, 3), 2, 2, to(out.data(), 4, 6)), errc::unsupported,
          "tile: out must not overlap in");
  refused(tile(here, in(out.data() + 23, 2, 3), 2, 2, to(out.data(), 4, 6)), errc::unsupported,
          "tile: out must not overlap in");
}

namespace {

enum class mistake { last_repeat_lost, wrong_row, one_byte_too_far };

struct broken {
  mistake which;
  template <class Context, class T>
  status operator()(const Context&, matrix_view<const T> in, index_t, index_t across,
                    matrix_view<T> out) const {
    for (index_t i = 0; i < out.extent(0); ++i) {
      const index_t row = which == mistake::wrong_row ? i / in.extent(0) % in.extent(0) : i % in.extent(0);
      for (index_t j = 0; j < across - (which == mistake::last_repeat_lost); ++j) {
        std::memcpy(out.row(i) + j * in.extent(1), in.row(row),
                    static_cast<std::size_t>(in.extent(1)) * sizeof(T));
      }
    }
    if (which == mistake::one_byte_too_far) *reinterpret_cast<char*>(out.row(0) + out.extent(1)) = 0;
    return {};
  }
};

}  // namespace

TEST_CASE("tile: broken variants are caught") {
  for (const mistake which : {mistake::last_repeat_lost, mistake::wrong_row, mistake::one_byte_too_far}) {
    std::mt19937_64 random(seed() + 4);
    inline_executor here;
    int caught = 0;
    for (int i = 0; i < 20; ++i) {
      caught += !shape_is_right<char>(random, context(here), broken{which}, fence::behind, 3, 17, 2, 4, 3);
    }
    CHECK_MESSAGE(caught >= 18, static_cast<int>(which));
  }
}
