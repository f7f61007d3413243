// The measurements of calibrate().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <thread>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/ops/row_select.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

// A template: only a unit that calibrates compiles it.
template <class = unit>
class calibration {
 public:
  using clock = std::chrono::steady_clock;

  calibration(const environment& given, std::chrono::milliseconds most)
      : tuning_(*given.tuning), begin_(clock::now()), end_(begin_ + most), memory_(given.memory) {
    ctx_.instruction_set = given.instruction_set;
    ctx_.memory = given.memory;
    ctx_.tuning = &tried_;
  }

  template <class Context>
  kernel_tuning run(const Context& ctx) {
    measure_threads(ctx);
    if (!is_late()) measure_copies();
    if (!is_late()) measure_lookups();
    return tuning_;
  }

 private:
  static constexpr index_t mb = index_t{1} << 20;
  static constexpr index_t count = 8192;  // ids of a lookup
  static constexpr int rounds = 5;

  [[nodiscard]] bool is_late() const { return clock::now() > end_; }
  template <class F>
  static double ns_of(const F& f) {
    const auto begin = clock::now();
    if (!f()) return 1e18;
    return std::chrono::duration<double, std::nano>(clock::now() - begin).count();
  }

  template <class Context>
  void measure_threads(const Context& ctx) {
    if (static_cast<int>(ctx.executor->concurrency()) < 2) return;
    const auto until_another_begins = [&] {
      std::atomic<bool> begun{false};
      const std::thread::id here = std::this_thread::get_id();
      const auto begin = clock::now();
      std::atomic<double> ns{2e6};
      ctx.executor->parallel_for(2, 1, [&](index_t, index_t, int) {
        if (std::this_thread::get_id() != here) {
          ns.store(std::chrono::duration<double, std::nano>(clock::now() - begin).count());
          begun.store(true, std::memory_order_release);
        } else {
          while (!begun.load(std::memory_order_acquire) &&
                 clock::now() - begin < std::chrono::milliseconds(2)) {
          }
        }
      });
      return ns.load();
    };
    std::array<double, 15> warm{}, cold{};
    if (!is_late()) until_another_begins();
    for (double& ns : warm) {
      if (is_late()) return;
      ns = until_another_begins();
    }
    for (double& ns : cold) {
      if (is_late()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ns = until_another_begins();
    }
    tuning_.polling_ns = static_cast<index_t>(median(warm));
    tuning_.parked_ns = (std::max)(static_cast<index_t>(median(cold)), tuning_.polling_ns);
  }

  // Sets the member to the value with which pooling takes least time, by the minimum of some rounds:
  // interruptions only add. Every call pools rows that none before did. Returns the time, 0 where it is late.
  template <std::size_t N>
  double choose(index_t kernel_tuning::* member, const std::array<index_t, N>& values, index_t width) {
    constexpr index_t hotness = 16;
    std::pmr::vector<std::int32_t> ids(count, memory_);
    std::pmr::vector<float> out(static_cast<std::size_t>(count / hotness * width), memory_);
    const f32_rows format(width);
    const index_t rows = table_bytes_ / format.stride_bytes();
    const table_view<f32_rows> table(table_, rows, format);
    const fixed_hotness_view bags(ids.data(), count / hotness, hotness);
    const matrix_view<float> pooled(out.data(), count / hotness, width);

    std::array<double, N> least;
    least.fill(1e18);
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < N; ++i) {
        if (is_late()) return 0;
        tried_ = tuning_;
        tried_.*member = values[i];
        for (std::int32_t& id : ids) {
          id = static_cast<std::int32_t>(random_.bits(0, ++drawn_) % static_cast<std::uint64_t>(rows));
        }
        least[i] = (std::min)(least[i],
                              ns_of([&] { return lookup(ctx_, table, bags, combiner::sum, pooled).ok(); }));
      }
    }
    const auto best = std::min_element(least.begin(), least.end());
    const auto now = std::find(values.begin(), values.end(), tuning_.*member);
    // A value that is as fast within the noise stays.
    if (now == values.end() || least[static_cast<std::size_t>(now - values.begin())] > 1.05 * *best)
      tuning_.*member = values[static_cast<std::size_t>(best - least.begin())];
    return *best;
  }

  void measure_lookups() {
    // As much of a table as three quarters of the time allow: pages that are touched first cost more than all
    // that is measured.
    scratch_block memory(huge_page_resource::shared(), 64 * mb);
    table_ = memory.data();
    const auto filled = begin_ + (end_ - begin_) * 3 / 4;
    for (table_bytes_ = 0; table_bytes_ < 64 * mb && clock::now() < filled; table_bytes_ += 2 * mb) {
      std::memset(table_ + table_bytes_, 0, static_cast<std::size_t>(2 * mb));
    }
    if (table_bytes_ < 16 * mb) return;
    choose(&kernel_tuning::prefetch_level, std::array<index_t, 2>{1, 2}, 64);
    const double narrow = choose(&kernel_tuning::most_rows_ahead, std::array<index_t, 3>{16, 32, 64}, 16);
    const double wide =
        choose(&kernel_tuning::lines_ahead, std::array<index_t, 5>{64, 128, 192, 256, 384}, 128);
    if (narrow <= 0 || wide <= 0) return;
    // A row of D = 16 has 1 line, of D = 128 it has 8.
    const double line = (wide - narrow) / static_cast<double>(count) / 7;
    tuning_.line_ns = (std::max)(index_t{std::lround(line)}, index_t{1});
    tuning_.row_ns = (std::max)(index_t{std::lround(narrow / static_cast<double>(count) - line)}, index_t{1});
  }

  void measure_copies() {
    constexpr index_t width = 64, most = 8 * mb;  // bytes
    constexpr index_t row_bytes = width * index_t{sizeof(float)};
    constexpr auto floats = static_cast<std::size_t>(most) / sizeof(float);
    const std::pmr::vector<float> one(floats, memory_), other(floats, memory_);
    std::pmr::vector<float> out(floats, memory_);
    std::pmr::vector<std::uint8_t> cond(most / row_bytes, memory_);
    for (std::uint8_t& c : cond) c = random_.bits(0, ++drawn_) & 1;

    tried_ = tuning_;
    index_t kept = tuning_.own_cache_bytes;
    for (const index_t size : {1, 2, 4, 8}) {
      const index_t rows = size * mb / row_bytes;
      const matrix_view<const float> then(one.data(), rows, width), otherwise(other.data(), rows, width);
      const matrix_view<float> to(out.data(), rows, width);
      const std::span<const std::uint8_t> chosen(cond.data(), static_cast<std::size_t>(rows));
      std::array<double, 2> least{1e18, 1e18};
      for (int round = 0; round < rounds; ++round) {
        for (const bool streamed : {false, true}) {
          if (is_late()) return;
          double& ns = least[streamed ? 1 : 0];
          tried_.kept_bytes = streamed ? 0 : index_t{1} << 60;
          const auto copied = [&] { return row_select(ctx_, chosen, then, otherwise, to).ok(); };
          ns_of(copied);  // leaves the caches as such a call does
          ns = (std::min)(ns, ns_of(copied));
        }
      }
      tuning_.bytes_per_us =
          static_cast<index_t>(2e3 * static_cast<double>(size * mb) / (std::min)(least[0], least[1])) + 1;
      // Streamed only where that is clearly faster: who reads a cached output finds it in the cache.
      if (least[0] <= 1.15 * least[1]) kept = (std::max)(kept, size * mb);
      tuning_.kept_bytes = kept;
    }
  }

  template <std::size_t N>
  static double median(std::array<double, N> values) {
    std::sort(values.begin(), values.end());
    return values[N / 2];
  }

  kernel_tuning tuning_;
  kernel_tuning tried_;
  clock::time_point begin_, end_;
  std::pmr::memory_resource* memory_;
  std::byte* table_ = nullptr;
  index_t table_bytes_ = 0;
  inline_executor here_;
  context<inline_executor> ctx_{here_};
  counter_rng random_{0};
  std::uint64_t drawn_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
