// Steps of typed graphs: one thread, several threads and any legal order give the same bits.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "support/random_steps.hpp"
#include "support/seed.hpp"
#include "support/step_interpreter.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// Of each step every value; at the end the variables and the log.
using bits = std::vector<std::vector<word>>;

template <class From>
std::vector<word> all_values(const built_steps& built, const From& from) {
  std::vector<word> now;
  for (const value<word>& v : built.values) now.push_back(from.get(v));
  return now;
}
void close(bits& made, const step_world& world) {
  made.push_back(world.variables());
  made.push_back(world.log);
}

template <class Run>
bits run_program(const described_steps& steps, task_order order, const Run& run,
                 op_schedule schedule = op_schedule::in_turn) {
  step_world world;
  const built_steps built = build_steps(steps, world);
  const step_program program =
      step_program::compile(built.graph, {.order = order, .schedule = schedule}).or_throw();
  step_state state = program.make_state();
  bits made;
  while (run(program, state)) made.push_back(all_values(built, state));
  close(made, world);
  return made;
}
bits run_interpreter(const described_steps& steps, std::mt19937_64& random, bool hide = false) {
  step_world world;
  const built_steps built = build_steps(steps, world, hide);
  step_interpreter interpreter(built.graph);
  bits made;
  const auto any = [&](index_t n) { return static_cast<index_t>(random() % static_cast<word>(n)); };
  while (interpreter.step(inline_executor(), any).or_throw()) made.push_back(all_values(built, interpreter));
  close(made, world);
  return made;
}

}  // namespace

TEST_CASE("step_program: a step of a typed graph") {
  //! [step_program]
  step_graph g;
  int table = 10;
  const auto rows = g.variable("rows", table);
  const auto read = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 3; });
  const auto twice = g.add<int>("twice", [](const int& in, int& out) { out = 2 * in; }, read);
  const auto sum =
      g.add<int>("sum", [](const int& in, const int& row, int& out) { out = in + row; }, twice, g.read(rows));
  g.add("update", [](const int& in, int& row) { row += in; }, sum, g.write(rows)).role(op_role::apply);

  const step_program program = step_program::compile(g).or_throw();
  step_state state = program.make_state();
  thread_pool pool(2);
  std::vector<int> sums;
  while (program.run(pool, state).or_throw()) sums.push_back(state.get(sum));
  // 0 + 10, 2 + 20, 4 + 42
  //! [step_program]
  CHECK(sums == std::vector<int>{10, 22, 46});
  CHECK(table == 88);
  CHECK(state.step() == 3);
}

TEST_CASE("step_program: interpreter, run and run_on of random graphs give the same bits") {
  std::mt19937_64 random(seed());
  thread_pool pool(3);
  int accepted = 0, refused = 0, changed = 0;
  for (int i = 0; i < 300; ++i) {
    const described_steps steps = random_steps(random);
    step_world world;
    if (!build_steps(steps, world).graph.check()) {
      ++refused;
      continue;
    }
    ++accepted;
    CAPTURE(i);
    const bits expected = run_interpreter(steps, random);
    REQUIRE(expected.size() == steps.steps + 2);
    CHECK(run_interpreter(steps, random) == expected);
    CHECK(run_interpreter(steps, random) == expected);
    const auto here = [](const step_program& p, step_state& s) {
      return p.run(inline_executor(), s).or_throw();
    };
    CHECK(run_program(steps, task_order::as_added, here) == expected);
    CHECK(run_program(steps, task_order::by_kind, here) == expected);
    for (const op_schedule schedule : {op_schedule::as_ready, op_schedule::stealing, op_schedule::by_cost}) {
      CHECK(run_program(
                steps, task_order::as_added,
                [&](const step_program& p, step_state& s) { return p.run(pool, s).or_throw(); },
                schedule) == expected);
    }
    // Broken on purpose: without the effects the order of writes is left open.
    const bits hidden = run_interpreter(steps, random, true);
    for (int again = 0; again < 4; ++again) {
      if (run_interpreter(steps, random, true) != hidden) {
        ++changed;
        break;
      }
    }
  }
  CHECK(accepted > 200);
  CHECK(refused > 0);
  CHECK(changed > 20);
}

