// The fusions of columns, types, lookups side by side and backends.

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ops/column_fusions.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/fusions.hpp>
#include <deeprec/graph/ops/lookup_ops.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/matrix_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using list = std::vector<value<matrix_value>>;

/// A graph whose source gives a matrix of random numbers.
struct matrix_source {
  index_t rows, columns;
  std::vector<float> numbers;
  step_graph g{};
  value<matrix_value> x{};
  matrix_source(std::mt19937_64& random, index_t r, index_t c) : rows(r), columns(c) {
    std::uniform_real_distribution<float> draw(-2, 2);
    for (index_t i = 0; i < rows * columns; ++i) numbers.push_back(draw(random));
    x = g.source<matrix_value>(
        "read", [this](matrix_value& to) { return to.refer({numbers.data(), rows, columns}), true; });
  }
  matrix_source(const matrix_source&) = delete;
  matrix_source& operator=(const matrix_source&) = delete;
};

std::string attribute(const step_graph& g, index_t op) {
  const attribute_list all = g.attributes(op);
  return all.empty() ? "" : all[0].value.text();
}

}  // namespace

TEST_CASE("column_fusions: parts of a split, side by side again, are copied once or not at all") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix_source s(random, 7, 12);
  step_graph& g = s.g;
  const auto cut = [&](index_t first, index_t count) {
    return value<matrix_value>(g.add("cut", columns_op{first, count}, s.x));
  };
  const auto check = [&](const list& parts, std::size_t matches, const std::string& text,
                         const float* refers_to = nullptr) {
    const auto y = g.add("y", concat_columns_op{}, parts);
    g.keep(y);
    const fused_graph made = fuse(g, column_fusions()).or_throw();
    CHECK(made.fused.size() == matches);
    const index_t op = made.moved(y)->op();
    CHECK(attribute(made.graph, op) == text);
    CHECK(same_bits(after_step(g, y), after_step(made.graph, *made.moved(y))));
    CHECK(same_bits(after_step(g, y), after_planned_step(made.graph, *made.moved(y))));
    const step_program program = step_program::compile(made.graph).or_throw();
    step_state state = program.make_state();
    REQUIRE(program.run(inline_executor{}, state).or_throw());
    const matrix_view<const float> at = state.get(*made.moved(y)).view();
    CHECK((at.data_handle() == s.numbers.data()) == (refers_to != nullptr));
  };
  SUBCASE("in order: the matrix itself") {
    check({cut(0, 4), cut(4, 1), cut(5, 7)}, 3, "0: 0..12", s.numbers.data());
  }
  SUBCASE("in another order") { check({cut(5, 7), cut(0, 4), cut(4, 1)}, 3, "0: 5..12, 0: 0..5"); }
  SUBCASE("some of them, one twice") {
    const auto twice = cut(2, 3);
    check({cut(6, 2), twice, twice}, 2, "0: 6..8, 0: 2..5, 0: 2..5");
  }
  SUBCASE("one twice, and nothing else") {
    const auto twice = cut(2, 3);
    check({twice, twice}, 0, "");  // a value that one op takes twice is no interior one
  }
  SUBCASE("among others") {
    const auto other = g.add("other", tanh_op{}, s.x);
    check({other, cut(0, 3), other, cut(3, 9)}, 2, "0, 1: 0..3, 0, 1: 3..12");
  }
  SUBCASE("of two matrices") {
    const auto other = g.add("other", tanh_op{}, s.x);
    const auto of_other = g.add("cut", columns_op{1, 5}, other);
    check({of_other, cut(0, 3)}, 2, "0: 1..6, 1: 0..3");
  }
  SUBCASE("of which one is kept") {
    const auto kept = cut(0, 3);
    g.keep(kept);
    check({kept, cut(3, 9)}, 1, "0, 1: 3..12");
  }
}

