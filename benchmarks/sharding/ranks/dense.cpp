// Steps of dense parameters that all ranks have: small tensors in buckets, against an all-reduce of MPI for
// each.
#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include "sharding/ranks/dense_tensors.hpp"
#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"

namespace deeprec_bench {

using namespace deeprec;

void rounds_of_dense_steps(int times, const std::vector<std::size_t>& bytes) {
  mpi_ranks comm = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw();
  const int rank = comm.rank();
  inline_executor here;
  dense_tensors plain(bytes, rank), ordered(bytes, rank), engine(bytes, rank);
  by_all_reduce theirs(plain);
  auto in_order = dense_step<sgd, mpi_ranks>::make(comm.duplicate().or_throw(), ordered.list).or_throw();
  auto by_engine =
      dense_step<sgd, mpi_ranks, sums::by_engine_t>::make(comm.duplicate().or_throw(), engine.list)
          .or_throw();
  const sgd optimizer{.learning_rate = dense_rate};
  const auto run = [&](int way) {
    if (way == 0) theirs.step_each();
    if (way == 1) theirs.step_joined();
    if (way == 2) in_order.step(here, optimizer).or_throw();
    if (way == 3) by_engine.step(here, optimizer).or_throw();
  };
  run(0);
  run(2);
  run(3);
  bool right = true;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    for (std::size_t i = 0; i < plain.parameters[t].size(); ++i) {
      const float expected = plain.parameters[t][i];
      right = right && std::abs(ordered.parameters[t][i] - expected) <= 1e-6F &&
              std::abs(engine.parameters[t][i] - expected) <= 1e-6F;
    }
  }
  require_everywhere(right, "dense parameters");
  for (int round = 0; another_round(); ++round) {
    std::vector<double> took(4, 0);
    for (int k = 0; k < times; ++k) {
      for (int w = 0; w < 4; ++w) {
        const int way = (k + round) % 2 == 0 ? w : 3 - w;
        took[static_cast<std::size_t>(way)] += seconds_together([&] { run(way); }) / times;
      }
    }
    took.push_back(static_cast<double>(in_order.buckets()));
    tell(took);
  }
}

}  // namespace deeprec_bench
