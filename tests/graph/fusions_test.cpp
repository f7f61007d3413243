// The fusions of the library's ops: what they make, with the bits of the ops one by one.

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/fusions.hpp>
#include <deeprec/graph/ops/lookup_ops.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/counting_resource.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/matrix_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table_type = table_view<f32_rows>;
using bags_type = jagged_batch<>;

void draw_bags(std::mt19937_64& random, index_t bags, index_t rows, bool weighted, bags_type& to) {
  to.offsets.assign(1, 0);
  to.ids.clear();
  to.weights.clear();
  for (index_t b = 0; b < bags; ++b) {
    for (auto n = random() % 5; n > 0; --n) {
      to.ids.push_back(
          random() % 6 == 0 ? -1 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows)));
      if (weighted) to.weights.push_back(random() % 7 == 0 ? 0.0F : static_cast<float>(random() % 100) / 64);
    }
    to.offsets.push_back(static_cast<index_t>(to.ids.size()));
  }
}

template <class Combiner>
void check_lookup(bool fill, bool weighted, std::optional<std::int64_t> default_id) {
  using rule = std::conditional_t<std::is_same_v<Combiner, combiner::sum_t>, prune_rule::by_id_t,
                                  prune_rule::by_id_and_weight_t>;
  std::mt19937_64 random(deeprec_test::seed());
  const index_t rows = 50, width = 20, count = 33;
  dense_table<f32_rows> table(rows, width);
  table.initialize(inline_executor{}, row_init::uniform{.seed = 42, .bound = 3.0F});
  table_type view = table.view();
  step_graph g;
  const auto t = g.variable("table", view);
  std::mt19937_64 ids(7);
  const auto bags = g.source<bags_type>("read", [&](bags_type& out) {
    ids.seed(7);
    draw_bags(ids, count, rows, weighted, out);
    return true;
  });
  const auto valid = g.add("valid", prune_op<rule>{}, bags);
  value<bags_type> from = valid;
  if (fill) from = g.add("filled", fill_op<>{default_id}, valid).template get<0>();
  const auto distinct = g.add("distinct", unique_op<>{}, from);
  const auto gathered = g.add("gathered", gather_op<table_type>{}, distinct, g.read(t));
  const auto pooled = g.add("pooled", combine_op<Combiner>{}, gathered, distinct, from);
  g.keep(pooled);
  const std::vector<step_pattern> patterns{lookup_fusion<table_type, Combiner>(true),
                                           lookup_fusion<table_type, Combiner>(false)};
  const fused_graph made = fuse(g, patterns).or_throw();
  REQUIRE(made.fused.size() == 1);
  CHECK(made.graph.size() == 3);
  CHECK(made.graph.kind_name(made.moved(pooled)->op()) == "fused_lookup");
  const std::vector<float> one_by_one = after_step(g, pooled);
  CHECK(one_by_one.size() == static_cast<std::size_t>(count * width));
  CHECK(same_bits(one_by_one, after_step(made.graph, *made.moved(pooled))));
  // Another one's distinct ids are needed: no match.
  step_graph other;
  const auto b2 = other.source<bags_type>("read", [&](bags_type&) { return false; });
  const auto t2 = other.variable("table", view);
  const auto v2 = other.add("valid", prune_op<rule>{}, b2);
  const auto d2 = other.add("distinct", unique_op<>{}, v2);
  const auto g2 = other.add("gathered", gather_op<table_type>{}, d2, other.read(t2));
  other.add("pooled", combine_op<Combiner>{}, g2, d2, v2);
  other.keep(d2);
  CHECK(fuse(other, patterns).or_throw().fused.empty());
}

}  // namespace

TEST_CASE("matrix_value: in a plan's place it holds no memory of its own, and grows out of it") {
  counting_resource memory;
  matrix_value m(&memory);
  const matrix_view<float> own = m.make(3, 5);
  CHECK(own.data_handle() == m.writable().data_handle());
  CHECK(memory.statistics().bytes >= 15 * sizeof(float));
  std::array<float, 20> place{};
  batch_traits<matrix_value>::place(m, std::as_writable_bytes(std::span(place)));
  CHECK(memory.statistics().bytes == 0);
  CHECK(m.make(4, 5).data_handle() == place.data());
  CHECK(batch_traits<matrix_value>::own_bytes(m) == static_cast<index_t>(20 * sizeof(float)));
  CHECK(m.make(5, 5).data_handle() != place.data());
  CHECK(m.make(2, 5).data_handle() == place.data());
  m.refer(own);
  CHECK(batch_traits<matrix_value>::own_bytes(m) == 0);
}

TEST_CASE("lookup_fusion: the stages of a safe lookup become one op, with their bits") {
  for (const bool weighted : {false, true}) {
    for (const bool fill : {false, true}) {
      for (const auto id : {std::optional<std::int64_t>{}, std::optional<std::int64_t>{3}}) {
        check_lookup<combiner::sum_t>(fill, weighted, id);
        check_lookup<combiner::mean_t<combiner::by_count_t>>(fill, weighted, id);
        check_lookup<combiner::mean_t<combiner::by_weight_t>>(fill, weighted, id);
        check_lookup<combiner::sqrtn_t>(fill, weighted, id);
      }
    }
  }
}

