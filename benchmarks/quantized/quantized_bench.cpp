// Lookups over quantized rows against a gather of the same lines, and against lookups over the f32 rows that
// they were made from.
//
//   quantized/int8/d:128    int8 rows with f32 scale and bias, as many as there are f32 rows; on one thread,
//   quantized/int4/d:128    the worse of hotness 20 and 100: roofline = time of the best gather of the same
//                           rows, or of FBGEMM where it is here and faster, over ours; speedup = time over
//                           f32 rows, over ours
//   quantized/vs_fbgemm/int8/d:128   the same rows, in FBGEMM's layout, by its kernels (optional peer), the
//   quantized/vs_fbgemm/int4/d:128   worse of both: speedup over its usual prefetch distance, 16 rows;
//                           speedup_tuned over the best of 8, 16, 32 and 64
//
// Index sets rotate, and their different quantized rows fill twice the last-level cache. Before anything is
// timed, the pooled rows are compared with the f32 rows' under the error that the codes allow, and with sums
// in double of what the scalar reference decodes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/gather.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

thread_pool& two_threads() {
  static thread_pool pool(2);
  return pool;
}

/// f32 rows so many that 72 bytes of each (int4 rows of 128 have 68) fill three times the last-level cache:
/// 4 GB or more.
struct float_rows {
  std::string unfit;
  dense_table<f32_rows> table;

  static const float_rows& of_width_128() {
    static const float_rows rows(128);
    return rows;
  }

 private:
  explicit float_rows(index_t width) : table(rows_of(width, unfit), width) {
    table.initialize(two_threads(), row_init::uniform{.seed = 5, .bound = 0.5F});
  }
  static index_t rows_of(index_t width, std::string& unfit) {
    const std::size_t row = static_cast<std::size_t>(width) * sizeof(float);
    const std::size_t wanted = std::max(std::size_t{4} << 30, 3 * last_level_cache() / 72 * row);
    // With int8 codes beside them.
    const memory_plan plan = memory_plan::of(wanted / 3 * 4);
    unfit = plan.unfit;
    return static_cast<index_t>(plan.bytes / 4 * 3 / row);
  }
};

template <class Executor, class Format>
void look_up(Executor& executor, const dense_table<Format>& table, const batch& set,
             std::vector<float>& out) {
  const status s = lookup(executor, table.view(), set.view(), combiner::sum,
                          matrix_view(out.data(), set.view().bags(), table.width()));
  if (!s) std::abort();
}

/// What differs; empty when nothing does.
template <class Format>
std::string fault(const dense_table<f32_rows>& floats, const dense_table<Format>& codes, const batch& set) {
  const index_t width = floats.width();
  std::vector<float> exact(static_cast<std::size_t>(set.view().bags() * width)), ours(exact.size());
  look_up(two_threads(), floats, set, exact);
  look_up(two_threads(), codes, set, ours);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (index_t b = 0; b < set.view().bags(); ++b) {
    std::vector<double> decoded(static_cast<std::size_t>(width));
    double allowed = 0;    // half a step of each row
    double magnitude = 0;  // of what is added in a column
    const index_t begin = set.view().ranges().begin(b), end = set.view().ranges().end(b);
    for (index_t k = begin; k < end; ++k) {
      const std::byte* const bytes = codes.view().row(set.ids[static_cast<std::size_t>(k)]);
      const auto scale = static_cast<double>(codes.format().scale(bytes));
      const auto bias = static_cast<double>(codes.format().bias(bytes));
      allowed += scale / 2;
      magnitude += scale * Format::levels + std::fabs(bias);
      codes.format().decode(bytes, row.data());
      for (index_t j = 0; j < width; ++j)
        decoded[static_cast<std::size_t>(j)] += static_cast<double>(row[static_cast<std::size_t>(j)]);
    }
    const double rounding = 2 * static_cast<double>(end - begin + 2) * 0x1p-24 * magnitude;
    for (index_t j = 0; j < width; ++j) {
      const auto i = static_cast<std::size_t>(b * width + j);
      if (std::fabs(static_cast<double>(ours[i]) - decoded[static_cast<std::size_t>(j)]) > rounding) {
        return "wrong answer: not the sum of the decoded rows";
      }
      if (std::fabs(static_cast<double>(ours[i]) - static_cast<double>(exact[i])) > allowed + rounding) {
        return "wrong answer: further from the f32 rows than the codes allow";
      }
    }
  }
  return {};
}

