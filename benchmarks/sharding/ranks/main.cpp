// One rank of what bench_sharding measures: bench_sharding_ranks steps WIDTH MOST_ROWS lookup|step,
// ways collectives|one_by_one BATCH WIDTH, exchanges BYTES..., dense TIMES BYTES..., overlap BYTES, or
// windows.
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "sharding/ranks/ranks.hpp"

namespace {

// Each rank on a processor of its own, where there are as many.
void bind_rank() {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::vector<int> cpus = deeprec::usable_cpus();
  if (cpus.size() < static_cast<std::size_t>(ranks)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpus[static_cast<std::size_t>(rank)]), &one);
  sched_setaffinity(0, sizeof one, &one);
}

std::vector<std::size_t> sizes_in(const std::vector<std::string>& words, std::size_t first) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = first; i < words.size(); ++i) sizes.push_back(std::stoul(words[i]));
  return sizes;
}

int run(const std::vector<std::string>& words) {
  if (words.size() >= 4 && words[0] == "steps") {
    bind_rank();
    deeprec_bench::rounds_of_steps(std::atol(words[1].c_str()), std::atol(words[2].c_str()),
                                   words[3] == "step");
  } else if (words.size() >= 4 && words[0] == "ways") {
    bind_rank();
    deeprec_bench::rounds_of_ways(words[1], std::atol(words[2].c_str()), std::atol(words[3].c_str()));
  } else if (words.size() >= 2 && words[0] == "exchanges") {
    bind_rank();
    deeprec_bench::rounds_of_exchanges(sizes_in(words, 1));
  } else if (words.size() >= 3 && words[0] == "dense") {
    bind_rank();
    deeprec_bench::rounds_of_dense_steps(std::atoi(words[1].c_str()), sizes_in(words, 2));
  } else if (!words.empty() && words[0] == "windows") {
    deeprec_bench::rounds_of_windows();
  } else if (words.size() >= 2 && words[0] == "overlap") {
    deeprec_bench::rounds_beside_a_timer(std::stoul(words[1]));
  } else {
    std::fputs("bench_sharding starts this program\n", stderr);
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // not longer than its launcher
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool threads = !words.empty() && words[0] == "windows";
  int provided = 0;
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED, &provided);
  const int code = run(words);
  MPI_Finalize();
  return code;
}
