#include "context/every_verb.hpp"

#include "context/heap_counts.hpp"  // before Eigen

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/deeprec.hpp>

namespace deeprec_test {
namespace {

/// Blocks by size, kept when given back: what a stack of layers and its casts live in.
class keeping_resource final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    for (block& b : free_) {
      if (b.bytes == bytes && b.alignment == alignment) {
        void* const p = std::exchange(b, free_.back()).p;
        free_.pop_back();
        return p;
      }
    }
    free_.reserve(++blocks_);
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    free_.push_back({p, bytes, alignment});
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  struct block {
    void* p;
    std::size_t bytes, alignment;
  };
  std::vector<block> free_;
  std::size_t blocks_ = 0;

 public:
  ~keeping_resource() {
    for (const block& b : free_) std::pmr::new_delete_resource()->deallocate(b.p, b.bytes, b.alignment);
  }
};

constexpr index_t bags = 30, rows = 300, width = 5;

struct inputs {
  inputs() {
    std::mt19937_64 random(900);
    for (index_t b = 0; b < bags; ++b) {
      for (index_t k = 0; k < (b == 20 ? 9000 : b % 4); ++k) {
        ids.push_back(k % 3 == 0 ? static_cast<std::int64_t>(random() % rows) : 7);
        weights.push_back(0.5F + static_cast<float>(random() % 8) / 8);
        of_row.push_back(bags - 1 - b);
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    invalid = ids;
    for (std::size_t k = 0; k < invalid.size(); k += 5) invalid[k] = -1;
    for (index_t i = 0; i < rows * width; ++i)
      values.push_back(static_cast<float>(random() % 1000) / 100 - 5);
    for (index_t k = 0; k < 40'000; ++k) many.push_back(k % 11 == 0 ? k % rows : 3);
  }
  [[nodiscard]] index_t n() const { return static_cast<index_t>(ids.size()); }
  [[nodiscard]] jagged_view<> batch() const {
    return {offsets.data(), bags, ids.data(), n(), weights.data()};
  }
  [[nodiscard]] jagged_view<> plain_batch() const { return {offsets.data(), bags, ids.data(), n()}; }
  [[nodiscard]] jagged_view<> with_invalid() const {
    return {offsets.data(), bags, invalid.data(), n(), weights.data()};
  }
  [[nodiscard]] coo_view<> entries() const { return {of_row.data(), ids.data(), n(), bags, weights.data()}; }
  [[nodiscard]] coo_view<> invalid_entries() const {
    return {of_row.data(), invalid.data(), n(), bags, weights.data()};
  }
  [[nodiscard]] matrix_view<const float> table() const { return {values.data(), rows, width}; }
  [[nodiscard]] matrix_view<const float> gradient() const { return {values.data(), bags, width}; }

  std::vector<std::int64_t> offsets{0}, ids, invalid, of_row, many;
  std::vector<float> weights, values;
};
const inputs& given() {
  static const inputs made;
  return made;
}

void every_lookup_and_update(verb_check& check) {
  const inputs& in = given();
  arena memory;
  const auto table = as_table(in.table());
  std::vector<float> floats(static_cast<std::size_t>(in.n() * width));
  const matrix_view<float> out(floats.data(), bags, width), of_ids(floats.data(), in.n(), width);
  const matrix_view<float> wide(floats.data(), bags, 2 * width);
  index_t skipped = 0;
  std::vector<float> parts[2];
  for (index_t id = 0; id < rows; ++id) {
    auto& part = parts[id % 2];
    part.insert(part.end(), in.table().row(id), in.table().row(id) + width);
  }
  const std::vector<const_table_view<f32_rows>> halves{
      as_table(matrix_view<const float>(parts[0].data(), rows / 2, width)),
      as_table(matrix_view<const float>(parts[1].data(), rows / 2, width))};
  const auto whole = partitioned_table(halves, partition_strategy::mod);

  check("lookup",
        [&](const verb_context& ctx) { return lookup(ctx, table, in.batch(), combiner::sum, out); });
  check("lookup, skip", [&](const verb_context& ctx) {
    return lookup(ctx, table, in.with_invalid(),
                  pooling{combiner::mean, bounds::skip(skipped), output::accumulate}, out);
  });
  check("lookup, parts",
        [&](const verb_context& ctx) { return lookup(ctx, whole, in.plain_batch(), combiner::max, out); });
  feature_group<> group;
  group.add(table, combiner::sum);
  group.add(whole, combiner::mean);
  const std::vector<jagged_view<>> two{in.batch(), in.plain_batch()};
  check("lookup, group", [&](const verb_context& ctx) { return lookup(ctx, group, two, wide); });
  check("fused_lookup", [&](const verb_context& ctx) {
    return fused_lookup(ctx, table, in.invalid_entries(), combiner::mean, out);
  });
  check("gather", [&](const verb_context& ctx) { return gather(ctx, table, in.ids, of_ids); });
  partitioned_ids<> dealt;
  REQUIRE(partition(inline_executor{}, in.ids, rows, 2, partition_strategy::mod, dealt).ok());
  check("gather, parts", [&](const verb_context& ctx) { return gather(ctx, halves, dealt, of_ids); });
  check("combine",
        [&](const verb_context& ctx) { return combine(ctx, in.table(), in.batch(), combiner::sqrtn, out); });

  std::vector<dense_table<f32_rows>> tables;
  for (int t = 0; t < 3; ++t) tables.emplace_back(rows, f32_rows(width, {.state_floats = 2}));
  check("update", [&](const verb_context& ctx) {
    return update(ctx, tables[0].view(), in.batch(), combiner::mean, in.gradient(), rowwise_adagrad{});
  });
  check("update, policies", [&](const verb_context& ctx) {
    return update(ctx, tables[0].view(), in.with_invalid(),
                  pooling{combiner::sum, bounds::skip(skipped), empty_bag::default_row{4}, max_norm{1}},
                  in.gradient(), rowwise_adagrad{});
  });
  feature_group<rowwise_adagrad, fixed_hotness_view<>> updates;
  for (auto& t : tables) updates.add(t.view(), combiner::sum);
  const std::vector<fixed_hotness_view<>> batches{
      {in.many.data(), 4, 10'000}, {in.many.data(), 4, 1'500}, {in.many.data(), 4, 20}};
  check("update, group", [&](const verb_context& ctx) {
    return update(ctx, updates, batches, matrix_view<const float>(in.values.data(), 4, 3 * width),
                  rowwise_adagrad{});
  });
  check("resolve", [&](const verb_context& ctx) {
    const auto resolved = resolve(ctx, whole, in.batch(), combiner::sum);
    return resolved ? status() : status(resolved.fault());
  });
  check("resolve, group", [&](const verb_context& ctx) {
    const auto resolved = resolve(ctx, updates, batches);
    return resolved ? status() : status(resolved.fault());
  });
  const auto rows_of_batch =
      resolve(inline_executor{}, tables[0].view(), in.batch(), combiner::mean).or_throw();
  check("lookup, resolved", [&](const verb_context& ctx) { return lookup(ctx, rows_of_batch, out); });
  check("update, resolved", [&](const verb_context& ctx) {
    return update(ctx, rows_of_batch, in.gradient(), rowwise_adagrad{});
  });
  const auto rows_of_group = resolve(inline_executor{}, updates, batches).or_throw();
  check("lookup, resolved group", [&](const verb_context& ctx) {
    return lookup(ctx, rows_of_group, matrix_view<float>(floats.data(), 4, 3 * width));
  });
  check("update, resolved group", [&](const verb_context& ctx) {
    return update(ctx, rows_of_group, matrix_view<const float>(in.values.data(), 4, 3 * width),
                  rowwise_adagrad{});
  });
  sparse_gradient gradient(&memory);
  check("row_gradients", [&](const verb_context& ctx) {
    return row_gradients(ctx, rows, in.batch(), combiner::mean, in.gradient(), gradient);
  });
  std::vector<std::int64_t> times(static_cast<std::size_t>(rows));
  for (const std::int64_t id : in.ids) ++times[static_cast<std::size_t>(id)];
  std::vector<float> of_slots(static_cast<std::size_t>(rows * width));
  check("row_gradients, over slots", [&](const verb_context& ctx) {
    return row_gradients(ctx, times, in.batch(), combiner::mean, in.gradient(),
                         matrix_view(of_slots.data(), rows, width));
  });
  check("weight_gradients", [&](const verb_context& ctx) {
    return weight_gradients(ctx, table, in.batch(), combiner::mean, in.gradient(),
                            std::span<float>(floats).first(in.ids.size()));
  });
}

void every_other_sparse_verb(verb_check& check) {
  const inputs& in = given();
  arena memory;
  std::vector<float> floats(static_cast<std::size_t>(in.n() * width));
  const matrix_view<float> out(floats.data(), bags, width), of_ids(floats.data(), in.n(), width);
  index_t skipped = 0;
  dense_table<f32_rows> table(rows, f32_rows(width));
  check("initialize", [&](const verb_context& ctx) {
    try {
      table.initialize(ctx, row_init::uniform{.seed = 3});
    } catch (const error& thrown) {
      return status{thrown.code(), "initialize"};
    }
    return status{};
  });

  unique_ids<> numbers(&memory);
  check("unique", [&](const verb_context& ctx) { return unique(ctx, in.ids, numbers); });
  unique_parts<> of_owners(&memory);
  check("partition_unique", [&](const verb_context& ctx) {
    return partition_unique(ctx, in.ids, owner_by_modulo(2), of_owners);
  });
  unique_rows<> different(&memory);
  check("dedup_rows", [&](const verb_context& ctx) {
    return dedup_rows(ctx, matrix_view<const std::int64_t>(in.ids.data(), in.n() / 2, 2), different);
  });
  check("gather_rows", [&](const verb_context& ctx) { return gather_rows(ctx, in.table(), in.ids, of_ids); });
  const std::vector<std::uint8_t> cond(static_cast<std::size_t>(bags), 1);
  check("row_select",
        [&](const verb_context& ctx) { return row_select(ctx, cond, in.gradient(), in.gradient(), out); });
  std::vector<std::int64_t> order(static_cast<std::size_t>(bags));
  for (std::size_t b = 0; b < order.size(); ++b) order[b] = static_cast<std::int64_t>(order.size() - b) - 1;
  const std::vector<array_view<const std::int64_t>> places{order};
  const std::vector<matrix_view<const float>> parts{in.gradient()};
  check("dynamic_stitch", [&](const verb_context& ctx) { return dynamic_stitch(ctx, places, parts, out); });
  check("transpose", [&](const verb_context& ctx) {
    return transpose(ctx, in.gradient(), matrix_view(floats.data(), width, bags));
  });
  check("tile", [&](const verb_context& ctx) { return tile(ctx, in.gradient().rows(0, 1), bags, 1, out); });
  check("column_sums", [&](const verb_context& ctx) {
    return column_sums(ctx, in.gradient(), array_view<float>(floats.data(), width));
  });
  check("cast", [&](const verb_context& ctx) { return cast(ctx, in.gradient(), out); });
  check("evaluate", [&](const verb_context& ctx) {
    return evaluate(ctx, expr::assign(out, expr::sigmoid(expr::in(in.gradient()) * 2.0F)));
  });
  const std::vector<std::int64_t> segments(in.ids.size(), 1);
  check("sparse_segment", [&](const verb_context& ctx) {
    return sparse_segment(ctx, in.table(), in.ids, segments, combiner::mean, out);
  });
  partitioned_ids<> in_parts(&memory);
  check("partition", [&](const verb_context& ctx) {
    return partition(ctx, in.invalid, rows, 3, partition_strategy::div, bounds::skip(skipped), in_parts);
  });
  jagged_batch<> made(&memory);
  check("prune_invalid", [&](const verb_context& ctx) {
    return prune_invalid(ctx, in.with_invalid(), prune_rule::by_id, made, skipped);
  });
  check("prune_invalid, entries", [&](const verb_context& ctx) {
    return prune_invalid(ctx, in.invalid_entries(), prune_rule::by_id_and_weight, made, skipped);
  });
  std::vector<std::uint8_t> empty(static_cast<std::size_t>(bags));
  check("fill_empty_bags",
        [&](const verb_context& ctx) { return fill_empty_bags(ctx, in.batch(), 5, made, empty); });
  check("to_jagged", [&](const verb_context& ctx) { return to_jagged(ctx, in.entries(), made); });

  std::vector<std::int64_t> ids(static_cast<std::size_t>(in.n() + bags)), offsets(ids.size());
  std::vector<float> weights(ids.size());
  const jagged_out<> bags_given{array_view(offsets.data(), bags + 1), ids, weights};
  check("prune_invalid, given", [&](const verb_context& ctx) {
    return prune_invalid(ctx, in.with_invalid(), prune_rule::by_id, bags_given);
  });
  check("fill_empty_bags, given",
        [&](const verb_context& ctx) { return fill_empty_bags(ctx, in.batch(), 5, bags_given, empty); });
  check("to_jagged, given",
        [&](const verb_context& ctx) { return to_jagged(ctx, in.entries(), bags_given); });
  std::vector<std::int32_t> inverse(ids.size()), counts(ids.size());
  const unique_out<std::int64_t, std::int32_t> numbers_given{ids, inverse, counts, {&skipped, 1}};
  check("unique, given", [&](const verb_context& ctx) { return unique(ctx, in.ids, numbers_given); });
  std::vector<std::int32_t> starts(3);
  const unique_parts_out<std::int64_t, std::int32_t> owners_given{ids, starts, inverse, counts};
  check("partition_unique, given", [&](const verb_context& ctx) {
    return partition_unique(ctx, in.ids, owner_by_modulo(2), owners_given);
  });
  std::vector<index_t> permutation(ids.size()), begins(4);
  const partition_out<> parts_given{inverse, permutation, begins, ids};
  check("partition, given", [&](const verb_context& ctx) {
    return partition(ctx, in.invalid, rows, 3, partition_strategy::div, bounds::skip, parts_given);
  });

  dense_table<int8_rows> codes(rows, int8_rows(width));
  check("quantize", [&](const verb_context& ctx) { return quantize(ctx, in.table(), codes.view()); });
  const matrix_view<float> all(floats.data(), rows, width);
  check("dequantize", [&](const verb_context& ctx) { return dequantize(ctx, codes.view(), all); });
  check("apply_rows", [&](const verb_context& ctx) {
    return apply_rows(ctx, in.gradient(), sgd{}, out, matrix_view<float>());
  });
  const std::vector<matrix_view<const float>> both{in.gradient(), in.table()};
  double norm = 0;
  check("global_norm", [&](const verb_context& ctx) { return global_norm(ctx, both, norm); });
}

/// The backends whose memory is deeprec's.
using own_backends = gemm_backends<thin_gemm, eigen_gemm>;

void every_dense_verb(verb_check& check) {
  constexpr index_t m = 150, n = 520, k = 700;
  const std::vector<float> values(static_cast<std::size_t>(n * k), 0.25F);
  std::vector<float> results(static_cast<std::size_t>(n * k)), sums(static_cast<std::size_t>(n));
  const matrix_view<const float> a(values.data(), m, k), b(values.data(), k, n), w(values.data(), n, k);
  const matrix_view<const float> dy(values.data(), m, n), bias(values.data(), 1, n);
  const matrix_view<float> c(results.data(), m, n), of_w(results.data(), n, k), of_x(results.data(), m, k);
  const matrix_view<float> of_bias(sums.data(), 1, n);

  check("gemm", [&](const verb_context& ctx) { return gemm<own_backends>(ctx, {}, a, b, c); });
  check("gemm, one row", [&](const verb_context& ctx) {
    return gemm<own_backends>(ctx, {}, matrix_view<const float>(values.data(), 1, k), b,
                              matrix_view<float>(results.data(), 1, n));
  });
  check("gemm, bf16 and steps", [&](const verb_context& ctx) {
    return gemm<own_backends>(ctx,
                              {.b = gemm_operand::transposed,
                               .c = gemm_output::accumulate,
                               .math = gemm_math::bf16,
                               .bias = bias,
                               .activation = gemm_activation::gelu_tanh},
                              a, w, c);
  });
  check("gemm, K = 0", [&](const verb_context& ctx) {
    return gemm<own_backends>(ctx, {}, matrix_view<const float>(values.data(), m, 0),
                              matrix_view<const float>(values.data(), 0, n), c);
  });
  keeping_resource kept;
  gemm_weights weights(w, weight_reuse::many, &kept);
  check("gemm, weights that change", [&](const verb_context& ctx) {
    weights.changed();
    return gemm<own_backends>(ctx, {.b = gemm_operand::transposed, .math = gemm_math::bf16}, a, weights, c);
  });
  check("linear_forward",
        [&](const verb_context& ctx) { return linear_forward<own_backends>(ctx, a, w, bias, c); });
  check("linear_backward", [&](const verb_context& ctx) {
    return linear_backward<own_backends>(ctx, a, dy, w, of_w, of_bias, of_x);
  });
  check("relu_forward", [&](const verb_context& ctx) { return relu_forward(ctx, a, of_x); });
  check("relu_backward", [&](const verb_context& ctx) { return relu_backward(ctx, a, a, of_x); });
  const matrix_view<const float> logits(values.data(), m, 1), labels(values.data(), m, 1);
  double loss = 0;
  check("logistic_loss_forward",
        [&](const verb_context& ctx) { return logistic_loss_forward(ctx, logits, labels, loss); });
  check("logistic_loss_backward", [&](const verb_context& ctx) {
    return logistic_loss_backward(ctx, logits, labels, matrix_view<float>(results.data(), m, 1));
  });
  check("logistic_loss_forward",
        [&](const verb_context& ctx) { return logistic_loss_forward(ctx, logits, labels, labels, loss); });
  check("logistic_loss_backward", [&](const verb_context& ctx) {
    return logistic_loss_backward(ctx, logits, labels, labels, matrix_view<float>(results.data(), m, 1));
  });
  const array_view<float> lengths(results.data() + m * k, m);
  check("normalize_rows_forward",
        [&](const verb_context& ctx) { return normalize_rows_forward(ctx, a, of_x, lengths); });
  check("normalize_rows_backward",
        [&](const verb_context& ctx) { return normalize_rows_backward(ctx, a, lengths, a, of_x); });
  const matrix_view<const float> square(values.data(), n, n);
  check("in_batch_softmax_forward",
        [&](const verb_context& ctx) { return in_batch_softmax_forward(ctx, square, {}, {}, loss); });
  check("in_batch_softmax_backward", [&](const verb_context& ctx) {
    return in_batch_softmax_backward(ctx, square, {}, {}, 1, matrix_view<float>(results.data(), n, n));
  });
  constexpr index_t d = 8, t = 5, pairs = (t + 1) * t / 2;
  const matrix_view<const float> dense(values.data(), m, d), pooled(values.data(), m, t * d);
  check("dot_interaction_forward", [&](const verb_context& ctx) {
    return dot_interaction_forward(ctx, dense, pooled, matrix_view<float>(results.data(), m, d + pairs));
  });
  check("dot_interaction_backward", [&](const verb_context& ctx) {
    return dot_interaction_backward(ctx, dense, pooled, matrix_view<const float>(values.data(), m, d + pairs),
                                    matrix_view<float>(results.data(), m, d),
                                    matrix_view<float>(results.data() + m * d, m, t * d));
  });
  std::vector<float> crossed(static_cast<std::size_t>(5 * m * d));
  const auto cross = [&](index_t i) { return matrix_view<float>(crossed.data() + i * m * d, m, d); };
  const matrix_view<const float> across(values.data(), d, d), across_bias(values.data(), 1, d);
  check("cross_layer_forward", [&](const verb_context& ctx) {
    return cross_layer_forward<own_backends>(ctx, dense, dense, across, across_bias, cross(0), cross(1));
  });
  check("cross_layer_backward", [&](const verb_context& ctx) {
    return cross_layer_backward<own_backends>(ctx, dense, dense, dense, dense, across,
                                              {.product = cross(2),
                                               .weights = matrix_view<float>(results.data(), d, d),
                                               .bias = {},
                                               .x0 = cross(3),
                                               .x = cross(4)});
  });
  check("fm_interaction_forward", [&](const verb_context& ctx) {
    return fm_interaction_forward(ctx, pooled, d, matrix_view<float>(results.data(), m, 1));
  });
  check("fm_interaction_backward", [&](const verb_context& ctx) {
    return fm_interaction_backward(ctx, pooled, d, dense, matrix_view<float>(results.data(), m, t * d));
  });
  const std::vector<index_t> histories{0, 0, m - 3, m};
  const matrix_view<const float> queries(values.data(), 3, d), of_features(values.data(), m, 4 * d);
  float* free = results.data();
  const matrix_view<float> to_queries(std::exchange(free, free + 3 * d), 3, d);
  const matrix_view<float> to_keys(std::exchange(free, free + m * d), m, d);
  const matrix_view<float> to_scores(free, m, 1);
  check("attention_features_forward", [&](const verb_context& ctx) {
    return attention_features_forward(ctx, queries, dense, histories,
                                      matrix_view<float>(results.data(), m, 4 * d));
  });
  check("attention_features_backward", [&](const verb_context& ctx) {
    return attention_features_backward(ctx, queries, dense, histories, of_features, {to_queries, to_keys});
  });
  check("attention_pool_forward", [&](const verb_context& ctx) {
    return attention_pool_forward(ctx, logits, dense, histories, to_queries);
  });
  check("attention_pool_forward", [&](const verb_context& ctx) {
    return attention_pool_forward(ctx, logits, dense, histories, to_scores, to_queries);
  });
  check("attention_pool_backward", [&](const verb_context& ctx) {
    return attention_pool_backward(ctx, logits, dense, histories, queries, {to_scores, to_keys},
                                   {.weights = attention_weights::softmax});
  });
  const dice_statistics<> moments{array_view<float>(to_queries.row(0), d),
                                  array_view<float>(to_queries.row(1), d)};
  const array_view<const float> alpha(values.data(), d);
  check("dice_forward",
        [&](const verb_context& ctx) { return dice_forward(ctx, dense, alpha, moments, to_keys); });
  check("dice_backward", [&](const verb_context& ctx) {
    return dice_backward(ctx, dense, alpha, moments, dense, to_keys, array_view<float>(to_scores.row(0), d));
  });
  check("dice_average", [&](const verb_context& ctx) { return dice_average(ctx, moments, 0.5F, moments); });
  for (const gemm_math math : {gemm_math::f32, gemm_math::bf16}) {
    mlp<own_backends> tower({k, 300, 1}, mlp_output::linear, counter_rng(7), weight_init::he, 0, &kept,
                            {.math = math});
    const std::vector<float> ones(static_cast<std::size_t>(m), 1.0F);
    check("mlp::forward, with backward and step", [&](const verb_context& ctx) {
      status s = tower.forward(ctx, a);
      if (s.ok()) s = tower.backward(ctx, matrix_view<const float>(ones.data(), m, 1));
      return s.ok() ? tower.step(ctx, adagrad{}) : s;
    });
  }
}

void every_reader(verb_check& check) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "1 " + std::to_string(i + 1) + ":1 7000:0.5\n";
  arena memory;
  verb_context ctx = check.ctx;
  ctx.memory = &memory;
  auto reader = read_text(ctx, libsvm_format{.rows = 10'000}, text, {.chunk_bytes = 1000}).or_throw();
  sparse_batch batch(&memory);
  check("next", [&](const verb_context&) {  // the same number of rows each time
    const auto got = reader.next(batch, 100);
    if (!got) return status(got.fault());
    return got.value() == 100 ? status() : status(errc::io_error, "next");
  });
}

}  // namespace

void for_each_verb(verb_check& check) {
  every_lookup_and_update(check);
  every_other_sparse_verb(check);
  every_dense_verb(check);
  every_reader(check);
}

}  // namespace deeprec_test