template <class Format>
fbgemm::pooled_lookup<std::uint8_t> fbgemm_kernel(index_t width, int distance) {
  if constexpr (std::is_same_v<Format, int8_rows>) {
    return fbgemm::generate_lookup<std::uint8_t>(width, distance);
  } else {
    return fbgemm::generate_nbit_lookup(4, width, distance);
  }
}
template <class Format>
std::vector<row_reader> fbgemm_readers_of(const dense_table<Format>& codes) {
  return fbgemm_readers<std::uint8_t>(codes.view().data(), codes.rows(), codes.width(),
                                      &fbgemm_kernel<Format>);
}

template <class Format>
void against_floats(benchmark::State& state, const std::string& name, const Format& format) {
  const float_rows& source_rows = float_rows::of_width_128();
  const dense_table<f32_rows>& floats = source_rows.table;
  dense_table<Format> codes(floats.rows(), format);
  const auto source =
      matrix_view<const float>(static_cast<const float*>(static_cast<const void*>(floats.view().data())),
                               floats.rows(), format.width());
  if (const status s = quantize(two_threads(), source, codes.view()); !s) std::abort();
  const char* const memory = static_cast<const char*>(static_cast<const void*>(codes.view().data()));
  const index_t row_bytes = format.stride_bytes();
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    f.unfit(source_rows.unfit);
    f.note("on_huge_pages", share_on_huge_pages(memory));
    const memory_pace pace = memory_pace::of(memory, static_cast<std::size_t>(floats.rows() * row_bytes));
    struct rotation {
      std::string which;
      std::vector<batch> sets;
      limit fastest;
      std::vector<float> out;
    };
    std::vector<rotation> rotations;
    for (const index_t hotness : {20, 100}) {
      rotation r{hotness == 20 ? "h20" : "h100", uniform_batches(floats.rows(), hotness, row_bytes), {}, {}};
      if (const std::string wrong = fault(floats, codes, r.sets[0]); !wrong.empty()) {
        return state.SkipWithError(wrong.c_str());
      }
      f.unfit(not_cold(r.sets, floats.rows(), row_bytes));
      std::vector<row_reader> readers = gathers(memory, row_bytes, nullptr);
      append(readers, fbgemm_readers_of(codes));
      r.fastest = limit::of(readers, r.sets);
      const std::string out_of =
          pace.check_cold(r.fastest.best, ids_of(r.sets), static_cast<double>(row_bytes));
      if (!out_of.empty()) return state.SkipWithError(out_of.c_str());
      f.say(r.which + ": " + r.fastest.best.name);
      r.out.resize(static_cast<std::size_t>(r.sets[0].view().bags() * format.width()));
      rotations.push_back(std::move(r));
    }
    f.sample([&] {
      for (rotation& r : rotations) {
        const auto ours = [&] {
          for (const batch& set : r.sets) look_up(one, codes, set, r.out);
        };
        const auto [seconds, of_gather] =
            f.pair("roofline", r.which, ours, [&] { read_all(r.fastest.reader, r.sets, 0, r.sets.size()); });
        const double of_floats = f.pair("speedup", r.which, ours, [&] {
                                    for (const batch& set : r.sets) look_up(one, floats, set, r.out);
                                  }).second;
        f.note("ns_per_row_" + r.which, seconds / ids_of(r.sets) * 1e9);
        f.note("gather_ns_per_row_" + r.which, of_gather / ids_of(r.sets) * 1e9);
        f.note("f32_ns_per_row_" + r.which, of_floats / ids_of(r.sets) * 1e9);
      }
    });
    f.report(state);
  }
}