TEST_CASE("column_fusions: random splits and concats give the bits of the ops one by one") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  std::size_t fused = 0;
  for (int round = 0; round < 60; ++round) {
    const auto columns = static_cast<index_t>(2 + random() % 30);
    matrix_source s(random, static_cast<index_t>(1 + random() % 9), columns);
    step_graph& g = s.g;
    const auto other = g.add("other", tanh_op{}, s.x);
    list parts;
    for (auto n = 1 + random() % 8; n > 0; --n) {
      const auto first = static_cast<index_t>(random() % static_cast<std::uint64_t>(columns));
      const auto count = static_cast<index_t>(random() % static_cast<std::uint64_t>(columns - first + 1));
      const value<matrix_value> of = random() % 2 == 0 ? s.x : value<matrix_value>(other);
      parts.push_back(random() % 5 == 0 ? of
                                        : value<matrix_value>(g.add("cut", columns_op{first, count}, of)));
    }
    const auto y = g.add("y", concat_columns_op{}, parts);
    const auto narrow = g.add("narrow", cast_op<bf16>{}, y);
    if (random() % 2 == 0) g.keep(y);
    g.keep(narrow);
    const fused_graph made = fuse(g, column_fusions()).or_throw();
    fused += made.fused.size();
    const std::vector<bf16> one_by_one = after_step(g, narrow);
    CHECK(same_bits(one_by_one, after_step(made.graph, *made.moved(narrow))));
    CHECK(same_bits(one_by_one, after_planned_step(made.graph, *made.moved(narrow))));
  }
  CHECK(fused > 60);
}

TEST_CASE("column_fusions: a concat that is cast writes the other type") {
  std::mt19937_64 random(deeprec_test::seed() + 2);
  const auto check = [&]<class To>(std::type_identity<To>) {
    for (const index_t rows : {1, 33}) {
      matrix_source s(random, rows, 20);
      const auto joined =
          s.g.add("joined", concat_columns_op{}, list{s.x, s.g.add("cut", columns_op{3, 5}, s.x)});
      const auto y = s.g.add("y", cast_op<To>{}, joined);
      s.g.keep(y);
      const fused_graph made = fuse(s.g, column_fusions()).or_throw();
      CHECK(made.fused.size() == 2);
      CHECK(made.graph.size() == 2);
      CHECK(same_bits(after_step(s.g, y), after_step(made.graph, *made.moved(y))));
      s.g.keep(joined);
      CHECK(fuse(s.g, column_fusions()).or_throw().fused.size() == 1);  // the columns alone
    }
  };
  check(std::type_identity<bf16>());
  check(std::type_identity<f16>());
}

TEST_CASE("column ops: columns that are not there are refused by name, fused or not") {
  std::mt19937_64 random(deeprec_test::seed());
  const auto refuses = [&](const step_graph& g, const std::string& words) {
    const step_program program = step_program::compile(g).or_throw();
    step_state state = program.make_state();
    const result<bool> ran = program.run(inline_executor{}, state);
    REQUIRE(!ran);
    CAPTURE(ran.message());
    CHECK(ran.code() == errc::shape_mismatch);
    CHECK(ran.message().find(words) != std::string::npos);
  };
  for (const auto& [first, count] : {std::pair<index_t, index_t>{4, 3}, {-1, 2}, {0, -1}, {7, 0}}) {
    matrix_source s(random, 2, 6);
    const auto cut = s.g.add("cut", columns_op{first, count}, s.x);
    s.g.add("y", concat_columns_op{}, list{cut, s.x});
    refuses(s.g, "columns: x must have the columns");
    const fused_graph made = fuse(s.g, column_fusions()).or_throw();
    if (!made.fused.empty())
      refuses(made.graph, "concat_columns: a matrix must have the columns of its part");
  }
  // A part of a part that is too small for it, though the matrix is not.
  matrix_source s(random, 2, 6);
  const auto cut = s.g.add("cut", columns_op{0, 2}, s.x);
  s.g.add("y", concat_columns_op{{{0, 1, 3}}}, list{cut});
  refuses(s.g, "concat_columns: a matrix must have the columns of its part");
  CHECK(fuse(s.g, column_fusions()).or_throw().fused.empty());
  for (const index_t input : {-1, 1}) {  // a part of nothing
    matrix_source other(random, 2, 6);
    const auto part = other.g.add("cut", columns_op{0, 2}, other.x);
    other.g.add("y", concat_columns_op{{{input, 0, 1}}}, list{part});
    refuses(other.g, "concat_columns: a part must name an input");
    CHECK(fuse(other.g, column_fusions()).or_throw().fused.empty());
  }
}

