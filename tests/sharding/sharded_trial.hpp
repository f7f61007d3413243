// A model with tables of many ranks, and what one process makes of it: ranks must have the same, bit for bit.
#pragma once

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_options.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "support/seed.hpp"

namespace deeprec_test {

using namespace deeprec;

using table_type = dense_table<f32_rows>;
using bags_type = jagged_view<>;

struct batch {
  std::vector<std::int64_t> offsets{0}, ids;
  std::vector<float> weights;
  [[nodiscard]] index_t bags() const { return static_cast<index_t>(offsets.size()) - 1; }
  [[nodiscard]] bags_type view() const {
    return {offsets.data(), bags(), ids.data(), static_cast<index_t>(ids.size()),
            weights.empty() ? nullptr : weights.data()};
  }
  void append(const batch& other) {
    for (std::size_t b = 1; b < other.offsets.size(); ++b)
      offsets.push_back(static_cast<std::int64_t>(ids.size()) + other.offsets[b]);
    ids.insert(ids.end(), other.ids.begin(), other.ids.end());
    weights.insert(weights.end(), other.weights.begin(), other.weights.end());
  }
};

enum class kind {
  rows_sum,
  rows_mean,
  rows_weighted,
  rows_sqrtn,
  replicated_sum,
  replicated_mean,
  whole_sum,
  whole_mean,
  whole_default,
  columns_sum,
  columns_weighted
};
struct feature {
  kind what;
  index_t rows, width;
  int rank = 0;                       // of a whole table
  pooled_at pooled = pooled_at::bag;  // of rows
  /// All rows at one rank, or at some ranks by columns.
  [[nodiscard]] bool is_whole() const { return what >= kind::whole_sum; }
  [[nodiscard]] bool is_replicated() const {
    return what == kind::replicated_sum || what == kind::replicated_mean;
  }
  [[nodiscard]] bool has_columns() const { return what >= kind::columns_sum; }
  [[nodiscard]] bool is_weighted() const {
    return what == kind::rows_weighted || what == kind::whole_mean || what == kind::columns_weighted;
  }
  /// Every second rank, from the last one; `rank` is not used.
  [[nodiscard]] placement::columns slices(int ranks) const {
    placement::columns where{.ranks = {}, .count = rows, .width = width};
    for (int r = ranks - 1; r >= 0; r -= 2) where.ranks.push_back(r);
    return where;
  }
};
template <class F>
void with_pooling(kind k, const F& f) {
  switch (k) {
    case kind::rows_sum:
    case kind::replicated_sum:
    case kind::whole_sum:
    case kind::columns_sum:
      return f(combiner::sum);
    case kind::rows_mean:
    case kind::replicated_mean:
      return f(combiner::mean);
    case kind::rows_weighted:
    case kind::columns_weighted:
      return f(combiner::mean(combiner::by_weight));
    case kind::rows_sqrtn:
      return f(combiner::sqrtn);
    case kind::whole_mean:
      return f(combiner::mean);
    case kind::whole_default:
      return f(pooling{combiner::sum, empty_bag::default_row{0}});
  }
}

inline batch draw(const feature& f, index_t bags, std::mt19937_64& random, bool integers) {
  batch b;
  for (index_t i = 0; i < bags; ++i) {
    for (auto n = random() % 5; n > 0; --n) {
      // Few rows have most of the ids.
      const auto r = static_cast<std::uint64_t>(f.rows);
      b.ids.push_back(
          static_cast<std::int64_t>(random() % 3 == 0 ? random() % r : random() % (r < 4 ? r : 4)));
      if (f.is_weighted())
        b.weights.push_back(integers ? 1.0F : 0.25F + static_cast<float>(random() % 100) / 64);
    }
    b.offsets.push_back(static_cast<std::int64_t>(b.ids.size()));
  }
  return b;
}

inline table_type make_table(index_t rows, index_t width, index_t state, std::uint64_t seed) {
  table_type t(rows, f32_rows(width, {.state_floats = state}));
  if (rows > 0) t.initialize(inline_executor{}, row_init::uniform{.seed = seed, .bound = 0.25F});
  return t;
}

/// What comes of floats that are sent.
template <class T>
std::vector<float> sent_as(std::vector<float> x) {
  for (float& f : x) f = static_cast<float>(T(f));
  return x;
}

enum class mistake { none, rank_lost, one_of_two_lost, next_row, other_order };

// A model, its batches, and what one process makes of it.
template <class Optimizer, class Wire = wire<>>
struct trial {
  using row_type = typename Wire::row_type;
  using gradient_type = typename Wire::gradient_type;

