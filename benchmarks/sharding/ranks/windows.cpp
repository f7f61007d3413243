// Training loops of Criteo's tables under a window, beside a timer that stands for what a model computes.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_loop.hpp>

#include "sharding/ranks/criteo_batches.hpp"
#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"

namespace deeprec_bench {

void rounds_of_windows() {
  using namespace deeprec;
  using loop_type = sharded_loop<sgd, mpi_ranks>;
  constexpr index_t batch = 512, batches = 4, steps = 12;
  constexpr index_t windows[] = {1, 2, 4};
  mpi_ranks comm = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::at_once}).or_throw();
  criteo_batches data(comm.rank(), comm.size(), batch, batches, 16, 100'000);
  std::vector<criteo_table> parts = make_criteo_tables(data, false);
  std::vector<loop_type> loops;
  for (const index_t window : windows) {
    loops.push_back(loop_type::make(comm.duplicate().or_throw(), window).or_throw());
    for (std::size_t f = 0; f < parts.size(); ++f)
      loops.back().add(parts[f].view(), combiner::sum, placement::rows{data.rows()[f]});
  }
  thread_pool pool(8);
  sgd optimizer{.learning_rate = 0.01F};
  data.next();
  std::vector<std::vector<jagged_view<>>> bags;
  for (index_t b = 0; b < batches; ++b) bags.push_back(data.bags(b));
  const auto seconds_of_step = [&](std::size_t which, double computes) {
    const double all = seconds_together([&] {
      loops[which]
          .run(
              pool,
              [&](stale_step step) -> std::optional<std::span<const jagged_view<>>> {
                if (step.number >= steps) return std::nullopt;
                return std::span<const jagged_view<>>(bags[static_cast<std::size_t>(step.number % batches)]);
              },
              [&](stale_step, matrix_view<const float> pooled, matrix_view<float> gradient) {
                std::this_thread::sleep_for(std::chrono::duration<double>(computes));
                for (index_t i = 0; i < gradient.extent(0); ++i)
                  std::copy_n(pooled.row(i), gradient.extent(1), gradient.row(i));
              },
              optimizer)
          .or_throw();
    });
    require_everywhere(loops[which].updates() == steps, "the number of updates");
    return all / static_cast<double>(steps);
  };
  seconds_of_step(0, 0);  // buffers grow
  double computes = seconds_of_step(0, 0);
  MPI_Bcast(&computes, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  for (int round = 0; another_round(); ++round) {
    std::vector<double> took(4, computes);
    for (std::size_t k = 0; k < 3; ++k) {
      const std::size_t which = round % 2 == 0 ? k : 2 - k;
      took[which] = seconds_of_step(which, computes);
    }
    tell(took);
    computes = 0.75 * computes + 0.25 * (took[0] - computes);  // as long as the messages of a step
    MPI_Bcast(&computes, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }
}

}  // namespace deeprec_bench
