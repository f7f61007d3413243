// sparse_segment against plain loops, and with the bits of the lookup that it stands for.
#include <deeprec/embedding/lookup/sparse_segment.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <random>
#include <string_view>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

struct problem {
  problem(index_t rows, index_t width, index_t indices_count, index_t segment_count)
      : data(static_cast<std::size_t>(rows * width)),
        indices(static_cast<std::size_t>(indices_count)),
        segments(static_cast<std::size_t>(indices_count)),
        out(static_cast<std::size_t>(segment_count * width), -5.0F),
        in(data.data(), rows, width),
        result(out.data(), segment_count, width) {
    std::mt19937 random(seed());
    for (float& x : data) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64;
    for (std::size_t k = 0; k < indices.size(); ++k) {
      indices[k] = static_cast<std::int32_t>(random() % static_cast<unsigned>(rows));
      segments[k] = static_cast<std::int64_t>(random() % static_cast<unsigned>(segment_count));
    }
    std::sort(segments.begin(), segments.end());
  }

  std::vector<float> data;
  std::vector<std::int32_t> indices;
  std::vector<std::int64_t> segments;
  std::vector<float> out;
  matrix_view<const float> in;
  matrix_view<float> result;
};

enum class divided { by_one, by_count, by_root };

// Sums of multiples of 1/64 are exact.
std::vector<float> oracle(const problem& p, divided how) {
  const index_t width = p.in.extent(1);
  std::vector<float> out(p.out.size(), 0.0F);
  std::vector<double> counts(static_cast<std::size_t>(p.result.extent(0)), 0.0);
  for (std::size_t k = 0; k < p.indices.size(); ++k) {
    const auto s = static_cast<std::size_t>(p.segments[k]);
    counts[s] += 1;
    for (index_t j = 0; j < width; ++j)
      out[s * static_cast<std::size_t>(width) + static_cast<std::size_t>(j)] += p.in(p.indices[k], j);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double n = counts[i / static_cast<std::size_t>(width)];
    const double divisor = n == 0 || how == divided::by_one ? 1.0
                           : how == divided::by_count       ? n
                                                            : std::sqrt(n);
    out[i] /= static_cast<float>(divisor);
  }
  return out;
}

}  // namespace