  int ranks;
  std::vector<feature> features;
  Optimizer optimizer;
  bool integers = false;
  index_t steps = 3;
  index_t most_bags = 40;          // of a rank
  mistake breaks = mistake::none;  // in what one process does, which must be seen
  row_sums sums = row_sums::by_parts;
  int sum_parts = 0;  // of all batches

  std::vector<table_type> tables{}, first{};
  std::vector<std::vector<std::vector<batch>>> batches{};  // [step][rank][feature]
  std::vector<index_t> bags_of{};
  index_t width = 0;
  std::vector<std::vector<std::vector<float>>> expected{};  // [step][rank]

  void prepare() {
    std::mt19937_64 random(deeprec_test::seed());
    for (std::size_t f = 0; f < features.size(); ++f) {
      tables.push_back(make_table(features[f].rows, features[f].width, state_of_row(f), f));
      first.push_back(make_table(features[f].rows, features[f].width, state_of_row(f), f));
      width += features[f].width;
    }
    for (int r = static_cast<int>(bags_of.size()); r < ranks; ++r)
      bags_of.push_back(r == 1 ? 0 : static_cast<index_t>(random() % static_cast<std::uint64_t>(most_bags)));
    for (index_t t = 0; t < steps; ++t) {
      batches.emplace_back();
      for (int r = 0; r < ranks; ++r) {
        batches.back().emplace_back();
        for (const feature& f : features)
          batches.back().back().push_back(draw(f, bags_of[static_cast<std::size_t>(r)], random, integers));
      }
    }
  }
  [[nodiscard]] index_t state_of_row(std::size_t f) const {
    return state_floats_of<Optimizer>(features[f].width);
  }
  [[nodiscard]] float gradient(index_t step, int rank, index_t bag, index_t column) const {
    const std::uint64_t h =
        mix64(static_cast<std::uint64_t>(((step * 64 + rank) * 1000 + bag) * 1000 + column));
    return integers ? static_cast<float>(static_cast<int>(h % 7) - 3)
                    : static_cast<float>(static_cast<int>(h % 2001) - 1000) / 777.0F;
  }
  [[nodiscard]] std::vector<float> gradients(index_t step, int rank, index_t column, index_t columns) const {
    std::vector<float> g;
    for (index_t b = 0; b < bags_of[static_cast<std::size_t>(rank)]; ++b) {
      for (index_t c = 0; c < columns; ++c) g.push_back(gradient(step, rank, b, column + c));
    }
    return g;
  }

