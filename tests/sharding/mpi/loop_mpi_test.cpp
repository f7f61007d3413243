// A window over tables of processes under mpirun, against one process, which each of them is by itself.
#include <mpi.h>

#include <deeprec/comm/mpi_ranks.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "sharding/loop_trial.hpp"

using namespace deeprec_test;

namespace {

constexpr std::chrono::seconds minute(60);

// Several threads call MPI at once.
bool has_threads() {
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) MESSAGE("SKIPPED: this MPI has no MPI_THREAD_MULTIPLE");
  return provided >= MPI_THREAD_MULTIPLE;
}
loop_trial::outcome run(const loop_trial& trial) {
  return trial.at_rank(mpi_ranks::over(MPI_COMM_WORLD).or_throw(), true, minute);
}
std::vector<index_t> steps_of_ranks(index_t each) {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  std::vector<index_t> all(static_cast<std::size_t>(n), each);
  if (n > 2) all[2] = 0;
  all[1] = each + 2;
  return all;
}

}  // namespace

TEST_CASE("sharded_loop over MPI: lookup t sees the updates of all ranks up to t - W, and no others") {
  if (!has_threads()) return;
  for (index_t window = 1; window <= 3; ++window) {
    loop_trial trial{steps_of_ranks(5), window};
    trial.expect(window);
    const auto o = run(trial);
    CHECK(o.ended.ok());
    CHECK(o.fine);
    CHECK(o.updates == 7);
  }
  loop_trial trial{steps_of_ranks(5), 2};
  trial.expect(3);
  CHECK(!run(trial).fine);
}
TEST_CASE("sharded_loop over MPI: a fault of one rank is that of all") {
  if (!has_threads()) return;
  for (const loop_fault f : {loop_fault::id, loop_fault::no_batch, loop_fault::compute}) {
    loop_trial trial{steps_of_ranks(5), 2};
    trial.fault = f;
    trial.faulty = 1;
    trial.at = 3;
    trial.expect(2);
    const auto o = run(trial);
    CHECK(o.ended.code() == (f == loop_fault::id         ? errc::id_out_of_range
                             : f == loop_fault::no_batch ? errc::io_error
                                                         : errc::weight_is_nan));
    CHECK(o.ended.place().rank == 1);
    CHECK(o.updates == 3);
    CHECK(o.fine);
  }
}
