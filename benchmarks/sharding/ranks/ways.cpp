// The same training step of tables of all ranks in other ways than in three messages: by MPI's collectives,
// and one feature after the other.
#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include "sharding/ranks/criteo_batches.hpp"
#include "sharding/ranks/dense_tensors.hpp"
#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"

namespace deeprec_bench {

namespace {

using namespace deeprec;

constexpr index_t batches = 4;
constexpr sgd optimizer{.learning_rate = 0.01F};

class in_three_messages {
 public:
  in_three_messages(mpi_ranks comm, criteo_batches& of)
      : of_(of), parts_(make_criteo_tables(of, false)), group_(std::move(comm)) {
    for (std::size_t f = 0; f < criteo_tables; ++f)
      group_.add(parts_[f].view(), combiner::sum, placement::rows{of.rows()[f]});
  }
  void step(index_t b) {
    const std::vector<jagged_view<>> bags = of_.bags(b);
    const auto rows = resolve(here_, group_, bags).or_throw();
    lookup(here_, rows, of_.out_view()).or_throw();
    update(here_, rows, of_.gradient_view(), optimizer).or_throw();
  }

 private:
  inline_executor here_;
  criteo_batches& of_;
  std::vector<criteo_table> parts_;
  sharded_group<sgd, mpi_ranks> group_;
};

/// Each feature by itself, with three messages of its own.
class one_by_one {
 public:
  one_by_one(mpi_ranks comm, criteo_batches& of) : of_(of), parts_(make_criteo_tables(of, false)) {
    for (std::size_t f = 0; f < criteo_tables; ++f) {
      groups_.push_back(std::make_unique<sharded_group<sgd, mpi_ranks>>(comm.duplicate().or_throw()));
      groups_.back()->add(parts_[f].view(), combiner::sum, placement::rows{of.rows()[f]});
    }
  }
  void step(index_t b) {
    const std::vector<jagged_view<>> bags = of_.bags(b);
    using rows_type = sharded_rows<sharded_group<sgd, mpi_ranks>>;
    std::vector<rows_type> rows;
    for (std::size_t f = 0; f < groups_.size(); ++f) {
      rows.push_back(resolve(here_, *groups_[f], std::span(bags).subspan(f, 1)).or_throw());
      lookup(here_, rows[f],
             matrix_view<float>(of_.out.data() + column(f), of_.batch(), of_.width(), of_.columns()))
          .or_throw();
    }
    for (std::size_t f = 0; f < groups_.size(); ++f) {
      update(
          here_, rows[f],
          matrix_view<const float>(of_.gradient.data() + column(f), of_.batch(), of_.width(), of_.columns()),
          optimizer)
          .or_throw();
    }
  }

 private:
  [[nodiscard]] std::size_t column(std::size_t f) const { return f * static_cast<std::size_t>(of_.width()); }