  // The outputs of the ranks, one after the other, in a step; then the tables are stepped.
  std::vector<std::vector<float>> one_process(index_t step) {
    std::vector<std::vector<float>> outs;
    for (int r = 0; r < ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      outs.emplace_back(static_cast<std::size_t>(bags_of[i] * width));
      index_t column = 0;
      for (std::size_t f = 0; f < features.size(); ++f) {
        with_pooling(features[f].what, [&](const auto& pooled) {
          look_up(f, batches[static_cast<std::size_t>(step)][i][f], pooled,
                  matrix_view<float>(outs.back().data() + column, bags_of[i], features[f].width, width));
        });
        column += features[f].width;
      }
    }
    index_t column = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      with_pooling(features[f].what, [&](const auto& pooled) { step_table(step, f, column, pooled); });
      column += features[f].width;
    }
    return outs;
  }
  // As ranks do it that send rows, or sums of rows.
  template <class Pooling>
  void look_up(std::size_t f, const batch& b, const Pooling& pooled, matrix_view<float> out) const {
    inline_executor here;
    const feature& x = features[f];
    if (x.is_replicated()) return lookup(here, tables[f].view(), b.view(), pooled, out).or_throw();
    if (x.is_whole()) {
      lookup(here, tables[f].view(), b.view(), pooled, out).or_throw();
      for (index_t i = 0; i < out.extent(0); ++i) {
        for (index_t c = 0; c < x.width; ++c) out.row(i)[c] = static_cast<float>(row_type(out.row(i)[c]));
      }
      return;
    }
    table_type sent(x.rows, f32_rows(x.width));
    if (x.pooled == pooled_at::bag) {
      for (index_t k = 0; k < x.rows; ++k) set_row(sent, k, sent_as<row_type>(row_of(tables[f], k, x.width)));
      return lookup(here, sent.view(), b.view(), pooled, out).or_throw();
    }
    for (index_t bag = 0; bag < b.bags(); ++bag) sum_at_owners(f, b, bag, out);
  }
  void sum_at_owners(std::size_t f, const batch& b, index_t bag, matrix_view<float> out) const {
    inline_executor here;
    const feature& x = features[f];
    const auto begin = static_cast<std::size_t>(b.offsets[static_cast<std::size_t>(bag)]);
    const auto end = static_cast<std::size_t>(b.offsets[static_cast<std::size_t>(bag) + 1]);
    double count = static_cast<double>(end - begin), sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += b.weights.empty() ? 1.0 : b.weights[k];
    double divisor = 1;
    if (x.what == kind::rows_mean) divisor = count;
    if (x.what == kind::rows_weighted) divisor = sum;
    if (x.what == kind::rows_sqrtn) divisor = std::sqrt(count);
    const auto factor = divisor == 0 ? 0.0F : static_cast<float>(1 / divisor);
    std::vector<std::int64_t> owners;
    for (std::size_t k = begin; k < end; ++k) {
      if (std::find(owners.begin(), owners.end(), b.ids[k] % ranks) == owners.end())
        owners.push_back(b.ids[k] % ranks);
    }
    table_type received(static_cast<index_t>(owners.size()), f32_rows(x.width));
    batch of_sums;
    for (const std::int64_t owner : owners) {
      batch part;
      for (std::size_t k = begin; k < end; ++k) {
        if (b.ids[k] % ranks != owner) continue;
        part.ids.push_back(b.ids[k]);
        part.weights.push_back((b.weights.empty() ? 1.0F : b.weights[k]) * factor);
      }
      part.offsets.push_back(static_cast<std::int64_t>(part.ids.size()));
      std::vector<float> sum_of_owner(static_cast<std::size_t>(x.width));
      lookup(here, tables[f].view(), part.view(), combiner::sum,
             matrix_view<float>(sum_of_owner.data(), 1, x.width))
          .or_throw();
      of_sums.ids.push_back(static_cast<std::int64_t>(of_sums.ids.size()));
      set_row(received, of_sums.ids.back(), sent_as<row_type>(sum_of_owner));
    }
    of_sums.offsets.push_back(static_cast<std::int64_t>(of_sums.ids.size()));
    lookup(here, received.view(), of_sums.view(), combiner::sum, matrix_view<float>(out.row(bag), 1, x.width))
        .or_throw();
  }
  template <class Pooling>
  void step_table(index_t step, std::size_t f, index_t column, const Pooling& pooled) {
    inline_executor here;
    const index_t d = features[f].width;
    batch all;
    std::vector<float> g;
    // Summed as one process does.
    const bool joint = features[f].is_whole() || integers || sums == row_sums::in_order ||
                       features[f].pooled == pooled_at::owner;
    for (int turn = 0; turn < ranks; ++turn) {
      const int r = breaks == mistake::other_order ? ranks - 1 - turn : turn;
      const batch& b = batches[static_cast<std::size_t>(step)][static_cast<std::size_t>(r)][f];
      const std::vector<float> mine = gradients(step, r, column, d);
      if (breaks == mistake::rank_lost && r == 0) continue;
      if (joint) {
        all.append(b);
        const std::vector<float> came = sent_as<gradient_type>(mine);
        g.insert(g.end(), came.begin(), came.end());
        continue;
      }
      // Summed within each part of the rank's batch; each row once.
      if constexpr (requires { typename Pooling::empty_mode; }) {
        continue;  // a whole table
      } else {
        const int cuts = sum_parts > ranks ? sum_parts / ranks : 1;
        for (int cut = 0; cut < cuts; ++cut) {
          const index_t from = b.bags() * cut / cuts, to = b.bags() * (cut + 1) / cuts;
          const bags_type part(b.offsets.data() + from, to - from, b.ids.data(),
                               static_cast<index_t>(b.ids.size()),
                               b.weights.empty() ? nullptr : b.weights.data());
          sparse_gradient own;
          row_gradients(here, features[f].rows, part, pooled,
                        matrix_view<const float>(mine.data() + from * d, to - from, d), own)
              .or_throw();
          for (std::size_t k = 0; k < own.rows.size(); ++k) {
            if (breaks == mistake::one_of_two_lost && !all.ids.empty() && own.rows[k] == all.ids.front())
              continue;
            all.ids.push_back(own.rows[k]);
            all.offsets.push_back(static_cast<std::int64_t>(all.ids.size()));
            const float* const row = own.values.data() + static_cast<index_t>(k) * d;
            const std::vector<float> came = sent_as<gradient_type>({row, row + d});
            g.insert(g.end(), came.begin(), came.end());
          }
        }
      }
    }
    if (breaks == mistake::next_row) {
      for (std::int64_t& id : all.ids) id = (id + 1) % features[f].rows;
    }
    const matrix_view<const float> gradient(g.data(), all.bags(), d);
    if (joint) {
      update(here, tables[f].view(), all.view(), pooled, gradient, optimizer).or_throw();
    } else {
      update(here, tables[f].view(), all.view(), combiner::sum, gradient, optimizer).or_throw();
    }
  }

