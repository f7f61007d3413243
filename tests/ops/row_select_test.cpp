#include <deeprec/ops/row_select.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
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

// The verb, with the size above which an output goes past the caches.
struct library {
  index_t stream_above = never;
  template <class Context, class T>
  status operator()(const Context& ctx, array_view<const std::uint8_t> cond, matrix_view<const T> then,
                    matrix_view<const T> otherwise, matrix_view<T> out) const {
    return streaming_above(stream_above, ctx,
                           [&](const Context& on) { return row_select(on, cond, then, otherwise, out); });
  }
};

void fill(std::mt19937_64& random, void* memory, std::size_t bytes) {
  auto* at = static_cast<unsigned char*>(memory);
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(random());
}

// Every byte value is a condition, and one in two of them is 0.
std::vector<std::uint8_t> conditions(std::mt19937_64& random, index_t rows) {
  std::vector<std::uint8_t> cond(static_cast<std::size_t>(rows));
  for (std::uint8_t& c : cond) c = random() % 2 == 0 ? 0 : static_cast<std::uint8_t>(random());
  return cond;
}

// The oracle: the bytes of row b, by memcmp; and the bytes between rows as they were.
template <class T>
bool chosen(std::span<const std::uint8_t> cond, matrix_view<const T> then, matrix_view<const T> otherwise,
            matrix_view<const T> out) {
  for (index_t b = 0; b < out.extent(0); ++b) {
    const matrix_view<const T>& from = cond[static_cast<std::size_t>(b)] != 0 ? then : otherwise;
    if (std::memcmp(out.row(b), from.row(from.extent(0) == 1 ? 0 : b),
                    static_cast<std::size_t>(out.extent(1)) * sizeof(T)) != 0) {
      return false;
    }
  }
  return true;
}

template <class T>
bool gaps_hold(matrix_view<const T> view, std::byte sentinel) {
  for (index_t b = 0; b + 1 < view.extent(0); ++b) {
    const auto* end = reinterpret_cast<const std::byte*>(view.row(b) + view.extent(1));
    const auto* next = reinterpret_cast<const std::byte*>(view.row(b + 1));
    for (; end < next; ++end) {
      if (*end != sentinel) return false;
    }
  }
  return true;
}

// Rows that begin right behind a page without access, or end right before one.
enum class place { behind_a_guard, before_a_guard };

template <class T>
class rows_in_guards {
 public:
  rows_in_guards(place where, index_t rows, index_t width, index_t stride)
      : pages_((bytes(rows, width, stride) + page - 1) / page * page) {
    std::memset(pages_.data(), 0x5a, pages_.size());
    std::byte* first = pages_.data();
    if (where == place::before_a_guard) first += pages_.size() - bytes(rows, width, stride);
    view_ = {static_cast<T*>(static_cast<void*>(first)), rows, width, stride};
  }
  matrix_view<T> view() { return view_; }

 private:
  static constexpr std::size_t page = 4096;
  static std::size_t bytes(index_t rows, index_t width, index_t stride) {
    return rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + width) * sizeof(T);
  }
  guarded<std::byte> pages_;
  matrix_view<T> view_;
};

// One shape through one implementation: true when the answer is right and nothing else was written.
template <class T, class Context, class Implementation>
bool shape_is_right(std::mt19937_64& random, const Context& ctx, const Implementation& select, place where,
                    index_t rows, index_t width, index_t gap, index_t then_rows, index_t otherwise_rows) {
  rows_in_guards<T> then(where, then_rows, width, width + gap);
  rows_in_guards<T> otherwise(where, otherwise_rows, width, width + 2 * gap);
  rows_in_guards<T> out(where, rows, width, width + gap);
  for (auto* view : {&then, &otherwise}) {
    for (index_t b = 0; b < view->view().extent(0); ++b) {
      fill(random, view->view().row(b), static_cast<std::size_t>(width) * sizeof(T));
    }
  }
  const auto cond = guarded<std::uint8_t>::copy_of(conditions(random, rows));
  const std::span<const std::uint8_t> flags(cond.data(), cond.size());
  const status s = select(ctx, flags, matrix_view<const T>(then.view()),
                          matrix_view<const T>(otherwise.view()), out.view());
  REQUIRE_MESSAGE(s.ok(), s.message());
  return chosen<T>(flags, then.view(), otherwise.view(), out.view()) &&
         gaps_hold<T>(out.view(), std::byte{0x5a});
}

}  // namespace

