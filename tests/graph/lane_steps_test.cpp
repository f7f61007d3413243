// Steps of a graph cut by samples: the same bits for any number of threads, barriers, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/plan/plan_run.hpp>

using namespace deeprec;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
thread_pool_options crowd(int threads) { return {.threads = threads, .oversubscribe = true}; }

/// Rows of floats of its own, or those of another.
class rows_value {
 public:
  matrix_view<float> make(index_t rows, index_t columns) {
    memory_.assign(at(rows * columns), 0);
    const matrix_view<float> made(memory_.data(), rows, columns);
    view_ = made;
    return made;
  }
  void refer(matrix_view<const float> to) { view_ = to; }
  [[nodiscard]] matrix_view<const float> view() const { return view_; }
  [[nodiscard]] matrix_view<float> writable() { return {memory_.data(), view_.extent(0), view_.extent(1)}; }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> all;
    for (index_t i = 0; i < view_.extent(0); ++i)
      all.insert(all.end(), view_.row(i), view_.row(i) + view_.extent(1));
    return all;
  }

 private:
  std::vector<float> memory_;
  matrix_view<const float> view_;
};
/// A gradient of weights: a row that parts overwrite, and that is summed.
struct weights_gradient {
  rows_value row;
};
/// A value that nobody can cut or join.
struct opaque_value {
  int number = 0;
};

}  // namespace

template <>
struct deeprec::batch_traits<rows_value> {
  static index_t samples(const rows_value& v) { return v.view().extent(0); }
  static void refer(const rows_value& whole, index_t first, index_t count, rows_value& part) {
    part.refer(whole.view().rows(first, count));
  }
  static void make_room(rows_value& whole, index_t samples, const rows_value& part) {
    whole.make(samples, part.view().extent(1));
  }
  static void join(const rows_value& part, index_t first, rows_value& whole) {
    const matrix_view<float> to = whole.writable();
    for (index_t i = 0; i < part.view().extent(0); ++i)
      std::copy_n(part.view().row(i), to.extent(1), to.row(first + i));
  }
};
template <>
struct deeprec::batch_traits<weights_gradient> {
  static void make_room(weights_gradient& whole, index_t, const weights_gradient& part) {
    whole.row.make(1, part.row.view().extent(1));
  }
  static matrix_view<float> gradient(weights_gradient& v) {
    return {const_cast<float*>(v.row.view().data_handle()), 1, v.row.view().extent(1)};
  }
};

namespace {

// --- a small model: square, subtract the batch's mean, a stack, a loss -------------------------------------

struct square_op {
  static constexpr bool sample_wise = true;
  using output = rows_value;
  void operator()(const rows_value& in, rows_value& out) const {
    const matrix_view<float> to = out.make(in.view().extent(0), in.view().extent(1));
    for (index_t i = 0; i < to.extent(0); ++i) {
      for (index_t j = 0; j < to.extent(1); ++j) to(i, j) = in.view()(i, j) * in.view()(i, j);
    }
  }
};
/// Needs the whole batch: the mean of the first column.
struct centre_op {
  using output = rows_value;
  void operator()(const rows_value& in, rows_value& out) const {
    const index_t rows = in.view().extent(0);
    const matrix_view<float> to = out.make(rows, in.view().extent(1));
    float sum = 0;
    for (index_t i = 0; i < rows; ++i) sum += in.view()(i, 0);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < to.extent(1); ++j) to(i, j) = in.view()(i, j) - sum / static_cast<float>(rows);
    }
  }
};
struct forward_op {
  static constexpr bool sample_wise = true;
  using output = rows_value;
  status operator()(const step_call& call, const rows_value& in, const mlp<>& stack, mlp_pass& pass,
                    rows_value& out) const {
    const status s = stack.forward(call.on, pass, in.view());
    out.refer(pass.output());
    return s;
  }
};
struct loss_op {
  static constexpr bool sample_wise = true;
  using output = rows_value;
  status operator()(const step_call& call, const rows_value& logits, const rows_value& in,
                    rows_value& out) const {
    const index_t rows = logits.view().extent(0);
    std::vector<float> labels;
    for (index_t i = 0; i < rows; ++i) labels.push_back(in.view()(i, 0) > 2 ? 1.0F : 0.0F);
    const matrix_view<float> to = out.make(rows, 1);
    const status s =
        logistic_loss_backward(call.on, logits.view(), matrix_view<const float>(labels.data(), rows, 1), to);
    for (index_t i = 0; i < rows; ++i) to(i, 0) *= call.share;
    return s;
  }
};
struct backward_op {
  static constexpr bool sample_wise = true;
  using output = weights_gradient;
  status operator()(const step_call& call, const rows_value& slope, const mlp<>& stack, mlp_pass& pass,
                    weights_gradient& out) const {
    const status s = stack.backward(call.on, pass, slope.view(), compute_input_gradient::no);
    out.row.refer(pass.gradients());
    return s;
  }
};
struct train_op {
  status operator()(const step_call& call, const weights_gradient& gradient, mlp<>& stack) const {
    std::copy_n(gradient.row.view().data_handle(), gradient.row.view().extent(1),
                stack.gradients().data_handle());
    const status s = stack.step(call.on, sgd{.learning_rate = 0.5F});
    stack.weights_settled();
    return s;
  }
};

