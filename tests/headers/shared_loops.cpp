// One call of each verb. Compiled with different flags, never run: see shared_loops.sh.
#include <deeprec/deeprec.hpp>

#include <cstdint>
#include <vector>

using namespace deeprec;

namespace {

int failures = 0;
void expect(const status& s) { failures += !s.ok(); }

}  // namespace

int deeprec_shared_loops(float* floats, const std::int64_t* ids, index_t n);
int deeprec_shared_loops(float* floats, const std::int64_t* ids, index_t n) {
  const inline_executor here;
  const matrix_view out(floats, n, n);
  const matrix_view<const float> in = out;
  const jagged_view<> bags(ids, n, ids, n, floats);
  const auto entries = coo_view<>::tensorflow(ids, ids, n, n, floats);
  dense_table<f32_rows> table(n, f32_rows(n, {.state_floats = 2 * n}));
  table.initialize(here, row_init::uniform{});
  dense_table<int8_rows> int8s(n, n);
  dense_table<int4_rows> int4s(n, n);
  dense_table<split_bf16_rows> splits(n, split_bf16_rows(n, {.state_floats = 1}));

  expect(lookup(here, table.view(), bags, combiner::sum, out));
  expect(lookup(here, int8s.view(), bags, pooling{combiner::mean, max_norm{1}}, out));
  expect(lookup(here, splits.view(), bags, combiner::concat, out));
  feature_group<> group;
  group.add(table.view(), combiner::sum);
  const std::vector<jagged_view<>> of_features(1, bags);
  expect(lookup(here, group, of_features, out));
  const std::vector<const_table_view<f32_rows>> parts(2, table.view());
  expect(fused_lookup(here, partitioned_table(parts, partition_strategy::mod), entries, combiner::mean, out));
  expect(update(here, table.view(), bags, combiner::sum, in, adam{}));
  expect(update(here, splits.view(), bags, combiner::sum, in, clipped_by_norm{sgd{}, 1.0F},
                rounding::stochastic{.seed = 1}));
  feature_group<adagrad> updates;
  updates.add(table.view(), combiner::sum);
  expect(update(here, updates, of_features, in, adagrad{}));
  sparse_gradient of_rows;
  expect(row_gradients(here, n, bags, combiner::sum, in, of_rows));
  expect(row_gradients(here, of_rows.rows, bags, combiner::sum, in, out));
  expect(weight_gradients(here, table.view(), bags, combiner::sum, in, std::span<float>(floats, 8)));
  expect(quantize(here, in, int8s.view()));
  expect(quantize(here, in, int4s.view()));
  expect(quantize(here, in, splits.view()));
  expect(dequantize(here, int4s.view(), out));

  jagged_batch<> valid, filled;
  index_t dropped = 0;
  std::vector<std::uint8_t> empty(static_cast<std::size_t>(n));
  expect(to_jagged(here, entries, valid));
  expect(prune_invalid(here, bags, prune_rule::by_id_and_weight, valid, dropped));
  expect(fill_empty_bags(here, valid.view(), 0, filled, empty));
  unique_ids<> different;
  expect(unique(here, filled.ids, different));
  unique_parts<> of_owners;
  expect(partition_unique(here, filled.ids, owner_by_modulo(2), of_owners));
  partitioned_ids<> dealt;
  expect(partition(here, different.ids, n, 2, partition_strategy::div, dealt));
  expect(partition(here, filled.ids, n, 2, partition_strategy::div, bounds::skip,
                   partition_out<>{dealt.part, dealt.permutation, dealt.offsets, different.ids}));
  expect(unique(here, filled.ids,
                unique_out<>{different.ids, different.inverse, different.counts, {&dropped, 1}}));
  expect(partition_unique(
      here, filled.ids, owner_by_modulo(2),
      unique_parts_out<>{different.ids, of_owners.first, different.inverse, different.counts}));
  const jagged_out<> given{valid.offsets, valid.ids, {}};
  expect(to_jagged(here, entries, given));
  expect(prune_invalid(here, bags, prune_rule::by_id, given));
  expect(fill_empty_bags(here, filled.view(), 0, given, empty));
  expect(gather(here, parts, dealt, out));
  expect(combine(here, out, bags, combiner::sum, out));
  unique_rows<> rows;
  expect(dedup_rows(here, in, rows));
  expect(gather_rows(here, in, rows.inverse, out));
  expect(row_select(here, empty, in, out, out));
  const std::vector<array_view<const std::int64_t>> no_places;
  const std::vector<matrix_view<const float>> no_parts;
  expect(dynamic_stitch(here, no_places, no_parts, out));
  expect(transpose(here, in, out));
  expect(tile(here, in, 1, 1, out));
  expect(column_sums(here, in, array_view<float>()));
  expect(cast(here, in, out));
  expect(evaluate(here, expr::assign(out, expr::gelu(expr::in(in)))));
  expect(sparse_segment(here, in, filled.ids, filled.ids, combiner::mean, out));

  expect(gemm(here, {.math = gemm_math::bf16}, in, in, out));
  expect(linear_forward(here, in, in, in, out));
  expect(linear_backward(here, in, in, in, out, out, out));
  expect(relu_forward(here, in, out));
  expect(relu_backward(here, in, in, out));
  expect(dot_interaction_forward(here, in, in, out));
  expect(dot_interaction_backward(here, in, in, in, out, out));
  expect(cross_layer_forward(here, in, in, in, in, out, out));
  expect(cross_layer_backward(here, in, in, in, in, in, {out, out, out, out, out}));
  expect(fm_interaction_forward(here, in, n, out));
  expect(fm_interaction_backward(here, in, n, in, out));
  const array_view<const std::int64_t> histories(ids, n);
  const array_view<float> numbers(floats, n);
  const dice_statistics<> moments{numbers, numbers};
  expect(attention_features_forward(here, in, in, histories, out));
  expect(attention_features_backward(here, in, in, histories, in, {out, out}, gradient_write::add));
  expect(attention_pool_forward(here, in, in, histories, out));
  expect(attention_pool_forward(here, in, in, histories, out, out));
  expect(attention_pool_backward(here, in, in, histories, in, {out, out}));
  expect(dice_forward(here, in, numbers, moments, out));
  expect(dice_backward(here, in, numbers, moments, in, out, numbers));
  expect(dice_average(here, moments, 0.5F, moments));
  double loss = 0;
  expect(logistic_loss_forward(here, in, in, loss));
  expect(logistic_loss_backward(here, in, in, out));
  const array_view<float> lengths(floats, n);
  expect(normalize_rows_forward(here, in, out, lengths));
  expect(normalize_rows_backward(here, in, lengths, in, out));
  expect(in_batch_softmax_forward(here, in, {}, array_view<const std::int64_t>(ids, n), loss));
  expect(in_batch_softmax_backward(here, in, lengths, {}, 1, out));
  auc area;
  log_loss losses;
  grouped_auc of_groups;
  calibration ratio;
  expect(area.add(in, in));
  expect(losses.add(in, in));
  expect(of_groups.add(in, in, array_view<const std::int64_t>(ids, n)));
  expect(ratio.add(in, in));
  mlp<> model({n, n, 1}, mlp_output{}, counter_rng(1));
  expect(model.forward(here, in));
  expect(model.backward(here, in, compute_input_gradient{}));
  expect(model.step(here, adam{}));
  expect(apply_rows(here, in, adam{}, out, out));
  expect(global_norm(here, std::vector<matrix_view<const float>>{in}, loss));
  sparse_batch batch;
  failures += !parse_text(criteo_format{}, "0\t1", batch) + !parse_text(libsvm_format{}, "1 2:3", batch) +
              !parse_text(feasign_format({2}), "0 3:2", batch) +
              !parse_text(key_value_format{}, "0 a:1", batch);
  auto reader = read_text(here, criteo_format{}, "0\t1").value();
  failures += !reader.next(batch, n);
  failures += explain_gemm({}, in, in, out).empty();
  const named_table named[] = {name_table("table", table.view())};
  const const_named_table read_only[] = {name_table("table", table.view())};
  failures += !save_tables("tables", read_only) + !load_tables("tables", named) + !describe_file("tables");
  return failures +
         static_cast<int>(area.value() + losses.value() + of_groups.value() + ratio.value() + loss);
}