TEST_CASE("row_select: the documentation's example") {
  /// [row_select]
  std::vector<std::uint8_t> has_history{1, 0, 1};   // one for each row
  std::vector<float> history{1, 10, 2, 20, 3, 30};  // (B=3, D=2)
  std::vector<float> unknown{-1, -10};              // (1, D): one row for all
  row_select(inline_executor{}, has_history, matrix_view<const float>(history.data(), 3, 2),
             matrix_view<const float>(unknown.data(), 1, 2), matrix_view(history.data(), 3, 2))
      .or_throw();  // in place: rows 0 and 2 are not touched
  /// [row_select]
  CHECK(history == std::vector<float>{1, 10, -1, -10, 3, 30});
}

TEST_CASE("row_select: rows of 1 to 300 bytes, every ISA, both kinds of store, inside guard pages") {
  std::mt19937_64 random(seed());
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (index_t width = 1; width <= 300; ++width) {
        for (const place where : {place::behind_a_guard, place::before_a_guard}) {
          for (const index_t gap : {0, 1, 64}) {
            const bool right = shape_is_right<char>(random, on(here, which), library{stream_above}, where, 5,
                                                    width, gap, 5, 5) &&
                               shape_is_right<char>(random, on(here, which), library{stream_above}, where, 1,
                                                    width, gap, 1, 1);
            CHECK_MESSAGE(right, to_string(which), " width ", width, " gap ", gap);
          }
        }
      }
    }
  }
}

TEST_CASE("row_select: every place of a row within a cache line, both kinds of store") {
  std::mt19937_64 random(seed() + 1);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (const index_t width : {63, 64, 65, 127, 128, 129, 191, 256, 320}) {
        std::vector<char> from(static_cast<std::size_t>(2 * width + 256));
        fill(random, from.data(), from.size());
        for (std::size_t offset = 0; offset < 64; ++offset) {
          alignas(64) std::array<char, 512> to;
          to.fill(7);
          const std::uint8_t yes = 1;
          const matrix_view<const char> then(from.data() + random() % 64, 1, width);
          const matrix_view<const char> otherwise(from.data() + 64 + width, 1, width);
          const matrix_view<char> out(to.data() + 64 + offset, 1, width);
          const status s = library{stream_above}(on(here, which), {&yes, 1}, then, otherwise, out);
          REQUIRE(s.ok());
          bool right = std::memcmp(out.row(0), then.row(0), static_cast<std::size_t>(width)) == 0;
          for (const char* p = to.data(); p < to.data() + to.size(); ++p) {
            if (p < out.row(0) || p >= out.row(0) + width) right = right && *p == 7;
          }
          CHECK_MESSAGE(right, to_string(which), " width ", width, " offset ", offset);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("row_select: any element type, one row for all, strides, every ISA", T, char, f16, float,
                   double, twelve_bytes) {
  std::mt19937_64 random(seed() + 2);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      const library select{stream_above};
      for (index_t width = 1; width <= 70; width += width < 35 ? 1 : 7) {
        for (const index_t gap : {0, 3}) {
          for (const index_t rows : {2, 13}) {
            const auto shape = [&](index_t then_rows, index_t otherwise_rows) {
              return shape_is_right<T>(random, on(here, which), select, place::before_a_guard, rows, width,
                                       gap, then_rows, otherwise_rows);
            };
            CAPTURE(to_string(which));
            CAPTURE(width);
            CHECK(shape(rows, rows));
            CHECK(shape(1, rows));
            CHECK(shape(rows, 1));
            CHECK(shape(1, 1));
          }
        }
      }
    }
  }
}

TEST_CASE("row_select: NaN payloads, -0, denormals and padding keep their bits") {
  const std::vector<std::uint32_t> patterns{0x7f800001U, 0xffc12345U, 0x80000000U, 1U,
                                            0x7fbfffffU, 0xff800000U, 0x807fffffU, 0x7fc00000U};
  std::vector<float> then(8), otherwise(8), out(8);
  std::memcpy(then.data(), patterns.data(), 32);
  std::memcpy(otherwise.data(), patterns.data(), 32);
  std::swap_ranges(otherwise.begin(), otherwise.begin() + 4, otherwise.begin() + 4);
  inline_executor here;
  const std::array<bool, 2> cond{true, false};
  for (const isa which : runnable_isas()) {
    CHECK(row_select(on(here, which), cond, matrix_view<const float>(then.data(), 2, 4),
                     matrix_view<const float>(otherwise.data(), 2, 4), matrix_view(out.data(), 2, 4))
              .ok());
    CHECK(std::memcmp(out.data(), then.data(), 16) == 0);
    CHECK(std::memcmp(out.data() + 4, otherwise.data() + 4, 16) == 0);
  }
}

TEST_CASE("row_select: conditions of bool and of bytes, and a bool stored as 2 to 255 is true") {
  std::vector<std::uint8_t> bytes(256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const std::vector<int> ones(256, 1), zeros(256, 0);
  const matrix_view<const int> then(ones.data(), 256, 1), otherwise(zeros.data(), 256, 1);
  const std::span<const bool> as_bool(reinterpret_cast<const bool*>(bytes.data()), bytes.size());
  const std::span<std::uint8_t> writable(bytes);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    const auto works = [&](const auto& cond) {
      std::vector<int> out(256, 7);
      if (!row_select(on(here, which), cond, then, otherwise, matrix_view(out.data(), 256, 1))) {
        return false;
      }
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (out[i] != (i != 0 ? 1 : 0)) return false;
      }
      return true;
    };
    CHECK(works(bytes));
    CHECK(works(as_bool));
    CHECK(works(writable));
  }
  static_assert(RowCondition<std::array<bool, 3>> && RowCondition<bool[3]>);
  static_assert(!RowCondition<std::vector<bool>> && !RowCondition<std::vector<int>>);
}

