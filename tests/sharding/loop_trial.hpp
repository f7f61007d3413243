// Training of tables of many ranks under a window, and what one process makes of it that looks up in the
// tables of an earlier step: the same bits.
#pragma once

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/sharded_loop.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "sharding/sharded_trial.hpp"

namespace deeprec_test {

inline void copy_row(const table_type& from, index_t a, const table_type& to, index_t b) {
  std::memcpy(const_cast<std::byte*>(to.view().row(b)), from.view().row(a),
              static_cast<std::size_t>(from.view().format().stride_bytes()));
}

/// The first step at a rank that goes wrong.
enum class loop_fault { none, id, no_batch, compute, stop, throws };

struct loop_trial {
  using optimizer_type = rowwise_adagrad;
  using row_lists = std::vector<std::vector<float>>;  // by features, all rows

  std::vector<index_t> steps_of;  // of each rank
  index_t window = 2, requests = 0;
  std::vector<feature> features{
      {kind::rows_sum, 40, 8}, {kind::whole_sum, 20, 5, 0}, {kind::rows_mean, 30, 4}};
  loop_fault fault = loop_fault::none;
  int faulty = 0;  // the rank
  index_t at = 0;  // the step

  std::vector<std::vector<std::vector<batch>>> batches{};  // [step][rank][feature]
  std::vector<row_lists> tables{};                         // [number of updates]
  std::vector<std::vector<std::vector<float>>> outs{};     // [step][rank]: pooled rows

  [[nodiscard]] int ranks() const { return static_cast<int>(steps_of.size()); }
  [[nodiscard]] index_t steps() const { return *std::max_element(steps_of.begin(), steps_of.end()); }
  [[nodiscard]] index_t width() const {
    index_t sum = 0;
    for (const feature& f : features) sum += f.width;
    return sum;
  }
  static constexpr index_t state = optimizer_type::row_state;
  static optimizer_type optimizer() { return {.learning_rate = 0.25F}; }
  // Depends on what was looked up: a row of another step is seen.
  static float gradient(index_t step, int rank, index_t bag, index_t column, float pooled) {
    return 0.5F * pooled + 0.01F * static_cast<float>((step * 31 + rank * 17 + bag * 5 + column) % 13) -
           0.05F;
  }

  static row_lists rows_of(const std::vector<table_type>& all) {
    row_lists lists;
    for (const table_type& t : all) {
      lists.emplace_back();
      for (index_t k = 0; k < t.rows(); ++k) {
        const auto* const row = reinterpret_cast<const float*>(t.view().row(k));
        lists.back().insert(lists.back().end(), row, row + t.view().format().width() + state);
      }
    }
    return lists;
  }
  [[nodiscard]] std::vector<table_type> tables_with(const row_lists& lists) const {
    std::vector<table_type> all;
    for (std::size_t f = 0; f < features.size(); ++f) {
      all.push_back(make_table(features[f].rows, features[f].width, state, f));
      const index_t floats = features[f].width + state;
      for (index_t k = 0; k < features[f].rows; ++k)
        std::memcpy(const_cast<std::byte*>(all.back().view().row(k)), lists[f].data() + k * floats,
                    static_cast<std::size_t>(floats) * sizeof(float));
    }
    return all;
  }