/// Rows of small integers: sums of their squares are exact.
struct numbers {
  index_t rows = 0, columns = 3, steps = 3;
  index_t drawn = 0;
  bool operator()(rows_value& out) {
    if (drawn == steps) return false;
    const matrix_view<float> to = out.make(rows, columns);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < columns; ++j) to(i, j) = static_cast<float>((i * 7 + j * 3 + drawn) % 5);
    }
    ++drawn;
    return true;
  }
};

constexpr micro_lanes small{.most = 5, .fewest = 3, .samples = 6};

struct trained {
  std::vector<float> weights, logits;
  bool operator==(const trained&) const = default;
};
enum class with_barrier : bool { no, yes };

struct model {
  explicit model(numbers rows, with_barrier barrier) {
    const auto tower = g.variable("tower", stack);
    const auto pass = g.local("tower pass", [this] { return stack.make_pass(); });
    const auto in = g.stage("io", g.source<rows_value>("numbers", rows));
    const auto squares = g.add("square", square_op{}, in);
    const value<rows_value> x = barrier == with_barrier::yes
                                    ? value<rows_value>(g.add("centre", centre_op{}, squares))
                                    : value<rows_value>(squares);
    logits = g.add("forward", forward_op{}, x, g.read(tower), g.write(pass));
    const auto slope = g.add("loss", loss_op{}, logits, in).role(op_role::gradient);
    const auto gradient =
        g.add("backward", backward_op{}, slope, g.read(tower), g.write(pass)).role(op_role::gradient);
    g.add("train", train_op{}, gradient, g.write(tower)).role(op_role::apply).target();
    g.keep(logits);
    stack.weights_settled();
  }
  [[nodiscard]] trained result_of(std::vector<float> last) {
    const matrix_view<const float> all = std::as_const(stack).parameters();
    return {{all.data_handle(), all.data_handle() + all.extent(1)}, std::move(last)};
  }
  mlp<> stack{{3, 7, 1}, 5};
  step_graph g;
  value<rows_value> logits;
};

template <class Executor>
trained train(Executor& on, index_t rows, const step_options& how, with_barrier barrier = with_barrier::no) {
  model m({.rows = rows}, barrier);
  const step_program program = step_program::compile(m.g, how).or_throw();
  step_state state = program.make_state();
  while (program.run(on, state).or_throw()) {
  }
  return m.result_of(state.get(m.logits).values());
}