TEST_CASE("lookup_fusion: a rule that drops other entries than the combiner's lookup does is no match") {
  step_graph g;
  dense_table<f32_rows> table(5, 4);
  table_type view = table.view();
  const auto t = g.variable("table", view);
  const auto bags = g.source<bags_type>("read", [](bags_type&) { return false; });
  const auto valid = g.add("valid", prune_op<prune_rule::by_id_t>{}, bags);
  const auto distinct = g.add("distinct", unique_op<>{}, valid);
  const auto gathered = g.add("gathered", gather_op<table_type>{}, distinct, g.read(t));
  g.add("pooled", combine_op<combiner::sqrtn_t>{}, gathered, distinct, valid);
  CHECK(fuse(g, {lookup_fusion<table_type, combiner::sqrtn_t>(false)}).or_throw().fused.empty());
}

TEST_CASE("linear_fusions: product, bias and activation become one op") {
  std::mt19937_64 random(deeprec_test::seed());
  const auto numbers = [&](index_t n) {
    std::vector<float> all(static_cast<std::size_t>(n));
    for (float& x : all) x = static_cast<float>(static_cast<int>(random() % 17) - 8) / 4;  // sums are exact
    return all;
  };
  for (const index_t batch : {1, 7, 64}) {
    for (const gemm_activation activation : {gemm_activation::none, gemm_activation::relu,
                                             gemm_activation::sigmoid, gemm_activation::gelu_tanh}) {
      const index_t in = 40, out = 24;
      std::vector<float> x = numbers(batch * in), w = numbers(out * in), b = numbers(out),
                         u = numbers(8 * out), c = numbers(8);
      matrix_view<float> weights(w.data(), out, in), bias(b.data(), 1, out), upper(u.data(), 8, out),
          upper_bias(c.data(), 1, 8);
      step_graph g;
      const auto wv = g.variable("w", weights), bv = g.variable("b", bias), uv = g.variable("u", upper),
                 cv = g.variable("c", upper_bias);
      const auto read = g.source<matrix_value>(
          "read", [&](matrix_value& to) { return to.refer({x.data(), batch, in}), true; });
      const auto product = g.add("product", matmul_op<>{}, read, g.read(wv));
      const auto biased = g.add("biased", add_row_op<>{}, product, g.read(bv));
      const auto hidden = g.add("hidden", activate_op{activation}, biased);
      const auto again = g.add("again", activate_op{gemm_activation::relu}, hidden);
      const auto top =
          g.add("top", add_row_op<>{}, g.add("product2", matmul_op<>{}, again, g.read(uv)), g.read(cv));
      g.keep(top);
      const fused_graph made = fuse(g, linear_fusions()).or_throw();
      CHECK(made.fused.size() == 3 + (activation == gemm_activation::none ? 1U : 0U));
      const std::vector<float> one_by_one = after_step(g, top),
                               fused = after_step(made.graph, *made.moved(top));
      REQUIRE(one_by_one.size() == fused.size());
      // Sums of the first product are exact: without an inexact function behind it the bits are the same.
      if (activation == gemm_activation::none || activation == gemm_activation::relu) {
        CHECK(same_bits(one_by_one, fused));
      } else {
        for (std::size_t i = 0; i < fused.size(); ++i)
          CHECK(fused[i] == doctest::Approx(one_by_one[i]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("ops: shapes that do not fit are refused by name") {
  std::vector<float> x(6), b(2);
  matrix_view<float> bias(b.data(), 1, 2);
  const auto refuses = [](const step_graph& g, const std::string& words) {
    const step_program program = step_program::compile(g).or_throw();
    step_state state = program.make_state();
    const result<bool> ran = program.run(inline_executor{}, state);
    REQUIRE(!ran);
    CAPTURE(ran.message());
    CHECK(ran.code() == errc::shape_mismatch);
    CHECK(ran.message().find(words) != std::string::npos);
  };
  step_graph g;
  const auto bv = g.variable("b", bias);
  const auto read =
      g.source<matrix_value>("read", [&](matrix_value& to) { return to.refer({x.data(), 2, 3}), true; });
  SUBCASE("a bias of other columns") {
    g.add("biased", add_row_op<>{}, read, g.read(bv));
    refuses(g, "add_row: the row must be (1,D)");
  }
  SUBCASE("weights of other columns") {
    g.add("product", matmul_op<>{}, read, g.read(bv));
    refuses(g, "product");
  }
  SUBCASE("matrices of other rows") {
    const auto other = g.add<matrix_value>(
        "other", [](const matrix_value& m, matrix_value& out) { out.refer(m.view().rows(0, 1)); }, read);
    g.add("all", concat_columns_op{}, std::vector<value<matrix_value>>{read, other});
    refuses(g, "concat_columns: all matrices must have the rows of the first");
  }
}

TEST_CASE("concat_columns: side by side") {
  std::vector<float> x{1, 2, 3, 4, 5, 6};
  step_graph g;
  const auto read =
      g.source<matrix_value>("read", [&](matrix_value& to) { return to.refer({x.data(), 2, 3}), true; });
  const auto all = g.add("all", concat_columns_op{}, std::vector<value<matrix_value>>{read, read});
  CHECK(after_step(g, all) == std::vector<float>{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6});
}