TEST_CASE("row_select: in place, and rows that are there already are not written") {
  std::mt19937_64 random(seed() + 3);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (const index_t width : {1, 15, 64, 100, 257}) {
        for (const index_t gap : {0, 5}) {
          const index_t rows = 9;
          const auto size = static_cast<std::size_t>(rows * (width + gap));
          std::vector<char> mine(size), other(size);
          fill(random, mine.data(), size);
          fill(random, other.data(), size);
          const std::vector<char> before = mine;
          const auto cond = conditions(random, rows);
          const matrix_view<const char> old(before.data(), rows, width, width + gap);
          const matrix_view<const char> read(mine.data(), rows, width, width + gap);
          const matrix_view<char> out(mine.data(), rows, width, width + gap);
          const matrix_view<const char> others(other.data(), rows, width, width + gap);
          const library select{stream_above};
          CAPTURE(width);
          CHECK(select(on(here, which), std::span<const std::uint8_t>(cond), read, others, out).ok());
          CHECK(chosen<char>(cond, old, others, out));
          mine = before;
          CHECK(select(on(here, which), std::span<const std::uint8_t>(cond), others, read, out).ok());
          CHECK(chosen<char>(cond, others, old, out));
          mine = before;
          CHECK(select(on(here, which), std::span<const std::uint8_t>(cond), read, read, out).ok());
          CHECK(mine == before);
        }
      }
    }
  }
  // Read-only pages: a write, even of the same bytes, would crash.
  guarded<float> pages(1024);
  pages[0] = 3;
  REQUIRE(mprotect(pages.data(), 4096, PROT_READ) == 0);
  const std::vector<std::uint8_t> all(16, 1);
  const std::vector<float> other(1024);
  CHECK(row_select(here, all, matrix_view<const float>(pages.data(), 16, 64),
                   matrix_view<const float>(other.data(), 16, 64), matrix_view(pages.data(), 16, 64))
            .ok());
  CHECK(pages[0] == 3);
}

