// Requests to one model that nobody writes: each has a session to itself, with threads, memory and values.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <memory_resource>
#include <thread>
#include <vector>
using namespace deeprec;

int main() {
  constexpr index_t rows = 100, width = 4;
  using id_list = std::vector<std::int64_t>;
  inline_executor here;
  dense_table<f32_rows> items(rows, width);
  items.initialize(here, row_init::uniform{.seed = 1});
  std::vector<float> numbers(width + 1, 1.F);
  matrix_view<float> weights(numbers.data(), 1, width), bias(numbers.data() + width, 1, 1);

  step_graph g;  // of a request: the ids that a user has seen
  const auto seen = g.placeholder<id_list>("seen");
  const auto look_up = [](const step_call& call, const id_list& ids, const dense_table<f32_rows>& table,
                          matrix_value& out) {
    const fixed_hotness_view<> bag(ids.data(), 1, index_t(ids.size()));
    return lookup(call.on, table.view(), bag, combiner::mean, out.make(1, width));
  };
  const auto user = g.add<matrix_value>("lookup", look_up, seen, g.read(g.variable("items", items)));
  const auto score = g.add("score", linear_op<>{.activation = gemm_activation::sigmoid}, user,
                           g.read(g.variable("weights", weights)), g.read(g.variable("bias", bias)));
  const step_program program = step_program::compile(g).or_throw();

  struct session {
    explicit session(const step_program& p) : values(p.make_state(&arena)) {}
    thread_pool pool{1};
    std::pmr::synchronized_pool_resource arena;
    step_state values;
  };
  session_group group(4, [&](index_t) { return session(program); }, session_choice::least_busy);
  const auto serve = [&](id_list request) {  // on any thread
    const auto mine = group.acquire();       // waits while that session serves another request
    mine->values.feed(seen, std::move(request));
    context on(mine->pool);
    on.memory = &mine->arena;
    program.run(on, mine->values).or_throw();
    return mine->values.get(score).view()(0, 0);
  };

  std::vector<float> scores(4);
  std::vector<std::thread> clients;
  for (std::size_t u = 0; u < scores.size(); ++u)
    clients.emplace_back([&, u] { scores[u] = serve({std::int64_t(u), 50, 99}); });
  for (std::thread& client : clients) client.join();
  for (std::size_t u = 0; u < scores.size(); ++u) std::printf("user %zu: %.3f\n", u, scores[u]);
}