TEST_CASE("sums, means and square-root means of segments") {
  thread_pool pool(3);
  for (const auto& [rows, width, n, segments] : {std::array<index_t, 4>{1, 1, 1, 1},
                                                 {5, 3, 0, 4},
                                                 {100, 17, 1000, 37},
                                                 {50, 8, 20, 500},
                                                 {9, 16, 40'000, 3}}) {
    CAPTURE(n);
    problem p(rows, width, n, segments);
    REQUIRE(sparse_segment(pool, p.in, p.indices, p.segments, combiner::sum, p.result).ok());
    CHECK(p.out == oracle(p, divided::by_one));
    REQUIRE(sparse_segment(pool, p.in, p.indices, p.segments, combiner::mean, p.result).ok());
    CHECK(p.out == oracle(p, divided::by_count));
    REQUIRE(sparse_segment(pool, p.in, p.indices, p.segments, combiner::sqrtn, p.result).ok());
    CHECK(p.out == oracle(p, divided::by_root));
  }
}

TEST_CASE("rows of other types and strides; empty segments may become a row") {
  std::vector<bf16> data(8 * 5);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = bf16(static_cast<float>(i));
  std::vector<f16> out(3 * 6, f16(9.0F));
  //! [sparse_segment]
  const std::vector<std::int64_t> indices{3, 0, 0, 5};
  const std::vector<std::int32_t> segment_ids{0, 0, 2, 2};
  const matrix_view<const bf16> rows(data.data(), 8, 4, 5);  // 4 of 5 columns
  REQUIRE(sparse_segment(inline_executor{}, rows, indices, segment_ids,
                         pooling{combiner::mean, empty_bag::default_row{1}}, matrix_view(out.data(), 3, 4, 6))
              .ok());
  //! [sparse_segment]
  for (index_t j = 0; j < 4; ++j) {
    const auto at = [&](index_t i) { return static_cast<float>(rows(i, j)); };
    CHECK(static_cast<float>(out[static_cast<std::size_t>(j)]) == (at(3) + at(0)) / 2);
    CHECK(static_cast<float>(out[static_cast<std::size_t>(6 + j)]) == at(1));
    CHECK(static_cast<float>(out[static_cast<std::size_t>(12 + j)]) == (at(0) + at(5)) / 2);
  }
  CHECK(static_cast<float>(out[4]) == 9.0F);
}

TEST_CASE("faults of segments and indices: the smallest position, whatever the threads; nothing is written") {
  thread_pool pool(4);
  problem p(64, 4, 100'000, 1000);
  const std::vector<float> before = p.out;
  const auto run = [&] { return sparse_segment(pool, p.in, p.indices, p.segments, combiner::sum, p.result); };
  const auto keep = p.segments;

  p.segments[99'000] = p.segments[98'999] - 1;
  p.segments[70'001] = 0;
  status s = run();
  CHECK(s.code() == errc::invalid_value);
  CHECK(s.detail() == std::string_view("sparse_segment: segment_ids must not decrease"));
  CHECK(s.place().position == 70'001);
  p.segments = keep;

  p.segments[0] = -1;
  s = run();
  CHECK(s.detail() == std::string_view("sparse_segment: segment_ids must be in [0, out.extent(0))"));
  CHECK(s.place().position == 0);
  CHECK(s.place().value == -1);
  p.segments = keep;

  p.segments.back() = 1000;
  s = run();
  CHECK(s.detail() == std::string_view("sparse_segment: segment_ids must be in [0, out.extent(0))"));
  CHECK(s.place().position == 99'999);
  p.segments = keep;

  p.indices[50'000] = 64;
  p.indices[50'001] = -2;
  s = run();
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().operation == std::string_view("sparse_segment"));
  CHECK(s.place().position == 50'000);
  CHECK(s.place().bag == p.segments[50'000]);
  CHECK(s.place().value == 64);
  CHECK(p.out == before);
}

TEST_CASE("bad operands of sparse_segment get a status that names them, and nothing is written") {
  const inline_executor here;
  problem p(4, 3, 6, 2);
  const std::vector<float> before = p.out;
  const auto refused = [&](const status& s, errc code, std::string_view text) {
    CHECK(s.code() == code);
    CHECK(s.detail() == text);
    CHECK(p.out == before);
  };
  const std::vector<std::int64_t> few(5);
  refused(sparse_segment(here, p.in, p.indices, few, combiner::sum, p.result), errc::shape_mismatch,
          "sparse_segment: segment_ids.size() must be indices.size()");
  refused(sparse_segment(here, p.in, p.indices, p.segments, combiner::sum, matrix_view(p.out.data(), 2, 2)),
          errc::shape_mismatch, "sparse_segment: out.extent(1) must be data.extent(1)");
  refused(sparse_segment(here, matrix_view<const float>(nullptr, 4, 3), p.indices, p.segments, combiner::sum,
                         p.result),
          errc::shape_mismatch, "sparse_segment: data must not be null");
  refused(sparse_segment(here, matrix_view<const float>(p.data.data(), 4, 3, 1), p.indices, p.segments,
                         combiner::sum, p.result),
          errc::shape_mismatch, "sparse_segment: data.stride(0) must be at least data.extent(1)");
  refused(sparse_segment(here, p.in, array_view<const std::int32_t>(nullptr, 6), p.segments, combiner::sum,
                         p.result),
          errc::shape_mismatch, "sparse_segment: indices must not be null");
  refused(sparse_segment(here, p.in, p.indices, p.segments, combiner::sum, matrix_view<float>(nullptr, 2, 3)),
          errc::shape_mismatch, "sparse_segment: out must not be null");
  refused(sparse_segment(here, matrix_view<const float>(p.out.data(), 2, 3), p.indices, p.segments,
                         combiner::sum, p.result),
          errc::unsupported, "sparse_segment: out must not overlap an input");

  context<const inline_executor> without(here);
  without.memory = std::pmr::null_memory_resource();
  const status s = sparse_segment(without, p.in, p.indices, p.segments, combiner::sum, p.result);
  CHECK(s.code() == errc::out_of_memory);
  CHECK(p.out == before);
}
