// Sessions that are states of one step program, with an executor and an arena each: what they serve at once
// is what one thread serves, and what fails in one of them stays there.
#include <deeprec/serving/session_group.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/plan/task_error.hpp>
#include <deeprec/queue/queue_result.hpp>

#include "support/sanitizers.hpp"

using namespace deeprec;

namespace {

constexpr index_t width = 8, table_rows = 200;
constexpr std::array all_schedules{op_schedule::in_turn, op_schedule::as_ready, op_schedule::stealing,
                                   op_schedule::by_cost};

enum class trouble : unsigned char { none, fails, throws };

struct request {
  index_t samples = 0;
  std::vector<jagged_batch<>> bags;
  trouble with = trouble::none;
  std::vector<float> answer{};
};

/// Lookups in two tables, side by side, and a layer; the tables and weights are only read.
struct small_model {
  std::vector<dense_table<f32_rows>> tables;
  std::vector<float> numbers;
  matrix_view<float> weights{}, bias{};
  step_graph graph{};
  value<const request*> in{};
  value<matrix_value> out{};

  small_model() : numbers(static_cast<std::size_t>(2 * width * 3 + 3)) {
    const inline_executor here;
    for (std::uint64_t t = 0; t < 2; ++t) {
      tables.emplace_back(table_rows, width);
      tables.back().initialize(here, row_init::uniform{.seed = t + 1, .bound = 1.F});
    }
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(mix64(i) >> 40) * 0x1p-24F - 0.5F;
    weights = {numbers.data(), 3, 2 * width};
    bias = {numbers.data() + 2 * width * 3, 1, 3};
    in = graph.placeholder<const request*>("request");
    graph.add(
        "trouble",
        [](const request* const& r) -> status {
          if (r->with == trouble::fails) return {errc::invalid_value, "the request must be whole"};
          if (r->with == trouble::throws) throw std::runtime_error("no such request");
          return {};
        },
        in);
    std::vector<value<matrix_value>> rows;
    for (std::size_t t = 0; t < 2; ++t) {
      rows.push_back(graph.add<matrix_value>(
          "lookup",
          [t](const step_call& call, const request* const& r, const dense_table<f32_rows>& table,
              matrix_value& to) {
            return lookup(call.on, table.view(), r->bags[t].view(), combiner::sum,
                          to.make(r->samples, width));
          },
          in, graph.read(graph.variable("table", tables[t]))));
    }
    out = graph.add("layer", linear_op<>{.activation = gemm_activation::relu},
                    graph.add("pooled", concat_columns_op{}, rows),
                    graph.read(graph.variable("weights", weights)), graph.read(graph.variable("bias", bias)));
  }
  small_model(const small_model&) = delete;
  small_model& operator=(const small_model&) = delete;

