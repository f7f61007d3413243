// Rows of a growing table that are not wanted any more.
//
//   evict_rows(pool, table, evict::step_ttl{100'000});               not trained for so many steps
//   evict_rows(pool, table, evict::l2_below{1e-3F});                 small values
//   evict_rows(pool, table, evict::least_recent{.rows_left = n});    all but the n that were trained last
//   evict_rows(pool, table, [](const evictee& row) { return row.frequency < 2; });
//
// A sweep over the facts of all rows; no list is kept, and no thread runs by itself. Exact: rows of the same
// step or frequency go in the order of their keys.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/victims.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A row, as a predicate of evict_rows sees it.
struct evictee {
  std::uint64_t key;
  std::uint64_t step;       ///< of its last update, or of its birth
  std::uint32_t frequency;  ///< positions that trained it, 2^24 - 1 at most
  const std::byte* row;
};

namespace evict {

/// Rows whose last update is more than so many steps ago.
struct step_ttl {
  std::uint64_t steps_to_live;
};
/// Rows half of whose sum of squares is below a threshold; NaN is not.
struct l2_below {
  float threshold;
};
/// All but `rows_left` rows, the ones trained last; by (step, key).
struct least_recent {
  index_t rows_left;
};
/// All but `rows_left` rows, the most frequent; by (frequency, step, key).
struct least_frequent {
  index_t rows_left;
};

}  // namespace evict

/// Erases the rows that a policy chooses: one of evict::, or a predicate bool(const evictee&), which several
/// threads call at once. Rows of the last `kept_steps` steps stay: by default those of the step that goes on.
/// Returns how many.
///
/// @space   host
/// @cost    a sweep over 16 bytes a row, with l2_below and predicates that read it over the rows; least_*: a
///          sweep for each 16 bits of the order that are needed, two as a rule, eight at most. Scratch of 8
///          bytes a granule, 25 bytes a victim; least_*: 512 KB a worker; l2_below: D floats a worker
/// @threads takes turns with insertions and erasures; beside finds. The same rows for any number of threads
/// @error   out_of_memory, stopped: nothing was erased
template <class Context, RowFormat Format, class Policy>
DEEPREC_PER_UNIT result<index_t> evict_rows(Context&& context_or_executor, growing_table<Format>& table,
                                            const Policy& policy, std::uint64_t kept_steps = 1) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "evict_rows");
  if (!call) return call.stopped();
  index_t evicted = 0;
  const status s = detail::or_out_of_memory("evict_rows", [&]() -> status {
    detail::growing_state<Format>& state = table.state();
    const std::lock_guard lock(state.mutex);
    const std::uint32_t now = state.step.load(std::memory_order_relaxed);
    const auto may = [&](const detail::swept_row& row) {
      return std::uint64_t{now - row.step} >= kept_steps;
    };
    if constexpr (std::is_same_v<Policy, evict::step_ttl>) {
      evicted = detail::erase_victims(ctx, state, 1.0, [&](const detail::swept_row& row, int) {
        return may(row) && std::uint64_t{now - row.step} > policy.steps_to_live;
      });
    } else if constexpr (std::is_same_v<Policy, evict::least_recent> ||
                         std::is_same_v<Policy, evict::least_frequent>) {
      using order = std::conditional_t<std::is_same_v<Policy, evict::least_recent>, detail::by_step,
                                       detail::by_frequency>;
      const index_t wanted = state.rows.rows() - (std::max)(policy.rows_left, index_t{0});
      const auto bound = detail::bound_of_first<order>(ctx, state.rows, wanted, may);
      evicted =
          bound.none ? 0 : detail::erase_victims(ctx, state, 1.0, [&](const detail::swept_row& row, int) {
            return may(row) && bound.holds(row);
          });
    } else if constexpr (std::is_same_v<Policy, evict::l2_below>) {
      const index_t width = state.format.width(), of_worker = capped_round_up(width, 16);
      const index_t floats = capped_product(of_worker, static_cast<index_t>(ctx.executor->concurrency()));
      detail::scratch_block scratch(ctx.memory, detail::scratch_block::bytes_of<float>(floats));
      float* const all = scratch.take<float>(floats).data();
      evicted = detail::erase_victims(ctx, state, 2.0 + static_cast<double>(width),
                                      [&](const detail::swept_row& row, int worker) {
                                        if (!may(row)) return false;
                                        float* const values = all + worker * of_worker;
                                        state.format.decode(state.rows.address(row.number), values);
                                        float sum = 0;
                                        for (index_t j = 0; j < width; ++j) sum += values[j] * values[j];
                                        return sum / 2 < policy.threshold;
                                      });
    } else {
      static_assert(
          std::is_invocable_r_v<bool, const Policy&, const evictee&>,
          "deeprec::evict_rows: not a policy. Fix: one of deeprec::evict::, or bool(const evictee&).");
      evicted = detail::erase_victims(ctx, state, 10.0, [&](const detail::swept_row& row, int) {
        return may(row) && policy(evictee{row.key, state.first_step + row.step, row.frequency,
                                          state.rows.address(row.number)});
      });
    }
    return {};
  });
  if (!s) return s;
  return evicted;
}

}}  // namespace deeprec::DEEPREC_ABI
