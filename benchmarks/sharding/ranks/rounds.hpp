// The ranks' side of a benchmark: rounds that bench_sharding asks rank 0 for, and times that are those of the
// slowest rank. No header of deeprec here.
#pragma once

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace deeprec_bench {

/// Whether another round is wanted; all ranks call it.
inline bool another_round() {
  int rank = 0, more = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char line[64];
  if (rank == 0) more = std::fgets(line, sizeof line, stdin) != nullptr ? 1 : 0;
  MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return more != 0;
}

/// The numbers of this round, from rank 0.
inline void tell(const std::vector<double>& numbers) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) return;
  for (const double number : numbers) std::printf("%.9g ", number);
  std::printf("\n");
  std::fflush(stdout);
}

/// Ends all ranks where one of them has a wrong answer.
inline void require_everywhere(bool right, const char* what) {
  int mine = right ? 1 : 0, all = 0, rank = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (all != 0) return;
  if (rank == 0) {
    std::printf("wrong answer: %s\n", what);
    std::fflush(stdout);
  }
  MPI_Finalize();
  std::exit(0);
}

/// Seconds from a barrier to the end of the slowest rank's call.
template <class Call>
double seconds_together(const Call& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  call();
  double mine = MPI_Wtime() - start, slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

}  // namespace deeprec_bench