  [[nodiscard]] step_program compile(op_schedule schedule) const {
    return step_program::compile(graph, {.schedule = schedule}).or_throw();
  }
  [[nodiscard]] std::vector<float> answer_in(const step_state& state) const {
    const matrix_view<const float> x = state.get(out).view();
    std::vector<float> all;
    for (index_t i = 0; i < x.extent(0); ++i) all.insert(all.end(), x.row(i), x.row(i) + x.extent(1));
    return all;
  }
  /// Requests of 1 to 32 samples, with the answers of a run on one thread.
  [[nodiscard]] std::vector<request> make_requests(std::size_t count) const {
    const step_program program = compile(op_schedule::in_turn);
    step_state state = program.make_state();
    std::uint64_t draw = 3;
    std::vector<request> all(count);
    for (request& r : all) {
      r.samples = 1 + hash_bucket(draw = mix64(draw), 32);
      r.bags.resize(2);
      for (jagged_batch<>& b : r.bags) {
        b.offsets.push_back(0);
        for (index_t s = 0; s < r.samples; ++s) {
          for (index_t i = hash_bucket(draw = mix64(draw), 5); i > 0; --i)
            b.ids.push_back(hash_bucket(draw = mix64(draw), table_rows));
          b.offsets.push_back(static_cast<index_t>(b.ids.size()));
        }
      }
      state.feed(in, &r);
      REQUIRE(program.run(inline_executor(), state).or_throw());
      r.answer = answer_in(state);
    }
    return all;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct session {
  session(const step_program& program, int threads)
      : pool({.threads = threads, .oversubscribe = true}), values(program.make_state(&arena)) {}
  thread_pool pool;
  std::pmr::synchronized_pool_resource arena;
  step_state values;
};

template <class Session>
result<bool> serve(const step_program& program, const small_model& model, Session& mine, const request& r) {
  mine.values.feed(model.in, &r);
  context on(mine.pool);
  on.memory = &mine.arena;
  return program.run(on, mine.values);
}

template <class Choice>
void serves_as_one_thread(op_schedule schedule, Choice choice) {
  constexpr std::size_t clients = 6, each = DEEPREC_TEST_SANITIZED ? 40 : 200;
  const small_model model;
  const std::vector<request> requests = model.make_requests(29);
  for (std::size_t k = 1; k < requests.size(); ++k)  // so that an answer to another request is seen
    REQUIRE_FALSE(same_bits(requests[k - 1].answer, requests[k].answer));
  const step_program program = model.compile(schedule);
  session_group group(3, [&](index_t i) { return session(program, 1 + static_cast<int>(i)); }, choice);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      for (std::size_t k = 0; k < each; ++k) {
        const request& r = requests[(c * 7 + k) % requests.size()];
        const auto mine = group.acquire();
        const bool right = serve(program, model, *mine, r).ok();
        if (!right || !same_bits(model.answer_in(mine->values), r.answer)) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  if constexpr (std::is_same_v<Choice, session_choice::round_robin_t>) {
    index_t steps = 0;
    for (index_t i = 0; i < group.size(); ++i) steps += group.acquire()->values.step();  // in turn: each once
    CHECK(steps == static_cast<index_t>(clients * each));
  }
}

}  // namespace

TEST_CASE("session_group: sessions of a step serve requests at once with the bits of one thread") {
  for (const op_schedule schedule : all_schedules) {
    CAPTURE(static_cast<int>(schedule));
    serves_as_one_thread(schedule, session_choice::round_robin);
    serves_as_one_thread(schedule, session_choice::by_thread);
    serves_as_one_thread(schedule, session_choice::least_busy);
  }
}

TEST_CASE("session_group: a request that fails or throws ends with its lease, and its session serves on") {
  const small_model model;
  std::vector<request> requests = model.make_requests(3);
  request bad = requests[0];
  for (const op_schedule schedule : all_schedules) {
    CAPTURE(static_cast<int>(schedule));
    const step_program program = model.compile(schedule);
    session_group group(1, [&](index_t) { return session(program, 2); }, session_choice::least_busy);
    const auto is_served = [&] {
      const auto mine = group.acquire(within(std::chrono::seconds(60)));
      return mine && serve(program, model, *mine, requests[1]).ok() &&
             same_bits(model.answer_in(mine->values), requests[1].answer);
    };
    CHECK(is_served());
    bad.with = trouble::fails;
    const result<bool> failed = serve(program, model, *group.acquire(), bad);
    REQUIRE_FALSE(failed);
    CHECK(failed.code() == errc::invalid_value);
    CHECK(failed.fault().message().find("trouble: the request must be whole") != std::string::npos);
    CHECK(is_served());
#if DEEPREC_EXCEPTIONS
    bad.with = trouble::throws;
    CHECK_THROWS_AS(static_cast<void>(serve(program, model, *group.acquire(), bad)), task_error);
    CHECK(is_served());
#endif
    bad.with = trouble::none;
    bad.bags[1].ids[0] = table_rows;  // no such row
    const result<bool> refused = serve(program, model, *group.acquire(), bad);
    REQUIRE_FALSE(refused);
    CHECK(refused.code() == errc::id_out_of_range);
    bad.bags[1].ids[0] = requests[0].bags[1].ids[0];
    CHECK(is_served());
  }
}

namespace {

/// Fails where two threads are inside at once.
class one_at_a_time final : public std::pmr::memory_resource {
 public:
  [[nodiscard]] bool was_shared() const { return shared_; }

 private:
  struct visit {
    explicit visit(one_at_a_time& to) : of(to) {
      if (of.inside_.exchange(true)) of.shared_ = true;
    }
    ~visit() { of.inside_ = false; }
    one_at_a_time& of;
  };
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const visit now(*this);
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    const visit now(*this);
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
  std::atomic<bool> inside_{false}, shared_{false};
};

/// An arena that no other thread touches needs no lock. Its blocks are as large as the scratch of a layer.
struct quiet_session {
  explicit quiet_session(const step_program& program)
      : counted(&guarded),
        arena({.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 20}, &counted),
        values(program.make_state(&arena)) {}
  inline_executor pool;
  one_at_a_time guarded;
  counting_resource counted;
  std::pmr::unsynchronized_pool_resource arena;
  step_state values;
};

}  // namespace

TEST_CASE("session_group: a session's arena is one request's at a time, and grows no more") {
  const small_model model;
  const std::vector<request> requests = model.make_requests(17);
  const step_program program = model.compile(op_schedule::in_turn);
  session_group group(2, [&](index_t) { return quiet_session(program); });
  const auto serve_all = [&] {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int c = 0; c < 4; ++c) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 2; ++turn) {
          for (const request& r : requests) {
            const auto mine = group.acquire();
            const bool right = serve(program, model, *mine, r).ok();
            if (!right || !same_bits(model.answer_in(mine->values), r.answer)) ++wrong;
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
  };
  const auto allocations = [&] {
    index_t all = 0;
    for (index_t i = 0; i < 2; ++i) {
      const auto one = group.acquire();
      CHECK_FALSE(one->guarded.was_shared());
      CHECK(one->counted.statistics().bytes > 0);
      all += one->counted.statistics().allocations;
    }
    return all;
  };
  for (index_t i = 0; i < 2; ++i) {  // every request in every session: what they grow to
    const auto one = group.acquire();
    for (const request& r : requests) CHECK(serve(program, model, *one, r).or_throw());
  }
  const index_t before = allocations();
  serve_all();
  CHECK(allocations() == before);
}
