// Sweeps over the facts of rows: which rows are erased. Exact, and the same for any number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A row as sweeps see it.
struct swept_row {
  std::uint64_t key;
  std::uint32_t step;
  std::uint32_t frequency;
  std::uint32_t number;
  bool held;
};

/// Calls f(swept_row, facts) for each live row of some granules.
template <class F>
void sweep_granules(const row_store& rows, index_t begin, index_t end, const F& f) {
  for (index_t g = begin; g < end; ++g) {
    const auto all = rows.facts_of_granule(g);
    for (index_t i = 0; i < all.count; ++i) {
      row_facts& facts = all.facts[i];
      const std::uint32_t rest = facts.rest.load(std::memory_order_relaxed);
      if ((rest & row_facts::live) == 0) continue;
      f(swept_row{facts.key.load(std::memory_order_relaxed), facts.step.load(std::memory_order_relaxed),
                  row_facts::frequency_of(rest), all.first + static_cast<std::uint32_t>(i),
                  (rest & row_facts::held) != 0},
        facts, g);
    }
  }
}
template <class Context, class F>
void sweep(const Context& ctx, const row_store& rows, double ns_a_row, const F& f) {
  const double ns = ns_a_row * static_cast<double>(rows.granule_count() * rows.rows_per_granule());
  run_bulk(ctx, {rows.granule_count(), 1, ns}, f);
}

/// Orders of rows, as digits of 16 bits, the most important first: rows of the same step or frequency by key.
struct by_step {
  static constexpr int digits = 6;
  static std::uint32_t digit(const swept_row& row, int d) noexcept {
    if (d < 2) return row.step >> (16 - 16 * d) & 0xffff;
    return static_cast<std::uint32_t>(row.key >> (48 - 16 * (d - 2))) & 0xffff;
  }
};
struct by_frequency {
  static constexpr int digits = 8;
  static std::uint32_t digit(const swept_row& row, int d) noexcept {
    if (d < 2) return row.frequency >> (16 - 16 * d) & 0xffff;
    return by_step::digit(row, d - 2);
  }
};

/// The first rows of an order, of those that may be erased: all whose digits are not above the bound's.
template <class Order>
struct victim_bound {
  std::array<std::uint32_t, Order::digits> digits{};
  bool none = false;

  [[nodiscard]] bool holds(const swept_row& row) const noexcept {
    if (none) return false;
    for (int d = 0; d < Order::digits; ++d) {
      const std::uint32_t of_row = Order::digit(row, d), limit = digits[static_cast<std::size_t>(d)];
      if (of_row != limit) return of_row < limit;
    }
    return true;
  }
};

/// The bound of the first `wanted` rows; of all where there are not so many. One sweep for each digit that
/// has to be known; scratch of 512 KB a worker.
template <class Order, class Context, class May>
victim_bound<Order> bound_of_first(const Context& ctx, const row_store& rows, index_t wanted,
                                   const May& may) {
  victim_bound<Order> bound;
  if (wanted <= 0) {
    bound.none = true;
    return bound;
  }
  constexpr index_t values = 65536;
  const auto workers = static_cast<index_t>(ctx.executor->concurrency());
  scratch_block scratch(ctx.memory, scratch_block::bytes_of<index_t>(values * workers));
  const auto counts = scratch.take<index_t>(values * workers);
  for (int d = 0; d < Order::digits; ++d) {
    std::fill(counts.begin(), counts.end(), index_t{0});
    sweep(ctx, rows, 1.0, [&](index_t begin, index_t end, int worker) {
      index_t* const mine = counts.data() + worker * values;
      sweep_granules(rows, begin, end, [&](const swept_row& row, row_facts&, index_t) {
        for (int e = 0; e < d; ++e) {
          if (Order::digit(row, e) != bound.digits[static_cast<std::size_t>(e)]) return;
        }
        if (may(row)) ++mine[Order::digit(row, d)];
      });
    });
    index_t before = 0;
    std::uint32_t value = 0;
    for (;; ++value) {
      index_t here = 0;
      for (index_t w = 0; w < workers; ++w) here += counts[static_cast<std::size_t>(w * values + value)];
      if (before + here >= wanted || value == values - 1) {
        // All rows with this digit are among the first, or fewer rows than wanted exist: later digits don't
        // matter.
        const bool is_exact = before + here <= wanted;
        bound.digits[static_cast<std::size_t>(d)] = value;
        wanted -= before;
        if (is_exact) {
          for (int e = d + 1; e < Order::digits; ++e) bound.digits[static_cast<std::size_t>(e)] = 0xffff;
          return bound;
        }
        break;
      }
      before += here;
    }
  }
  return bound;
}

/// Erases the rows for which is_victim(row, worker) is true; returns how many. Under the mutex. It throws
/// where memory is refused, and then nothing was erased. Scratch of 8 bytes a granule and 16 bytes a victim.
template <class Context, RowFormat Format, class IsVictim>
index_t erase_victims(const Context& ctx, growing_state<Format>& state, double ns_a_row,
                      const IsVictim& is_victim) {
  const row_store& rows = state.rows;
  const index_t granules = rows.granule_count();
  scratch_block counts_block(ctx.memory, scratch_block::bytes_of<index_t>(granules + 1));
  const auto firsts = counts_block.take<index_t>(granules + 1);
  std::fill(firsts.begin(), firsts.end(), index_t{0});
  sweep(ctx, rows, ns_a_row, [&](index_t begin, index_t end, int worker) {
    sweep_granules(rows, begin, end, [&](const swept_row& row, row_facts& facts, index_t granule) {
      const bool chosen = is_victim(row, worker);
      if (((facts.rest.load(std::memory_order_relaxed) & row_facts::chosen) != 0) != chosen)
        facts.rest.fetch_xor(row_facts::chosen, std::memory_order_relaxed);
      if (chosen)
        ++firsts[static_cast<std::size_t>(granule + 1)];  // a sum of every row would wait for itself
    });
  });
  for (std::size_t g = 1; g < firsts.size(); ++g) firsts[g] += firsts[g - 1];
  const index_t victims = firsts.back();
  if (victims == 0) return 0;
  scratch_block keys_block(ctx.memory, scratch_block::bytes_of<std::uint64_t>(victims));
  const auto keys = keys_block.take<std::uint64_t>(victims);
  sweep(ctx, rows, 0.5, [&](index_t begin, index_t end, int) {
    index_t next = firsts[static_cast<std::size_t>(begin)];
    sweep_granules(rows, begin, end, [&](const swept_row& row, row_facts& facts, index_t) {
      if ((facts.rest.load(std::memory_order_relaxed) & row_facts::chosen) != 0)
        keys[static_cast<std::size_t>(next++)] = row.key;
    });
  });
  const index_t erased = state.erase(ctx, keys.data(), victims);
  state.evicted += erased;
  return erased;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
