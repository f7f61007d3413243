// A rank of a job in which one rank is lost in the middle of a step: lost_ranks.sh starts it by mpirun.
//
//   lost_rank FOLDER VICTIM ids|rows|gradients before|within kill|stop|cut
//
// The victim is lost before it sends that message of step 2, or once it has begun to. A rank that goes on
// writes to FOLDER/rank_R how its steps ended: the verb, the status, the rank that it names, and whether a
// row was written behind the fault.
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

using namespace deeprec;
using namespace std::chrono_literals;

namespace {

constexpr index_t lost_step = 2, last_step = 5;

struct scenario {
  std::filesystem::path folder;
  int victim = 0;
  message_kind kind = message_kind::ids;
  bool within = false;
  std::string how;
};

void write_whole(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream(part) << text << '\n';
  std::filesystem::rename(part, file);
}

void lose_this_rank(const scenario& now) {
  write_whole(now.folder / "victim", std::to_string(getpid()));
  if (now.how == "kill") raise(SIGKILL);
  if (now.how == "stop") raise(SIGSTOP);
  if (std::system("ip link set eth0 down") != 0) std::abort();
}

/// mpi_ranks, of which one is lost. Waits are long before that, and short from then on.
class losing_ranks {
 public:
  using space = host_space;

  losing_ranks(mpi_ranks inner, const scenario& now) : inner_(std::move(inner)), now_(now) {}

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  [[nodiscard]] int most_in_flight() const noexcept { return inner_.most_in_flight(); }
  [[nodiscard]] status begin(exchange& x) {
    const bool here = rank() == now_.victim && x.step == lost_step && x.kind == now_.kind;
    if (here && !now_.within) lose_this_rank(now_);
    const status s = inner_.begin(x);
    if (here && now_.within) lose_this_rank(now_);
    return s;
  }
  [[nodiscard]] queue_result poll(exchange& x) { return inner_.poll(x); }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit&) {
    return inner_.wait(x, x.step < lost_step ? deeprec::within(60s) : deeprec::within(500ms));
  }
  [[nodiscard]] rank_list awaited(const exchange& x) const { return inner_.awaited(x); }
  void abandon(const status& why) { inner_.abandon(why); }
  [[nodiscard]] result<losing_ranks> duplicate() { return status(errc::unsupported, "duplicate"); }
  [[nodiscard]] result<losing_ranks> split(int, int, const wait_limit&) {
    return status(errc::unsupported, "split");
  }

 private:
  mpi_ranks inner_;
  scenario now_;
};
static_assert(Communicator<losing_ranks>);

void run(const scenario& now) {
  mpi_ranks comm = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw();
  const int me = comm.rank(), n = comm.size();
  constexpr index_t rows = 30'000, width = 16, bags = 9'000;  // messages of some hundred KB
  inline_executor here;
  dense_table<f32_rows> part(part_rows(me, rows, n), width);
  part.initialize(here, row_init::uniform{.seed = 1});
  sharded_group<sgd, losing_ranks> group(losing_ranks(std::move(comm), now));
  group.add(part.view(), combiner::sum, placement::rows{rows});
  std::vector<std::int64_t> offsets{0}, ids;
  for (index_t i = 0; i < bags; ++i) {
    ids.push_back((i * 7 + me) % rows);
    offsets.push_back(i + 1);
  }
  const std::vector<jagged_view<>> batch{{offsets.data(), bags, ids.data(), bags}};
  std::vector<float> out(static_cast<std::size_t>(bags * width)), gradient(out.size(), 0.5F);
  const std::size_t bytes = static_cast<std::size_t>(part.rows() * width) * sizeof(float);
  std::vector<std::byte> rows_before(bytes);
  std::string verb;
  const auto step = [&]() -> status {
    verb = "resolve";
    const auto found = resolve(here, group, batch);
    if (!found) return found.fault();
    verb = "lookup";
    if (const status s = lookup(here, found.value(), matrix_view<float>(out.data(), bags, width)); !s)
      return s;
    verb = "update";
    return update(here, found.value(), matrix_view<const float>(gradient.data(), bags, width),
                  sgd{.learning_rate = 0.1F});
  };
  status s;
  for (index_t t = 0; t <= last_step && s.ok(); ++t) {
    std::memcpy(rows_before.data(), part.view().row(0), bytes);
    s = step();
  }
  const bool written = std::memcmp(rows_before.data(), part.view().row(0), bytes) != 0;
  write_whole(now.folder / ("rank_" + std::to_string(me)), verb + " " + to_string(s.code()) + " " +
                                                               std::to_string(s.place().rank) +
                                                               (written ? " written" : " unchanged"));
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // also a stopped one ends with its launcher
  if (argc < 6) return 2;
  const std::string kind = argv[3];
  const scenario now{.folder = argv[1],
                     .victim = std::atoi(argv[2]),
                     .kind = kind == "ids"    ? message_kind::ids
                             : kind == "rows" ? message_kind::rows
                                              : message_kind::gradients,
                     .within = std::string(argv[4]) == "within",
                     .how = argv[5]};
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
  run(now);
  std::fflush(nullptr);
  _exit(0);  // MPI_Finalize would wait for the rank that is lost
}