void check_close(const trained& a, const trained& b) {
  REQUIRE(a.weights.size() == b.weights.size());
  REQUIRE(a.logits.size() == b.logits.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    CHECK(a.weights[i] == doctest::Approx(b.weights[i]).epsilon(1e-4));
  for (std::size_t i = 0; i < a.logits.size(); ++i)
    CHECK(a.logits[i] == doctest::Approx(b.logits[i]).epsilon(1e-4));
}

// --- bits --------------------------------------------------------------------------------------------------

TEST_CASE("by_lanes: the same bits for any number of threads, and the step of the whole batch but for sums") {
  inline_executor here;
  for (const with_barrier barrier : {with_barrier::no, with_barrier::yes}) {
    for (const index_t rows : {0, 1, 3, 4, 6, 7, 13, 29, 30, 31, 64}) {
      CAPTURE(rows);
      const trained whole = train(here, rows, {}, barrier);
      const trained parts = train(here, rows, {.samples = by_lanes(small)}, barrier);
      CHECK(parts.logits.size() == at(rows));
      check_close(parts, whole);
      if (chunk_count(rows, small) <= 1) CHECK(parts == whole);
      for (const int threads : {1, 2, 3, 8}) {
        thread_pool pool(crowd(threads));
        CHECK(train(pool, rows, {.samples = by_lanes(small)}, barrier) == parts);
      }
    }
  }
}

TEST_CASE(
    "by_parts: so many parts, one update with the gradient of the batch, the same bits on any threads") {
  inline_executor here;
  for (const with_barrier barrier : {with_barrier::no, with_barrier::yes}) {
    for (const index_t rows : {0, 1, 2, 5, 31}) {
      const trained whole = train(here, rows, {}, barrier);
      CHECK(train(here, rows, {.samples = by_parts(1)}, barrier) == whole);
      for (const index_t parts : {2, 3, 7, 40}) {
        CAPTURE(rows);
        CAPTURE(parts);
        const trained cut = train(here, rows, {.samples = by_parts(parts)}, barrier);
        check_close(cut, whole);
        for (const int threads : {2, 3}) {
          thread_pool pool(crowd(threads));
          CHECK(train(pool, rows, {.samples = by_parts(parts)}, barrier) == cut);
        }
      }
    }
  }
  std::atomic<int> calls{0}, updates{0};
  step_graph g;
  int steps = 0;
  const auto counter = g.variable("steps", steps);
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 3});
  const auto counted = g.add<rows_value>(
                            "count",
                            [&](const rows_value& part, rows_value& out) {
                              ++calls;
                              out.refer(part.view());
                            },
                            in)
                           .sample_wise();
  g.add(
       "update", [&](const rows_value&, int& n) { n += 1, ++updates; }, counted, g.write(counter))
      .role(op_role::apply)
      .target();
  const step_program program = step_program::compile(g, {.samples = by_parts(4)}).or_throw();
  step_state state = program.make_state();
  thread_pool pool(crowd(3));
  while (program.run(pool, state).or_throw()) {
  }
  CHECK(calls.load() == 12);
  CHECK(updates.load() == 3);
  CHECK(steps == 3);
}

TEST_CASE("hazard H20: by_parts refuses a step that it can't cut, and numbers that are none") {
  step_graph g;
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 1});
  g.add("centre", centre_op{}, in);
  const auto compiled = step_program::compile(g, {.samples = by_parts(4)});
  REQUIRE_FALSE(compiled.ok());
  CHECK(compiled.code() == errc::unsupported);
  CHECK(compiled.message().find("by_parts: an op of the step must be sample-wise") != std::string::npos);
  g.add("square", square_op{}, in);
  CHECK(step_program::compile(g, {.samples = by_parts(4)}).ok());
  for (const index_t parts : {0, -2}) {
    CHECK(step_program::compile(g, {.samples = by_parts(parts)}).code() == errc::invalid_value);
    CHECK(staged_program::compile(g, {.samples = by_parts(parts)}).code() == errc::invalid_value);
  }
  CHECK(step_program::compile(g, {.samples = by_lanes({.parts = -1})}).code() == errc::invalid_value);
}

