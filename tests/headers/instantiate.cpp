// Canonical calls of the public templates, so that warnings inside of them come out under the flags of
// the header tests. Compiled, never run. Types and policies are paired so that each value of each is
// there with small and large neighbours; the full product would take minutes.

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/deeprec.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/attention_features.hpp>
#include <deeprec/dense/layers/attention_pool.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/layers/normalize_rows.hpp>
#include <deeprec/dense/layers/relu.hpp>
#include <deeprec/dense/losses/in_batch_softmax.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/calibration.hpp>
#include <deeprec/dense/metrics/grouped_auc.hpp>
#include <deeprec/dense/metrics/metrics.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace deeprec;

namespace {

// A table that finds its rows by itself: the other way in which lookups read.
struct resolving_source {
  using format_type = f32_rows;
  using space = host_space;
  const_table_view<f32_rows> table;
  const f32_rows& format() const { return table.format(); }
  index_t rows() const { return table.rows(); }
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k) addresses[k] = table.row(static_cast<index_t>(ids[k]));
  }
};

struct own_optimizer {
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  struct step {
    float operator()(float weight, float gradient, float& velocity, float& count) const {
      velocity += gradient;
      count += 1;
      return weight - velocity / count;
    }
  };
  step begin_row(float*, float) const { return {}; }
};

// A wrapper of a user's own, with a stage on floats.
template <class O>
struct own_wrapper {
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool needs_norm = true;
  struct stage {
    void operator()(float& weight, float& gradient) const { gradient -= weight; }
  };
  O optimizer;
  stage begin_transform(float) const { return {}; }
};

int failures = 0;
void expect(const status& s) { failures += !s.ok(); }

template <class Executor, class Source, class Id, class Offset, class Out, class... Poolings>
void lookups(Executor& executor, const Source& table, const jagged_view<Id, Offset>& bags,
             matrix_view<Out> out, const Poolings&... how) {
  (expect(lookup(executor, table, bags, how, out)), ...);
}

template <class Executor, class Format, class Id, class Offset, class Pooling, class... Optimizers>
void updates(Executor& executor, dense_table<Format>& table, const jagged_view<Id, Offset>& bags,
             matrix_view<float> gradient, const Pooling& how, const Optimizers&... optimizers) {
  (expect(update(executor, table.view(), bags, how, gradient, optimizers)), ...);
}

template <class Executor, class Batch, class Strategy, class Out>
void stages(Executor& executor, const Batch& batch, const Strategy& how, matrix_view<Out> out) {
  using id_type = typename Batch::id_type;
  jagged_batch<id_type> valid, filled;
  index_t dropped = 0;
  std::vector<std::uint8_t> empty(static_cast<std::size_t>(batch.bags()));
  expect(prune_invalid(executor, batch, prune_rule::by_id, valid, dropped));
  expect(prune_invalid(executor, valid.view(), prune_rule::by_id_and_weight, filled, dropped));
  expect(fill_empty_bags(executor, valid.view(), id_type{0}, filled, empty));
  unique_ids<id_type, std::int32_t> different;
  expect(unique(executor, filled.ids, different));
  unique_parts<id_type, std::int32_t> of_owners;
  expect(partition_unique(executor, filled.ids, owner_by_modulo(2), of_owners));
  partitioned_ids<id_type> parts;
  expect(partition(executor, different.ids, out.extent(0), 2, how, parts));
  expect(partition(executor, different.ids, out.extent(0), 2, how, bounds::skip(dropped), parts));
  std::vector<std::int32_t> offsets(empty.size() + 1), numbers(filled.ids.size()), counts(numbers),
      spare(numbers), of_parts(3);
  std::vector<id_type> some_ids(numbers.size());
  const jagged_out<id_type, std::int32_t> given{offsets, some_ids, {}};
  expect(prune_invalid(executor, batch, prune_rule::by_id, given));
  expect(fill_empty_bags(executor, valid.view(), id_type{0}, given, empty));
  expect(unique(executor, filled.ids,
                unique_out<id_type, std::int32_t>{some_ids, numbers, counts, {&dropped, 1}}));
  const std::vector<std::uint16_t> owner_of(owner_by_slots::slots);
  expect(partition_unique(executor, filled.ids, owner_by_slots{owner_of, 2},
                          unique_parts_out<id_type, std::int32_t>{some_ids, of_parts, numbers, counts}));
  expect(partition(executor, different.ids, out.extent(0), 2, how, bounds::check,
                   partition_out<id_type, std::int32_t>{numbers, spare, of_parts, some_ids}));
  const auto table = as_table(out);
  expect(gather(executor, table, different.ids, out));
  expect(gather(executor, std::vector(2, table), parts, out));
  const jagged_view<std::int32_t, index_t> bags(filled.offsets.data(), filled.bags(),
                                                different.inverse.data(), filled.id_count());
  expect(combine(executor, out, bags, combiner::sum, out));
}