  /// What one process makes of it, with a window.
  void expect(index_t of_window) {
    std::mt19937_64 random(deeprec_test::seed());
    inline_executor here;
    std::vector<table_type> now;
    for (std::size_t f = 0; f < features.size(); ++f)
      now.push_back(make_table(features[f].rows, features[f].width, state, f));
    tables.push_back(rows_of(now));
    for (index_t t = 0; t < steps(); ++t) {
      batches.emplace_back();
      outs.emplace_back();
      const std::vector<table_type> seen =
          tables_with(tables[static_cast<std::size_t>(std::max<index_t>(0, t - of_window + 1))]);
      for (int r = 0; r < ranks(); ++r) {
        const bool has = t < steps_of[static_cast<std::size_t>(r)];
        const index_t bags = has ? 1 + static_cast<index_t>(random() % 12) : 0;
        batches.back().emplace_back();
        for (const feature& f : features) batches.back().back().push_back(draw(f, bags, random, false));
        outs.back().emplace_back(static_cast<std::size_t>(bags * width()));
        index_t column = 0;
        for (std::size_t f = 0; f < features.size(); ++f) {
          with_pooling(features[f].what, [&](const auto& pooled) {
            lookup(here, seen[f].view(), batches.back().back()[f].view(), pooled,
                   matrix_view<float>(outs.back().back().data() + column, bags, features[f].width, width()))
                .or_throw();
          });
          column += features[f].width;
        }
      }
      index_t column = 0;
      for (std::size_t f = 0; f < features.size(); ++f) {
        with_pooling(features[f].what, [&](const auto& pooled) { step_table(now[f], t, f, column, pooled); });
        column += features[f].width;
      }
      tables.push_back(rows_of(now));
    }
  }
  template <class Pooling>
  void step_table(table_type& table, index_t step, std::size_t f, index_t column, const Pooling& pooled) {
    inline_executor here;
    const index_t d = features[f].width;
    batch all;
    std::vector<float> g;
    for (int r = 0; r < ranks(); ++r) {
      const auto t = static_cast<std::size_t>(step), i = static_cast<std::size_t>(r);
      const batch& b = batches[t][i][f];
      std::vector<float> mine;
      for (index_t k = 0; k < b.bags(); ++k) {
        for (index_t c = 0; c < d; ++c)
          mine.push_back(gradient(step, r, k, column + c,
                                  outs[t][i][static_cast<std::size_t>(k * width() + column + c)]));
      }
      if (features[f].is_whole()) {
        all.append(b);
        g.insert(g.end(), mine.begin(), mine.end());
        continue;
      }
      if constexpr (!requires { typename Pooling::empty_mode; }) {
        sparse_gradient sums;
        row_gradients(here, features[f].rows, b.view(), pooled,
                      matrix_view<const float>(mine.data(), b.bags(), d), sums)
            .or_throw();
        for (std::size_t k = 0; k < sums.rows.size(); ++k) {
          all.ids.push_back(sums.rows[k]);
          all.offsets.push_back(static_cast<std::int64_t>(all.ids.size()));
          const float* const row = sums.values.data() + static_cast<index_t>(k) * d;
          g.insert(g.end(), row, row + d);
        }
      }
    }
    const matrix_view<const float> gradient(g.data(), all.bags(), d);
    if (features[f].is_whole()) {
      update(here, table.view(), all.view(), pooled, gradient, optimizer()).or_throw();
    } else {
      update(here, table.view(), all.view(), combiner::sum, gradient, optimizer()).or_throw();
    }
  }

  struct outcome {
    status ended;
    bool fine = true;  // what was looked up, and the rows after the updates
    index_t updates = -1;
  };

