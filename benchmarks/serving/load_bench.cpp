// Requests of different sizes to one model that nobody writes, by sessions and by one pool for all.
//
//   serving/load/CHOICE      four sessions, each with a pool and an arena, chosen by round_robin, by_thread
//                            or least_busy, beside one pool for the ops of all requests (inter_op): their
//                            99th percentile over the pool's (tail), and requests a second over the pool's
//                            (throughput). speedup: the 99th percentiles of the pool, and of clients that
//                            run the ops of their own requests with the help of one thread_pool (shared),
//                            over that of the sessions
//   serving/load/executors   four sessions whose ops run one after the other on one thread: the 99th
//                            percentiles of sessions with pools of two threads or more, which verbs share,
//                            and whose ops run as they become ready (pool), by cost (cost) and one after the
//                            other (verbs), over theirs (speedup); tail and throughput are over pool
//
// The model: a DLRM of 13 numbers through 128, 64 and 16; 26 lookups of 16 columns, 1 to 20 ids in a bag,
// zipf(1.05) over at most 200,000 rows; their dot products; 256, 64 and 1. A request has 1 to 32 samples.
//
// Sixteen clients send requests, each on a thread that waits for its answer. First one after the other: what
// the slowest side serves in a second is the capacity. Then 16,000 arrive at 70 % of it, at intervals of a
// Poisson process, the same ones for each side; a latency begins when a request was to arrive, whether or not
// a client was free to send it. Each answer is compared with that of a run on one thread, bit by bit.
//
// Expected: a pool takes ops of all requests in turn, so a short request waits for long ones, and each hop of
// an op between threads costs as much as a small op. The first shows in percentiles alone, the second in
// cpu_us too, the time that processors spend on a request, which other programs on the machine change least.
#include <benchmark/benchmark.h>

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/serving/session_group.hpp>

#include "serving/inter_op_pool.hpp"
#include "support/add.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "support/random_layers.hpp"
#include "support/zipf.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t sessions = 4, width = 16, dense_width = 13;
constexpr index_t most_samples = 32;
constexpr std::size_t features = 26, clients = 16, requests_of_run = 16'000;
using table_type = dense_table<f32_rows>;

// ---- The model and its requests ----

struct request {
  index_t samples = 0;
  std::vector<float> numbers;
  std::vector<jagged_batch<>> bags;
  std::vector<float> answer;
};

struct served_model {
  std::vector<table_type> tables;
  std::vector<std::unique_ptr<random_layer>> bottom, top;
  std::vector<request> requests{512};
  step_graph graph{};
  value<const request*> in{};
  value<matrix_value> out{};
  std::optional<step_program> in_turn, as_ready, by_cost;
  std::vector<double> ns;  // of each op, the mean over requests on one thread

