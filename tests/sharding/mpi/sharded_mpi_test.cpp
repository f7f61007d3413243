// Tables over processes under mpirun, against one process, which each of them is by itself.
#include <mpi.h>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/optim/optimizers.hpp>

#include <doctest/doctest.h>

#include <utility>

#include "sharding/sharded_trial.hpp"

using namespace deeprec_test;

namespace {

struct mpi_run {
  mpi_run() { MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided); }
  ~mpi_run() { MPI_Finalize(); }
  int provided = 0;
} const the_run;

template <class Trial>
bool same(Trial trial, index_t most_bytes) {
  trial.expect();
  return trial.same_at(
      mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread, .most_bytes = most_bytes}).or_throw(),
      false);
}

}  // namespace

TEST_CASE("sharded_group over MPI: lookups and updates have the bits of one process") {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  for (const index_t most : {index_t{1} << 30, index_t{500}}) {
    for (const row_sums sums : {row_sums::by_parts, row_sums::in_order}) {
      trial<sgd> plain{n, kinds_for(n), {.learning_rate = 0.125F}};
      trial<rowwise_adagrad> rowwise{n, kinds_for(n), {.learning_rate = 0.1F}};
      plain.sums = rowwise.sums = sums;
      CHECK(same(std::move(plain), most));
      CHECK(same(std::move(rowwise), most));
      trial<sgd, wire<bf16, bf16>> narrow{n, pooled_by_owners(kinds_for(n)), {.learning_rate = 0.125F}};
      narrow.sums = sums;
      CHECK(same(std::move(narrow), most));
    }
  }
}
TEST_CASE("sharded_group over MPI: a rank's gradient that is lost is seen") {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  trial<sgd> model{n, kinds_for(n), {.learning_rate = 0.125F}};
  model.breaks = mistake::rank_lost;
  CHECK(!same(std::move(model), index_t{1} << 30));
}