TEST_CASE("cast_fusions: a product that takes a cast matrix casts it itself") {
  std::mt19937_64 random(deeprec_test::seed() + 3);
  std::uniform_real_distribution<float> draw(-1, 1);
  const index_t rows = 48, in = 64, out = 40;
  std::vector<float> numbers, bias_numbers;
  std::vector<bf16> narrow_numbers;
  for (index_t i = 0; i < out * in; ++i) {
    numbers.push_back(draw(random));
    narrow_numbers.emplace_back(numbers.back());
  }
  for (index_t i = 0; i < out; ++i) bias_numbers.push_back(draw(random));
  matrix_view<float> weights(numbers.data(), out, in), bias(bias_numbers.data(), 1, out);
  matrix_view<bf16> narrow_weights(narrow_numbers.data(), out, in);
  // |x| |w| of each sum, for bounds; x at most 2.
  const float most = 2.0F * in;
  SUBCASE("of bf16 to float: the same bits, or the bound of a product of floats") {
    std::vector<bf16> x;
    for (index_t i = 0; i < rows * in; ++i) x.emplace_back(draw(random));
    step_graph g;
    const auto w = g.variable("w", weights), b = g.variable("b", bias);
    const auto read = g.source<basic_matrix_value<bf16>>(
        "read", [&](basic_matrix_value<bf16>& to) { return to.refer({x.data(), rows, in}), true; });
    const auto wide = g.add("wide", cast_op<float, bf16>{}, read);
    const auto y = g.add("y", matmul_op<>{}, wide, g.read(w));
    const auto wide2 = g.add("wide2", cast_op<float, bf16>{}, read);
    const auto layer = g.add("layer", linear_op<>{}, wide2, g.read(w), g.read(b));
    g.keep(y);
    g.keep(layer);
    const fused_graph made = fuse(g, cast_fusions()).or_throw();
    CHECK(made.fused.size() == 2);
    CHECK(made.graph.size() == 5);
    for (const value<matrix_value>& v : {value<matrix_value>(y), value<matrix_value>(layer)}) {
      const std::vector<float> a = after_step(g, v), c = after_step(made.graph, *made.moved(v));
      REQUIRE(a.size() == c.size());
      for (std::size_t i = 0; i < a.size(); ++i)
        CHECK(std::abs(a[i] - c[i]) <= 2 * (in + 4) * 0x1p-24F * most);
    }
    g.keep(wide);
    CHECK(fuse(g, cast_fusions()).or_throw().fused.size() == 1);
  }
  SUBCASE("of float to bf16, by weights of bf16: the same factors") {
    matrix_source s(random, rows, in);
    const auto w = s.g.variable("w", narrow_weights);
    const auto narrow = s.g.add("narrow", cast_op<bf16>{}, s.x);
    const auto y = s.g.add("y", matmul_op<matrix_view<bf16>, bf16>{}, narrow, s.g.read(w));
    s.g.keep(y);
    const fused_graph made = fuse(s.g, cast_fusions<matrix_view<bf16>>()).or_throw();
    REQUIRE(made.fused.size() == 1);
    CHECK(attribute(made.graph, made.moved(y)->op()) == "forced_bf16");
    const std::vector<float> a = after_step(s.g, y), c = after_step(made.graph, *made.moved(y));
    REQUIRE(a.size() == c.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - c[i]) <= 2 * (in + 4) * 0x1p-24F * most);
  }
  SUBCASE("of float to bf16, by weights of float: where the product may round them") {
    matrix_source s(random, rows, in);
    const auto w = s.g.variable("w", weights), b = s.g.variable("b", bias);
    const auto narrow = s.g.add("narrow", cast_op<bf16>{}, s.x);
    SUBCASE("it may") {
      const auto y = s.g.add("y", linear_op<matrix_view<float>, matrix_view<float>, bf16>{gemm_math::bf16},
                             narrow, s.g.read(w), s.g.read(b));
      s.g.keep(y);
      const fused_graph made = fuse(s.g, cast_fusions()).or_throw();
      REQUIRE(made.fused.size() == 1);
      const std::vector<float> a = after_step(s.g, y), c = after_step(made.graph, *made.moved(y));
      REQUIRE(a.size() == c.size());
      for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - c[i]) <= 0x1p-7F * most);
    }
    SUBCASE("it must not") {
      s.g.add("y", matmul_op<matrix_view<float>, bf16>{}, narrow, s.g.read(w));
      const fused_graph made = fuse(s.g, cast_fusions()).or_throw();
      CHECK(made.fused.empty());
      REQUIRE(made.refused.size() == 1);
      CHECK(made.refused[0].why.find("declines") != std::string::npos);
    }
  }
}