TEST_CASE("row_select: an overlap in part is refused, columns side by side are not") {
  inline_executor here;
  const std::vector<std::uint8_t> cond{1, 0, 1, 0};
  std::vector<float> memory(400), other(400, 7);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const auto before = memory;
  const matrix_view<const float> apart(other.data(), 4, 8);
  const auto select = [&](matrix_view<const float> in, matrix_view<float> out) {
    const status as_then = row_select(here, cond, in, apart, out);
    const auto after_then = memory;
    const status as_otherwise = row_select(here, cond, apart, in, out);
    CHECK(as_then.code() == as_otherwise.code());
    if (!as_then) {
      CHECK(std::string_view(as_then.detail()).find("out must be then, or") != std::string_view::npos);
      CHECK(std::string_view(as_otherwise.detail()).find("out must be otherwise, or") !=
            std::string_view::npos);
      CHECK(after_then == before);
      CHECK(memory == before);
    }
    memory = before;
    return as_then.code();
  };
  float* m = memory.data();
  using in = matrix_view<const float>;
  using out = matrix_view<float>;
  CHECK(select(in(m, 4, 8), out(m, 4, 8)) == errc::ok);
  CHECK(select(in(m, 4, 8), out(m + 1, 4, 8)) == errc::unsupported);
  CHECK(select(in(m + 31, 4, 8), out(m, 4, 8)) == errc::unsupported);
  CHECK(select(in(m + 32, 4, 8), out(m, 4, 8)) == errc::ok);
  CHECK(select(in(m, 4, 8), out(m, 4, 8, 16)) == errc::unsupported);  // another stride
  CHECK(select(in(m, 1, 8), out(m, 4, 8)) == errc::unsupported);      // one row for all
  CHECK(select(in(m + 24, 1, 8), out(m, 4, 8)) == errc::unsupported);
  CHECK(select(in(m + 8, 1, 8), out(m, 4, 8, 16)) == errc::ok);      // it lies between the rows
  CHECK(select(in(m, 4, 8, 16), out(m + 8, 4, 8, 16)) == errc::ok);  // columns of one matrix
  CHECK(select(in(m + 8, 4, 8, 16), out(m, 4, 8, 16)) == errc::ok);
  CHECK(select(in(m + 7, 4, 8, 16), out(m, 4, 8, 16)) == errc::unsupported);
  CHECK(select(in(m + 9, 4, 8, 16), out(m, 4, 8, 16)) == errc::unsupported);
  CHECK(select(in(m + 16, 4, 8, 16), out(m, 4, 8, 16)) == errc::unsupported);  // one row later
  CHECK(select(in(m, 4, 8, 0), out(m + 8, 4, 8)) == errc::ok);                 // an expanded row
  CHECK(select(in(m + 12, 4, 8, 0), out(m, 4, 8)) == errc::unsupported);

  std::vector<std::uint8_t> bytes(64, 1);
  const std::vector<std::uint8_t> from(64, 2);
  const std::span<const std::uint8_t> flags(bytes.data() + 8, 4);
  const matrix_view<const std::uint8_t> source(from.data(), 4, 8);
  const status s = row_select(here, flags, source, source, matrix_view(bytes.data(), 4, 8));
  CHECK(s.code() == errc::unsupported);
  CHECK(bytes == std::vector<std::uint8_t>(64, 1));
  CHECK(row_select(here, flags, source, source, matrix_view(bytes.data(), 4, 8, 16)).ok());
}