  served_model() {
    const inline_executor here;
    for (std::size_t t = 0; t < features; ++t) {
      tables.emplace_back(std::min(criteo_rows[t], index_t{200'000}), width);
      tables.back().initialize(here, row_init::uniform{.seed = t, .bound = 0.05F});
    }
    bottom = random_layers({dense_width, 128, 64, width});
    top = random_layers({width + 27 * 26 / 2, 256, 64, 1});
    std::uint64_t draw = 11;
    for (request& r : requests) {
      r.samples = 1 + hash_bucket(draw = mix64(draw), most_samples);
      r.numbers.resize(static_cast<std::size_t>(r.samples * dense_width));
      for (float& x : r.numbers) x = static_cast<float>((draw = mix64(draw)) >> 40) * 0x1p-24F;
      r.bags.resize(features);
      for (std::size_t t = 0; t < features; ++t) {
        r.bags[t].offsets.push_back(0);
        for (index_t b = 0; b < r.samples; ++b) {
          const index_t ids = 1 + hash_bucket(draw = mix64(draw), 1 + static_cast<index_t>(t * 7 % 20));
          for (index_t i = 0; i < ids; ++i)
            r.bags[t].ids.push_back(zipf_id(draw = mix64(draw), tables[t].view().rows()));
          r.bags[t].offsets.push_back(static_cast<index_t>(r.bags[t].ids.size()));
        }
      }
    }
    describe();
    const auto compiled = [this](op_schedule schedule) {
      return step_program::compile(graph, {.schedule = schedule}).or_throw();
    };
    in_turn.emplace(compiled(op_schedule::in_turn));
    as_ready.emplace(compiled(op_schedule::as_ready));
    by_cost.emplace(compiled(op_schedule::by_cost));
    answer_all();
  }

  void describe() {
    step_graph& g = graph;
    in = g.placeholder<const request*>("request");
    const auto numbers = g.add<matrix_value>(
        "numbers",
        [](const request* const& r, matrix_value& x) {
          x.refer({r->numbers.data(), r->samples, dense_width});
        },
        in);
    const auto layers = [&](value<matrix_value> x, std::vector<std::unique_ptr<random_layer>>& of,
                            const char* name) {
      for (std::size_t i = 0; i < of.size(); ++i) {
        const auto w = g.variable("w", of[i]->weights), b = g.variable("b", of[i]->bias);
        const bool last = &of == &top && i + 1 == of.size();
        x = g.add(name, linear_op<>{.activation = last ? gemm_activation::sigmoid : gemm_activation::relu}, x,
                  g.read(w), g.read(b));
      }
      return x;
    };
    const value<matrix_value> low = layers(numbers, bottom, "bottom");
    std::vector<value<matrix_value>> rows;
    for (std::size_t t = 0; t < features; ++t) {
      rows.push_back(g.add<matrix_value>(
          "lookup",
          [t](const step_call& call, const request* const& r, const table_type& table, matrix_value& to) {
            return lookup(call.on, table.view(), r->bags[t].view(), combiner::sum,
                          to.make(r->samples, width));
          },
          in, g.read(g.variable("table", tables[t]))));
    }
    const auto pooled = g.add("pooled", concat_columns_op{}, rows);
    const auto crossed = g.add<matrix_value>(
        "interaction",
        [](const step_call& call, const matrix_value& a, const matrix_value& b, matrix_value& to) {
          return dot_interaction_forward<decltype(call.on), host_space>(
              call.on, a.view(), b.view(), to.make(a.rows(), width + 27 * 26 / 2));
        },
        low, pooled);
    out = layers(crossed, top, "top");
  }

  // And measures ops.
  void answer_all() {
    const inline_executor here;
    step_state state = in_turn->make_state();
    const auto run = [&](const request& r) {
      state.feed(in, &r);
      static_cast<void>(in_turn->run(here, state).or_throw());
    };
    for (request& r : requests) {
      run(r);
      const matrix_view<const float> x = state.get(out).view();
      for (index_t i = 0; i < r.samples; ++i) r.answer.push_back(x(i, 0));
    }
    const task_plan& plan = in_turn->plan();
    ns.assign(static_cast<std::size_t>(plan.size()), 0);
    detail::step_storage& storage = detail::state_access::storage(state);
    executor_ref executor = here;
    const context<executor_ref> ctx(executor);
    const step_call call{ctx, 0};
    const detail::call_in_flight guard(storage, call);
    for (const request& r : requests) {
      state.feed(in, &r);
      for (const std::int32_t op : plan.order()) {
        const double start = clock_now();
        static_cast<void>(plan.call(op, static_cast<detail::step_cells*>(&storage)));
        ns[static_cast<std::size_t>(op)] +=
            (clock_now() - start) * 1e9 / static_cast<double>(requests.size());
      }
    }
  }

  [[nodiscard]] bool is_answer(const step_state& state, const request& r) const {
    const matrix_view<const float> x = state.get(out).view();
    return x.extent(0) == r.samples && x.extent(1) == 1 &&
           std::memcmp(x.row(0), r.answer.data(), r.answer.size() * sizeof(float)) == 0;
  }
};

served_model& the_model() {
  static served_model model;
  return model;
}

int processors() { return default_concurrency(); }

// ---- Who serves ----

class server {
 public:
  explicit server(std::string name) : name_(std::move(name)) {}
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  virtual ~server() = default;
  /// False: no answer, or a wrong one. One thread at a time for one client.
  virtual bool serve(std::size_t client, const request& r) = 0;
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
};

/// What a request needs of its own.
struct session {
  /// @param threads  0: no pool
  session(const step_program& program, int threads) : state(program.make_state(&arena)) {
    if (threads > 0) on = executor_ref(pool.emplace(threads));
  }
  inline_executor here;
  std::optional<thread_pool> pool;
  executor_ref on = here;
  std::pmr::synchronized_pool_resource arena{
      std::pmr::pool_options{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 20}};
  step_state state;
};

template <class Choice>
class group_server final : public server {
 public:
  group_server(std::string name, const served_model& model, const step_program& program, int threads,
               Choice choice)
      : server(std::move(name)),
        model_(&model),
        program_(&program),
        group_(sessions, [&](index_t) { return session(program, threads); }, choice) {}
  bool serve(std::size_t, const request& r) override {
    const auto mine = group_.acquire();
    mine->state.feed(model_->in, &r);
    context ctx(mine->on);
    ctx.memory = &mine->arena;
    return program_->run(ctx, mine->state).ok() && model_->is_answer(mine->state, r);
  }

 private:
  const served_model* model_;
  const step_program* program_;
  session_group<session, Choice> group_;
};

class shared_server final : public server {
 public:
  explicit shared_server(const served_model& model) : server("shared"), model_(&model), pool_(processors()) {
    for (std::size_t c = 0; c < clients; ++c) states_.push_back(model.as_ready->make_state());
  }
  bool serve(std::size_t client, const request& r) override {
    step_state& state = states_[client];
    state.feed(model_->in, &r);
    return model_->as_ready->run(pool_, state).ok() && model_->is_answer(state, r);
  }

 private:
  const served_model* model_;
  thread_pool pool_;
  std::vector<step_state> states_;
};

class inter_op_server final : public server {
 public:
  explicit inter_op_server(const served_model& model)
      : server("inter_op"), model_(&model), pool_(model.in_turn->plan(), model.ns, processors()) {
    for (std::size_t c = 0; c < clients; ++c) states_.push_back(model.in_turn->make_state());
  }
  bool serve(std::size_t client, const request& r) override {
    step_state& state = states_[client];
    state.feed(model_->in, &r);
    return pool_.run(environment(), state) && model_->is_answer(state, r);
  }

 private:
  const served_model* model_;
  std::vector<step_state> states_;
  serving_bench::inter_op_pool pool_;
};

// ---- Who asks ----

/// Threads that each send one request after the other.
class crew {
 public:
  crew() {
    for (std::size_t c = 0; c < clients; ++c) {
      threads_.emplace_back([this, c] {
        ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // ns: sleeps end when they should
        while (true) {
          both_.arrive_and_wait();
          if (!work_) return;
          work_(c);
          both_.arrive_and_wait();
        }
      });
    }
  }
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;
  ~crew() {
    work_ = nullptr;
    both_.arrive_and_wait();
    for (std::thread& t : threads_) t.join();
  }
  /// Calls send(client, k) for requests k in [0, count), each client the next one.
  template <class Send>
  void run(std::size_t count, const Send& send) {
    std::atomic<std::size_t> next{0};
    work_ = [&](std::size_t client) {
      for (std::size_t k = 0; (k = next.fetch_add(1, std::memory_order_relaxed)) < count;) send(client, k);
    };
    both_.arrive_and_wait();
    both_.arrive_and_wait();
  }

 private:
  std::barrier<> both_{static_cast<std::ptrdiff_t>(clients) + 1};
  std::function<void(std::size_t)> work_;
  std::vector<std::thread> threads_;
};

struct capacity {
  double per_second = 0;   // requests
  double cpu_seconds = 0;  // of all threads, for a request
};
struct latencies {
  double p50 = 0, p99 = 0, p999 = 0;  // seconds
};

class load {
 public:
  load() {
    const counter_rng rng(5);
    double at = 0;
    for (std::size_t k = 0; k < requests_of_run; ++k)
      arrivals_.push_back(at -= std::log(1 - rng.uniform(0, k)));
  }
  /// Each client sends the next request when it has the answer to the last.
  capacity most_of(server& by) {
    constexpr std::size_t count = requests_of_run / 2;
    const std::clock_t cpu = std::clock();
    const double seconds =
        seconds_of([&] { clients_.run(count, [&](std::size_t c, std::size_t k) { send(by, c, k); }); });
    return {static_cast<double>(count) / seconds,
            static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / static_cast<double>(count)};
  }
  /// Of requests that arrive at a rate.
  latencies at(server& by, double rate) {
    std::vector<double> took(arrivals_.size());
    const auto begin = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    clients_.run(arrivals_.size(), [&](std::size_t c, std::size_t k) {
      const auto due = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                   std::chrono::duration<double>(arrivals_[k] / rate));
      std::this_thread::sleep_until(due);
      send(by, c, k);
      took[k] = std::chrono::duration<double>(std::chrono::steady_clock::now() - due).count();
    });
    std::sort(took.begin(), took.end());
    const auto percentile = [&](double of) {
      return took[static_cast<std::size_t>(of * static_cast<double>(took.size()))];
    };
    return {percentile(0.5), percentile(0.99), percentile(0.999)};
  }
  [[nodiscard]] bool all_right() const { return right_.load(); }

 private:
  void send(server& by, std::size_t client, std::size_t k) {
    const std::vector<request>& all = the_model().requests;
    if (!by.serve(client, all[k % all.size()])) right_ = false;
  }

  std::vector<double> arrivals_;  // at a rate of one
  std::atomic<bool> right_{true};
  crew clients_;
};

constexpr double share_of_capacity = 0.7;

/// The first server over the others; tail and throughput are over the second.
void compare(benchmark::State& state, const std::string& name, std::vector<std::unique_ptr<server>> sides) {
  for (auto _ : state) {
    figures f(name);
    if (processors() < 2) f.unfit("one CPU");
    load all;
    f.sample([&] {
      const std::size_t n = sides.size();
      std::vector<capacity> most(n);
      std::vector<latencies> took(n);
      const auto in_order = [&](const auto& call) {
        for (std::size_t i = 0; i < n; ++i) call(f.swapped() ? n - 1 - i : i);
      };
      in_order([&](std::size_t i) { most[i] = all.most_of(*sides[i]); });
      const auto less = [](const capacity& a, const capacity& b) { return a.per_second < b.per_second; };
      const double rate = share_of_capacity * std::min_element(most.begin(), most.end(), less)->per_second;
      in_order([&](std::size_t i) { took[i] = all.at(*sides[i], rate); });
      f.add("tail", took[0].p99 / took[1].p99);
      f.add("throughput", most[0].per_second / most[1].per_second);
      for (std::size_t i = 1; i < n; ++i) f.add("speedup", took[i].p99 / took[0].p99, sides[i]->name());
      f.note("rate", rate);
      for (std::size_t i = 0; i < n; ++i) {
        const std::string of = "_" + sides[i]->name();
        f.note("p50_us" + of, took[i].p50 * 1e6);
        f.note("p99_us" + of, took[i].p99 * 1e6);
        f.note("p999_us" + of, took[i].p999 * 1e6);
        f.note("most_per_second" + of, most[i].per_second);
        f.note("cpu_us" + of, most[i].cpu_seconds * 1e6);
      }
    });
    if (!all.all_right()) return state.SkipWithError("wrong answer: not that of a run on one thread");
    f.report(state);
  }
}

template <class Choice>
void group_over_pools(benchmark::State& state, const std::string& name, Choice choice) {
  const served_model& model = the_model();
  const int threads = std::max(1, processors() / static_cast<int>(sessions));
  std::vector<std::unique_ptr<server>> sides;
  sides.push_back(
      std::make_unique<group_server<Choice>>("sessions", model, *model.as_ready, threads, choice));
  sides.push_back(std::make_unique<inter_op_server>(model));
  sides.push_back(std::make_unique<shared_server>(model));
  compare(state, name, std::move(sides));
}

void executors(benchmark::State& state, const std::string& name) {
  const served_model& model = the_model();
  const int threads = std::max(2, processors() / static_cast<int>(sessions));
  using group = group_server<session_choice::least_busy_t>;
  std::vector<std::unique_ptr<server>> sides;
  const auto add_side = [&](const char* of, const step_program& program, int own) {
    sides.push_back(std::make_unique<group>(of, model, program, own, session_choice::least_busy));
  };
  add_side("inline", *model.in_turn, 0);
  add_side("pool", *model.as_ready, threads);
  add_side("cost", *model.by_cost, threads);
  add_side("verbs", *model.in_turn, threads);
  compare(state, name, std::move(sides));
}

const bool registered = [] {
  add("serving/load/round_robin",
      [](benchmark::State& s, const std::string& n) { group_over_pools(s, n, session_choice::round_robin); });
  add("serving/load/by_thread",
      [](benchmark::State& s, const std::string& n) { group_over_pools(s, n, session_choice::by_thread); });
  add("serving/load/least_busy",
      [](benchmark::State& s, const std::string& n) { group_over_pools(s, n, session_choice::least_busy); });
  add("serving/load/executors", executors);
  return true;
}();

}  // namespace