TEST_CASE("backend_fusions: products go to other backends") {
  std::mt19937_64 random(deeprec_test::seed() + 4);
  using portable = gemm_backends<thin_gemm, eigen_gemm>;
  using eigen = gemm_backends<eigen_gemm>;
  const index_t rows = 32, in = 48, out = 24;
  std::vector<float> numbers;
  std::uniform_int_distribution<int> draw(-8, 8);
  for (index_t i = 0; i < out * in + out; ++i) numbers.push_back(static_cast<float>(draw(random)) / 4);
  matrix_view<float> weights(numbers.data(), out, in), bias(numbers.data() + out * in, 1, out);
  const auto check = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
    matrix_source s(random, rows, in);
    for (float& x : s.numbers) x = static_cast<float>(draw(random)) / 4;  // sums are exact
    const auto w = s.g.variable("w", weights), b = s.g.variable("b", bias);
    const auto y = s.g.add("y", matmul_op<matrix_view<float>, float, From>{}, s.x, s.g.read(w));
    const auto layer = s.g.add(
        "layer",
        linear_op<matrix_view<float>, matrix_view<float>, float, From>{gemm_math::f32, gemm_activation::relu},
        s.x, s.g.read(w), s.g.read(b));
    s.g.keep(y);
    s.g.keep(layer);
    const fused_graph made = fuse(s.g, backend_fusions<From, To>()).or_throw();
    REQUIRE(made.fused.size() == 2);
    CHECK(made.graph.type(made.moved(y)->op()) == type_id_of<matmul_op<matrix_view<float>, float, To>>());
    CHECK(same_bits(after_step(s.g, y), after_step(made.graph, *made.moved(y))));
    CHECK(same_bits(after_step(s.g, layer), after_step(made.graph, *made.moved(layer))));
    // There and back is no end.
    std::vector<step_pattern> both = backend_fusions<From, To>();
    for (const step_pattern& p : backend_fusions<To, From>()) both.push_back(p);
    const result<fused_graph> round = fuse(s.g, both);
    REQUIRE(!round);
    CHECK(round.message().find("patterns must not match what they make") != std::string::npos);
  };
  check(std::type_identity<portable>(), std::type_identity<eigen>());
#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
  check(std::type_identity<portable>(), std::type_identity<host_gemm_backends>());
#endif
}

namespace {

using table_type = table_view<f32_rows>;
using bags_type = jagged_batch<>;

/// Lookups of several tables, and a matrix, side by side.
template <class Combiner>
struct lookup_world {
  static constexpr index_t bags = 23;
  std::vector<dense_table<f32_rows>> tables;
  std::vector<table_type> views;
  std::vector<bags_type> batches;
  std::vector<float> numbers;
  step_graph g{};
  value<index_t> begin{};
  value<matrix_value> matrix{};

