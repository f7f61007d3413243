// Lookups and steps of Criteo's batches: in whole tables, which each rank has, and in tables of all ranks.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"
#include "support/criteo_trace.hpp"

namespace deeprec_bench {

namespace {

using namespace deeprec;
using table = dense_table<f32_rows>;

constexpr index_t batch = 2048, batches = 4, columns = 26;
constexpr sgd optimizer{.learning_rate = 0.01F};

class model {
 public:
  model(index_t width, index_t most_rows)
      : comm_(mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw()),
        rank_(comm_.rank()),
        ranks_(comm_.size()),
        width_(width),
        group_(std::move(comm_)),
        out_(static_cast<std::size_t>(batch * columns * width)),
        check_(out_.size()),
        gradient_(out_.size()) {
    for (index_t i = 0; i <= batch; ++i) offsets_.push_back(i);
    for (std::size_t i = 0; i < gradient_.size(); ++i)
      gradient_[i] = static_cast<float>(static_cast<int>(mix64(i) % 2001) - 1000) / 1e5F;
    whole_.reserve(columns);
    parts_.reserve(columns);
    for (std::size_t f = 0; f < columns; ++f) {
      const index_t rows = std::min(criteo_rows[f], most_rows);
      whole_.emplace_back(rows, f32_rows(width));
      whole_.back().initialize(here_, row_init::uniform{.seed = f});
      parts_.emplace_back(part_rows(rank_, rows, ranks_), f32_rows(width));
      for (index_t k = 0; k < parts_.back().rows(); ++k) {
        std::memcpy(const_cast<std::byte*>(parts_.back().view().row(k)),
                    whole_.back().view().row(k * ranks_ + rank_),
                    static_cast<std::size_t>(width) * sizeof(float));
      }
      local_.add(whole_.back().view(), combiner::sum);
      group_.add(parts_.back().view(), combiner::sum, placement::rows{rows});
    }
  }

  /// New batches for this rank.
  void next() { trace_ = of_rank(rank_, ++turn_); }
  void look_up_here(index_t b) { lookup(here_, local_, bags(b), out()).or_throw(); }
  void look_up_everywhere(index_t b) {
    const std::vector<jagged_view<>> of = bags(b);
    const auto rows = resolve(here_, group_, of).or_throw();
    lookup(here_, rows, out()).or_throw();
  }
  void step_here(index_t b) {
    const std::vector<jagged_view<>> of = bags(b);
    const auto rows = resolve(here_, local_, of).or_throw();
    lookup(here_, rows, out()).or_throw();
    update(here_, rows, gradient(), optimizer).or_throw();
  }
  void step_everywhere(index_t b) {
    const std::vector<jagged_view<>> of = bags(b);
    const auto rows = resolve(here_, group_, of).or_throw();
    lookup(here_, rows, out()).or_throw();
    update(here_, rows, gradient(), optimizer).or_throw();
  }

  /// Whether all ranks' tables give the rows of the whole ones, also after a step of all ranks.
  bool right() {
    next();
    look_up_here(0);
    std::copy(out_.begin(), out_.end(), check_.begin());
    look_up_everywhere(0);
    if (std::memcmp(out_.data(), check_.data(), out_.size() * sizeof(float)) != 0) return false;
    step_everywhere(0);
    const auto mine = trace_;
    for (int r = 0; r < ranks_; ++r) {
      trace_ = of_rank(r, turn_);
      step_here(0);
    }
    trace_ = mine;
    look_up_here(0);
    std::copy(out_.begin(), out_.end(), check_.begin());
    look_up_everywhere(0);
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (!(std::abs(out_[i] - check_[i]) <= 1e-5F)) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::vector<std::int64_t>> of_rank(int rank, std::uint64_t turn) const {
    auto ids = criteo_trace(batch * batches,
                            turn * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank));
    for (std::size_t f = 0; f < ids.size(); ++f) {
      for (std::int64_t& id : ids[f]) id %= whole_[f].rows();
    }
    return ids;
  }
  [[nodiscard]] std::vector<jagged_view<>> bags(index_t b) const {
    std::vector<jagged_view<>> of;
    for (const auto& ids : trace_) of.emplace_back(offsets_.data(), batch, ids.data() + b * batch, batch);
    return of;
  }
  matrix_view<float> out() { return {out_.data(), batch, columns * width_}; }
  [[nodiscard]] matrix_view<const float> gradient() const {
    return {gradient_.data(), batch, columns * width_};
  }

  mpi_ranks comm_;  // moved into the group
  int rank_, ranks_;
  index_t width_;
  inline_executor here_;
  std::vector<table> whole_, parts_;
  feature_group<sgd> local_;
  sharded_group<sgd, mpi_ranks> group_;
  std::vector<float> out_, check_, gradient_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::vector<std::int64_t>> trace_;
  std::uint64_t turn_ = 0;
};

}  // namespace

void rounds_of_steps(long width, long most_rows, bool trains) {
  model m(width, most_rows);
  require_everywhere(m.right(), "rows of all ranks' tables");
  for (int round = 0; another_round(); ++round) {
    m.next();
    double took[2] = {0, 0};
    for (index_t b = 0; b < batches; ++b) {
      const int first = static_cast<int>((b + round) % 2);
      for (const int side : {first, 1 - first}) {
        took[side] += seconds_together([&] {
          if (side == 0)
            trains ? m.step_here(b) : m.look_up_here(b);
          else
            trains ? m.step_everywhere(b) : m.look_up_everywhere(b);
        });
      }
    }
    tell({took[0] / batches, took[1] / batches});
  }
}

}  // namespace deeprec_bench
