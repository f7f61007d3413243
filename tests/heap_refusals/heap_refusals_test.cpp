// Objects that remember: built or called while one allocation is refused, the first, the second, ... in turn.
// The call that was refused is made again, and the result is that of an object that was never refused.
// operator new is replaced, so this is a program of its own.
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/step/async_embedding.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/plan/trace_recorder.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/serving/session_group.hpp>
#include <deeprec/serving/versioned.hpp>

#include "support/counted_new.hpp"
#include "support/hashed_source.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

inline_executor here;

long left_to_grant = -1;  // to calls of until_granted, before one allocation is refused; negative: none is

/// Calls f; where it is refused memory, whether it throws or returns that, calls it again.
template <class F>
void until_granted(const F& f) {
  const auto is_refused = [&] {
    if constexpr (std::is_same_v<decltype(f()), errc>) {
      return f() == errc::out_of_memory;
    } else if constexpr (requires { f().code(); }) {
      return f().code() == errc::out_of_memory;
    } else {
      f();
      return false;
    }
  };
  granted_news = left_to_grant;
  bool again = false;
  try {
    again = is_refused();
  } catch (const std::bad_alloc&) {
    again = true;
  }
  left_to_grant = granted_news.exchange(-1);
  if (again) CHECK_FALSE(is_refused());
}

/// Runs build(), which calls what may be refused by until_granted and returns what it sees, with every
/// allocation of these calls refused in turn.
template <class Build>
void refuse_each(const Build& build) {
  const auto expected = build();
  CHECK(build() == expected);
  for (long n = 0;; ++n) {
    REQUIRE(n < 10'000);
    left_to_grant = n;
    const auto made = build();
    const bool refused = std::exchange(left_to_grant, -1) < 0;
    CAPTURE(n);
    CHECK(made == expected);
    if (!refused) {
      CHECK(n > 0);
      return;
    }
  }
}

/// Up to eight samples, without memory of its own.
struct few_samples {
  std::array<float, 8> x{};
  index_t samples = 0;
};
/// The sum of x and of its squares, over samples.
struct two_sums {
  std::array<float, 2> x{};
};

std::vector<float> values_of(const dense_table<f32_rows>& table) {
  const auto* const first = reinterpret_cast<const float*>(table.view().data());
  return {first, first + table.bytes() / sizeof(float)};
}

}  // namespace

template <>
struct deeprec::batch_traits<few_samples> {
  static index_t samples(const few_samples& v) { return v.samples; }
  static void refer(const few_samples& whole, index_t first, index_t count, few_samples& part) {
    std::copy_n(whole.x.begin() + first, count, part.x.begin());
    part.samples = count;
  }
  static void make_room(few_samples& whole, index_t samples, const few_samples&) { whole.samples = samples; }
  static void join(const few_samples& part, index_t first, few_samples& whole) {
    std::copy_n(part.x.begin(), part.samples, whole.x.begin() + first);
  }
};
template <>
struct deeprec::batch_traits<two_sums> {
  static void make_room(two_sums&, index_t, const two_sums&) {}
  static matrix_view<float> gradient(two_sums& v) { return {v.x.data(), 1, 2}; }
};

TEST_CASE("n13: a feature that was refused when it was added is no feature of the group") {
  dense_table<f32_rows> a(10, 4, std::pmr::new_delete_resource()), b(10, 4, std::pmr::new_delete_resource());
  const std::vector<std::int64_t> offsets{0, 1}, ids{1, 2, 3, 4};
  const std::vector<float> g(16, 1.0F);
  std::vector<jagged_view<>> bags;
  for (std::size_t t = 0; t < 4; ++t) bags.emplace_back(offsets.data(), 1, ids.data() + t, 1);
  refuse_each([&] {
    a.initialize(here, row_init::zeros{});
    b.initialize(here, row_init::zeros{});
    feature_group<sgd> group;
    until_granted([&] { group.add(a.view(), combiner::sum); });
    until_granted([&] { group.add(a.view(), combiner::mean); });
    until_granted([&] { group.add(b.view(), combiner::sum); });
    until_granted([&] { group.add(b.view(), combiner::sqrtn); });
    const status s = update(here, group, bags, matrix_view<const float>(g.data(), 1, 16), sgd{1.0F});
    return std::tuple(values_of(a), values_of(b), group.features(), group.tables(), s.message());
  });
}