TEST_CASE("step_program: effects order ops as they were added") {
  step_graph g;
  std::vector<int> log;
  int state = 0;
  const auto v = g.variable("v", state);
  const auto same = g.variable("the same object", state);
  const auto write = [](int n) { return [n](int& it) { it = n; }; };
  const auto look = [](const int& it, int& out) { out = it; };
  const auto before = g.add<int>("before", look, g.read(v));
  g.add("write 1", write(1), g.write(v));
  const auto first = g.add<int>("first", look, g.read(same));
  const auto also = g.add<int>("also", look, g.stale_read(v, 1));
  g.add("write 2", write(2), g.accumulate(same));
  const auto last = g.add<int>("last", look, g.read(v));
  const step_program program = step_program::compile(g, task_order::by_kind).or_throw();
  step_state s = program.make_state();
  CHECK(program.run(inline_executor(), s).or_throw());
  CHECK(s.get(before) == 0);
  CHECK(s.get(first) == 1);
  CHECK(s.get(also) == 1);
  CHECK(s.get(last) == 2);
  const flat_graph flat = g.flat().or_throw();
  int control = 0;
  for (index_t e = 0; e < flat.edge_count(); ++e) control += flat.is_control(e) ? 1 : 0;
  CHECK(control == 6);  // before - 1, 1 - first, 1 - also, first - 2, also - 2, 2 - last
}

TEST_CASE("step_program: placeholders, constants, lists, tuples, step numbers") {
  step_graph g;
  const auto fed = g.placeholder<std::string>("fed");
  const auto nine = g.constant("nine", 9);
  const auto length =
      g.add<int>("length", [](const std::string& s, int& out) { out = static_cast<int>(s.size()); }, fed);
  const auto staged = g.stage("io", std::vector<value<int>>{nine, nine}, nine);
  const auto all = g.add<index_t, index_t>(
      "all",
      [](const step_call& call, op_list<const int> in, const int& one, op_list<const int> none, index_t& sum,
         index_t& step) {
        sum = one + in.end()[-1];
        for (const int& x : in) sum += x;
        sum += none.size();
        step = call.step;
      },
      std::vector<value<int>>{std::get<0>(staged)[0], length}, std::get<1>(staged),
      std::vector<value<int>>{});
  const step_program program = step_program::compile(g).or_throw();
  step_state state = program.make_state();
  state.feed(fed, "four");
  CHECK(program.run(inline_executor(), state).or_throw());
  CHECK(state.get(all.get<0>()) == 9 + 4 + 9 + 4);
  CHECK(state.get(all.get<1>()) == 0);
  state.feed(fed, "");
  state.set_step(41);
  CHECK(program.run(inline_executor(), state).or_throw());
  CHECK(state.get(all.get<0>()) == 9 + 9);
  CHECK(state.get(all.get<1>()) == 41);
  CHECK(state.get(std::get<1>(staged)) == 9);
  step_state moved = std::move(state);
  CHECK(moved.step() == 42);
  CHECK(moved.get(nine) == 9);
}