template <class Executor, class Format>
void read(Executor& executor, const Format& format, std::string_view text) {
  sparse_batch batch;
  auto files = read_files(executor, format, {std::string(text)});
  if (files && !files.value().next(batch, 16)) ++failures;
  auto memory = read_text(executor, format, text);
  if (memory && !memory.value().next(batch, 16)) ++failures;
  if (!parse_text(format, text, batch)) ++failures;
}

}  // namespace

int deeprec_instantiate(const void* memory, float* floats, index_t n);
int deeprec_instantiate(const void* memory, float* floats, index_t n) {
  const auto* i64 = static_cast<const std::int64_t*>(memory);
  const auto* i32 = static_cast<const std::int32_t*>(memory);
  const auto* u64 = static_cast<const std::uint64_t*>(memory);
  const auto* u32 = static_cast<const std::uint32_t*>(memory);
  dense_table<bf16_rows> kept(4, bf16_rows(3, {.state_floats = 1}));
  const named_table named[] = {name_table("rows", kept.view()),
                               name_table("weights", as_table(matrix_view<float>(floats, 1, n)))};
  const const_named_table read_only[] = {named[0], name_table("own", std::as_const(kept).view(), "own")};
  failures += !save_tables("tables", read_only, {.step = 1, .numbers = {{"rate", 0.5}, {"seed", n}}});
  failures += !load_tables("tables", named) || !describe_file("tables");
  const jagged_view small(i32, n, i32, n, floats);
  const jagged_view large(i64, n, i64, n);
  const jagged_view<std::uint64_t, std::uint32_t> unsigned_ids(u32, n, u64, n, floats);
  const jagged_view<std::uint32_t, std::uint64_t> unsigned_offsets(u64, n, u32, n);
  expect(small.validate());
  expect(unsigned_ids.slice(1, 2).validate());
  expect(unsigned_offsets.validate());

  thread_pool pool(thread_pool_options{.threads = 2, .pin = thread_pool_options::pinning::one_each});
  const inline_executor here;
  context ctx{pool};
  huge_page_resource huge(huge_page_resource::explicit_pages::try_);
  ctx.memory = &huge;
  pool.parallel_for(n, 4, [](index_t, index_t, int) {});
  expect(pool.post([](const std::stop_token&) {}));
  expect(here.post([](const std::stop_token&) {}));
  task_handle handle;
  expect(pool.post([](const std::stop_token&) { return status(); }, {}, handle));
  expect(handle.join());
  expect(here.post([] {}, {}, handle));
  expect(handle.join());
  pool.wait_tasks();
  prefault(pool, floats, sizeof(float));
  failures += huge.report().mapped > 0;
  slab_resource slab(n, {.memory = &huge});
  slab.deallocate(slab.allocate(1, 1), 1, 1);
  allocation_log log;
  logging_resource logged(log, &slab);
  counting_resource counted_memory(&logged);
  failures += replay(log, counted_memory) > 0;
  auto mapped = mapped_table<f32_rows>::open("", n, n, state_of<adagrad>).or_throw();
  failures += !mapped.close();

  // Tables and lookups.
  dense_table<f32_rows> f32(n, f32_rows(n, {.state_floats = 2 * n}));
  dense_table<f16_rows> f16s(n, f16_rows(n, {.state_floats = 1}), &huge);
  dense_table<bf16_rows> bf16s(n, n);
  dense_table<f32_rows> fixed(n, 16);
  f32.initialize(ctx, row_init::uniform{});
  f16s.initialize(here, row_init::normal{});
  bf16s.initialize(pool, row_init::zeros{});
  const matrix_view out(floats, n, n);
  const matrix_view narrow(reinterpret_cast<bf16*>(floats), n, n);
  const matrix_view half(reinterpret_cast<f16*>(floats), n, n);
  index_t skipped = 0;
  lookups(pool, f32.view(), large, out, combiner::sum, combiner::mean, combiner::mean(combiner::by_weight),
          pooling{combiner::sum, bounds::skip(skipped)}, pooling{combiner::mean, bounds::skip},
          pooling{combiner::mean(combiner::by_weight), bounds::skip},
          pooling{combiner::sum, bounds::assume_valid}, pooling{combiner::mean, bounds::assume_valid},
          pooling{combiner::mean(combiner::by_weight), bounds::assume_valid});
  lookups(pool, f16s.view(), small, out, combiner::sum,
          pooling{combiner::mean(combiner::by_weight), bounds::skip});
  lookups(here, bf16s.view(), unsigned_ids, narrow, combiner::mean,
          pooling{combiner::sum, bounds::assume_valid});
  lookups(here, bf16s.view(), unsigned_offsets, narrow,
          pooling{combiner::mean(combiner::by_weight), bounds::skip});
  lookups(here, fixed.view(), small, half, combiner::mean(combiner::by_weight));
  lookups(pool, as_table(out), large, out, combiner::sum);
  lookups(ctx, resolving_source{f32.view()}, unsigned_ids, out, combiner::sum);

  // Other row formats.
  dense_table<int8_rows> int8s(n, n);
  dense_table<quantized_rows<8, f16>> table_batched(n, {n, {.place = scale_bias::first}});
  dense_table<int4_rows> int4s(n, n);
  dense_table<e4m3_rows> e4m3s(n, n);
  dense_table<split_bf16_rows> splits(n, split_bf16_rows(n, {.state_floats = 1}));
  const matrix_view<const float> source = out;
  expect(quantize(pool, out, int8s.view()));
  expect(quantize(here, source, table_batched.view()));
  expect(quantize(ctx, source, int4s.view()));
  expect(quantize(ctx, source, e4m3s.view()));
  expect(quantize(ctx, source, splits.view()));
  expect(dequantize(pool, int4s.view(), out));
  int8s.initialize(pool, row_init::zeros{});
  lookups(pool, int8s.view(), small, out, combiner::sum);
  lookups(pool, int4s.view(), large, half, combiner::mean);
  lookups(ctx, e4m3s.view(), large, out, combiner::sum);
  lookups(here, splits.view(), large, out, combiner::sum);
  failures += high_halves(splits.view()).rows() < 0;

  updates(pool, f32, large, out, combiner::sum, sgd{}, rowwise_adagrad{}, adagrad{}, own_optimizer{});
  updates(ctx, f16s, small, out, combiner::mean, sgd{}, rowwise_adagrad{});
  updates(here, bf16s, unsigned_ids, out, pooling{combiner::mean(combiner::by_weight), bounds::skip(skipped)},
          adagrad{});
  updates(here, fixed, unsigned_offsets, out, pooling{combiner::sum, bounds::assume_valid},
          rowwise_adagrad{});
  apply_row(own_optimizer{}, narrow.row(0), floats, floats, n);

  // Optimizers: a few through tables, all through matrices.
  updates(pool, f32, large, out, combiner::sum, adam{}, adagrad_decay{}, clipped_by_norm{ftrl{}, 1.0F});
  const rounding::stochastic at_random{.seed = 1, .step = 2};
  expect(update(pool, bf16s.view(), large, combiner::sum, out, adamw(adam{}, 0.1F), at_random));
  expect(update(here, f16s.view(), small, combiner::mean, out, own_optimizer{}, at_random));
  const auto steps = [&](const auto&... optimizers) {
    (expect(apply_rows(ctx, matrix_view<const float>(out), optimizers, out, out)), ...);
    (apply_row(optimizers, floats, floats, floats, n), ...);
  };
  steps(sgd{}, momentum{}, adagrad{}, rowwise_adagrad{}, adagrad_decay{}, rmsprop{}, centered_rmsprop{},
        adam{}, rowwise_adam{}, adam_async{}, adam_async_rmsprop{}, ftrl{}, own_optimizer{});
  steps(with_gradient_scale{rowwise_adam{}, 2.0F}, clipped_by_value{momentum{}, 1.0F},
        with_weight_decay{rmsprop{}, 0.1F}, with_decoupled_decay{clipped_by_norm{sgd{}, 1.0F}, 0.1F},
        own_wrapper<adam>{});
  expect(apply_rows(pool, matrix_view<const float>(out), adam{}, half, out, at_random));
  apply_row(adagrad{}, narrow.row(0), floats, floats, n, at_random, n);
  with_weight_decay counted{adam_async{}, 0.1F};
  next_step(counted);
  double norm = 0;
  expect(global_norm(pool, std::vector<matrix_view<const float>>{out, out}, norm));
  floats[0] = clip_factor(norm, 1.0) + constant_rate{}(n) + step_decay{}(n) + cosine_decay{}(n) +
              smooth_exponential_decay{}(n) + static_cast<float>(detail::round_with<bf16>(floats[1], 7));

  // Dense layers.
  const matrix_view<const float> in = out;
  mlp<> model({n, n, 1}, mlp_output{}, counter_rng(1));
  expect(model.forward(pool, in));
  expect(model.backward(pool, in, compute_input_gradient{}));
  expect(model.step(here, sgd{}));
  expect(model.step(here, adagrad{}));
  expect(gemm(ctx, {.a = gemm_operand::transposed}, in, in, out));
  expect(linear_forward(here, in, in, in, out));
  expect(linear_backward(here, in, in, in, out, out, out));
  expect(relu_forward(pool, in, out));
  expect(relu_backward(pool, in, in, out));
  expect(dot_interaction_forward(pool, in, in, out));
  expect(dot_interaction_backward(pool, in, in, in, out, out));
  expect(cross_layer_forward(pool, in, in, in, in, out, out));
  expect(cross_layer_backward(pool, in, in, in, in, in, {out, out, out, out, out}));
  expect(fm_interaction_forward(pool, in, n, out));
  expect(fm_interaction_backward(pool, in, n, in, out));
  const array_view<const std::int64_t> histories(i64, n);
  const array_view<float> numbers(floats, n);
  const dice_statistics<> moments{numbers, numbers};
  expect(attention_features_forward(pool, in, in, histories, out));
  expect(attention_features_backward(pool, in, in, histories, in, {out, out}, gradient_write::add));
  expect(attention_pool_forward(pool, in, in, histories, out));
  expect(attention_pool_forward(pool, in, in, histories, out, out));
  expect(attention_pool_backward(pool, in, in, histories, in, {out, out}));
  expect(dice_forward(pool, in, numbers, moments, out));
  expect(dice_backward(pool, in, numbers, moments, in, out, numbers));
  expect(dice_average(pool, moments, 0.5F, moments));
  double loss = 0;
  expect(logistic_loss_forward(pool, in, in, loss));
  expect(logistic_loss_backward(here, in, in, out));
  expect(logistic_loss_forward(pool, in, in, in, loss));
  expect(logistic_loss_backward(here, in, in, in, out));
  const std::vector<std::int64_t> items(16);
  const array_view<float> lengths(floats, n);
  expect(normalize_rows_forward(pool, in, out, lengths));
  expect(normalize_rows_backward(here, in, lengths, in, out, 1e-6F));
  expect(in_batch_softmax_forward(pool, in, {}, items, loss));
  expect(in_batch_softmax_backward(here, in, lengths, {}, 20, out));
  auc area;
  log_loss losses;
  grouped_auc of_groups;
  calibration ratio;
  expect(area.add(in, in));
  expect(losses.add(in, in));
  expect(of_groups.add(in, in, items));
  expect(ratio.add(in, in, in));
  failures += area.value() > 0.5 && losses.value() > loss && of_groups.value() > ratio.value();

  // Tensor operators.
  const bool flags[] = {true, false};
  expect(row_select(pool, std::vector<std::uint8_t>(16), in, out, out));
  expect(row_select(ctx, flags, half, half, matrix_view(half.data_handle(), n, 8)));
  expect(transpose(pool, in, out));
  expect(tile(here, half, 1, 2, half));
  expect(column_sums(pool, half, array_view<float>()));
  expect(cast(here, in, half));
  expect(evaluate(pool, expr::assign(out, expr::relu(expr::in(in) + 1.0F))));

  // Lookups in stages, and rows that come many times.
  const coo_view<std::int32_t, std::uint32_t> entries(static_cast<const std::uint32_t*>(memory),
                                                      static_cast<const std::int32_t*>(memory), n, n);
  const auto tensor = coo_view<>::tensorflow(static_cast<const std::int64_t*>(memory),
                                             static_cast<const std::int64_t*>(memory), n, n, floats);
  jagged_batch<> bags;
  expect(entries.validate());
  expect(to_jagged(here, tensor, bags));
  stages(pool, entries, partition_strategy::div, out);
  stages(pool, large, partition_strategy::mod, out);
  index_t dropped = 0;
  expect(prune_invalid(here, tensor, prune_rule::by_id, bags, dropped));
  failures += partition_strategy::div_place(n, n, 3) == partition_strategy::mod_place(n, 3);
  unique_rows<std::int32_t> rows;
  expect(dedup_rows(pool, in, rows));
  expect(gather_rows(ctx, in, rows.inverse, out));

  // The same in one pass, many tables in one call, and gradients that are handed out.
  const std::vector<const_table_view<f32_rows>> parts(2, f32.view());
  expect(fused_lookup(pool, partitioned_table(parts, partition_strategy::div), tensor,
                      pooling{combiner::mean, max_norm{1}}, out));
  expect(fused_lookup(here, partitioned_table(parts, partition_strategy::mod), bags.view(),
                      pooling{combiner::sum, empty_bag::default_row{0}}, half));
  feature_group<> group;
  group.add(f32.view(), combiner::sum);
  group.add(f16s.view(), pooling{combiner::max, padding::prune});
  const std::vector<jagged_view<>> of_features(2);
  expect(lookup(executor_ref(pool), group, of_features, out));
  expect(lookup(ctx, group, of_features, std::vector<matrix_view<float>>(2)));
  sparse_gradient of_rows;
  expect(row_gradients(pool, n, bags.view(), combiner::mean, in, of_rows));
  expect(row_gradients(pool, of_rows.rows, bags.view(), combiner::mean, in, out));
  expect(weight_gradients(here, f32.view(), bags.view(), combiner::sqrtn, in, std::span<float>(floats, 8)));

  // Readers.
  const std::string_view text(static_cast<const char*>(memory), static_cast<std::size_t>(n));
  read(pool, criteo_format{}, text);
  read(here, feasign_format(feasign_format::slots(2, n)), text);
  read(ctx, libsvm_format{}, text);
  read(pool, key_value_format{}, text);

  // A pipeline with every way to run and to return.
  index_t next = 0;
  pipeline line(
      ctx,
      deeprec::source(
          "read",
          [&]() -> result<std::optional<index_t>> {
            return next < n ? std::optional<index_t>(next++) : std::nullopt;
          }).bytes([](index_t) { return sizeof(index_t); }) |
          stage("keep", [](index_t k) { return k > 0 ? std::optional(k) : std::nullopt; }) |
          stage("ordered", [](index_t&& k) { return k; }).parallel(2) |
          stage("unordered", [](index_t& k) { ++k; }).parallel(2).unordered() |
          sink("add", [&](index_t k) { return failures += static_cast<int>(k % 2), status(); }).on(pool),
      {.capacity = 1, .max_capacity = 4, .byte_budget = 64, .on_bad_item = bad_items::skip});
  failures += line.run().ok() ? 0 : 1;
  failures += static_cast<int>(line.statistics().text().size() + line.depth_decisions().size());

  // Serving.
  versioned<feature_group<>> models(3);
  failures += models.publish(std::make_unique<feature_group<>>()).ok() ? 0 : 1;
  failures += models.roll_back().ok() ? 1 : 0;
  failures += static_cast<int>(models.collect() + models.statistics().kept);
  session_group turns(2, [](index_t i) { return static_cast<int>(i); });
  session_group by_thread(2, [](index_t i) { return i; }, session_choice::by_thread);
  session_group least_busy(2, [](index_t i) { return i; }, session_choice::least_busy);
  if (const auto session = turns.acquire()) failures += *session;
  if (const auto session = by_thread.acquire(within(std::chrono::seconds(1))))
    failures += models.read() ? 0 : 1;
  if (auto session = least_busy.acquire()) session.give_back();

  failures += static_cast<int>(hash_bytes(text, mix64(7)) % 2);
  return failures;
}