/// 8192 different rows again and again: writing codes is slow.
template <class Format>
void fill(dense_table<Format>& rows) {
  const table_view<Format> to = rows.view();
  const index_t stride = rows.format().stride_bytes(), patterns = std::min<index_t>(8192, rows.rows());
  std::vector<float> values(static_cast<std::size_t>(rows.width()));
  const counter_rng rng(6);
  for (index_t r = 0; r < patterns; ++r) {
    for (index_t j = 0; j < rows.width(); ++j) {
      const auto bits = rng.bits(8, static_cast<std::uint64_t>(r * rows.width() + j));
      values[static_cast<std::size_t>(j)] = static_cast<float>(bits >> 40) * 0x1p-24F - 0.5F;
    }
    rows.format().encode(values.data(), to.row(r));
  }
  for (index_t r = patterns; r < rows.rows(); r += patterns) {
    std::memcpy(to.row(r), to.row(0), static_cast<std::size_t>(std::min(patterns, rows.rows() - r) * stride));
  }
}

template <class Format>
void against_fbgemm(benchmark::State& state, const std::string& name, const Format& format) {
  if (fbgemm::library() == nullptr) {
    return state.SkipWithError("no FBGEMM here: set DEEPREC_FBGEMM (benchmarks/support/fbgemm.hpp)");
  }
  const memory_plan plan = memory_plan::of(std::max(std::size_t{1} << 30, 3 * last_level_cache()));
  dense_table<Format> codes(static_cast<index_t>(plan.bytes) / format.stride_bytes(), format);
  fill(codes);
  inline_executor here;
  for (auto _ : state) {
    figures f(name);
    f.unfit(plan.unfit);
    f.note("on_huge_pages", share_on_huge_pages(codes.view().data()));
    struct rotation {
      std::string which;
      std::vector<batch> sets;
      std::vector<row_reader> readers;
      limit best;
      std::vector<float> out;
    };
    std::vector<rotation> rotations;
    for (const index_t hotness : {20, 100}) {
      rotation r{hotness == 20 ? "h20" : "h100",
                 uniform_batches(codes.rows(), hotness, format.stride_bytes()),
                 {},
                 {},
                 {}};
      r.out.resize(static_cast<std::size_t>(r.sets[0].view().bags() * codes.width()));
      std::vector<float> theirs(r.out.size());
      const batch& set = r.sets[0];
      look_up(here, codes, set, r.out);
      if (!fbgemm_kernel<Format>(codes.width(), 16)(
              set.view().bags(), static_cast<std::int64_t>(set.ids.size()), codes.rows(),
              static_cast<const std::uint8_t*>(static_cast<const void*>(codes.view().data())), set.ids.data(),
              set.offsets.data(), nullptr, theirs.data())) {
        return state.SkipWithError("wrong answer: FBGEMM refuses the batch");
      }
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        if (!(std::fabs(r.out[i] - theirs[i]) <= 1e-4F * (1 + std::fabs(r.out[i])))) {
          return state.SkipWithError("wrong answer: FBGEMM's differs");
        }
      }
      r.readers = fbgemm_readers_of(codes);
      r.best = limit::of(r.readers, r.sets);
      f.say(r.which + ": " + r.best.best.name);
      f.unfit(not_cold(r.sets, codes.rows(), format.stride_bytes()));
      rotations.push_back(std::move(r));
    }
    f.sample([&] {
      for (rotation& r : rotations) {
        const auto ours = [&] {
          for (const batch& set : r.sets) look_up(here, codes, set, r.out);
        };
        f.pair("speedup", r.which, ours, [&] { read_all(r.readers[1], r.sets, 0, r.sets.size()); });
        const auto [seconds, of_theirs] = f.pair("speedup_tuned", r.which, ours,
                                                 [&] { read_all(r.best.reader, r.sets, 0, r.sets.size()); });
        f.note("ns_per_row_" + r.which, seconds / ids_of(r.sets) * 1e9);
        f.note("fbgemm_ns_per_row_" + r.which, of_theirs / ids_of(r.sets) * 1e9);
      }
    });
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  add("quantized/int8/d:128",
      [](state& s, const std::string& name) { against_floats(s, name, int8_rows(128)); });
  add("quantized/int4/d:128",
      [](state& s, const std::string& name) { against_floats(s, name, int4_rows(128)); });
  add("quantized/vs_fbgemm/int8/d:128",
      [](state& s, const std::string& name) { against_fbgemm(s, name, int8_rows(128)); });
  add("quantized/vs_fbgemm/int4/d:128",
      [](state& s, const std::string& name) { against_fbgemm(s, name, int4_rows(128)); });
  return says_fbgemm();
}();

}  // namespace
