#include <deeprec/ops/transpose.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ops/support.hpp"

using namespace deeprec;
using namespace deeprec_test;
using namespace ops_test;

namespace {

template <std::size_t Size>
struct bytes_of_size {
  std::array<unsigned char, Size> bytes;
};

struct library {
  index_t stream_above = never;
  template <class Context, class T>
  status operator()(const Context& ctx, matrix_view<const T> in, matrix_view<T> out) const {
    return streaming_above(stream_above, ctx, [&](const Context& on) { return transpose(on, in, out); });
  }
};

// A matrix whose last or first byte touches a page without access; gaps hold 0x5a.
template <class T>
class fenced_matrix {
 public:
  fenced_matrix(fence side, index_t rows, index_t columns, index_t gap)
      : memory_(elements(rows, columns, columns + gap), side),
        view_(memory_.data(), rows, columns, columns + gap) {
    std::memset(static_cast<void*>(memory_.data()), 0x5a, memory_.size() * sizeof(T));
  }
  matrix_view<T> view() { return view_; }
  bool gaps_hold() const {
    for (index_t i = 0; i + 1 < view_.extent(0); ++i) {
      const auto* p = reinterpret_cast<const unsigned char*>(view_.row(i) + view_.extent(1));
      const auto* const end = reinterpret_cast<const unsigned char*>(view_.row(i + 1));
      for (; p < end; ++p) {
        if (*p != 0x5a) return false;
      }
    }
    return true;
  }

 private:
  static std::size_t elements(index_t rows, index_t columns, index_t stride) {
    return rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + columns);
  }
  guarded<T> memory_;
  matrix_view<T> view_;
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
bool transposed(matrix_view<const T> in, matrix_view<const T> out) {
  for (index_t i = 0; i < in.extent(0); ++i) {
    for (index_t j = 0; j < in.extent(1); ++j) {
      if (std::memcmp(in.row(i) + j, out.row(j) + i, sizeof(T)) != 0) return false;
    }
  }
  return true;
}

template <class T, class Context, class Implementation>
bool shape_is_right(std::mt19937_64& random, const Context& ctx, const Implementation& implementation,
                    fence side, index_t rows, index_t columns, index_t gap) {
  fenced_matrix<T> in(side, rows, columns, gap), out(side, columns, rows, 2 * gap);
  fill(random, in.view());
  const status s = implementation(ctx, matrix_view<const T>(in.view()), out.view());
  REQUIRE_MESSAGE(s.ok(), s.message());
  return transposed<T>(in.view(), out.view()) && out.gaps_hold();
}

}  // namespace

TEST_CASE("transpose: the documentation's example") {
  /// [transpose]
  const std::vector<float> in{1, 2, 3, 4, 5, 6};  // (2, 3)
  std::vector<float> out(6);                      // (3, 2)
  transpose(inline_executor{}, matrix_view(in.data(), 2, 3), matrix_view(out.data(), 3, 2)).or_throw();
  /// [transpose]
  CHECK(out == std::vector<float>{1, 4, 2, 5, 3, 6});
}

TEST_CASE_TEMPLATE("transpose: every size of element, ISA and path, odd shapes, inside guard pages", T, char,
                   f16, bytes_of_size<3>, float, double, bytes_of_size<12>, bytes_of_size<16>,
                   bytes_of_size<100>) {
  std::mt19937_64 random(seed());
  inline_executor here;
  constexpr index_t sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 130, 200};
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (const index_t rows : sizes) {
        for (const index_t columns : sizes) {
          if (sizeof(T) > 16 && rows * columns > 2000) continue;
          const fence side = random() % 2 == 0 ? fence::before : fence::behind;
          const auto gap = static_cast<index_t>(random() % 3);
          CHECK_MESSAGE(
              shape_is_right<T>(random, on(here, which), library{stream_above}, side, rows, columns, gap),
              to_string(which), " ", rows, " x ", columns, " gap ", gap);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("transpose: blocks that begin anywhere in a cache line", T, char, std::uint16_t, float,
                   double) {
  std::mt19937_64 random(seed() + 1);
  inline_executor here;
  const index_t rows = 2 * 512 / static_cast<index_t>(sizeof(T)) + 5, columns = 67;
  std::vector<T> in(static_cast<std::size_t>(rows * columns)), memory(in.size() + 128);
  fill(random, matrix_view<T>(in.data(), rows, columns));
  const matrix_view<const T> from(in.data(), rows, columns);
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (std::size_t offset = 0; offset < 64 / sizeof(T); offset += 5) {
        std::memset(static_cast<void*>(memory.data()), 7, memory.size() * sizeof(T));
        const std::vector<T> untouched(memory.begin(), memory.begin() + 1);
        const matrix_view<T> out(memory.data() + offset, columns, rows);
        CHECK(library{stream_above}(on(here, which), from, out).ok());
        CHECK_MESSAGE(transposed<T>(from, out), to_string(which), " offset ", offset);
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (i >= offset && i < offset + in.size()) continue;
          REQUIRE(memory[i] == untouched[0]);
        }
      }
    }
  }
}

TEST_CASE("transpose: twice is the identity, and bits of NaN, -0 and padding are kept") {
  std::mt19937_64 random(seed() + 2);
  inline_executor here;
  std::vector<std::uint32_t> in(77 * 130), once(in.size()), twice(in.size());
  for (std::uint32_t& x : in) {
    constexpr std::uint32_t patterns[] = {0x7f800001U, 0xffc12345U, 0x80000000U, 1U};
    x = random() % 2 == 0 ? patterns[random() % 4] : static_cast<std::uint32_t>(random());
  }
  const auto floats = [](std::vector<std::uint32_t>& bits) {
    return static_cast<float*>(static_cast<void*>(bits.data()));
  };
  for (const isa which : runnable_isas()) {
    CHECK(transpose(on(here, which), matrix_view<const float>(floats(in), 77, 130),
                    matrix_view(floats(once), 130, 77))
              .ok());
    CHECK(transpose(on(here, which), matrix_view<const float>(floats(once), 130, 77),
                    matrix_view(floats(twice), 77, 130))
              .ok());
    CHECK(twice == in);
  }
}

