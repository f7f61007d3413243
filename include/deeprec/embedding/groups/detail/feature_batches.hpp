// The batches of all features of one call: resolved together, pooled as one list of pieces, and grouped by
// table for an update.
//
//   batches   |  0  |1|   2   |          type-erased resolutions, in one block
//   pieces    |p0|p1|p2|p3|p4|p5|        numbered consecutively (numbered_pieces.hpp)
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/batch_bounds.hpp>
#include <deeprec/embedding/groups/detail/erased_list.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/embedding/groups/detail/numbered_pieces.hpp>
#include <deeprec/embedding/groups/detail/update_work.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/containers.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Optimizer, class Bags, class Out, class Rounding, class = unit>
class feature_batches {
  using feature_type = feature<Optimizer, Bags, Out, Rounding>;
  using feature_list = std::span<const std::unique_ptr<feature_type>>;
  using table_list = std::span<const std::size_t>;  // the first feature of each table
  using batch_list = erased_list<feature_batch<Out>>;

 public:
  using bounds = batch_bounds<feature_type, Bags>;

  feature_batches(std::pmr::memory_resource* memory, feature_list features, const group_sizes& sizes,
                  table_list tables)
      : memory_(memory),
        features_(features),
        sizes_(sizes),
        batches_(memory, features.size(), sizes.batches),
        addresses_(memory),
        groups_(memory),
        tables_(tables) {}
  feature_batches(feature_batches&&) noexcept = default;
  feature_batches& operator=(feature_batches&& other) noexcept {
    replace(*this, std::move(other));  // the batches point into addresses_
    return *this;
  }
  ~feature_batches() = default;

  /// True where every feature reads a table and has few ids: lists of batches and pieces would cost more than
  /// they save.
  static bool is_small(const group_sizes& sizes, std::span<const Bags> bags) noexcept {
    constexpr index_t few = 16;
    return !sizes.stores_addresses && std::all_of(bags.begin(), bags.end(), [](const Bags& b) {
      return b.id_count() >= 0 && b.id_count() <= few;
    });
  }
  /// Checks and pools small batches, on the calling thread; no allocation.
  static status pool_small(const erased_context& ctx, feature_list features, std::span<const Bags> bags,
                           std::span<const matrix_view<Out>> outs) {
    for (std::size_t t = 0; t < features.size(); ++t) {
      if (const status s = features[t]->check_small(ctx.instruction_set, bags[t], outs[t]); !s) {
        return s.in_table(static_cast<index_t>(t));
      }
    }
    for (std::size_t t = 0; t < features.size(); ++t) features[t]->pool_small(ctx, bags[t], outs[t]);
    return {};
  }

  [[nodiscard]] feature_list features() const noexcept { return features_; }
  [[nodiscard]] feature_batch<Out>& operator[](std::size_t t) const noexcept { return batches_[t]; }