  explicit lookup_world(std::mt19937_64& random, std::size_t count = 4) {
    for (std::size_t t = 0; t < count; ++t) {
      tables.emplace_back(index_t{40}, static_cast<index_t>(8 * (t + 1)));
      tables.back().initialize(inline_executor{}, row_init::uniform{.seed = t, .bound = 2.0F});
      bags_type& b = batches.emplace_back();
      b.offsets.push_back(0);
      for (index_t i = 0; i < bags; ++i) {
        for (auto n = random() % 4; n > 0; --n) {
          b.ids.push_back(random() % 6 == 0 ? -1 : static_cast<std::int64_t>(random() % 40));
          if (t % 2 == 1)
            b.weights.push_back(random() % 5 == 0 ? 0.0F : static_cast<float>(random() % 64) / 16);
        }
        b.offsets.push_back(static_cast<index_t>(b.ids.size()));
      }
    }
    for (dense_table<f32_rows>& t : tables) views.push_back(t.view());
    for (index_t i = 0; i < bags * 3; ++i) numbers.push_back(static_cast<float>(i));
    begin = g.source<index_t>("read", [](index_t& i) { return i = 0, true; });
    matrix = g.add<matrix_value>(
        "matrix", [this](const index_t&, matrix_value& to) { to.refer({numbers.data(), bags, 3}); }, begin);
  }
  lookup_world(const lookup_world&) = delete;
  lookup_world& operator=(const lookup_world&) = delete;
  value<matrix_value> lookup(std::size_t t, std::optional<std::int64_t> default_id = {}) {
    const auto ids = g.add<bags_type>(
        "ids",
        [this, t](const index_t&, bags_type& to) {
          to.offsets = batches[t].offsets;
          to.ids = batches[t].ids;
          to.weights = batches[t].weights;
        },
        begin);
    const auto table = g.variable("table", views[t]);
    return g.add("lookup" + std::to_string(t), fused_lookup_op<table_type, Combiner>{default_id}, ids,
                 g.read(table));
  }
};

template <class Combiner>
void check_lookup_columns() {
  std::mt19937_64 random(deeprec_test::seed() + 5);
  const std::vector<step_pattern> patterns = lookup_columns_fusions<table_type, Combiner>();
  {
    lookup_world<Combiner> w(random);
    const auto y =
        w.g.add("y", concat_columns_op{},
                list{w.lookup(2, 7), w.matrix, w.lookup(0), w.lookup(1), w.matrix, w.lookup(3, 1)});
    w.g.keep(y);
    const fused_graph made = fuse(w.g, patterns).or_throw();
    CHECK(made.fused.size() == 4);
    CHECK(made.graph.size() == w.g.size() - 4);
    const index_t op = made.moved(y)->op();
    CHECK(made.graph.kind_name(op) == "lookup_columns");
    CHECK(attribute(made.graph, op) == "lookup0:7 matrix0 lookup1 lookup2 matrix1 lookup3:1");
    const std::vector<float> one_by_one = after_step(w.g, y);
    CHECK(one_by_one.size() == static_cast<std::size_t>(w.bags * (8 + 16 + 24 + 32 + 6)));
    CHECK(same_bits(one_by_one, after_step(made.graph, *made.moved(y))));
  }
  {  // One whose rows others take stays as it is, among the columns.
    lookup_world<Combiner> w(random);
    const auto kept = w.lookup(1);
    const auto y = w.g.add("y", concat_columns_op{}, list{w.lookup(0), kept, w.lookup(2)});
    w.g.keep(kept);
    w.g.keep(y);
    const fused_graph made = fuse(w.g, patterns).or_throw();
    CHECK(made.fused.size() == 2);
    CHECK(attribute(made.graph, made.moved(y)->op()) == "lookup0 matrix0 lookup1");
    CHECK(same_bits(after_step(w.g, y), after_step(made.graph, *made.moved(y))));
  }
}

}  // namespace