TEST_CASE("transpose: the same bits on 1 to 5 threads, also for outputs that are streamed") {
  std::mt19937_64 random(seed() + 3);
  const index_t rows = 1111, columns = 613;  // more than 2 MB: streamed by default
  std::vector<float> in(static_cast<std::size_t>(rows * columns));
  fill(random, matrix_view<float>(in.data(), rows, columns));
  const matrix_view<const float> from(in.data(), rows, columns);
  for (int threads = 1; threads <= 5; ++threads) {
    thread_pool pool(threads);
    std::vector<float> out(in.size());
    CHECK(transpose(pool, from, matrix_view(out.data(), columns, rows)).ok());
    CHECK(transposed<float>(from, {out.data(), columns, rows}));
    for (const index_t stream_above : {never, always}) {
      out.assign(in.size(), 0);
      CHECK(library{stream_above}(context(pool), from, matrix_view(out.data(), columns, rows)).ok());
      CHECK(transposed<float>(from, {out.data(), columns, rows}));
    }
  }
}

TEST_CASE("transpose: one row for all, unified memory, empty shapes") {
  inline_executor here;
  const std::vector<int> row{1, 2, 3};
  std::vector<int> out(12);
  CHECK(transpose(here, matrix_view<const int>(row.data(), 4, 3, 0), matrix_view(out.data(), 3, 4)).ok());
  CHECK(out == std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
  std::vector<int> in{1, 2, 3, 4};
  CHECK(transpose(here, matrix_view<int, unified_space>(in.data(), 2, 2), matrix_view<int>(out.data(), 2, 2))
            .ok());
  CHECK(out[1] == 3);
  CHECK(transpose(here, matrix_view<const int>(nullptr, 0, 5), matrix_view<int>(nullptr, 5, 0)).ok());
  CHECK(transpose(here, matrix_view<const int>(nullptr, 5, 0), matrix_view<int>(nullptr, 0, 5)).ok());
}

TEST_CASE("transpose: what does not fit or overlaps is refused, and nothing is written") {
  inline_executor here;
  std::vector<float> a(64), out(128, 7);
  using in = matrix_view<const float>;
  using to = matrix_view<float>;
  const auto refused = [&](const status& s, errc code, std::string_view text) {
    CHECK(s.code() == code);
    CHECK(std::string_view(s.detail()).starts_with(text));
    CHECK(out == std::vector<float>(128, 7));
  };
  refused(transpose(here, in(a.data(), 4, 8), to(out.data(), 7, 4)), errc::shape_mismatch,
          "transpose: out.extent(0)");
  refused(transpose(here, in(a.data(), 4, 8), to(out.data(), 8, 5)), errc::shape_mismatch,
          "transpose: out.extent(1)");
  refused(transpose(here, in(a.data() + 32, 4, 8, -8), to(out.data(), 8, 4)), errc::shape_mismatch,
          "transpose: in.stride(0)");
  refused(transpose(here, in(a.data(), 4, 8), to(out.data(), 8, 4, 3)), errc::shape_mismatch,
          "transpose: out.stride(0)");
  refused(transpose(here, in(nullptr, 4, 8), to(out.data(), 8, 4)), errc::shape_mismatch,
          "transpose: in must not be null");
  refused(transpose(here, in(a.data(), 4, 8), to(nullptr, 8, 4)), errc::shape_mismatch,
          "transpose: out must not be null");
  refused(transpose(here, in(out.data(), 4, 8), to(out.data(), 8, 4)), errc::unsupported,
          "transpose: out must not overlap in");
  refused(transpose(here, in(out.data(), 4, 8), to(out.data() + 31, 8, 4)), errc::unsupported,
          "transpose: out must not overlap in");
  CHECK(transpose(here, in(out.data(), 8, 8, 16), to(out.data() + 8, 8, 8, 16)).ok());  // beside each other
  CHECK(out == std::vector<float>(128, 7));
}

namespace {

enum class mistake { last_column_lost, last_row_lost, bytes_swapped, one_too_far };

struct broken {
  mistake which;
  template <class Context, class T>
  status operator()(const Context&, matrix_view<const T> in, matrix_view<T> out) const {
    for (index_t i = 0; i < in.extent(0) - (which == mistake::last_row_lost); ++i) {
      for (index_t j = 0; j < in.extent(1) - (which == mistake::last_column_lost); ++j) {
        std::memcpy(out.row(j) + i, in.row(i) + j, sizeof(T));
      }
    }
    auto* const first = reinterpret_cast<unsigned char*>(out.row(0));
    if (which == mistake::bytes_swapped) std::swap(first[0], first[1]);
    if (which == mistake::one_too_far) first[static_cast<std::size_t>(out.extent(1)) * sizeof(T)] = 0;
    return {};
  }
};

}  // namespace

TEST_CASE("transpose: broken variants are caught") {
  for (const mistake which :
       {mistake::last_column_lost, mistake::last_row_lost, mistake::bytes_swapped, mistake::one_too_far}) {
    std::mt19937_64 random(seed() + 4);
    inline_executor here;
    int caught = 0;
    for (int i = 0; i < 20; ++i) {
      caught += !shape_is_right<float>(random, context(here), broken{which}, fence::behind, 19, 33, 2);
    }
    CHECK_MESSAGE(caught >= 18, static_cast<int>(which));
  }
}
