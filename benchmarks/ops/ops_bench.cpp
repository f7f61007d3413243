// The tensor operators at the shapes of published comparisons, f32, on one thread.
//
//   ops/dynamic_stitch       40 partitions of 2500 rows of 64, also on huge pages
//   ops/transpose/small      (1024, 64)           ops/transpose/large   (8192, 8192), also on huge pages
//   ops/tile                 (512, 50) twice down and 50 times across: (1024, 2500)
//   ops/bias_add_grad        columns of (51200, 512)
//   ops/sparse_segment_mean  51200 rows of 128 in 5120 segments
//   ops/chain6               six element-wise operations beyond the caches
//
//   speedup      Eigen's Tensor formulation over ours, the faster of two builds
//   of_copy      memcpy of as many bytes over ours
//   roofline     the limit over ours, the best of a sweep: a fill of the output, a read of the input, a
//                gather by hand
//   over_passes, over_loop                    of chain6: six passes, one loop by hand, over ours
//
// Shapes of less than a cache are called warm: inputs in rotation, the limit on the same ones. Each answer is
// compared with plain loops before anything is timed.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <deeprec/embedding/lookup/sparse_segment.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/ops/dynamic_stitch.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/ops/tile.hpp>
#include <deeprec/ops/transpose.hpp>

#include "ops/baseline.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"
#include "support/roofline.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
namespace baseline = ops_baseline;

constexpr inline_executor here;

struct free_memory {
  void operator()(void* p) const { std::free(p); }
};
/// Pages as a framework's allocator hands them out, or huge ones.
enum class pages : std::size_t { ordinary = 4096, huge = huge_page_size };

struct floats {
  explicit floats(index_t count, pages page = pages::ordinary) : size(static_cast<std::size_t>(count)) {
    const auto unit = static_cast<std::size_t>(page);
    const std::size_t whole = (size * sizeof(float) + unit - 1) / unit * unit;
    data.reset(static_cast<float*>(std::aligned_alloc(unit, whole)));
    if (page == pages::huge) ::madvise(data.get(), whole, MADV_HUGEPAGE);
    for (std::size_t i = 0; i < size; ++i) data.get()[i] = static_cast<float>(i * 2654435761U % 65521) / 256;
  }
  [[nodiscard]] std::size_t bytes() const { return size * sizeof(float); }
  [[nodiscard]] float* get() const { return data.get(); }

  std::size_t size;
  std::unique_ptr<float[], free_memory> data;
};

void spoil(const floats& out) { std::memset(out.get(), 0xff, out.bytes()); }
bool same(const floats& a, const floats& b) { return std::memcmp(a.get(), b.get(), a.bytes()) == 0; }
bool near(const floats& a, const floats& b, double bound) {
  for (std::size_t i = 0; i < a.size; ++i) {
    const auto x = static_cast<double>(a.get()[i]);
    const auto y = static_cast<double>(b.get()[i]);
    if (!(std::abs(x - y) <= bound * (1 + std::abs(y)))) return false;
  }
  return true;
}

using call = std::function<void()>;

/// One comparison: ours, Eigen's two builds, and a limit. All write to `out`.
struct comparison {
  std::string name;
  call ours, o2, native;
  std::string limit_name;
  call limit;
  std::function<bool()> right;  // compares out with plain loops, and spoils it
  double bytes = 0;             // that must move in a call
  int again = 1;                // calls that are timed at once
};

void measure(benchmark::State& state, const comparison& c) {
  for (const call* each : {&c.ours, &c.o2, &c.native}) {
    (*each)();
    if (!c.right()) return state.SkipWithError("wrong answer: not that of plain loops");
  }
  for (auto _ : state) {
    figures f(c.name);
    const auto repeated = [&](const call& run) {
      return [&run, &c] {
        for (int i = 0; i < c.again; ++i) run();
        benchmark::ClobberMemory();
      };
    };
    f.sample([&] {
      f.pair("speedup", "o2", repeated(c.ours), repeated(c.o2));
      f.pair("speedup", "native", repeated(c.ours), repeated(c.native));
      const double seconds = f.pair(c.limit_name, "", repeated(c.ours), repeated(c.limit)).first;
      f.note("us_per_call", seconds / c.again * 1e6);
      f.note("bytes_per_second", c.bytes * c.again / seconds);
    });
    f.report(state);
  }
}

