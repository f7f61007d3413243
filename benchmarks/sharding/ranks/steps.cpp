// Lookups and steps of Criteo's batches: in whole tables, which each rank has, and in tables of all ranks.
#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include "sharding/ranks/criteo_batches.hpp"
#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"

namespace deeprec_bench {

namespace {

using namespace deeprec;

constexpr index_t batch = 2048, batches = 4;
constexpr sgd optimizer{.learning_rate = 0.01F};

class model {
 public:
  model(mpi_ranks comm, index_t width, index_t most_rows)
      : batches_(comm.rank(), comm.size(), batch, batches, width, most_rows),
        whole_(make_criteo_tables(batches_, true)),
        parts_(make_criteo_tables(batches_, false)),
        group_(std::move(comm)) {
    for (std::size_t f = 0; f < criteo_tables; ++f) {
      local_.add(whole_[f].view(), combiner::sum);
      group_.add(parts_[f].view(), combiner::sum, placement::rows{batches_.rows()[f]});
    }
  }

  /// New batches for this rank.
  void next() { batches_.next(); }
  void look_up_here(index_t b) { lookup(here_, local_, batches_.bags(b), batches_.out_view()).or_throw(); }
  void look_up_everywhere(index_t b) {
    const std::vector<jagged_view<>> bags = batches_.bags(b);
    const auto rows = resolve(here_, group_, bags).or_throw();
    lookup(here_, rows, batches_.out_view()).or_throw();
  }
  void step_here(index_t b) { step(local_, b); }
  void step_everywhere(index_t b) { step(group_, b); }

  /// Whether all ranks' tables give the rows of the whole ones, also after a step of all ranks.
  bool right() {
    next();
    if (!look_ups_agree(0)) return false;
    step_everywhere(0);
    for (int r = 0; r < batches_.ranks(); ++r) {
      batches_.take_those_of(r);
      step_here(0);
    }
    batches_.take_those_of(batches_.rank());
    return look_ups_agree(1e-5F);
  }

 private:
  template <class Group>
  void step(Group& group, index_t b) {
    const std::vector<jagged_view<>> bags = batches_.bags(b);
    const auto rows = resolve(here_, group, bags).or_throw();
    lookup(here_, rows, batches_.out_view()).or_throw();
    update(here_, rows, batches_.gradient_view(), optimizer).or_throw();
  }
  bool look_ups_agree(float within) {
    look_up_here(0);
    const std::vector<float> expected = batches_.out;
    look_up_everywhere(0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!(std::abs(batches_.out[i] - expected[i]) <= within)) return false;
    }
    return true;
  }

  inline_executor here_;
  criteo_batches batches_;
  std::vector<criteo_table> whole_, parts_;
  feature_group<sgd> local_;
  sharded_group<sgd, mpi_ranks> group_;
};

}  // namespace

void rounds_of_steps(long width, long most_rows, bool trains) {
  model m(mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw(), width, most_rows);
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
