// Entries of a batch: where they are written, and passes over those of a coo_view.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Where the ids and weights of a batch are written; weights may be null.
template <class Id>
struct bag_entries {
  Id* ids;
  float* weights;
};

/// Copies `count` ids and weights of the input, from position `from` on, to the entries from `at` on.
template <class Id>
void copy_positions(const Id* ids, const float* weights, index_t from, index_t count,
                    const bag_entries<Id>& to, index_t at) noexcept {
  if (count <= 0) return;
  const auto n = static_cast<std::size_t>(count);
  std::memcpy(to.ids + at, ids + from, n * sizeof(Id));
  if (to.weights == nullptr) return;
  if (weights != nullptr) {
    std::memcpy(to.weights + at, weights + from, n * sizeof(float));
  } else {
    std::fill_n(to.weights + at, n, 1.0F);
  }
}

inline namespace DEEPREC_UNIT {

/// Entries per piece of work.
inline constexpr index_t coo_piece = index_t{1} << 16;

inline bulk_work work_of_entries(index_t n) noexcept { return {n, coo_piece, static_cast<double>(n)}; }

/// Checks that all rows are in [0, B), and whether they are in order.
template <class Context, class Coo>
status look_at_rows(const Context& ctx, const Coo& coo, bool& in_order) {
  std::atomic<bool> falls{false};
  const auto bags = static_cast<std::uint64_t>(coo.bags());
  const status rows =
      first_fault(ctx, work_of_entries(coo.id_count()), [&](index_t begin, index_t end) -> status {
        bool any_outside = false;
        bool any_fall = false;
        index_t before = coo.row(begin > 0 ? begin - 1 : 0);
        for (index_t k = begin; k < end; ++k) {
          const index_t row = coo.row(k);
          any_outside |= static_cast<std::uint64_t>(row) >= bags;
          any_fall |= row < before;
          before = row;
        }
        if (any_fall) falls.store(true, std::memory_order_relaxed);
        return any_outside ? coo.validate_rows(begin, end) : status{};
      });
  in_order = !falls.load(std::memory_order_relaxed);
  return rows;
}

/// The offsets of rows that are in order: k is the offset of every bag after the bag of entry k - 1, up to
/// the bag of entry k.
template <class Context, class Coo, class Offset>
void offsets_in_order(const Context& ctx, const Coo& coo, Offset* offsets) {
  const index_t n = coo.id_count();
  run_bulk(ctx, work_of_entries(n), [&](index_t begin, index_t end, int) {
    index_t bag = begin == 0 ? 0 : coo.row(begin - 1) + 1;
    for (index_t k = begin; k < end; ++k) {
      for (const index_t row = coo.row(k); bag <= row; ++bag) offsets[bag] = static_cast<Offset>(k);
    }
  });
  for (index_t bag = n == 0 ? 0 : coo.row(n - 1) + 1; bag <= coo.bags(); ++bag)
    offsets[bag] = static_cast<Offset>(n);
}

}  // namespace DEEPREC_UNIT

}}}  // namespace deeprec::DEEPREC_ABI::detail
