// What ranks of the suite do, each until no other round is wanted.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deeprec_bench {

/// Rounds of Criteo's batches of 2048: seconds of whole tables at each rank, seconds of tables of all ranks.
void rounds_of_steps(long width, long most_rows, bool trains);
/// Rounds of training steps of tables of all ranks: seconds in another way ("collectives" or "one_by_one"),
/// seconds in three messages.
void rounds_of_ways(const std::string& other, long batch, long width);
/// Rounds of steps of dense tensors: seconds by an all-reduce for each and for all in one buffer, seconds of
/// dense_step in order and by the engine, `times` steps each, and the number of its buckets.
void rounds_of_dense_steps(int times, const std::vector<std::size_t>& bytes);
/// Rounds of training loops whose computing takes as long as their messages: seconds a step under windows of
/// 1, 2 and 4, and those of computing.
void rounds_of_windows();
/// Rounds of exchanges of some sizes: for each seconds by plain MPI, seconds by mpi_ranks.
void rounds_of_exchanges(const std::vector<std::size_t>& sizes);
/// Rounds of one exchange: seconds by itself, seconds beside a timer that polls, and what the timer takes.
void rounds_beside_a_timer(std::size_t bytes);

}  // namespace deeprec_bench
