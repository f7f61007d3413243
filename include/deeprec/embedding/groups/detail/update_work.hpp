// What an update of a group's tables consists of: units for one thread each, which thread begins with which,
// and their memory.
//
//   table of many ids     all threads, in parts of its rows        one after the other
//   the others            a unit each, or parts of one that        the longest first, each to the thread with
//                         takes more than a thread's share         the least to do
//
// Not here: the steps (feature_batches.hpp), parts of rows (kernels/host/table_parts.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Work for a table in one update.
struct table_work {
  /// Tables with up to this many ids are updated by one thread.
  static constexpr index_t positions_of_many = index_t{1} << 15;

  std::size_t first = no_feature;
  const feature_table* table = nullptr;
  index_t positions = 0;
  index_t numbered = 0;
  index_t place = 0;     // offset of its memory in the block of the update
  index_t parts = 1;     // of its rows, each updated by one thread
  index_t divided = -1;  // its number among the smaller tables in parts

  [[nodiscard]] bool is_large() const noexcept { return positions > positions_of_many; }
  [[nodiscard]] bool is_small() const noexcept { return !is_large() && numbered > 0; }
  [[nodiscard]] batch_groups_size groups() const noexcept {
    batch_groups_size size = table->groups;
    size.positions = numbered;
    return size;
  }
  /// The time of its step, about: positions are grouped in some passes, rows are read and written.
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept {
    return ns_of_update(tuning, numbered, table->groups.table_rows(), table->stride);
  }
  [[nodiscard]] backward_size pass(index_t workers) const noexcept {
    return {.positions = numbered, .width = table->width, .workers = workers};
  }
  [[nodiscard]] index_t bytes(bool keeps_groups, index_t workers) const noexcept {
    if (parts > 1) return parts_memory::bytes_for(numbered, table->width, parts);
    const index_t in_block =
        keeps_groups ? 0 : scratch_block::bytes_of<std::byte>(batch_groups::bytes_for(groups()));
    return capped_sum(in_block, backward_pass::bytes_for(pass(workers)));
  }
};

/// positions(t), numbered(t): of feature t.
template <class Features, class Positions, class Numbered>
table_work work_of(const Features& features, std::size_t first, const Positions& positions,
                   const Numbered& numbered) {
  table_work work{.first = first, .table = &features[first]->table};
  for (std::size_t t = first; t != no_feature; t = features[t]->next_of_table) {
    work.positions = capped_sum(work.positions, positions(t));
    work.numbered = capped_sum(work.numbered, numbered(t));
  }
  return work;
}

/// A table, or one of the parts of its rows, that one thread updates.
struct step_unit {
  std::size_t table;
  index_t part;
  double ns;
};

/// How many parts a table is divided into, where all tables take `all` ns together: a large one for all
/// threads; a smaller one, where it is more than three quarters of a thread's share, into halves of a share.
inline index_t parts_of(const erased_context& ctx, const table_work& work, double all) {
  if (work.numbered == 0 || work.groups().keeps_addresses()) return 1;
  const double ns = work.ns(*ctx.tuning);
  const double share = all / threads_at_once(*ctx.executor);
  const index_t most = table_part::most_parts(ctx, work.table->groups.rows, ns);
  if (work.is_large()) return most;
  return ns <= 0.75 * share ? 1 : (std::min)(most, static_cast<index_t>(2 * ns / share) + 1);
}

/// Puts the longest units first, each where the least is to be done; the same for equal batches, so that a
/// thread finds the rows of small tables in its own caches.
inline bulk_parts shares_of(std::pmr::vector<step_unit>& units, int threads) {
  const int shares = std::clamp(threads, 1, bulk_parts::most);
  index_t firsts[bulk_parts::most + 1] = {};
  if (shares > 1) {
    std::sort(units.begin(), units.end(), [](const step_unit& a, const step_unit& b) {
      return a.ns != b.ns ? a.ns > b.ns : a.table != b.table ? a.table < b.table : a.part < b.part;
    });
    double of_share[bulk_parts::most] = {};
    const auto share_of = [&](const step_unit& unit) {
      const auto least = std::min_element(of_share, of_share + shares);
      *least += unit.ns;
      return static_cast<int>(least - of_share);
    };
    for (const step_unit& unit : units) ++firsts[share_of(unit) + 1];
    for (int s = 0; s < shares; ++s) firsts[s + 1] += firsts[s];
    std::fill_n(of_share, shares, 0.0);
    index_t next[bulk_parts::most];
    std::copy_n(firsts, shares, next);
    std::pmr::vector<step_unit> placed(units.size(), units.get_allocator());
    for (const step_unit& unit : units) placed[static_cast<std::size_t>(next[share_of(unit)]++)] = unit;
    units.swap(placed);
  }
  firsts[shares] = static_cast<index_t>(units.size());
  return {shares, firsts, 1};
}

/// Large tables in sequence, each on all threads; the others in parallel, each on one thread. All of them
/// use one block, allocated before the first table is updated: the large ones reuse it in turn, then the
/// smaller ones take separate parts of it.
struct step_memory {
  index_t largest = 0;
  index_t together = 0;

  void add(table_work& work, bool keeps_groups, index_t workers) noexcept {
    if (work.is_large()) {
      largest = (std::max)(largest, work.bytes(keeps_groups, workers));
      return;
    }
    if (!work.is_small()) return;
    work.place = together;
    together = capped_sum(together, work.bytes(keeps_groups, 1));
  }
  [[nodiscard]] index_t bytes() const noexcept { return (std::max)(largest, together); }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