  /// What one process makes of it, before ranks run.
  void expect() {
    prepare();
    for (index_t t = 0; t < steps; ++t) expected.push_back(one_process(t));
  }
  /// Whether this rank has the outputs and rows of one process, to the bit.
  template <class Comm>
  bool same_at(Comm comm, bool on_threads) const {
    const int me = comm.rank();
    const auto i = static_cast<std::size_t>(me);
    std::vector<slice> slices;
    std::vector<table_type> parts;
    sharded_group<Optimizer, Comm, bags_type, Wire> group(std::move(comm),
                                                          {.sums = sums, .parts = sum_parts});
    for (std::size_t f = 0; f < features.size(); ++f) {
      slices.push_back(slice_at(f, me));
      parts.push_back(
          make_table(slices[f].rows, slices[f].columns, state_floats_of<Optimizer>(slices[f].columns), 0));
      for (index_t k = 0; k < slices[f].rows; ++k) copy_slice(first[f], slices[f], k, parts[f]);
    }
    for (std::size_t f = 0; f < features.size(); ++f) add(group, features[f], parts[f]);
    thread_pool pool(on_threads ? 3 : 1);
    bool mine = true;
    for (index_t t = 0; t < steps; ++t) {
      std::vector<bags_type> bags;
      for (const batch& b : batches[static_cast<std::size_t>(t)][i]) bags.push_back(b.view());
      std::vector<float> out(static_cast<std::size_t>(bags_of[i] * width)), g = gradients(t, me, 0, width);
      auto rows = resolve(pool, group, bags);
      if (!rows) MESSAGE(rows.fault().message());
      mine = mine && rows;
      if (!rows) break;
      status s = lookup(pool, rows.value(), matrix_view<float>(out.data(), bags_of[i], width));
      if (s.ok())
        s = update(pool, rows.value(), matrix_view<const float>(g.data(), bags_of[i], width), optimizer);
      if (!s) MESSAGE(s.message());
      mine = mine && s.ok() &&
             (out.empty() || std::memcmp(out.data(), expected[static_cast<std::size_t>(t)][i].data(),
                                         out.size() * sizeof(float)) == 0);
    }
    for (std::size_t f = 0; f < features.size() && mine; ++f) {
      for (index_t k = 0; k < slices[f].rows; ++k)
        mine = mine && same_slice(tables[f], slices[f], k, parts[f], state_of_row(f));
    }
    return mine;
  }