TEST_CASE("by_lanes: an op of the whole batch between sample-wise ops gets the whole batch") {
  // Integers: nothing is rounded, so that the outputs are those of the whole batch bit by bit.
  thread_pool pool(crowd(3));
  const auto run = [&](const step_options& how) {
    step_graph g;
    const auto in = g.source<rows_value>("numbers", numbers{.rows = 32, .steps = 1});
    const auto centred = g.add("centre", centre_op{}, g.add("square", square_op{}, in));
    const auto again = g.add("square again", square_op{}, centred);
    g.keep(again);
    const step_program program = step_program::compile(g, how).or_throw();
    step_state state = program.make_state();
    CHECK(program.run(pool, state).or_throw());
    return state.get(again).values();
  };
  CHECK(run({.samples = by_lanes(small)}) == run({}));
}

TEST_CASE("by_lanes: parts run with their share of the samples, on threads of their own") {
  thread_pool pool(crowd(4));
  std::atomic<int> calls{0}, wrong{0};
  step_graph g;
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 2});
  const auto counted = g.add<rows_value>(
                            "count",
                            [&](const step_call& call, const rows_value& part, rows_value& out) {
                              ++calls;
                              const index_t rows = part.view().extent(0);
                              if (call.share != static_cast<float>(static_cast<double>(rows) / 29)) ++wrong;
                              if (call.on.executor->concurrency() != 1) ++wrong;
                              out.refer(part.view());
                            },
                            in)
                           .sample_wise();
  g.keep(counted);
  const step_program program = step_program::compile(g, {.samples = by_lanes(small)}).or_throw();
  step_state state = program.make_state();
  while (program.run(pool, state).or_throw()) {
  }
  CHECK(calls.load() == 2 * chunk_count(29, small));
  CHECK(wrong.load() == 0);
  CHECK(state.get(counted).values() == state.get(static_cast<const value<rows_value>&>(in)).values());
  for (const op_schedule schedule : {op_schedule::as_ready, op_schedule::by_cost}) {
    const auto both = step_program::compile(g, {.samples = by_lanes(small), .schedule = schedule});
    CHECK(both.code() == errc::unsupported);
    CHECK(both.message().find("a step that is cut by samples must run its ops in turn") != std::string::npos);
    CHECK(staged_program::compile(g, {.samples = by_lanes(small), .schedule = schedule}).code() ==
          errc::unsupported);
  }
}

TEST_CASE("by_lanes: a staged program runs its rest by parts, with the same bits") {
  inline_executor here;
  thread_pool pool(crowd(4));
  for (const with_barrier barrier : {with_barrier::no, with_barrier::yes}) {
    const trained wanted = train(here, 29, {.samples = by_lanes(small)}, barrier);
    model m({.rows = 29}, barrier);
    staged_program program = staged_program::compile(m.g, {.samples = by_lanes(small)}).or_throw();
    std::vector<float> last;
    program.run(pool, [&](step_state& state) { last = state.get(m.logits).values(); }).or_throw();
    CHECK(m.result_of(last) == wanted);
  }
}

TEST_CASE("by_lanes: a value is kept by the handle that a stage made, too") {
  thread_pool pool(crowd(2));
  step_graph g;
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 1});
  const auto squares = g.add("square", square_op{}, in);
  const auto staged = g.stage("io", squares);
  g.keep(staged);
  const step_program program = step_program::compile(g, {.samples = by_lanes(small)}).or_throw();
  step_state state = program.make_state();
  CHECK(program.run(pool, state).or_throw());
  CHECK(state.get(staged).view().extent(0) == 29);
}

TEST_CASE("by_lanes: without a sample-wise op the step is that of the whole batch") {
  thread_pool pool(crowd(2));
  step_graph g;
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 1});
  const auto centred = g.add("centre", centre_op{}, in);
  const step_program program = step_program::compile(g, {.samples = by_lanes()}).or_throw();
  step_state state = program.make_state();
  CHECK(program.run(pool, state).or_throw());
  CHECK(state.get(centred).view().extent(0) == 29);
}