TEST_CASE("lookup_columns_fusions: lookups side by side become one of a group, with their bits") {
  check_lookup_columns<combiner::sum_t>();
  check_lookup_columns<combiner::mean_t<combiner::by_weight_t>>();
  check_lookup_columns<combiner::sqrtn_t>();
}

TEST_CASE("lookup_columns_fusions: other combiners, parts and roles are no match; faults keep their names") {
  std::mt19937_64 random(deeprec_test::seed() + 6);
  using sum = combiner::sum_t;
  const auto fused = [](const step_graph& g) {
    return fuse(g, lookup_columns_fusions<table_type, sum>()).or_throw().fused.size();
  };
  SUBCASE("another combiner") {
    lookup_world<combiner::sqrtn_t> w(random);
    w.g.add("y", concat_columns_op{}, list{w.lookup(0), w.lookup(1)});
    CHECK(fused(w.g) == 0);
  }
  SUBCASE("parts") {
    lookup_world<sum> w(random);
    w.g.add("y", concat_columns_op{{{0, 2, 3}, {1}}}, list{w.lookup(0), w.lookup(1)});
    CHECK(fused(w.g) == 0);
  }
  SUBCASE("a role") {
    lookup_world<sum> w(random);
    w.g.add("y", concat_columns_op{}, list{w.lookup(0), w.lookup(1)}).role(op_role::gradient);
    CHECK(fused(w.g) == 0);
  }
  SUBCASE("a table that an op between them writes") {
    lookup_world<sum> w(random);
    const auto early = w.lookup(0);
    const auto table = w.g.variable("table", w.views[0]);
    w.g.add("writes", [](const matrix_value&, table_type&) {}, w.matrix, w.g.write(table));
    const auto late = w.g.add("late", tanh_op{}, w.matrix).after(value<matrix_value>(early));
    w.g.add("y", concat_columns_op{}, list{early, w.lookup(1), late});
    CHECK(fused(w.g) == 1);  // the lookup of table 1; that of table 0 comes before `late`
  }
  SUBCASE("batches of other sizes") {
    lookup_world<sum> w(random);
    w.batches[1].offsets.pop_back();
    const auto y = w.g.add("y", concat_columns_op{}, list{w.lookup(0), w.lookup(1)});
    w.g.keep(y);
    const fused_graph made = fuse(w.g, lookup_columns_fusions<table_type, sum>()).or_throw();
    REQUIRE(made.fused.size() == 2);
    for (const step_graph* g : std::array<const step_graph*, 2>{&w.g, &made.graph}) {
      const step_program program = step_program::compile(*g).or_throw();
      step_state state = program.make_state();
      const result<bool> ran = program.run(inline_executor{}, state);
      REQUIRE(!ran);
      CHECK(ran.code() == errc::shape_mismatch);
      CHECK(ran.message().find("must have the rows of the first") != std::string::npos);
    }
  }
  SUBCASE("an id outside its table") {
    lookup_world<sum> w(random);
    w.batches[1].ids.push_back(40);
    w.batches[1].weights.push_back(1);
    ++w.batches[1].offsets.back();
    const auto y = w.g.add("y", concat_columns_op{}, list{w.lookup(0), w.lookup(1)});
    w.g.keep(y);
    const fused_graph made = fuse(w.g, lookup_columns_fusions<table_type, sum>()).or_throw();
    for (const step_graph* g : std::array<const step_graph*, 2>{&w.g, &made.graph}) {
      const step_program program = step_program::compile(*g).or_throw();
      step_state state = program.make_state();
      const result<bool> ran = program.run(inline_executor{}, state);
      REQUIRE(!ran);
      CHECK(ran.code() == errc::id_out_of_range);
    }
  }
}