TEST_CASE("task_list: an op that was refused when it was added is not in the plan") {
  refuse_each([&] {
    std::string seen;
    task_list list;
    const std::vector<index_t> after{0, 1};
    until_granted([&] { list.add("a task with a name of some length", [&] { seen += 'a'; }); });
    until_granted([&] { list.add("another", [&, b = std::string("b")] { seen += b; }); });
    until_granted([&] { list.add("of a third kind", [&](task_call) { seen += 'c'; }, after); });
    until_granted([&] { list.edge(2, 3); });
    until_granted([&] { list.add("of a fourth", [&] { return seen += 'd', status(); }); });
    until_granted([&] { list.affects(1, reads(seen)); });
    until_granted([&] { list.affects(3, writes(seen)); });
    task_plan plan;
    until_granted([&] { plan = task_plan::compile(list, task_order::as_added).or_throw(); });
    for (const index_t op : plan.order()) {
      if (!plan.call(op).ok()) seen += '!';
    }
    return seen;
  });
}

TEST_CASE("step_graph: an op that was refused when it was added is not in the graph") {
  refuse_each([&] {
    long held = 0, drawn = 0;
    step_graph g;
    variable<long> v;
    until_granted([&] { v = g.variable("a variable with a name of some length", held); });
    value<long> read, one;
    until_granted([&] {
      read = g.source<long>("a source with a name of some length", [&](long& it) {
        it = ++drawn;
        return true;
      });
    });
    std::vector<value<long>> all, staged;
    until_granted([&] {
      one = g.add<long>(
          "more, under a name of some length", [](const long& in, long& it) { it = in + 1; }, read);
    });
    all = {read, one, read};
    until_granted([&] { staged = g.stage("a stage with a name of some length", all); });
    until_granted([&] {
      g.add(
          "add, under a name of some length",
          [](op_list<const long> in, long& it) {
            for (const long& x : in) it += x;
          },
          staged, g.accumulate(v));
    });
    std::vector<step_program> program;
    program.reserve(1);
    std::string fault;
    until_granted([&] {
      auto made = step_program::compile(g);
      if (!made) fault = made.fault().message();
      if (made) program.push_back(std::move(made).or_throw());
    });
    if (!program.empty()) {
      std::vector<step_state> state;
      state.reserve(1);
      until_granted([&] { state.push_back(program[0].make_state()); });
      until_granted([&] { program[0].run(here, state[0]).or_throw(); });
    }
    return std::tuple(held, drawn, g.size(), fault);
  });
}

TEST_CASE("flat_graph_builder: an op that was refused when it was added is not in the graph") {
  refuse_each([&] {
    flat_graph_builder builder;
    const std::string long_name = "an op with a name of some length, ";
    for (int i = 0; i < 5; ++i) {
      until_granted([&] {
        builder.add({.name = long_name + std::to_string(i),
                     .kind = i == 2 ? op_kind::stage : op_kind::plain,
                     .place = i == 3 ? op_place::device : op_place::any,
                     .cost = static_cast<double>(i),
                     .stage = i == 2 ? "a stage with a name of some length" : ""});
      });
      if (i > 0) until_granted([&] { builder.connect(i - 1, 0, i, 0, 8); });
    }
    const flat_graph g = builder.build().or_throw();
    std::string seen;
    for (index_t v = 0; v < g.size(); ++v) {
      seen += std::string(g.name(v)) + ' ' + std::to_string(static_cast<int>(g.kind(v))) + ' ' +
              std::to_string(static_cast<int>(g.place(v))) + ' ' + std::to_string(g.cost(v)) + ' ' +
              std::to_string(g.out_end(v)) + '\n';
    }
    return seen + std::string(g.stage_of(2));
  });
}

TEST_CASE("trace_recorder: a span that was refused when it was added is not in the trace") {
  refuse_each([&] {
    trace_recorder recorder({.threads = 1, .spans = 4});
    until_granted([&] { recorder.add({"a", 1, 0, 2}, 0, 5); });
    until_granted([&] { recorder.add({"b", 2, 0, 3}, 6, 7); });
    std::vector<trace_span> spans;
    until_granted([&] { spans = recorder.spans(); });
    std::string json;
    until_granted([&] { json = recorder.json(); });
    std::string seen = std::to_string(spans.size());
    for (const trace_span& s : spans) seen += std::string(s.name) + std::to_string(s.end);
    return seen + json;
  });
}