  /// Resolves the batches. check(t) checks shapes of feature t. Reports the smallest feature with a fault.
  template <class Check>
  status resolve(const erased_context& ctx, std::span<const Bags> bags, bool admits, const Check& check) {
    const status opened = open(bags, admits, check);
    index_t count = 0;
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      count += batches_[t].addresses();
      all_positions_ += batches_[t].positions();
    }
    addresses_.resize(static_cast<std::size_t>(count));
    const std::byte** place = addresses_.data();
    for (std::size_t t = 0; count > 0 && t < batches_.size(); ++t) {
      batches_[t].place_addresses(place);
      place += batches_[t].addresses();
    }
    examine(ctx, [&](std::size_t t) { return batches_[t].examines(); });
    if (const status s = admit(ctx); !s) return s;
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      if (!batches_[t].has_finish()) continue;
      if (const status s = batches_[t].finish(); !s) return s.in_table(static_cast<index_t>(t));
    }
    return opened;
  }

  /// For batches that are kept: verbs that take them later count nothing.
  void count_skipped_once() noexcept {
    for (std::size_t t = 0; t < batches_.size(); ++t) batches_[t].count_skipped_once();
  }

  /// Pools every batch to its output.
  status pool(const erased_context& ctx, std::pmr::memory_resource* memory,
              std::span<const matrix_view<Out>> outs) const {
    using pool_list = erased_list<feature_pool>;
    pool_list pools(memory, batches_.size(), sizes_.pools);
    index_t room = 0;
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      feature_pool& job = pools.add(features_[t]->pool_bytes,
                                    [&](void* where) { return batches_[t].make_pool(where, outs[t]); });
      if (batches_[t].positions() > chunk_positions) room = capped_sum(room, job.scratch_bytes());
    }
    scratch_block long_bags(memory, room);
    double ns = 0;
    for (std::size_t t = 0; t < pools.size(); ++t) {
      pools[t].plan(ctx, long_bags);
      ns += pools[t].ns();
    }
    const numbered_pieces pieces(memory, pools.size(), [&](std::size_t t) { return pools[t].pieces(); });
    // Parts: the columns that a thread writes are in its own caches at the next call.
    run_bulk_in_parts(ctx, {pieces.size(), grain_for(*ctx.tuning, pieces.size(), ns), ns},
                      [&](index_t begin, index_t end, int) { pool_pieces(pools, pieces, begin, end); });
    for (std::size_t t = 0; t < pools.size(); ++t) {
      if (pools[t].has_close()) pools[t].close(ctx);
    }
    return {};
  }

  /// One step for the rows of every table. `keeps`: the groups are kept for the next update.
  status step(const erased_context& ctx, std::pmr::memory_resource* memory, bool keeps,
              std::span<const matrix_view<const float>> gradients, const Optimizer& optimizer,
              const Rounding& rounding) {
    std::pmr::vector<table_work> work(memory);
    work.reserve(tables_.size());
    double ns = 0;
    for (const std::size_t first : tables_) {
      work.push_back(work_of(
          features_, first, [&](std::size_t t) { return batches_[t].positions(); },
          [&](std::size_t t) { return batches_[t].grouped(); }));
      ns += work.back().ns(*ctx.tuning);
    }
    step_memory sizes;
    for (table_work& w : work) {
      if (!keeps && is_shared(ctx, w.is_large() ? w.ns(*ctx.tuning) : ns)) w.parts = parts_of(ctx, w, ns);
      sizes.add(w, keeps, ctx.executor->concurrency());
    }
    const bool grouped = !groups_.empty();
    std::pmr::vector<batch_groups> made(memory_);
    if (keeps && !grouped) {
      made.reserve(tables_.size());
      for (const table_work& w : work) made.emplace_back(memory_, w.groups());
    }
    std::pmr::vector<batch_groups>& kept = grouped ? groups_ : made;
    const scratch_block block(memory, sizes.bytes());
    for (std::size_t t = 0; t < batches_.size(); ++t) batches_[t].count_skipped();
    // The rows of a table, or a part of them; in `memory_of_parts` where it has several.
    const auto step_unit_of = [&](const erased_context& on, const step_unit& unit,
                                  parts_memory* memory_of_parts) {
      const std::size_t t = unit.table;
      const Rounding of_table = rounding_of_table(rounding, t);
      if (memory_of_parts != nullptr) {
        step_part_of(on, work[t], unit.part, *memory_of_parts, gradients, optimizer, of_table);
        return;
      }
      scratch_block part(block.data() + work[t].place, work[t].bytes(keeps, on.executor->concurrency()));
      if (keeps) {
        step_groups_of(on, work[t], kept[t], grouped, part, gradients, optimizer, of_table);
      } else {
        batch_groups groups(part.take<std::byte>(batch_groups::bytes_for(work[t].groups())).data(),
                            work[t].groups());
        step_groups_of(on, work[t], groups, false, part, gradients, optimizer, of_table);
      }
    };
    const auto in_parts = [&](std::size_t t) {
      scratch_block part(block.data() + work[t].place, work[t].bytes(keeps, 1));
      return parts_memory(part, work[t].groups(), work[t].table->width, work[t].parts);
    };
    const auto step_long_of = [&](std::size_t t, const parts_memory& parts) {
      if (work[t].numbered <= chunk_positions) return;
      for (index_t p = 0; p < work[t].parts; ++p) {
        features_[work[t].first]->step_long(ctx, parts[p].groups(), parts[p].pass(), optimizer,
                                            rounding_of_table(rounding, t));
      }
    };
    const auto alone = [&](const auto& run) {
      inline_executor here;
      executor_ref executor(here);
      run(ctx.rebind(executor));
    };
    // The smaller tables, and which thread begins with which: all memory is there before the first step.
    index_t units = 0, divided = 0;
    for (table_work& w : work) {
      if (!w.is_small()) continue;
      units += w.parts;
      if (w.parts > 1) w.divided = divided++;
    }
    std::pmr::vector<parts_memory> parts_of_smaller(memory);
    parts_of_smaller.reserve(static_cast<std::size_t>(divided));
    std::pmr::vector<step_unit> list(memory);
    list.reserve(static_cast<std::size_t>(units));
    double small_ns = 0;
    for (std::size_t t = 0; t < work.size(); ++t) {
      if (!work[t].is_small()) continue;
      const double unit_ns = work[t].ns(*ctx.tuning) / static_cast<double>(work[t].parts);
      for (index_t p = 0; p < work[t].parts; ++p) list.push_back({t, p, unit_ns});
      small_ns += work[t].ns(*ctx.tuning);
    }
    bulk_parts shares = shares_of(list, threads_at_once(*ctx.executor));
    for (std::size_t t = 0; t < work.size(); ++t) {
      if (!work[t].is_large()) continue;
      if (work[t].parts == 1) {
        step_unit_of(ctx, {t, 0, 0}, nullptr);
        continue;
      }
      parts_memory parts = in_parts(t);
      run_bulk_in_parts(ctx, {work[t].parts, 1, work[t].ns(*ctx.tuning)},
                        [&](index_t begin, index_t end, int) {
                          alone([&](const erased_context& on) {
                            for (index_t p = begin; p < end; ++p) step_unit_of(on, {t, p, 0}, &parts);
                          });
                        });
      step_long_of(t, parts);
    }
    for (std::size_t t = 0; t < work.size(); ++t) {
      if (work[t].divided >= 0) parts_of_smaller.push_back(in_parts(t));
    }
    run_bulk_in_parts(ctx, shares, small_ns, [&](index_t begin, index_t end, int) {
      alone([&](const erased_context& on) {
        for (index_t i = begin; i < end; ++i) {
          const step_unit& unit = list[static_cast<std::size_t>(i)];
          const index_t at = work[unit.table].divided;
          step_unit_of(on, unit, at < 0 ? nullptr : &parts_of_smaller[static_cast<std::size_t>(at)]);
        }
      });
    });
    for (std::size_t t = 0; t < work.size(); ++t) {
      if (work[t].divided >= 0) step_long_of(t, parts_of_smaller[static_cast<std::size_t>(work[t].divided)]);
    }
    if (!grouped) groups_.swap(made);  // only now are all of them grouped
    return {};
  }

 private:
  // Opens batches up to the first that has a fault; the ids of the features before it may be bad as well.
  template <class Check>
  status open(std::span<const Bags> bags, bool admits, const Check& check) {
    for (std::size_t t = 0; t < features_.size(); ++t) {
      const auto number = static_cast<index_t>(t);
      if (const status s = check(t); !s) return s.in_table(number);
      feature_batch<Out>& batch = batches_.add(
          features_[t]->batch_bytes, [&](void* where) { return features_[t]->make_batch(where, bags[t]); });
      if (const status s = batch.open(admits); !s) {
        batches_.remove_last();
        return s.in_table(number);
      }
    }
    return {};
  }

  // Examines the batches that `which` chooses.
  template <class Which>
  void examine(const erased_context& ctx, const Which& which) {
    const numbered_pieces pieces(memory_, batches_.size(), [&](std::size_t t) {
      return which(t) ? (batches_[t].positions() + check_positions_at_once - 1) / check_positions_at_once : 0;
    });
    double ns = 0;
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      if (which(t)) ns += ns_of_examination(batches_[t].positions(), batches_[t].addresses() == 0);
    }
    run_bulk(ctx, {pieces.size(), grain_for(*ctx.tuning, pieces.size(), ns), ns},
             [&](index_t begin, index_t end, int) {
               for (auto at = pieces.find(begin); at.number < end; at = pieces.next(at)) {
                 feature_batch<Out>& batch = batches_[at.item];
                 const index_t from = pieces.within(at) * check_positions_at_once;
                 batch.examine(ctx.instruction_set, from,
                               (std::min)(from + check_positions_at_once, batch.positions()));
               }
             });
  }

  struct held_rows {
    erased_list<feature_batch<Out>>& of;
    ~held_rows() {
      for (std::size_t t = 0; t < of.size(); ++t) of[t].release_found();
    }
  };
  // Inserts absent keys. Features may share a source, so all guards are dropped before the first insertion.
  status admit(const erased_context& ctx) {
    bool admits = false;
    bool any = false;
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      if (!batches_[t].admits()) continue;
      if (const status s = batches_[t].found(); !s) return s.in_table(static_cast<index_t>(t));
      admits = true;
      any = batches_[t].list_absent(memory_) || any;
    }
    if (!admits) return {};
    const auto moves = [&](std::size_t t) { return any && !batches_[t].is_stable(); };
    const held_rows held{batches_};
    if (any) {
      for (std::size_t t = 0; t < batches_.size(); ++t) {
        if (batches_[t].admits() && batches_[t].is_stable()) batches_[t].hold_found();
        if (moves(t)) batches_[t].drop_guard();
      }
      for (std::size_t t = 0; t < batches_.size(); ++t) {
        if (const status s = batches_[t].insert_absent(ctx); !s) return s.in_table(static_cast<index_t>(t));
      }
      for (std::size_t t = 0; t < batches_.size(); ++t) {
        if (moves(t)) batches_[t].take_guard();
      }
    }
    for (std::size_t t = 0; t < batches_.size(); ++t) {
      if (batches_[t].admits()) batches_[t].end_admission(moves(t));
    }
    // Rows of the sources that grew have moved.
    if (any) examine(ctx, [&](std::size_t t) { return batches_[t].addresses() > 0 && moves(t); });
    return {};
  }

  // While a piece is pooled, the first rows of the next one are being prefetched.
  static void pool_pieces(const erased_list<feature_pool>& pools, const numbered_pieces& pieces,
                          index_t begin, index_t end) {
    auto at = pieces.find(begin);
    pools[at.item].fetch(pieces.within(at) * pools[at.item].grain());
    while (at.number < end) {
      const auto then = pieces.next(at);
      if (then.number < end) {
        pools[then.item].fetch(pieces.within(then) * pools[then.item].grain());
      }
      feature_pool& job = pools[at.item];
      const index_t from = pieces.within(at) * job.grain();
      job.pool(from, (std::min)(from + job.grain(), job.units()));
      at = then;
    }
  }

  static Rounding rounding_of_table(const Rounding& rounding, std::size_t t) noexcept {
    if constexpr (requires { rounding.of_table(t); }) {
      return rounding.of_table(t);
    } else {
      return rounding;
    }
  }

  // Uses the memory of `part`; no allocation.
  void step_groups_of(const erased_context& ctx, const table_work& w, batch_groups& groups, bool grouped,
                      scratch_block& part, std::span<const matrix_view<const float>> gradients,
                      const Optimizer& optimizer, const Rounding& rounding) const {
    backward_pass pass(part, w.pass(ctx.executor->concurrency()));
    for (std::size_t t = w.first; t != no_feature; t = features_[t]->next_of_table) {
      if (!grouped) batches_[t].add_to(groups, ctx);
      batches_[t].add_to(pass, ctx, gradients[t]);
    }
    if (!grouped) groups.group(ctx, group_order::any);
    pass.arrange(ctx, groups.groups());
    features_[w.first]->step_short(ctx, groups, pass, optimizer, rounding);
    features_[w.first]->step_long(ctx, groups, pass, optimizer, rounding);
  }
  // The same, of a part of a table's rows, but for those of more than chunk_positions positions.
  void step_part_of(const erased_context& ctx, const table_work& w, index_t number, parts_memory& memory,
                    std::span<const matrix_view<const float>> gradients, const Optimizer& optimizer,
                    const Rounding& rounding) const {
    const table_part part(number, w.parts);
    part_sizes sizes;
    for (std::size_t t = w.first; t != no_feature; t = features_[t]->next_of_table) {
      batches_[t].add_to(sizes, part);
    }
    part_groups& groups = memory.make(number, sizes);
    for (std::size_t t = w.first; t != no_feature; t = features_[t]->next_of_table) {
      batches_[t].add_to(groups, part, gradients[t]);
    }
    groups.group(ctx);
    features_[w.first]->step_short(ctx, groups.groups(), groups.pass(), optimizer, rounding);
  }

  std::pmr::memory_resource* memory_;
  feature_list features_;
  group_sizes sizes_;
  batch_list batches_;
  std::pmr::vector<const std::byte*> addresses_;
  std::pmr::vector<batch_groups> groups_;  // of each table, once an update has kept them
  table_list tables_;
  index_t all_positions_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