TEST_CASE("step_program: several steps in flight have states of their own") {
  step_graph g;
  const auto in = g.placeholder<int>("in");
  const auto out = g.add<int>("twice", [](const int& x, int& y) { y = 2 * x; }, in);
  const step_program program = step_program::compile(g).or_throw();
  thread_pool pool(4);
  std::atomic<int> wrong{0};
  pool.parallel_for(8, 1, [&](index_t begin, index_t end, int) {
    for (index_t i = begin; i < end; ++i) {
      step_state state = program.make_state();
      for (int n = 0; n < 200; ++n) {
        state.feed(in, n + static_cast<int>(i));
        if (!program.run(inline_executor(), state) || state.get(out) != 2 * (n + i)) ++wrong;
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("step_program: errors name the op") {
  step_graph g;
  int mode = 0;
  const auto read = g.source<int>("lines", [&](int& out) -> result<bool> {
    out = mode;
    if (mode == 1) return fault(errc::parse_error, "a number must follow", "day_0.tsv");
    return true;
  });
  const auto half = g.add<int>(
      "half",
      [](const int& in, int& out) -> status {
        out = in / 2;
        if (in == 2) return {errc::invalid_value, "half: in must be odd", {.value = in}};
        if (in == 3) throw std::runtime_error("three");
        return {};
      },
      read);
  g.add<int>("behind", [](const int& in, int& out) { out = in; }, half);
  thread_pool pool(2);
  for (const op_schedule schedule :
       {op_schedule::in_turn, op_schedule::as_ready, op_schedule::stealing, op_schedule::by_cost}) {
    const step_program program = step_program::compile(g, {.schedule = schedule}).or_throw();
    step_state state = program.make_state();
    const auto run = [&](int now) {
      mode = now;
      return program.run(pool, state);
    };
    CHECK(run(0).or_throw());
    const result<bool> source = run(1);
    REQUIRE(!source);
    CHECK(source.code() == errc::parse_error);
    CHECK(source.fault().place().item == read.op());
    CHECK(source.fault().message().find("lines: a number must follow") != std::string::npos);
    CHECK(source.fault().file() == "day_0.tsv");
    const result<bool> status_of_op = run(2);
    REQUIRE(!status_of_op);
    CHECK(status_of_op.code() == errc::invalid_value);
    CHECK(status_of_op.fault().place().item == half.op());
    CHECK(status_of_op.fault().place().value == 2);
    CHECK(status_of_op.fault().message().find("half: half: in must be odd") != std::string::npos);
    try {
      static_cast<void>(run(3));
      FAIL("it must throw");
    } catch (const task_error& e) {
      CHECK(e.op() == half.op());
      CHECK(std::string(e.what()).find("half threw") != std::string::npos);
    }
    CHECK(run(0).or_throw());
    std::stop_source stop;
    stop.request_stop();
    const std::stop_token token = stop.get_token();
    context ctx{pool};
    ctx.stop = &token;
    CHECK(program.run(ctx, state).code() == errc::stopped);
    CHECK(state.step() == 2);
  }
}

TEST_CASE("step_program: where the source ends, no op runs") {
  step_graph g;
  int ran = 0;
  g.add("alone", [&] { ++ran; });
  const auto read = g.source<int>("read", [](int&) { return false; });
  g.add("fed", [&](const int&) { ++ran; }, read).external();
  thread_pool pool(3);
  for (const op_schedule schedule : {op_schedule::in_turn, op_schedule::as_ready}) {
    const step_program program = step_program::compile(g, {.schedule = schedule}).or_throw();
    step_state state = program.make_state();
    CHECK(!program.run(pool, state).or_throw());
    CHECK(state.step() == 0);
  }
  step_interpreter interpreter(g);
  CHECK(!interpreter.step(pool, [](index_t) { return 0; }).or_throw());
  CHECK(ran == 0);
}

TEST_CASE("step_program: a stale read needs a window of its own") {
  step_graph g;
  int rows = 0;
  const auto v = g.variable("rows", rows);
  const auto op = g.add<int>("late", [](const int& in, int& out) { out = in; }, g.stale_read(v, 3));
  CHECK(g.check().ok());
  const auto program = step_program::compile(g);
  REQUIRE(!program.ok());
  CHECK(program.code() == errc::unsupported);
  CHECK(program.fault().place().item == op.op());
  CHECK(program.fault().message().find("op 1 'late': that of 'rows' is 3") != std::string::npos);
}

TEST_CASE("step_program: values live in the state's resource and are made once") {
  using text = std::pmr::vector<char>;
  struct alignas(128) wide {
    int held = 3;
  };
  step_graph g;
  const auto in = g.placeholder<int>("in");
  const auto buffer =
      g.add<text>("grow", [](const int& n, text& out) { out.assign(static_cast<std::size_t>(n), 'x'); }, in);
  const auto far =
      g.add<wide>("wide", [](const text& t, wide& out) { out.held += static_cast<int>(t.size()); }, buffer);
  const step_program program = step_program::compile(g).or_throw();
  allowance shared;
  refusing_resource memory(shared);
  {
    step_state state = program.make_state(&memory);
    state.feed(in, 100);
    CHECK(program.run(inline_executor(), state).or_throw());
    CHECK(state.get(buffer).get_allocator().resource() == &memory);
    CHECK(reinterpret_cast<std::uintptr_t>(&state.get(far)) % 128 == 0);
    const long before = memory.granted;
    for (int i = 0; i < 20; ++i) CHECK(program.run(inline_executor(), state).or_throw());
    CHECK(memory.granted == before);
    CHECK(state.get(far).held == 3 + 21 * 100);
  }
  CHECK(memory.held == 0);
  // The block, the pointers; on threads the state of the run.
  for (const long needed : {2, 3}) {
    const step_program refusing =
        step_program::compile(g, {.schedule = needed == 2 ? op_schedule::in_turn : op_schedule::as_ready})
            .or_throw();
    for (long n = 0; n < 4; ++n) {
      shared.left = n;
      bool refused = false;
      try {
        const step_state state = refusing.make_state(&memory);
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      CHECK(refused == (n < needed));
      CHECK(memory.held == 0);
    }
  }
}
