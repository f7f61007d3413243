// The lines that lookups prefetch: all that a range of a row touches, and none twice where the alignment of
// the rows rules that out.
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

using namespace deeprec;

namespace {

using lines_of_row = DEEPREC_PORTABLE::row_lines;

template <class Rows>
struct only_rows {
  Rows row_of;
  const kernel_tuning* tuning = &host_tuning();
};

only_rows<detail::direct_rows<std::int64_t>> direct(std::uintptr_t base, index_t stride) {
  return {{reinterpret_cast<const std::byte*>(base), stride, nullptr, 1, -1, nullptr}, &host_tuning()};
}

struct outcome {
  bool covered = true;  // every line is prefetched, and no other
  bool twice = false;
};

// lists(lines, row, use): calls use(address) for each prefetch.
template <class Lists>
outcome of_row(const lines_of_row& lines, std::uintptr_t row, const Lists& lists) {
  std::set<std::uintptr_t> found, touched;
  outcome seen;
  lists(lines, reinterpret_cast<const std::byte*>(row), [&](const std::byte* at) {
    seen.twice |= !found.insert(reinterpret_cast<std::uintptr_t>(at) / 64).second;
  });
  const std::uintptr_t from = row + static_cast<std::uintptr_t>(lines.begin);
  for (std::uintptr_t at = from; at < from + static_cast<std::uintptr_t>(lines.bytes); ++at)
    touched.insert(at / 64);
  seen.covered = found == touched;
  return seen;
}
outcome of_row(const lines_of_row& lines, std::uintptr_t row) {
  return of_row(lines, row, [](const auto& of, const std::byte* at, const auto& use) { of.each(at, use); });
}
// Those of an instruction for each line, of at least Least lines and at most 10.
template <index_t Least>
outcome by_instructions(const lines_of_row& lines, std::uintptr_t row) {
  return of_row(lines, row, [](const auto& of, const std::byte* at, const auto& use) {
    of.template each_of<Least>(at, use, std::make_index_sequence<10>{});
  });
}

}  // namespace

TEST_CASE("row_lines: every line of every row is prefetched, for all sizes, strides and alignments") {
  int faults = 0;
  for (const std::uintptr_t base : {0x10000U, 0x10001U, 0x10004U, 0x10008U, 0x10010U, 0x10020U}) {
    for (index_t bytes = 1; bytes <= 600; bytes += bytes < 140 ? 1 : 23) {
      for (const index_t begin : {0, 4, 8, 64, 129}) {
        for (const index_t gap : {0, 1, 4, 24}) {
          const index_t stride = begin + bytes + gap;
          const auto lines = lines_of_row::of(direct(base, stride), begin, begin + bytes);
          const auto located = lines_of_row::of(
              only_rows<detail::rows_by_number>{{nullptr, 0}, &host_tuning()}, begin, begin + bytes);
          for (index_t row = 0; row < 64; ++row) {
            const std::uintptr_t at = base + static_cast<std::uintptr_t>(row * stride);
            faults += of_row(lines, at).covered ? 0 : 1;
            faults += of_row(located, at).covered ? 0 : 1;
            faults += by_instructions<1>(lines, at).covered ? 0 : 1;
            if (bytes > 192) faults += by_instructions<4>(located, at).covered ? 0 : 1;
          }
        }
      }
    }
  }
  CHECK(faults == 0);
}

TEST_CASE("row_lines: no line is prefetched twice for the usual rows of codes and of floats") {
  for (const index_t stride : {36, 40, 68, 72, 80, 96, 100, 128, 132, 136, 192, 200, 256, 512}) {
    CAPTURE(stride);
    const auto lines = lines_of_row::of(direct(0x10000, stride), 0, stride);
    // Of 36 and 40 bytes some rows touch one line and some two, of 100 two and three.
    const bool varies = stride == 36 || stride == 40 || stride == 100;
    CHECK((lines.bits != 0) == varies);
    bool twice = false;
    for (index_t row = 0; row < 64; ++row) {
      twice |= of_row(lines, 0x10000 + static_cast<std::uintptr_t>(row * stride)).twice;
    }
    CHECK(twice == varies);
  }
}

TEST_CASE("row_lines: a range that is taken for an aligned one leaves out a line") {
  auto lines = lines_of_row::of(direct(0x10000, 40), 0, 40);
  REQUIRE(of_row(lines, 0x10000 + 40).covered);
  lines.bits = 0;
  CHECK_FALSE(of_row(lines, 0x10000 + 40).covered);
}

TEST_CASE("row_lines: an instruction for a line that a range does not touch is seen") {
  const auto lines = lines_of_row::of(direct(0x10000, 192), 0, 192);
  REQUIRE(by_instructions<3>(lines, 0x10000).covered);
  CHECK_FALSE(by_instructions<4>(lines, 0x10000).covered);
}

TEST_CASE("row_lines: the lines of a whole range are the same in every row") {
  for (const index_t stride : {32, 40, 64, 100, 128, 136, 192, 256, 480, 512}) {
    CAPTURE(stride);
    const auto lines = lines_of_row::of(direct(0x10000, stride), 0, stride);
    std::set<std::uintptr_t> counts;
    for (std::uintptr_t row = 0; row < 64; ++row) {
      const std::uintptr_t first = 0x10000 + row * static_cast<std::uintptr_t>(stride);
      counts.insert((first + static_cast<std::uintptr_t>(stride) - 1) / 64 - first / 64 + 1);
    }
    if (lines.whole != 0) {
      CHECK(counts == std::set<std::uintptr_t>{static_cast<std::uintptr_t>(lines.whole)});
    } else {
      CHECK(counts.size() > 1);
    }
  }
}

TEST_CASE("row_lines: rows go into the first-level cache where the tuning says so") {
  kernel_tuning near = host_tuning(), far = host_tuning();
  near.prefetch_level = 1;
  far.prefetch_level = 2;
  for (const index_t bytes : {4, 64, 65, 256, 257, 512}) {
    const only_rows<detail::rows_by_number> with_near{{nullptr, 0}, &near}, with_far{{nullptr, 0}, &far};
    CHECK(lines_of_row::of(with_near, 0, bytes).first_level);
    CHECK_FALSE(lines_of_row::of(with_far, 0, bytes).first_level);
  }
}
