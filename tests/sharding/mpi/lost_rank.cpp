// A rank of a job in which one rank is lost in the middle of a step: lost_ranks.sh starts it by mpirun.
//
//   lost_rank FOLDER VICTIM PHASE before|within kill|stop|cut
//
//   ids, rows, gradients            of a step of tables
//   slices, parameters              of a dense_step, in the order of the ranks
//   agreement, sum                  of one whose sums are the engine's
//
// The victim is lost before it sends that message of step 2, or once it has begun to; of sums before the
// first one, or between the first and the last. A rank that goes on writes to FOLDER/rank_R how its steps
// ended: the verb, the status, the rank that it names, whether a row or a parameter was written behind the
// fault, and the milliseconds of the last step.
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <deeprec/comm/mpi_ranks.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace deeprec;
using namespace std::chrono_literals;

namespace {

constexpr index_t lost_step = 2, last_step = 5;
constexpr std::chrono::seconds patience(2);  // of a message, from the lost step on

struct phase {
  std::string_view name;
  message_kind kind;  // of the message; a sum of the engine follows it
};
constexpr phase phases[] = {
    {"ids", message_kind::ids},
    {"rows", message_kind::rows},
    {"gradients", message_kind::gradients},
    {"slices", message_kind::slices},
    {"parameters", message_kind::parameters},
    {"agreement", message_kind::agreement},
    {"sum", message_kind::agreement},
};

struct scenario {
  std::filesystem::path folder;
  int victim = 0;
  phase at = phases[0];
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
    if (x.step > step_) sums_ = 0;
    step_ = x.step;
    const bool here = is_near() && x.kind == now_.at.kind && now_.at.name != "sum";
    if (here && !now_.within) lose_this_rank(now_);
    const status s = inner_.begin(x);
    if (here && now_.within) lose_this_rank(now_);
    return s;
  }
  [[nodiscard]] queue_result poll(exchange& x) { return inner_.poll(x); }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit&) { return inner_.wait(x, limit(x.step)); }
  [[nodiscard]] rank_list awaited(const exchange& x) const { return inner_.awaited(x); }
  void abandon(const status& why) { inner_.abandon(why); }
  [[nodiscard]] status sum(std::span<float> values, const wait_limit&) {
    if (is_near() && now_.at.name == "sum" && sums_ == (now_.within ? 1 : 0)) lose_this_rank(now_);
    ++sums_;
    return inner_.sum(values, limit(step_));
  }
  [[nodiscard]] result<losing_ranks> duplicate() { return status(errc::unsupported, "duplicate"); }
  [[nodiscard]] result<losing_ranks> split(int, int, const wait_limit&) {
    return status(errc::unsupported, "split");
  }

 private:
  [[nodiscard]] bool is_near() const { return rank() == now_.victim && step_ == lost_step; }
  static wait_limit limit(index_t step) { return within(step < lost_step ? 60s : patience); }

  mpi_ranks inner_;
  scenario now_;
  index_t step_ = -1;  // of the last message
  int sums_ = 0;       // of that step
};
static_assert(SummingCommunicator<losing_ranks>);

/// How the steps of a rank ended.
struct end_of_steps {
  std::string_view verb;
  status s;
  bool written = false;  // by the step that failed
  std::chrono::milliseconds last{};
};

// Runs steps until one fails. What they write are `bytes` at `memory`.
end_of_steps run_steps(const std::byte* memory, std::size_t bytes,
                       const std::function<status(std::string_view& verb)>& step) {
  end_of_steps end;
  std::vector<std::byte> before(bytes);
  for (index_t t = 0; t <= last_step && end.s.ok(); ++t) {
    std::memcpy(before.data(), memory, bytes);
    const auto begun = std::chrono::steady_clock::now();
    end.s = step(end.verb);
    end.last =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
  }
  end.written = std::memcmp(before.data(), memory, bytes) != 0;
  return end;
}

