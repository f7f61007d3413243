// Pooled lookups against FBGEMM's kernels, where its library is at hand (support/fbgemm.hpp), on one thread.
//
//   lookup/vs_fbgemm/d:64       speedup on the same 4 GB table on huge pages, f32, the worse of hotness 20
//                               and 100; rows in rotation fill twice the last-level cache
//   lookup/vs_fbgemm/default    each over 1 GB or more as it allocates by default (a dense_table here,
//                               aligned new there), D = 64; the worst of f32, f16 and int8 rows
//
// speedup is over FBGEMM at the prefetch distance that its callers use, 16 rows; speedup_tuned, which the
// claims are about, over the best of 8, 16, 32 and 64. The answers are compared first.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/figures.hpp"
#include "support/gather.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

/// One table by both, over some batches.
template <class Row, class Table>
class comparison {
 public:
  comparison(const Table& table, const void* their_memory, index_t hotness)
      : table_(table),
        sets_(uniform_batches(table.rows(), hotness, table.format().row_bytes())),
        readers_(fbgemm_readers<Row>(their_memory, table.rows(), table.format().width())),
        out_(static_cast<std::size_t>(sets_[0].view().bags() * table.format().width())) {}

  /// What differs; empty when nothing does.
  [[nodiscard]] std::string fault(const void* their_memory) {
    const auto kernel = fbgemm::generate_lookup<Row>(table_.format().width(), 16);
    std::vector<float> theirs(out_.size());
    ours(sets_[0]);
    if (!kernel(sets_[0].view().bags(), static_cast<std::int64_t>(sets_[0].ids.size()), table_.rows(),
                static_cast<const Row*>(their_memory), sets_[0].ids.data(), sets_[0].offsets.data(), nullptr,
                theirs.data())) {
      return "wrong answer: FBGEMM refuses the batch";
    }
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (!(std::fabs(out_[i] - theirs[i]) <= 1e-4F * (1 + std::fabs(out_[i]))))
        return "wrong answer: FBGEMM's differs";
    }
    return {};
  }
  void tune() { best_ = limit::of(readers_, sets_); }
  void round(figures& f, const std::string& which) {
    const auto all_ours = [&] {
      for (const batch& set : sets_) ours(set);
    };
    f.pair("speedup", which, all_ours, [&] { read_all(readers_[1], sets_, 0, sets_.size()); });
    f.pair("speedup_tuned", which, all_ours, [&] { read_all(best_.reader, sets_, 0, sets_.size()); });
  }
  [[nodiscard]] const std::string& best() const { return best_.best.name; }
  [[nodiscard]] std::string unfit() const {
    return not_cold(sets_, table_.rows(), table_.format().row_bytes());
  }

 private:
  void ours(const batch& set) {
    inline_executor here;
    const matrix_view to(out_.data(), set.view().bags(), table_.format().width());
    if (!lookup(here, table_, set.view(), combiner::sum, to)) std::abort();
  }

  Table table_;
  std::vector<batch> sets_;
  std::vector<row_reader> readers_;  // the second is FBGEMM's usual distance of 16
  std::vector<float> out_;
  limit best_;
};

bool has_peer(benchmark::State& state) {
  if (fbgemm::library() != nullptr) return true;
  state.SkipWithError("no FBGEMM here: set DEEPREC_FBGEMM (benchmarks/support/fbgemm.hpp)");
  return false;
}

void same_table(benchmark::State& state, const std::string& name, index_t width) {
  if (!has_peer(state)) return;
  const big_memory& memory = huge_memory();
  if (memory.data() == nullptr) return state.SkipWithError("no memory for the table");
  const f32_rows format(width);
  const const_table_view<f32_rows> table(reinterpret_cast<const std::byte*>(memory.data()),
                                         static_cast<index_t>(memory.bytes()) / format.stride_bytes(),
                                         format);
  for (auto _ : state) {
    figures f(name);
    f.unfit(memory.unfit());
    f.note("on_huge_pages", share_on_huge_pages(memory.data()));
    std::vector<comparison<float, const_table_view<f32_rows>>> sides;
    for (const index_t hotness : {20, 100}) {
      sides.emplace_back(table, memory.data(), hotness);
      const std::string fault = sides.back().fault(memory.data());
      if (!fault.empty()) return state.SkipWithError(fault.c_str());
      sides.back().tune();
      f.say(sides.back().best());
      f.unfit(sides.back().unfit());
    }
    f.sample([&] {
      sides[0].round(f, "h20");
      sides[1].round(f, "h100");
    });
    f.report(state);
  }
}

template <class Format>
using view_of = decltype(std::declval<const dense_table<Format>&>().view());

/// 1 GB of rows, or what twice the last-level cache needs: each as it allocates by default. Both hold the
/// same bytes.
template <class Row, class Format>
class by_default_side {
 public:
  by_default_side(const Format& format, std::size_t bytes)
      : table_(static_cast<index_t>(bytes) / format.stride_bytes(), format),
        size_(static_cast<std::size_t>(table_.rows() * format.stride_bytes())),
        theirs_(static_cast<char*>(::operator new(size_, std::align_val_t(64)))) {
    thread_pool pool(2);
    table_.initialize(pool, row_init::uniform{.seed = 3, .bound = 0.5F});
    std::memcpy(theirs_.get(), table_.view().data(), size_);
    sides_ = std::make_unique<comparison<Row, view>>(std::as_const(table_).view(), theirs_.get(), 20);
  }
  [[nodiscard]] std::string fault() { return sides_->fault(theirs_.get()); }
  comparison<Row, view_of<Format>>& sides() { return *sides_; }
  [[nodiscard]] const void* memory() const { return theirs_.get(); }

 private:
  using view = view_of<Format>;
  struct release {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  dense_table<Format> table_;
  std::size_t size_;
  std::unique_ptr<char, release> theirs_;
  std::unique_ptr<comparison<Row, view>> sides_;
};

void by_default(benchmark::State& state, const std::string& name) {
  if (!has_peer(state)) return;
  constexpr index_t width = 64;
  for (auto _ : state) {
    figures f(name);
    // Three times two tables.
    memory_plan plan = memory_plan::of(6 * std::max(std::size_t{1} << 30, 3 * last_level_cache()));
    f.unfit(plan.unfit);
    by_default_side<float, f32_rows> f32(f32_rows(width), plan.bytes / 6);
    by_default_side<std::uint16_t, f16_rows> half(f16_rows(width), plan.bytes / 6);
    by_default_side<std::uint8_t, int8_rows> int8(int8_rows(width), plan.bytes / 6);
    const auto all = [&](const auto& use) {
      use(f32, "f32");
      use(half, "f16");
      use(int8, "int8");
    };
    std::string fault;
    all([&](auto& side, const std::string& which) {
      if (fault.empty()) fault = side.fault();
      side.sides().tune();
      f.say(which + ": " + side.sides().best());
      f.unfit(side.sides().unfit());
      f.note("on_huge_pages_theirs_" + which, share_on_huge_pages(side.memory()));
    });
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.sample([&] { all([&](auto& side, const std::string& which) { side.sides().round(f, which); }); });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    add("lookup/vs_fbgemm/d:" + std::to_string(width),
        [width](benchmark::State& state, const std::string& name) { same_table(state, name, width); });
  }
  add("lookup/vs_fbgemm/default", by_default);
  return true;
}();

}  // namespace