 private:
  // Of a table: what a rank has of it, row k of which is row first_row + k * step.
  struct slice {
    index_t rows, first_row, step, first_column, columns;
  };
  [[nodiscard]] slice slice_at(std::size_t f, int me) const {
    const feature& x = features[f];
    if (x.has_columns()) {
      const placement::columns where = x.slices(ranks);
      for (std::size_t i = 0; i < where.ranks.size(); ++i) {
        if (where.ranks[i] == me) return {x.rows, 0, 1, where.first_column(i), where.slice_width(i)};
      }
      return {0, 0, 1, 0, x.width};
    }
    if (x.is_replicated()) return {x.rows, 0, 1, 0, x.width};
    if (x.is_whole()) return {x.rank == me ? x.rows : 0, 0, 1, 0, x.width};
    return {part_rows(me, x.rows, ranks), me, ranks, 0, x.width};
  }
  static const float* floats(const table_type& t, index_t row) {
    return reinterpret_cast<const float*>(t.view().row(row));
  }
  static std::vector<float> row_of(const table_type& t, index_t row, index_t width) {
    return {floats(t, row), floats(t, row) + width};
  }
  static void set_row(const table_type& t, index_t row, const std::vector<float>& to) {
    std::copy(to.begin(), to.end(), const_cast<float*>(floats(t, row)));
  }
  static void copy_slice(const table_type& whole, const slice& s, index_t k, const table_type& part) {
    std::copy_n(floats(whole, s.first_row + k * s.step) + s.first_column, s.columns,
                const_cast<float*>(floats(part, k)));
  }
  // Weights and state: of a slice of columns, the state of its elements.
  static bool same_slice(const table_type& whole, const slice& s, index_t k, const table_type& part,
                         index_t state) {
    const float *from = floats(whole, s.first_row + k * s.step), *to = floats(part, k);
    const index_t width = whole.view().format().width();
    if (s.columns == width)  // with the state of rows
      return std::memcmp(from, to, static_cast<std::size_t>(width + state) * sizeof(float)) == 0;
    if (s.columns == 0) return true;
    bool same = true;
    for (index_t e = 0; e <= state / width; ++e) {  // weights, then each state of elements
      same = same && std::memcmp(from + e * width + s.first_column, to + e * s.columns,
                                 static_cast<std::size_t>(s.columns) * sizeof(float)) == 0;
    }
    return same;
  }
  template <class Group>
  void add(Group& group, const feature& x, table_type& part) const {
    const auto view = part.view();
    switch (x.what) {
      case kind::rows_sum:
        group.add(view, combiner::sum, placement::rows{x.rows, x.pooled});
        return;
      case kind::rows_mean:
        group.add(view, combiner::mean, placement::rows{x.rows, x.pooled});
        return;
      case kind::rows_weighted:
        group.add(view, combiner::mean(combiner::by_weight), placement::rows{x.rows, x.pooled});
        return;
      case kind::rows_sqrtn:
        group.add(view, combiner::sqrtn, placement::rows{x.rows, x.pooled});
        return;
      case kind::replicated_sum:
        group.add(view, combiner::sum, placement::replicated{x.rows});
        return;
      case kind::replicated_mean:
        group.add(view, combiner::mean, placement::replicated{x.rows});
        return;
      case kind::whole_sum:
      case kind::whole_mean:
      case kind::whole_default:
        with_pooling(x.what, [&](const auto& p) { group.add(view, p, placement::whole{x.rank, x.rows}); });
        return;
      case kind::columns_sum:
      case kind::columns_weighted:
        if constexpr (!reads_whole_row<Optimizer>) {
          with_pooling(x.what, [&](const auto& p) { group.add(view, p, x.slices(ranks)); });
        } else {
          FAIL("no columns with this optimizer");
        }
    }
  }
};

inline const std::vector<feature> every_kind = {
    {kind::rows_sum, 50, 16},      {kind::whole_sum, 30, 17, 0},  {kind::rows_mean, 7, 1},
    {kind::rows_weighted, 90, 24}, {kind::rows_sqrtn, 3, 130},    {kind::whole_mean, 11, 5, 1},
    {kind::rows_sum, 1, 4},        {kind::replicated_sum, 9, 20}, {kind::replicated_mean, 33, 3},
};
// Of any widths, and rows that more than 4,096 positions of a step use.
inline std::vector<feature> random_model(int ranks, std::mt19937_64& random) {
  std::vector<feature> all;
  for (const kind what : {kind::rows_sum, kind::rows_mean, kind::rows_weighted, kind::rows_sqrtn,
                          kind::replicated_sum, kind::replicated_mean, kind::whole_sum, kind::whole_mean}) {
    all.push_back({what, static_cast<index_t>(1 + random() % 60), static_cast<index_t>(1 + random() % 130),
                   static_cast<int>(random() % static_cast<std::uint64_t>(ranks))});
  }
  return all;
}
inline std::vector<feature> with_columns(std::vector<feature> model) {
  model.insert(model.begin() + 1, {kind::columns_sum, 40, 37});
  model.push_back({kind::columns_weighted, 12, 3});  // some slices are of one column, or none
  return model;
}
/// Every second feature of rows pooled by the owners.
inline std::vector<feature> pooled_by_owners(std::vector<feature> model) {
  bool turn = true;
  for (feature& f : model) {
    if (f.is_whole() || f.is_replicated()) continue;
    if (turn) f.pooled = pooled_at::owner;
    turn = !turn;
  }
  return model;
}
inline std::vector<feature> kinds_for(int ranks) {
  std::vector<feature> all = every_kind;
  for (feature& f : all) f.rank = f.rank % ranks;
  return all;
}

}  // namespace deeprec_test