void stitched(benchmark::State& state, const std::string& name, pages page) {
  constexpr index_t parts = 40, count = 2500, width = 64, rows = parts * count;
  const floats data(rows * width, page), out(rows * width, page), expected(rows * width);
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(3));
  std::vector<array_view<const std::int32_t>> indices;
  std::vector<matrix_view<const float>> from;
  std::vector<const int*> their_indices;
  std::vector<const float*> their_data;
  for (index_t k = 0; k < parts; ++k) {
    indices.emplace_back(order.data() + k * count, count);
    from.emplace_back(data.get() + k * count * width, count, width);
    their_indices.push_back(indices.back().data());
    their_data.push_back(from.back().data_handle());
  }
  for (index_t i = 0; i < rows; ++i) {
    std::memcpy(expected.get() + order[static_cast<std::size_t>(i)] * width, data.get() + i * width,
                width * sizeof(float));
  }
  const auto eigen = [&](auto stitch) {
    return [&, stitch] {
      stitch(their_indices.data(), their_data.data(), parts, count, width, out.get(), rows);
    };
  };
  measure(state, {name,
                  [&] {
                    benchmark::DoNotOptimize(
                        dynamic_stitch(here, std::span<const array_view<const std::int32_t>>(indices),
                                       std::span<const matrix_view<const float>>(from),
                                       matrix_view(out.get(), rows, width))
                            .ok());
                  },
                  eigen(baseline::o2::eigen_stitch), eigen(baseline::native::eigen_stitch), "of_copy",
                  [&] { std::memcpy(out.get(), data.get(), data.bytes()); },
                  [&] {
                    const bool right = same(out, expected);
                    spoil(out);
                    return right;
                  },
                  static_cast<double>(2 * data.bytes())});
}

void dynamic_stitch_published(benchmark::State& state) {
  stitched(state, "ops/dynamic_stitch", pages::ordinary);
}
void dynamic_stitch_huge_pages(benchmark::State& state) {
  stitched(state, "ops/dynamic_stitch/huge_pages", pages::huge);
}

void transposed(benchmark::State& state, const std::string& name, index_t rows, index_t columns, int sets,
                pages page = pages::ordinary) {
  std::vector<floats> in, out;
  for (int s = 0; s < sets; ++s) {
    in.emplace_back(rows * columns, page);
    out.emplace_back(rows * columns, page);
  }
  floats expected(rows * columns);
  for (index_t i = 0; i < rows; ++i) {
    for (index_t j = 0; j < columns; ++j) expected.get()[j * rows + i] = in[0].get()[i * columns + j];
  }
  const auto all = [&](auto one) {
    return [&, one] {
      for (std::size_t s = 0; s < in.size(); ++s) one(in[s].get(), out[s].get());
    };
  };
  const auto eigen = [&](auto transpose_by) {
    return all([=](const float* from, float* to) { transpose_by(from, rows, columns, to); });
  };
  measure(state, {name, all([=](const float* from, float* to) {
                    benchmark::DoNotOptimize(transpose(here, matrix_view<const float>(from, rows, columns),
                                                       matrix_view(to, columns, rows))
                                                 .ok());
                  }),
                  eigen(baseline::o2::eigen_transpose), eigen(baseline::native::eigen_transpose), "of_copy",
                  all([=](const float* from, float* to) {
                    std::memcpy(to, from, static_cast<std::size_t>(rows * columns) * sizeof(float));
                  }),
                  [&] {
                    bool right = true;
                    for (const floats& o : out) {
                      right = right && same(o, expected);
                      spoil(o);
                    }
                    return right;
                  },
                  static_cast<double>(2 * in[0].bytes() * in.size()), sets > 1 ? 8 : 1});
}
void transpose_small(benchmark::State& state) { transposed(state, "ops/transpose/small", 1024, 64, 8); }
void transpose_large(benchmark::State& state) { transposed(state, "ops/transpose/large", 8192, 8192, 1); }

void transpose_huge_pages(benchmark::State& state) {
  transposed(state, "ops/transpose/large/huge_pages", 8192, 8192, 1, pages::huge);
}