  inline_executor here_;
  criteo_batches& of_;
  std::vector<criteo_table> parts_;
  std::vector<std::unique_ptr<sharded_group<sgd, mpi_ranks>>> groups_;
};

/// SOK's way: all ids go to all ranks, each pools what it owns of every bag, parts of bags go back and are
/// added; all gradients go to all ranks.
class by_collectives {
 public:
  explicit by_collectives(criteo_batches& of)
      : of_(of),
        parts_(make_criteo_tables(of, false)),
        ids_(static_cast<std::size_t>(of.batch() * criteo_tables)),
        all_ids_(ids_.size() * ranks()),
        pooled_(of.out.size() * ranks()),
        received_(pooled_.size()),
        gradients_(pooled_.size()),
        offsets_(criteo_tables),
        owned_(criteo_tables) {
    for (criteo_table& part : parts_) group_.add(part.view(), combiner::sum);
  }
  void step(index_t b) {
    const auto count = static_cast<std::size_t>(of_.batch());
    for (std::size_t f = 0; f < criteo_tables; ++f)
      std::copy_n(of_.ids(f, b), count, ids_.data() + f * count);
    MPI_Allgather(ids_.data(), static_cast<int>(ids_.size()), MPI_INT64_T, all_ids_.data(),
                  static_cast<int>(ids_.size()), MPI_INT64_T, MPI_COMM_WORLD);
    bags_.clear();
    for (std::size_t f = 0; f < criteo_tables; ++f) pick(f, count);
    const auto all_bags = static_cast<index_t>(count * ranks());
    const auto rows = resolve(here_, group_, bags_).or_throw();
    lookup(here_, rows, matrix_view<float>(pooled_.data(), all_bags, of_.columns())).or_throw();
    const int floats = static_cast<int>(of_.out.size());
    MPI_Alltoall(pooled_.data(), floats, MPI_FLOAT, received_.data(), floats, MPI_FLOAT, MPI_COMM_WORLD);
    std::copy_n(received_.data(), of_.out.size(), of_.out.data());
    for (std::size_t r = 1; r < ranks(); ++r) {
      const float* const from = received_.data() + r * of_.out.size();
      for (std::size_t i = 0; i < of_.out.size(); ++i) of_.out[i] += from[i];
    }
    MPI_Allgather(of_.gradient.data(), floats, MPI_FLOAT, gradients_.data(), floats, MPI_FLOAT,
                  MPI_COMM_WORLD);
    update(here_, rows, matrix_view<const float>(gradients_.data(), all_bags, of_.columns()), optimizer)
        .or_throw();
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(of_.ranks()); }
  // Of all ranks' bags the ids that this rank has.
  void pick(std::size_t f, std::size_t count) {
    std::vector<std::int64_t>& ids = owned_[f];
    std::vector<std::int64_t>& offsets = offsets_[f];
    ids.clear();
    offsets.assign(1, 0);
    const std::int64_t n = of_.ranks(), me = of_.rank();
    for (std::size_t r = 0; r < ranks(); ++r) {
      const std::int64_t* const of = all_ids_.data() + (r * criteo_tables + f) * count;
      for (std::size_t i = 0; i < count; ++i) {
        if (of[i] % n == me) ids.push_back(of[i] / n);
        offsets.push_back(static_cast<std::int64_t>(ids.size()));
      }
    }
    bags_.emplace_back(offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
                       static_cast<index_t>(ids.size()));
  }

  inline_executor here_;
  criteo_batches& of_;
  std::vector<criteo_table> parts_;
  feature_group<sgd> group_;
  std::vector<std::int64_t> ids_, all_ids_;
  std::vector<float> pooled_, received_, gradients_;
  std::vector<std::vector<std::int64_t>> offsets_, owned_;
  std::vector<jagged_view<>> bags_;
};

// After a step both ways must pool the same.
template <class One, class Other>
bool agree(criteo_batches& of, One& one, Other& other) {
  for (int t = 0; t < 2; ++t) {
    one.step(0);
    const std::vector<float> expected = of.out;
    other.step(0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!(std::abs(of.out[i] - expected[i]) <= 1e-5F)) return false;
    }
  }
  return true;
}

/// @param dense  of a model, or nothing: both ways step them after the tables
template <class Other>
void compare(mpi_ranks comm, criteo_batches& of, in_three_messages& ours, Other& other,
             const std::vector<std::size_t>& dense) {
  dense_tensors plain(dense, of.rank()), fused(dense, of.rank());
  by_all_reduce reduced(plain);
  auto bucketed = dense_step<sgd, mpi_ranks>::make(std::move(comm), fused.list).or_throw();
  of.next();
  require_everywhere(agree(of, ours, other), "pooled rows in another way");
  inline_executor here;
  for (int round = 0; another_round(); ++round) {
    of.next();
    double took[2] = {0, 0};
    for (index_t b = 0; b < batches; ++b) {
      const int first = static_cast<int>((b + round) % 2);
      for (const int side : {first, 1 - first})
        took[side] += seconds_together([&] {
          side == 0 ? other.step(b) : ours.step(b);
          if (dense.empty()) return;
          if (side == 0)
            reduced.step_joined();
          else
            bucketed.step(here, optimizer).or_throw();
        });
    }
    tell({took[0] / batches, took[1] / batches});
  }
}

}  // namespace

void rounds_of_ways(const std::string& other, long batch, long width) {
  mpi_ranks comm = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw();
  criteo_batches of(comm.rank(), comm.size(), batch, batches, width, index_t{1} << 40);
  in_three_messages ours(comm.duplicate().or_throw(), of);
  if (other == "collectives") {
    by_collectives theirs(of);
    std::vector<std::size_t> dense;  // a DLRM's weights
    for (const std::size_t floats : {13 * 512, 512 * 256, 256 * 64, 64 * 16, 367 * 512, 512 * 256, 256})
      dense.push_back(floats * sizeof(float));
    compare(std::move(comm), of, ours, theirs, dense);
  } else {
    one_by_one theirs(comm.duplicate().or_throw(), of);
    compare(std::move(comm), of, ours, theirs, {});
  }
}

}  // namespace deeprec_bench