TEST_CASE("row_select: overlaps of all small shapes, against a set of bytes") {
  const auto touched = [](const detail::byte_rows<const std::byte>& rows, const std::byte* base) {
    std::vector<bool> bytes(64);
    for (index_t b = 0; b < rows.count; ++b) {
      for (index_t j = 0; j < rows.width; ++j) {
        bytes[static_cast<std::size_t>(rows.row(b) - base + j)] = true;
      }
    }
    return bytes;
  };
  std::array<std::byte, 64> memory{};
  index_t wrong = 0;
  for (index_t width : {1, 2, 3}) {
    for (index_t stride_a : {0, 1, 2, 3, 4, 5}) {
      for (index_t stride_b : {3, 4, 5, 7}) {
        for (index_t rows_a : {1, 2, 4}) {
          for (index_t rows_b : {1, 3, 4}) {
            for (index_t at_a = 0; at_a < 30; ++at_a) {
              const detail::byte_rows<const std::byte> a{memory.data() + at_a, rows_a, stride_a, width};
              const detail::byte_rows<const std::byte> b{memory.data() + 12, rows_b, stride_b, width};
              const auto in_a = touched(a, memory.data());
              const auto in_b = touched(b, memory.data());
              bool shared = false;
              for (std::size_t i = 0; i < 64; ++i) shared = shared || (in_a[i] && in_b[i]);
              wrong += detail::share_bytes(a, b) != shared;
              wrong += detail::share_bytes(b, a) != shared;
            }
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("row_select: the same bits on 1 to 8 threads") {
  std::mt19937_64 random(seed() + 4);
  const index_t rows = 6007, width = 67;  // several pieces, the last one short
  std::vector<float> then(static_cast<std::size_t>(rows * width)), otherwise(then.size());
  fill(random, then.data(), then.size() * sizeof(float));
  fill(random, otherwise.data(), otherwise.size() * sizeof(float));
  const auto cond = conditions(random, rows);
  const matrix_view<const float> t(then.data(), rows, width), e(otherwise.data(), rows, width);
  for (const isa which : runnable_isas()) {
    for (const index_t stream_above : {never, always}) {
      for (int threads = 1; threads <= 8; ++threads) {
        thread_pool pool(threads);
        std::vector<float> out(then.size());
        const matrix_view<float> o(out.data(), rows, width);
        CAPTURE(threads);
        CHECK(library{stream_above}(on(pool, which), std::span<const std::uint8_t>(cond), t, e, o).ok());
        CHECK(chosen<float>(cond, t, e, o));
      }
    }
  }
}

TEST_CASE("row_select: outputs larger than the caches keep") {
  std::mt19937_64 random(seed() + 5);
  const index_t kept = host_tuning().kept_bytes;
  CHECK(kept >= index_t{1} << 20);
  CHECK(kept <= index_t{4} << 30);
  const index_t width = 1000;  // bytes: neither lines nor vectors fit
  const index_t rows = (std::min)(kept, index_t{64} << 20) / width + 2;
  const auto size = static_cast<std::size_t>(rows * width);
  std::vector<std::uint8_t> then(size, 1), otherwise(size, 2), out(size);
  for (std::size_t i = 0; i < size; i += 997) then[i] = static_cast<std::uint8_t>(random());
  const auto cond = conditions(random, rows);
  thread_pool pool(2);
  const matrix_view<const std::uint8_t> t(then.data(), rows, width), e(otherwise.data(), rows, width);
  const matrix_view<std::uint8_t> o(out.data(), rows, width);
  CHECK(row_select(pool, cond, t, e, o).ok());
  CHECK(chosen<std::uint8_t>(cond, t, e, o));
}

TEST_CASE("row_select: empty shapes") {
  inline_executor here;
  const std::vector<std::uint8_t> none, three(3, 1);
  const matrix_view<const float> no_rows(nullptr, 0, 4), no_columns(nullptr, 3, 0);
  std::vector<float> row(4, 1);
  CHECK(row_select(here, none, no_rows, no_rows, matrix_view<float>(nullptr, 0, 4)).ok());
  CHECK(row_select(here, none, matrix_view<const float>(row.data(), 1, 4), no_rows,
                   matrix_view<float>(nullptr, 0, 4))
            .ok());
  CHECK(row_select(here, three, no_columns, no_columns, matrix_view<float>(nullptr, 3, 0)).ok());
  CHECK(row_select(here, std::span<const bool>(), no_rows, no_rows, matrix_view<float>(nullptr, 0, 4)).ok());
}

TEST_CASE("row_select: an operand that does not fit is named, and nothing is written") {
  inline_executor here;
  const std::vector<std::uint8_t> cond(4, 1);
  std::vector<float> a(64, 1), b(64, 2), out(64, 7);
  const matrix_view<const float> t(a.data(), 4, 8), e(b.data(), 4, 8);
  const matrix_view<float> o(out.data(), 4, 8);
  const auto refused = [&](const status& s, std::string_view operand) {
    CHECK(s.code() == errc::shape_mismatch);
    CHECK(std::string_view(s.detail()).starts_with("row_select: " + std::string(operand)));
    CHECK(out == std::vector<float>(64, 7));
  };
  using in = matrix_view<const float>;
  refused(row_select(here, std::span(cond).first(3), t, e, o), "cond");
  refused(row_select(here, cond, in(a.data(), 4, 7), e, o), "then");
  refused(row_select(here, cond, in(a.data(), 3, 8), e, o), "then");
  refused(row_select(here, cond, in(a.data(), 0, 8), e, o), "then");
  refused(row_select(here, cond, in(a.data() + 32, 4, 8, -8), e, o), "then");
  refused(row_select(here, cond, t, in(b.data(), 4, 9), o), "otherwise");
  refused(row_select(here, cond, t, in(b.data(), 5, 8), o), "otherwise");
  refused(row_select(here, cond, t, in(b.data() + 32, 4, 8, -8), o), "otherwise");
  refused(row_select(here, cond, t, e, matrix_view(out.data(), 4, 8, 7)), "out.stride(0)");
}

TEST_CASE("row_select: mutable operands, and an operand in unified memory") {
  inline_executor here;
  std::vector<float> a(32, 1), b(32, 2), out(32);
  const bool cond[4] = {false, true, true, false};
  const matrix_view<float, unified_space> t(a.data(), 4, 8);
  const matrix_view<float> e(b.data(), 4, 8);
  CHECK(row_select(here, cond, t, e, matrix_view(out.data(), 4, 8)).ok());
  CHECK(out[0] == 2);
  CHECK(out[8] == 1);
  CHECK(out[31] == 2);
}

namespace {

// What a mistake would look like; the checks above must see each of them.
enum class mistake { inverted_last_row, low_bit_only, last_byte_lost, one_byte_too_far, wrong_broadcast };

struct broken {
  mistake which;
  template <class Context, class T>
  status operator()(const Context&, std::span<const std::uint8_t> cond, matrix_view<const T> then,
                    matrix_view<const T> otherwise, matrix_view<T> out) const {
    const auto width = static_cast<std::size_t>(out.extent(1)) * sizeof(T);
    for (index_t b = 0; b < out.extent(0); ++b) {
      const std::uint8_t c = cond[static_cast<std::size_t>(b)];
      bool yes = which == mistake::low_bit_only ? (c & 1) != 0 : c != 0;
      if (which == mistake::inverted_last_row && b + 1 == out.extent(0)) yes = !yes;
      const matrix_view<const T>& from = yes ? then : otherwise;
      const bool one = from.extent(0) == 1;
      const T* row = from.row(one ? 0 : b);
      if (which == mistake::wrong_broadcast && one) row = then.row(0);
      std::memcpy(out.row(b), row, which == mistake::last_byte_lost ? width - 1 : width);
      if (which == mistake::one_byte_too_far && b + 1 < out.extent(0)) {
        reinterpret_cast<std::byte*>(out.row(b))[width] = std::byte{0};
      }
    }
    return {};
  }
};

}  // namespace

TEST_CASE("row_select: broken variants are caught") {
  for (const mistake which : {mistake::inverted_last_row, mistake::low_bit_only, mistake::last_byte_lost,
                              mistake::one_byte_too_far, mistake::wrong_broadcast}) {
    std::mt19937_64 random(seed() + 6);
    inline_executor here;
    int caught = 0;
    for (int i = 0; i < 20; ++i) {
      caught +=
          !shape_is_right<char>(random, context(here), broken{which}, place::before_a_guard, 9, 33, 4, 9, 1);
    }
    CHECK_MESSAGE(caught >= 15, static_cast<int>(which));
  }
}