TEST_CASE("local: each step in flight has its own, and the order of its accesses is kept") {
  step_graph g;
  int made = 0;
  const auto counter = g.local("counter", [&made] { return 100 * ++made; });
  const auto fed = g.placeholder<int>("fed");
  g.add("add", [](const int& by, int& to) { to += by; }, fed, g.write(counter));
  const auto read = g.add<int>("read", [](const int& from, int& out) { out = from; }, g.read(counter));
  const step_program program = step_program::compile(g).or_throw();
  step_state a = program.make_state(), b = program.make_state();
  CHECK(made == 2);
  inline_executor here;
  a.feed(fed, 1);
  b.feed(fed, 5);
  for (int i = 0; i < 3; ++i) {
    CHECK(program.run(here, a).or_throw());
    CHECK(program.run(here, b).or_throw());
  }
  CHECK(a.get(read) == 103);
  CHECK(b.get(read) == 215);
}

// --- failures ----------------------------------------------------------------------------------------------

TEST_CASE("by_lanes: the failure of a part ends the step, names the op, and the next step runs") {
  thread_pool pool(crowd(3));
  std::atomic<int> failing{1};
  step_graph g;
  int trained_steps = 0;
  const auto count = g.variable("count", trained_steps);
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 4});
  const auto checked = g.add<rows_value>(
                            "check",
                            [&](const rows_value& part, rows_value& out) -> status {
                              out.refer(part.view());
                              if (failing.load() == 1) return {errc::invalid_value, "check: no", {.item = 7}};
                              if (failing.load() == 2) throw std::runtime_error("thrown");
                              return {};
                            },
                            in)
                           .sample_wise();
  g.add(
       "train", [](const rows_value&, int& steps) { ++steps; }, checked, g.write(count))
      .role(op_role::apply)
      .target();
  const step_program program = step_program::compile(g, {.samples = by_lanes(small)}).or_throw();
  step_state state = program.make_state();
  const result<bool> ran = program.run(pool, state);
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.fault().code() == errc::invalid_value);
  CHECK(ran.fault().place().item == checked.op());
  CHECK(ran.fault().message().find("check: check: no (item 7)") != std::string::npos);
  CHECK(trained_steps == 0);
  failing = 2;
  CHECK_THROWS_AS(static_cast<void>(program.run(pool, state)), task_error);
  CHECK(trained_steps == 0);
  failing = 0;
  CHECK(program.run(pool, state).or_throw());
  CHECK(program.run(pool, state).or_throw());
  CHECK_FALSE(program.run(pool, state).or_throw());
  CHECK(trained_steps == 2);
}

TEST_CASE("by_lanes: values of sample-wise ops must have as many samples") {
  thread_pool pool(crowd(2));
  step_graph g;
  const auto in = g.source<rows_value>("numbers", numbers{.rows = 29, .steps = 1});
  const auto half = g.add<rows_value>(
      "half", [](const rows_value& all, rows_value& out) { out.refer(all.view().rows(0, 14)); }, in);
  const auto both =
      g.add<rows_value>(
           "both", [](const rows_value& a, const rows_value&, rows_value& out) { out.refer(a.view()); }, in,
           half)
          .sample_wise();
  g.keep(both);
  const step_program program = step_program::compile(g, {.samples = by_lanes(small)}).or_throw();
  step_state state = program.make_state();
  const result<bool> ran = program.run(pool, state);
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.fault().code() == errc::shape_mismatch);
  CHECK(ran.fault().message().find("as many samples (both: 14 of half, not 29)") != std::string::npos);
}

template <class Fill>
fault refusal(const Fill& fill, const micro_lanes& lanes = small) {
  step_graph g;
  fill(g, g.source<rows_value>("numbers", numbers{.rows = 29}));
  const result<step_program> made = step_program::compile(g, {.samples = by_lanes(lanes)});
  REQUIRE_FALSE(made.ok());
  return made.fault();
}
void check_text(const fault& why, std::string_view text) {
  CAPTURE(why.message());
  CHECK(why.message().find(text) != std::string::npos);
}