void tile_published(benchmark::State& state) {
  constexpr index_t rows = 512, columns = 50, down = 2, across = 50;
  std::vector<floats> in, out;
  for (int s = 0; s < 4; ++s) {
    in.emplace_back(rows * columns);
    out.emplace_back(rows * down * columns * across);
  }
  floats expected(rows * down * columns * across);
  for (index_t i = 0; i < rows * down; ++i) {
    for (index_t j = 0; j < columns * across; ++j) {
      expected.get()[i * columns * across + j] = in[0].get()[i % rows * columns + j % columns];
    }
  }
  const auto all = [&](auto one) {
    return [&, one] {
      for (std::size_t s = 0; s < in.size(); ++s) one(in[s].get(), out[s].get());
    };
  };
  const candidate best = fastest({{"memset",
                                   [&] {
                                     for (const floats& o : out) std::memset(o.get(), 0, o.bytes());
                                   }},
                                  {"streamed", [&] {
                                     for (const floats& o : out)
                                       baseline::o2::fill_streamed(o.get(), static_cast<long>(o.size), 1.5F);
                                   }}});
  const auto eigen = [&](auto tile_by) {
    return all([=](const float* from, float* to) { tile_by(from, rows, columns, down, across, to); });
  };
  measure(state, {"ops/tile", all([](const float* from, float* to) {
                    benchmark::DoNotOptimize(tile(here, matrix_view<const float>(from, rows, columns), down,
                                                  across, matrix_view(to, rows * down, columns * across))
                                                 .ok());
                  }),
                  eigen(baseline::o2::eigen_tile), eigen(baseline::native::eigen_tile), "roofline", best.run,
                  [&] {
                    bool right = true;
                    for (const floats& o : out) {
                      right = right && same(o, expected);
                      spoil(o);
                    }
                    return right;
                  },
                  static_cast<double>(out[0].bytes() * out.size())});
}

void bias_add_grad(benchmark::State& state) {
  constexpr index_t rows = 51'200, columns = 512;
  const floats in(rows * columns), out(columns), expected(columns);
  for (index_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (index_t i = 0; i < rows; ++i) sum += static_cast<double>(in.get()[i * columns + j]);
    expected.get()[j] = static_cast<float>(sum);
  }
  std::vector<candidate> reads;
  for (const long ahead : {0L, 8L, 16L, 32L, 64L}) {
    for (const auto& [places, apart] : {std::pair{1L, 128L}, {4L, 512L}, {8L, 1024L}, {16L, 1024L}}) {
      for (const auto& [build, read] :
           {std::pair{"o2", &baseline::o2::read_all}, {"native", &baseline::native::read_all}}) {
        reads.push_back(
            {std::string(build) + ",ahead:" + std::to_string(ahead) + ",places:" + std::to_string(places),
             [&in, read = read, ahead, places = places, apart = apart] {
               benchmark::DoNotOptimize(read(in.get(), static_cast<long>(in.size), ahead, places, apart));
             }});
      }
    }
  }
  const candidate best = fastest(reads);
  const auto eigen = [&](auto sum_by) { return [&, sum_by] { sum_by(in.get(), rows, columns, out.get()); }; };
  measure(state,
          {"ops/bias_add_grad",
           [&] {
             benchmark::DoNotOptimize(column_sums(here, matrix_view<const float>(in.get(), rows, columns),
                                                  array_view<float>(out.get(), columns))
                                          .ok());
           },
           eigen(baseline::o2::eigen_bias_add_grad), eigen(baseline::native::eigen_bias_add_grad), "roofline",
           best.run,
           [&] {
             const bool right = near(out, expected, 1e-3);
             spoil(out);
             return right;
           },
           static_cast<double>(in.bytes())});
}

