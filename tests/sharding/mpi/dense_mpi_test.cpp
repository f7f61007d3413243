// Dense parameters of processes under mpirun, against one process, which each of them is by itself.
#include <mpi.h>

#include <deeprec/comm/measure_link.hpp>
#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "sharding/dense_trial.hpp"

using namespace deeprec_test;

namespace {

mpi_ranks world(index_t most_bytes = index_t{1} << 30) {
  return mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread, .most_bytes = most_bytes})
      .or_throw();
}
int ranks() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
template <class Trial>
bool same(Trial trial, index_t bucket_bytes, readiness how, index_t most_bytes = index_t{1} << 30) {
  trial.expect();
  return trial.same_at(world(most_bytes),
                       {.patience = std::chrono::seconds(60), .bucket_bytes = bucket_bytes}, how);
}

}  // namespace

TEST_CASE("dense_step over MPI: the bits of one process that adds the ranks' gradients in their order") {
  for (const index_t bytes : {index_t{0}, index_t{1}, index_t{500}, index_t{1} << 20}) {
    CHECK(same(dense_trial<adagrad>{ranks(), {.learning_rate = 0.1F}}, bytes, readiness::reversed));
    CHECK(same(dense_trial<rowwise_adagrad>{ranks(), {.learning_rate = 0.1F}}, bytes, readiness::some));
  }
  CHECK(same(dense_trial<adam>{ranks(), {}}, 1 << 20, readiness::never, 200));  // in pieces
}
TEST_CASE("dense_step over MPI: a rank's gradient that is lost is seen") {
  CHECK(!same(dense_trial<adagrad>{ranks(), {.learning_rate = 0.1F}, dense_mistake::rank_lost}, 500,
              readiness::reversed));
}
TEST_CASE(
    "dense_step over MPI: sums of the engine are the same at all ranks, and those of the order nearly") {
  dense_trial<sgd> trial{ranks(), {.learning_rate = 0.1F}};
  trial.steps = 1;
  trial.expect();
  for (const index_t most : {index_t{1} << 30, index_t{200}}) {
    dense_memory mine(dense_sizes);
    mpi_ranks comm = world(most);
    const int me = comm.rank();
    mine.draw(me, 0);
    auto dense = dense_step<sgd, mpi_ranks, sums::by_engine_t>::make(std::move(comm), mine.tensors(),
                                                                     {.bucket_bytes = 700})
                     .or_throw();
    inline_executor here;
    REQUIRE(dense.step(here, trial.optimizer).ok());
    for (std::size_t t = 0; t < dense_sizes.size(); ++t) {
      std::vector<float> of_first = mine.parameters[t];
      MPI_Bcast(of_first.data(), static_cast<int>(of_first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
      CHECK(of_first == mine.parameters[t]);
      for (std::size_t k = 0; k < of_first.size(); ++k)
        CHECK(std::abs(of_first[k] - trial.expected[0][t][k]) <= 1e-6F);
    }
  }
}
TEST_CASE("dense_step over MPI: a fault of a rank is that of all, and they go on") {
  dense_memory mine(dense_sizes);
  mpi_ranks comm = world();
  const int me = comm.rank();
  mine.draw(me, 0);
  const auto before = mine.parameters;
  auto dense =
      dense_step<adagrad, mpi_ranks>::make(std::move(comm), mine.tensors(), {.bucket_bytes = 256}).or_throw();
  inline_executor here;
  const status s =
      dense.step(here, adagrad{}, me == 1 ? status(errc::id_out_of_range, "a test", {.bag = 7}) : status());
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().rank == 1);
  CHECK(s.place().bag == 7);
  CHECK(mine.parameters == before);
  CHECK(dense.step(here, adagrad{}).ok());
  CHECK(mine.parameters != before);
}