end_of_steps run_tables(losing_ranks comm) {
  const int me = comm.rank(), n = comm.size();
  constexpr index_t rows = 30'000, width = 16, bags = 9'000;  // messages of some hundred KB
  inline_executor here;
  dense_table<f32_rows> part(part_rows(me, rows, n), width);
  part.initialize(here, row_init::uniform{.seed = 1});
  sharded_group<sgd, losing_ranks> group(std::move(comm));
  group.add(part.view(), combiner::sum, placement::rows{rows});
  std::vector<std::int64_t> offsets{0}, ids;
  for (index_t i = 0; i < bags; ++i) {
    ids.push_back((i * 7 + me) % rows);
    offsets.push_back(i + 1);
  }
  const std::vector<jagged_view<>> batch{{offsets.data(), bags, ids.data(), bags}};
  std::vector<float> out(static_cast<std::size_t>(bags * width)), gradient(out.size(), 0.5F);
  return run_steps(
      part.view().row(0), static_cast<std::size_t>(part.rows() * width) * sizeof(float),
      [&](std::string_view& verb) -> status {
        verb = "resolve";
        const auto found = resolve(here, group, batch);
        if (!found) return found.fault();
        verb = "lookup";
        if (const status s = lookup(here, found.value(), matrix_view<float>(out.data(), bags, width)); !s)
          return s;
        verb = "update";
        return update(here, found.value(), matrix_view<const float>(gradient.data(), bags, width),
                      sgd{.learning_rate = 0.1F});
      });
}

template <class Sums>
end_of_steps run_dense(losing_ranks comm) {
  constexpr index_t tensors = 6, rows = 100, width = 250;  // 100 KB each, two in a bucket
  std::vector<float> parameters(static_cast<std::size_t>(tensors * rows * width), 1.0F);
  std::vector<float> gradients(parameters.size(), 0.5F);
  std::vector<dense_tensor> list;
  for (index_t t = 0; t < tensors; ++t) {
    const index_t first = t * rows * width;
    list.push_back({{parameters.data() + first, rows, width}, {gradients.data() + first, rows, width}});
  }
  auto dense = dense_step<adagrad, losing_ranks, Sums>::make(
                   std::move(comm), list, {.bucket_bytes = 2 * rows * width * index_t{sizeof(float)}})
                   .or_throw();
  inline_executor here;
  return run_steps(reinterpret_cast<const std::byte*>(parameters.data()), parameters.size() * sizeof(float),
                   [&](std::string_view& verb) -> status {
                     verb = "dense_step";
                     for (index_t t = tensors; t-- > 0;) dense.ready(t).or_throw();
                     return dense.step(here, adagrad{});
                   });
}

void run(const scenario& now) {
  mpi_ranks inner = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw();
  const int me = inner.rank();
  losing_ranks comm(std::move(inner), now);
  const message_kind kind = now.at.kind;
  const end_of_steps end = kind == message_kind::agreement ? run_dense<sums::by_engine_t>(std::move(comm))
                           : kind == message_kind::slices || kind == message_kind::parameters
                               ? run_dense<sums::in_order_t>(std::move(comm))
                               : run_tables(std::move(comm));
  write_whole(now.folder / ("rank_" + std::to_string(me)),
              std::string(end.verb) + " " + to_string(end.s.code()) + " " +
                  std::to_string(end.s.place().rank) + (end.written ? " written" : " unchanged") + " " +
                  std::to_string(end.last.count()));
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // also a stopped one ends with its launcher
  if (argc < 6) return 2;
  const std::string_view name = argv[3];
  const phase* at =
      std::find_if(std::begin(phases), std::end(phases), [&](const phase& p) { return p.name == name; });
  if (at == std::end(phases)) return 2;
  const scenario now{.folder = argv[1],
                     .victim = std::atoi(argv[2]),
                     .at = *at,
                     .within = std::string_view(argv[4]) == "within",
                     .how = argv[5]};
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
  run(now);
  std::fflush(nullptr);
  _exit(0);  // MPI_Finalize would wait for the rank that is lost
}
