// The program that SmartStage was made for: text is decoded ahead of the step, and the hashing of its columns
// moves ahead as well, up to the lookups.

#include <deeprec/core/hash.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_costs.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

constexpr std::size_t width = 4;
constexpr std::uint64_t buckets = 97;
using text_column = std::vector<std::string>;
using table = std::vector<float>;

struct decode_csv {
  static constexpr const char* kind = "decode_csv";
  using outputs = op_outputs<text_column, text_column, text_column>;
  status operator()(const std::vector<std::string>& lines, text_column& a, text_column& b,
                    text_column& c) const {
    for (text_column* const column : {&a, &b, &c}) column->clear();
    for (const std::string& line : lines) {
      const std::size_t first = line.find(','), second = line.find(',', first + 1);
      if (second == std::string::npos) return {errc::parse_error, "decode_csv: a line must have 3 columns"};
      a.push_back(line.substr(0, first));
      b.push_back(line.substr(first + 1, second - first - 1));
      c.push_back(line.substr(second + 1));
    }
    return {};
  }
};
struct string_to_hash_bucket {
  static constexpr const char* kind = "string_to_hash_bucket";
  using output = std::vector<std::uint64_t>;
  std::uint64_t count;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("buckets", count);
  }
  void operator()(const text_column& in, std::vector<std::uint64_t>& out) const {
    out.clear();
    for (const std::string& s : in) {
      std::uint64_t h = 1;
      for (const char c : s) h = mix64(h ^ static_cast<unsigned char>(c));
      out.push_back(h % count);
    }
  }
};
struct embedding_lookup {
  static constexpr const char* kind = "embedding_lookup";
  using output = std::vector<float>;
  void operator()(const std::vector<std::uint64_t>& ids, const table& rows, std::vector<float>& out) const {
    out.clear();
    for (const std::uint64_t id : ids) {
      const auto row = rows.begin() + static_cast<std::ptrdiff_t>(id * width);
      out.insert(out.end(), row, row + width);
    }
  }
};
struct concat {
  static constexpr const char* kind = "concat";
  using output = std::vector<float>;
  void operator()(op_list<const std::vector<float>> parts, std::vector<float>& out) const {
    out.clear();
    for (std::size_t at = 0; at < parts[0].size(); at += width) {
      for (const std::vector<float>& part : parts) {
        out.insert(out.end(), part.begin() + static_cast<std::ptrdiff_t>(at),
                   part.begin() + static_cast<std::ptrdiff_t>(at + width));
      }
    }
  }
};
/// A step of training: the rows that were read move.
struct train {
  static constexpr const char* kind = "train";
  using output = double;
  void operator()(const std::vector<float>& joined, table& rows, double& loss) const {
    loss = 0;
    for (const float x : joined) loss += static_cast<double>(x);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] -= 0.01F * joined[i % joined.size()];
  }
};

struct founding_program {
  step_graph graph{};
  table rows = table(buckets * width);
  index_t drawn = 0;
  std::vector<index_t> hashes{};
  index_t read = 0, decode = 0;
  value<double> loss{};
  value<std::vector<float>> joined{};

  founding_program() {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 13);
    step_graph& g = graph;
    const auto embeddings = g.variable("embeddings", rows);
    const auto lines = g.source<std::vector<std::string>>("read", [this](std::vector<std::string>& out) {
      out.clear();
      for (index_t i = 0; i < 8; ++i) {
        const index_t n = 8 * drawn + i;
        out.push_back("user" + std::to_string(n * n % 41) + ",item" + std::to_string(n % 29) + ",day" +
                      std::to_string(n / 10));
      }
      return drawn++ < 40;
    });
    const auto decoded = g.add("decode_csv", decode_csv{}, lines);
    const auto staged = g.stage("staged", decoded.get<0>(), decoded.get<1>(), decoded.get<2>());
    std::vector<value<std::vector<float>>> parts;
    const auto column = [&](const char* name, const value<text_column>& text) {
      const auto ids = g.add(std::string("hash ") + name, string_to_hash_bucket{buckets}, text);
      hashes.push_back(ids.op());
      parts.push_back(g.add(std::string("lookup ") + name, embedding_lookup{}, ids, g.read(embeddings)));
    };
    column("user", std::get<0>(staged));
    column("item", std::get<1>(staged));
    column("day", std::get<2>(staged));
    const auto all = g.add("concat", concat{}, parts);
    const auto trained = g.add("train", train{}, all, g.write(embeddings)).role(op_role::apply).target();
    read = lines.op();
    decode = decoded.op();
    joined = all;
    loss = trained;
  }
};

}  // namespace

TEST_CASE("the founding program: smart_stage moves exactly the hash buckets, and no bit changes") {
  thread_pool pool(2);
  founding_program plain;
  const step_program steps = step_program::compile(plain.graph).or_throw();
  step_state state = steps.make_state();
  trace_recorder trace({.threads = 2, .spans = 2000});
  context ctx{pool};
  ctx.trace = &trace;
  std::vector<double> losses;
  std::vector<std::vector<float>> joined;
  while (steps.run(ctx, state).or_throw()) {
    losses.push_back(state.get(plain.loss));
    joined.push_back(state.get(plain.joined));
  }
  REQUIRE(losses.size() == 40);

  // Costs and sizes as they were measured.
  CHECK(take_costs(plain.graph, trace) == 10);
  take_bytes(plain.graph, state);
  CHECK(plain.graph.cost(plain.decode) > 0);
  CHECK(plain.graph.bytes(plain.hashes[0], 0) ==
        static_cast<std::int64_t>(sizeof(std::vector<std::uint64_t>) + 8 * sizeof(std::uint64_t)));

  const flat_graph flat = plain.graph.flat().or_throw();
  for (const stage_rule rule : {stage_rule::farthest, stage_rule::balanced}) {
    const stage_cut cut = smart_stage(flat, {.rule = rule}).or_throw();
    if (rule == stage_rule::farthest) {
      std::vector<index_t> expected = plain.hashes;
      expected.insert(expected.begin(), {plain.read, plain.decode});
      CHECK(cut.staged_ops() == expected);
      const std::string words = explain(flat, cut);
      CHECK(words.find("moved: 'hash user', 'hash item', 'hash day'") != std::string::npos);
      CHECK(words.find("stays: 'lookup user', it reads a variable ('embeddings')") != std::string::npos);
      CHECK(graphviz(plain.graph, cut).find("string_to_hash_bucket") != std::string::npos);
    }
    for (const int producers : {1, 2}) {
      founding_program again;
      staged_program program =
          staged_program::compile(again.graph, cut, {.capacity = 3, .producers = producers}).or_throw();
      std::size_t step = 0;
      bool same = true;
      program
          .run(pool,
               [&](step_state& s) {
                 same = same && step < losses.size() && s.get(again.loss) == losses[step] &&
                        s.get(again.joined) == joined[step];
                 ++step;
               })
          .or_throw();
      CHECK(same);
      CHECK(step == losses.size());
      CHECK(again.rows == plain.rows);
    }
  }
}