void sparse_segment_mean(benchmark::State& state) {
  constexpr index_t rows = 51'200, width = 128, count = 51'200, segment_count = 5'120;
  const floats data(rows * width), out(segment_count * width), expected(segment_count * width);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::vector<std::int32_t> segments(static_cast<std::size_t>(count));
  std::mt19937_64 random(4);
  for (std::size_t k = 0; k < indices.size(); ++k) {
    indices[k] = static_cast<std::int64_t>(random() % rows);
    segments[k] = static_cast<std::int32_t>(k / 10);
  }
  for (index_t s = 0; s < segment_count; ++s) {
    for (index_t j = 0; j < width; ++j) {
      double sum = 0;
      for (index_t k = 10 * s; k < 10 * s + 10; ++k) {
        sum += static_cast<double>(data.get()[indices[static_cast<std::size_t>(k)] * width + j]);
      }
      expected.get()[s * width + j] = static_cast<float>(sum / 10);
    }
  }
  std::vector<candidate> gathers;
  for (const long ahead : {0L, 4L, 8L, 16L, 32L}) {
    for (const bool near : {false, true}) {
      for (const auto& [build, gather] :
           {std::pair{"o2", &baseline::o2::gather_means}, {"native", &baseline::native::gather_means}}) {
        gathers.push_back({std::string(build) + (near ? ",near" : "") + ",ahead:" + std::to_string(ahead),
                           [&, gather = gather, ahead, near] {
                             gather(data.get(), width, indices.data(), segments.data(), count, out.get(),
                                    segment_count, ahead, near);
                           }});
      }
    }
  }
  const candidate best = fastest(gathers);
  const auto eigen = [&](auto mean_by) {
    return [&, mean_by] {
      mean_by(data.get(), rows, width, indices.data(), segments.data(), count, out.get(), segment_count);
    };
  };
  measure(state, {"ops/sparse_segment_mean",
                  [&] {
                    benchmark::DoNotOptimize(
                        sparse_segment(here, matrix_view<const float>(data.get(), rows, width), indices,
                                       segments, combiner::mean, matrix_view(out.get(), segment_count, width))
                            .ok());
                  },
                  eigen(baseline::o2::eigen_segment_mean), eigen(baseline::native::eigen_segment_mean),
                  "roofline", best.run,
                  [&] {
                    const bool right = near(out, expected, 1e-5);
                    spoil(out);
                    return right;
                  },
                  static_cast<double>((count + segment_count) * width) * sizeof(float)});
}

void chain6(benchmark::State& state) {
  using namespace deeprec::expr;
  static const memory_plan plan = memory_plan::of(3 * large_bytes());
  const auto n = static_cast<index_t>(plan.bytes / 3 / sizeof(float)) / 1024 * 1024;
  const floats x(n), y(n), out(n), expected(n);
  baseline::o2::chain_by_hand(x.get(), y.get(), expected.get(), n);
  const matrix_view<const float> a(x.get(), n / 1024, 1024), b(y.get(), n / 1024, 1024);
  const matrix_view<float> to(out.get(), n / 1024, 1024);
  const call ours = [&] {
    benchmark::DoNotOptimize(
        evaluate(here, assign(to, relu((in(a) + in(b)) * 0.5F - in(b)) * in(a) + 1.0F)).ok());
  };
  const auto of = [&](auto chain) { return [&, chain] { chain(x.get(), y.get(), out.get(), n); }; };
  for (const call& each :
       {ours, call(of(baseline::native::chain_by_hand)), call(of(baseline::native::chain_by_passes))}) {
    each();
    if (!near(out, expected, 1e-5)) return state.SkipWithError("wrong answer: not that of plain loops");
    spoil(out);
  }
  for (auto _ : state) {
    figures f("ops/chain6");
    f.unfit(plan.unfit);
    f.sample([&] {
      f.pair("over_loop", "o2", ours, of(baseline::o2::chain_by_hand));
      const double seconds = f.pair("over_loop", "native", ours, of(baseline::native::chain_by_hand)).first;
      f.pair("over_passes", "o2", ours, of(baseline::o2::chain_by_passes));
      f.pair("over_passes", "native", ours, of(baseline::native::chain_by_passes));
      f.note("bytes_per_second", static_cast<double>(3 * x.bytes()) / seconds);
    });
    f.report(state);
  }
}

#define OPS_BENCHMARK(function, name) \
  BENCHMARK(function)->Name(name)->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond)
OPS_BENCHMARK(dynamic_stitch_published, "ops/dynamic_stitch");
OPS_BENCHMARK(transpose_small, "ops/transpose/small");
OPS_BENCHMARK(transpose_large, "ops/transpose/large");
OPS_BENCHMARK(dynamic_stitch_huge_pages, "ops/dynamic_stitch/huge_pages");
OPS_BENCHMARK(transpose_huge_pages, "ops/transpose/large/huge_pages");
OPS_BENCHMARK(tile_published, "ops/tile");
OPS_BENCHMARK(bias_add_grad, "ops/bias_add_grad");
OPS_BENCHMARK(sparse_segment_mean, "ops/sparse_segment_mean");
OPS_BENCHMARK(chain6, "ops/chain6");

}  // namespace