TEST_CASE("batch_reader: where memory is refused, the rows before that are delivered") {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += i % 2 == 0 ? "1" : "0";
    for (int k = 0; k < i % 7; ++k) text += ' ' + std::to_string(i * 10 + k) + ":0.5";
    text += '\n';
  }
  text += "1 no line\n";
  const std::string path = "/tmp/deeprec_heap_refusals_" + std::to_string(::getpid()) + ".libsvm";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  REQUIRE(std::fwrite(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  // out_of_memory is not final: the next call goes on. The line's fault is; every further call reports it.
  // All rows before it are delivered, and no others.
  const auto rows_of = [&](long granted) {
    std::vector<std::int64_t> seen;
    left_to_grant = granted;
    std::vector<batch_reader<libsvm_format, inline_executor>> reader;
    reader.reserve(1);
    until_granted([&] {
      auto made = read_files(here, libsvm_format{}, {path});
      if (made) reader.push_back(std::move(made).or_throw());
      return made.code();
    });
    sparse_batch batch;
    bool failed = false;
    for (int b = 0; b < 8; ++b) {
      granted_news = left_to_grant;
      const result<index_t> rows = reader[0].next(batch, 12);
      left_to_grant = granted_news.exchange(-1);
      const errc refused = rows.code();
      CHECK((rows.ok() || refused == errc::out_of_memory || refused == errc::parse_error));
      CHECK((!failed || refused == errc::parse_error));
      failed = refused == errc::parse_error;
      CHECK(batch.rows() == (rows.ok() ? rows.value() : 0));
      if (batch.rows() == 0) continue;
      const auto bags = batch.feature(0);
      for (index_t r = 0; r < batch.rows(); ++r) {
        seen.push_back(static_cast<std::int64_t>(batch.labels()[static_cast<std::size_t>(r)]));
        for (index_t k = bags.ranges().begin(r); k < bags.ranges().end(r); ++k) seen.push_back(bags.ids()[k]);
      }
    }
    return seen;
  };
  const std::vector<std::int64_t> expected = rows_of(-1);
  bool refused = true;
  for (long n = 0; refused; ++n) {
    REQUIRE(n < 10'000);
    const std::vector<std::int64_t> made = rows_of(n);
    refused = std::exchange(left_to_grant, -1) < 0;
    CAPTURE(n);
    CHECK(made == expected);
  }
  ::unlink(path.c_str());
}

TEST_CASE("table files: a save and a load that were refused memory leave everything as it was") {
  const std::string path = "/tmp/deeprec_heap_refusals_" + std::to_string(::getpid()) + ".drt";
  dense_table<f32_rows> table(20, 4, std::pmr::new_delete_resource());
  dense_table<f32_rows> back(20, 4, std::pmr::new_delete_resource());
  table.initialize(here, row_init::uniform{.seed = 1});
  refuse_each([&] {
    back.initialize(here, row_init::zeros{});
    const const_named_table saved[] = {name_table("a table with a name of some length", table.view())};
    const named_table loaded[] = {name_table("a table with a name of some length", back.view())};
    const training_state at{.step = 7, .numbers = {{"a number with a name of some length", 0.5}}};
    until_granted([&] { return save_tables(path, saved, at); });
    training_state state;
    until_granted([&] { return describe_file(path); });
    until_granted([&] {
      auto read = load_tables(path, loaded);
      if (read) state = read.value();
      return read;
    });
    ::unlink(path.c_str());
    return std::pair(values_of(back), state);
  });
  CHECK(values_of(back) == values_of(table));
}

TEST_CASE("n05: name_rows returns that memory was refused, and names the rows when it is called again") {
  const std::string path = "/tmp/deeprec_heap_refusals_" + std::to_string(::getpid()) + ".drt";
  using table_type = hashed_table<f32_rows>;
  const auto value_of = [](std::uint64_t key, float* values) { values[0] = static_cast<float>(key); };
  const std::vector<std::uint64_t> keys{3, 1, 2};
  table_type table(f32_rows(1), value_of);
  table_type back(f32_rows(1), [](std::uint64_t, float* values) { values[0] = 0; });
  REQUIRE(table.insert(keys.data(), 3).ok());
  REQUIRE(back.insert(keys.data(), 3).ok());
  const hashed_rows<f32_rows> from(table), to(back);
  {
    const auto named = name_rows<std::uint64_t>("rows under a name of some length", from);
    save_tables(path, named.tables()).or_throw();
  }
  refuse_each([&] {
    std::vector<named_rows<std::uint64_t, hashed_rows<f32_rows>>> rows;
    rows.reserve(1);
    bool thrown = false;
    until_granted([&] {
      std::string name = "rows under a name of some length";
      try {
        auto made = name_rows<std::uint64_t>(std::move(name), to, path);
        if (made) rows.push_back(std::move(made).or_throw());
        return made.code();
      } catch (const std::bad_alloc&) {
        thrown = true;
        throw;
      }
    });
    std::vector<float> seen;
    if (!rows.empty()) {
      load_tables(path, rows[0].tables()).or_throw();
      for (const std::byte* row : std::span(rows[0].tables()[0].addresses, 3)) {
        seen.push_back(*reinterpret_cast<const float*>(row));
      }
    }
    return std::pair(seen, thrown);
  });
  ::unlink(path.c_str());
}

TEST_CASE(
    "micro_batch by lanes: a batch that was refused memory updates nothing, and the next one is whole") {
  refuse_each([&] {
    std::vector<float> of_lane(3), sum(3, -1);
    int updates = 0;
    micro_batch<> step(micro_lanes{.most = 2, .fewest = 1, .samples = 1}, loss_reduction::sum);
    step.stage("count", 0, [&](const micro_chunk& chunk) {
      of_lane = {1, static_cast<float>(chunk.number), static_cast<float>(chunk.number * chunk.number)};
    });
    step.sum_gradient(
        "count", [&](const micro_chunk&) { return matrix_view<float>(of_lane.data(), 1, 3); },
        [&] { return matrix_view<float>(sum.data(), 1, 3); });
    step.update("v", sgd{}, [&] { ++updates; });
    until_granted([&] { return step.run(here, 7); });
    CHECK(updates == 1);  // a run that was refused has made none
    return sum;
  });
}

TEST_CASE("by_lanes: a step that was refused memory trains nothing, and is whole when it is run again") {
  for (const bool has_barrier : {false, true}) {
    refuse_each([&] {
      std::vector<float> trained;
      trained.reserve(16);
      step_graph g;
      variable<std::vector<float>> v;
      variable<std::vector<float>> scratch;
      value<few_samples> in, squares, joined;
      value<two_sums> sums;
      until_granted([&] { v = g.variable("a variable with a name of some length", trained); });
      until_granted([&] {
        scratch = g.local("a local with a name of some length", [] { return std::vector<float>(8); });
      });
      until_granted([&] { in = g.placeholder<few_samples>("a placeholder with a name of some length"); });
      until_granted([&] {
        squares = g.add<few_samples>(
                       "squares, under a name of some length",
                       [](const few_samples& from, std::vector<float>& kept, few_samples& to) {
                         to.samples = from.samples;
                         for (std::size_t i = 0; i < static_cast<std::size_t>(from.samples); ++i)
                           to.x[i] = kept[i] = from.x[i] * from.x[i];
                       },
                       in, g.write(scratch))
                      .sample_wise();
      });
      joined = squares;
      if (has_barrier) {
        until_granted([&] {
          joined = g.add<few_samples>(
              "halves, under a name of some length",
              [](const few_samples& from, few_samples& to) {
                to.samples = from.samples;
                for (std::size_t i = 0; i < from.x.size(); ++i) to.x[i] = from.x[i] / 2;
              },
              squares);
        });
      }
      until_granted([&] {
        sums = g.add<two_sums>(
                    "sums, under a name of some length",
                    [](const few_samples& from, two_sums& to) {
                      to.x = {};
                      for (std::size_t i = 0; i < static_cast<std::size_t>(from.samples); ++i)
                        to.x[0] += from.x[i], to.x[1] += from.x[i] * from.x[i];
                    },
                    joined)
                   .sample_wise();
      });
      until_granted([&] {
        g.add(
            "train, under a name of some length",
            [](const two_sums& from, std::vector<float>& to) {
              to.insert(to.end(), from.x.begin(), from.x.end());
            },
            sums, g.write(v));
      });
      until_granted([&] { g.keep(squares); });
      std::vector<step_program> program;
      program.reserve(1);
      const step_options how{.samples = by_lanes({.most = 2, .fewest = 1, .samples = 2})};
      until_granted([&] { program.push_back(step_program::compile(g, how).or_throw()); });
      std::optional<step_state> state;
      until_granted([&] { state.emplace(program[0].make_state()); });
      state->feed(in, {{1, 2, 3, 4, 5, 6, 7}, 7});
      until_granted([&] { return program[0].run(here, *state); });
      until_granted([&] { return program[0].run(here, *state); });
      return std::tuple(trained, state->get(squares).x, state->step());
    });
  }
}

namespace {

struct ahead_hash {
  static constexpr const char* kind = "hash";
  int by = 3;
  void operator()(const int& in, int& out) const { out = in * by; }
};
struct ahead_bucket {
  static constexpr const char* kind = "bucket";
  void operator()(const int& in, int& out) const { out = in % 8; }
};
struct ahead_both {
  static constexpr const char* kind = "hash_bucket";
  using output = int;
  int by;
  void operator()(const int& in, int& out) const { out = in * by % 8; }
};
struct ahead_lookup {
  static constexpr const char* kind = "lookup";
  void operator()(const int& in, const std::array<long, 8>& rows, long& out) const {
    out = rows[static_cast<std::size_t>(in)];
  }
};

}  // namespace

TEST_CASE(
    "passes and schedules: a graph, a program and a state that were refused memory are made when asked "
    "again") {
  // Names of more letters than a string holds itself.
  std::array<long, 8> rows{};
  int next = 0;
  step_graph g;
  const auto v = g.variable("rows, under a name of some length", rows);
  const auto in = g.source<int>("source, under a name of some length", [&](int& out) {
    out = next++;
    return true;
  });
  const auto hashed = g.add<int>("hash, under a name of some length", ahead_hash{}, in);
  const auto id = g.add<int>("bucket, under a name of some length", ahead_bucket{}, hashed);
  const auto row = g.add<long>("lookup, under a name of some length", ahead_lookup{}, id, g.read(v));
  g.add(
       "update, under a name of some length",
       [](const int& at, const long& was, std::array<long, 8>& to) {
         to[static_cast<std::size_t>(at)] = was * 3 + at + 1;
       },
       id, row, g.write(v))
      .role(op_role::apply)
      .target();
  step_pattern p("hash, bucket");
  const auto any = p.any<int>();
  const auto first = p.op<ahead_hash, int>(any);
  const auto second = p.op<ahead_bucket, int>(first);
  p.becomes(second, [=](const pattern_match& m) { return ahead_both{m[first].by}; }, any);
  const std::vector<step_pattern> patterns{p};
  for (const op_schedule schedule :
       {op_schedule::in_turn, op_schedule::as_ready, op_schedule::stealing, op_schedule::by_cost}) {
    refuse_each([&] {
      rows = {};
      next = 0;
      std::optional<fused_graph> fused;
      until_granted([&] { fused.emplace(fuse(g, patterns).or_throw()); });
      std::vector<step_program> program;
      program.reserve(1);
      until_granted(
          [&] { program.push_back(step_program::compile(fused->graph, {.schedule = schedule}).or_throw()); });
      std::optional<step_state> state;
      until_granted([&] { state.emplace(program[0].make_state()); });
      for (int step = 0; step < 4; ++step) until_granted([&] { return program[0].run(here, *state); });
      std::optional<async_graph> ahead;
      until_granted([&] { ahead.emplace(async_embedding(g, {.window = 3}).or_throw()); });
      std::vector<staged_program> staged;
      staged.reserve(1);
      until_granted([&] {
        staged.push_back(staged_program::compile(ahead->graph, {.schedule = schedule}).or_throw());
      });
      return std::tuple(rows, fused->fused.size(), ahead->ahead, staged[0].staged_ops());
    });
  }
}

TEST_CASE("mlp: a pass that was refused room for a batch has it when it is called again") {
  const mlp<> stack({5, 4, 2}, 7);
  const std::vector<float> x(15, 0.5F), g(6, 1.0F);
  refuse_each([&] {
    std::optional<mlp_pass> pass;
    until_granted([&] { pass.emplace(stack.make_pass()); });
    until_granted(
        [&] { return pass->reserve(3); });  // oneDNN ends the program where its own memory is refused
    REQUIRE(stack.forward(here, *pass, matrix_view<const float>(x.data(), 3, 5)).ok());
    REQUIRE(stack.backward(here, *pass, matrix_view<const float>(g.data(), 3, 2)).ok());
    const matrix_view<float> all = pass->gradients();
    return std::vector<float>(all.data_handle(), all.data_handle() + all.extent(1));
  });
}

TEST_CASE("versioned: a publication that was refused memory is made when it is repeated") {
  refuse_each([] {
    versioned<int> models;
    for (int n = 1; n <= 3; ++n) {
      until_granted([&] { return models.publish(std::make_unique<int>(n)); });
    }
    until_granted([&] { return models.roll_back(); });
    const auto now = models.read();
    return std::tuple(*now, now.version(), models.statistics().kept);
  });
}

TEST_CASE(
    "session_group: a group, and the number of a thread, that were refused memory are made when asked "
    "again") {
  refuse_each([] {
    std::optional<session_group<index_t, session_choice::by_thread_t>> group;
    until_granted([&] { group.emplace(3, [](index_t i) { return i * i; }); });
    index_t session = -1;
    until_granted([&] {
      const auto lease = group->acquire();
      if (lease) session = lease.index();
      return lease.outcome().code();
    });
    return session + group->size();
  });
}