TEST_CASE("by_lanes: compile refuses what parts can't run at once, and names the op") {
  int total = 0;
  const auto ignore = [](step_graph&, const auto&) {};
  CHECK(refusal([&](step_graph& g, const auto& in) {
          g.add("total", [](const rows_value&, int&) {}, in, g.write(g.variable("sum", total))).sample_wise();
        }).code() == errc::unsupported);
  check_text(
      refusal([&](step_graph& g, const auto& in) {
        g.add("total", [](const rows_value&, int&) {}, in, g.write(g.variable("sum", total))).sample_wise();
      }),
      "must change no variable but locals: its parts run at once (op 2 'total': it writes 'sum')");
  check_text(refusal([&](step_graph& g, const auto& in) {
               g.add("log", [](const rows_value&) {}, in).sample_wise().external();
             }),
             "a sample-wise op must not be external: its parts run at once (op 1 'log')");
  check_text(refusal([&](step_graph& g, const auto&) {
               g.add<rows_value>(
                    "none", [](const int&, rows_value&) {}, g.read(g.variable("sum", total)))
                   .sample_wise();
             }),
             "must take a value that has samples (op 2 'none')");
  check_text(refusal([&](step_graph& g, const auto& in) {
               const auto made = g.add<opaque_value>("opaque", [](const rows_value&, opaque_value&) {}, in);
               g.add("user", [](const opaque_value&) {}, made).sample_wise();
             }),
             "must take values that are cut by samples (batch_traits: refer) (op 2 'user': that of op 1 "
             "'opaque' is not)");
  const auto opaque = [](step_graph& g, const auto& in) {
    return g.add<opaque_value>("opaque", [](const rows_value&, opaque_value&) {}, in).sample_wise();
  };
  check_text(refusal([&](step_graph& g, const auto& in) {
               g.add("user", [](const opaque_value&) {}, opaque(g, in));
             }),
             "gradient) (op 1 'opaque': op 2 'user' takes its value)");
  check_text(refusal([&](step_graph& g, const auto& in) { g.keep(opaque(g, in)); }),
             "gradient) (op 1 'opaque': its value is kept)");
  check_text(refusal([&](step_graph& g, const auto& in) {
               const auto held = g.local("held", [] { return 0; });
               g.add("part", [](const rows_value&, int&) {}, in, g.write(held)).sample_wise();
               g.add("whole", [](const int&) {}, g.read(held));
             }),
             "a local must be of sample-wise ops, or of ops of the whole batch (op 2 'part': op 3 'whole' "
             "accesses 'held' too)");
  // Before a cut as well, where the local is that of the whole batch.
  step_graph staged;
  const auto held = staged.local("held", [] { return 0; });
  const auto read = staged.source<rows_value>("numbers", numbers{.rows = 29});
  const auto early = staged.add<rows_value>(
      "early", [](const rows_value& all, int&, rows_value& out) { out.refer(all.view()); }, read,
      staged.write(held));
  staged.add(
            "part", [](const rows_value&, const int&) {}, staged.stage("io", early), staged.read(held))
      .sample_wise();
  const result<staged_program> refused = staged_program::compile(staged, {.samples = by_lanes(small)});
  REQUIRE_FALSE(refused.ok());
  check_text(refused.fault(), "(op 4 'part': op 2 'early' accesses 'held' too)");
  check_text(refusal(ignore, {.most = 0}), "members of micro_lanes must be at least 1");
}

TEST_CASE("by_lanes example") {
  //! [by_lanes]
  mlp<> tower({3, 8, 1}, 7);
  step_graph g;
  const auto weights = g.variable("tower", tower);
  const auto pass = g.local("tower pass", [&] { return tower.make_pass(); });
  const auto batch = g.source<rows_value>("read", numbers{.rows = 512});
  const auto logits = g.add("tower", forward_op{}, batch, g.read(weights), g.write(pass));
  g.keep(logits);
  thread_pool pool;
  const step_program program = step_program::compile(g, {.samples = by_lanes()}).or_throw();
  step_state state = program.make_state();
  while (program.run(pool, state).or_throw()) {
    CHECK(state.get(logits).view().extent(0) == 512);
  }
  //! [by_lanes]
}

}  // namespace