  /// A run at a rank. `restless`: threads wait here and there.
  template <class Comm>
  [[nodiscard]] outcome at_rank(Comm comm, bool restless, std::chrono::milliseconds patience) const {
    const int me = comm.rank(), n = comm.size();
    const auto i = static_cast<std::size_t>(me);
    std::vector<table_type> parts;
    auto made = sharded_loop<optimizer_type, Comm>::make(std::move(comm), window,
                                                         {.patience = patience, .requests = requests});
    REQUIRE(made.ok());
    auto& loop = made.value();
    const std::vector<table_type> first = tables_with(tables[0]);
    for (std::size_t f = 0; f < features.size(); ++f) {
      const feature& x = features[f];
      const bool holds = x.is_whole() && x.rank == me;
      parts.push_back(
          make_table(x.is_whole() ? (holds ? x.rows : 0) : part_rows(me, x.rows, n), x.width, state, 0));
      for (index_t k = 0; k < parts.back().rows(); ++k)
        copy_row(first[f], holds ? k : k * n + me, parts.back(), k);
    }
    for (std::size_t f = 0; f < features.size(); ++f) {
      const feature& x = features[f];
      if (x.is_whole()) {
        loop.add(parts[f].view(), combiner::sum, placement::whole{x.rank, x.rows});
      } else if (x.what == kind::rows_sum) {
        loop.add(parts[f].view(), combiner::sum, placement::rows{x.rows});
      } else {
        loop.add(parts[f].view(), combiner::mean, placement::rows{x.rows});
      }
    }
    thread_pool pool(static_cast<int>(loop.slots()) + 1);
    std::stop_source stop;
    outcome made_of_it;
    std::vector<std::vector<bags_type>> bags(static_cast<std::size_t>(loop.slots()));
    std::int64_t bad_id = 1'000;
    const auto rest = [&](index_t step, std::uint64_t most) {
      const std::uint64_t drawn =
          mix64(deeprec_test::seed() + i * 1000 + static_cast<std::uint64_t>(step) + most);
      for (std::uint64_t k = restless ? drawn % most : 0; k > 0; --k) std::this_thread::yield();
    };
    optimizer_type by = optimizer();
    const auto next = [&](stale_step step) -> result<std::optional<std::span<const bags_type>>> {
      rest(step.number, 20);
      const bool wrong = fault != loop_fault::none && me == faulty && step.number == at;
      if (wrong && fault == loop_fault::no_batch) return status(errc::io_error, "a test");
      if (step.number >= steps_of[i]) return std::optional<std::span<const bags_type>>();
      auto& of = bags[static_cast<std::size_t>(step.slot)];
      of.clear();
      for (const batch& b : batches[static_cast<std::size_t>(step.number)][i]) of.push_back(b.view());
      static constexpr std::int64_t one_bag[] = {0, 1};
      if (wrong && fault == loop_fault::id) of.assign(features.size(), bags_type(one_bag, 1, &bad_id, 1));
      return std::optional<std::span<const bags_type>>(of);
    };
    index_t computed = 0;
    const auto compute = [&](stale_step step, matrix_view<const float> pooled,
                             matrix_view<float> g) -> status {
      rest(step.number, 40);
      const auto& must_be = outs[static_cast<std::size_t>(step.number)][i];
      made_of_it.fine = made_of_it.fine && step.number == computed++ &&
                        pooled.extent(0) * pooled.extent(1) == static_cast<index_t>(must_be.size());
      const bool first_run = made_of_it.fine && !(fault != loop_fault::none && step.number > at);
      if (first_run && !must_be.empty() &&
          std::memcmp(pooled.data_handle(), must_be.data(), must_be.size() * sizeof(float)) != 0)
        made_of_it.fine = false;
      for (index_t b = 0; b < g.extent(0); ++b) {
        for (index_t c = 0; c < g.extent(1); ++c)
          g.row(b)[c] = gradient(step.number, me, b, c, pooled.row(b)[c]);
      }
      if (me == faulty && step.number == at) {
        if (fault == loop_fault::compute) return {errc::weight_is_nan, "a test"};
        if (fault == loop_fault::stop) stop.request_stop();
        if (fault == loop_fault::throws) throw std::runtime_error("a test");
      }
      return {};
    };
    try {
      made_of_it.ended = loop.run(pool, next, compute, by, keys::find, stop.get_token());
    } catch (const std::runtime_error&) {
      made_of_it.ended = {errc::cancelled, "thrown"};
    }
    made_of_it.updates = loop.updates();
    const row_lists& must_be = tables[static_cast<std::size_t>(made_of_it.updates)];
    const row_lists is = rows_of(parts);
    for (std::size_t f = 0; f < features.size(); ++f) {
      const auto floats = static_cast<std::size_t>(features[f].width + state);
      for (index_t k = 0; k < parts[f].rows(); ++k) {
        const index_t row = features[f].is_whole() ? k : k * n + me;
        made_of_it.fine =
            made_of_it.fine && std::memcmp(is[f].data() + static_cast<std::size_t>(k) * floats,
                                           must_be[f].data() + static_cast<std::size_t>(row) * floats,
                                           floats * sizeof(float)) == 0;
      }
    }
    return made_of_it;
  }
};

}  // namespace deeprec_test
