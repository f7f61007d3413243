// Canonical calls of the public templates, so that warnings inside of them come out under the flags of
// the header tests. Compiled, never run. Types and policies are paired so that each value of each is
// there with small and large neighbours; the full product would take minutes.

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/deeprec.hpp>
#include <deeprec/dense/dot_interaction.hpp>
#include <deeprec/dense/logistic_loss.hpp>
#include <deeprec/dense/metrics.hpp>
#include <deeprec/dense/mlp.hpp>
#include <deeprec/dense/relu.hpp>

#include <cstdint>
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
  (expect(update(executor, bags, gradient, how, optimizers, table.view())), ...);
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
  const jagged_view small(i32, n, i32, n, floats);
  const jagged_view large(i64, n, i64, n);
  const jagged_view<std::uint64_t, std::uint32_t> unsigned_ids(u32, n, u64, n, floats);
  const jagged_view<std::uint32_t, std::uint64_t> unsigned_offsets(u64, n, u32, n);
  expect(small.validate());
  expect(unsigned_ids.slice(1, 2).validate());
  expect(unsigned_offsets.validate());

  thread_pool pool(thread_pool_options{.threads = 2, .pin = pinning::one_each});
  const inline_executor here;
  context ctx{pool};
  huge_page_resource huge(explicit_pages::try_);
  ctx.memory = &huge;
  pool.parallel_for(n, 4, [](index_t, index_t, int) {});
  pool.post([](std::stop_token) {});
  pool.wait_tasks();
  prefault(pool, floats, sizeof(float));
  failures += huge.report().mapped > 0;

  // Tables and lookups.
  dense_table<f32_rows> f32(n, f32_rows(n, {.state_floats = 2 * n}));
  dense_table<f16_rows> f16s(n, f16_rows(n, {.state_floats = 1}), &huge);
  dense_table<bf16_rows> bf16s(n, n);
  dense_table<plain_rows<float, dim<16>>> fixed(n, dim<16>());
  f32.initialize(ctx, uniform_rows{});
  f16s.initialize(here, normal_rows{});
  bf16s.initialize(pool, zero_rows{});
  const matrix_view out(floats, n, n);
  const matrix_view narrow(reinterpret_cast<bf16*>(floats), n, n);
  const matrix_view half(reinterpret_cast<f16*>(floats), n, n);
  index_t skipped = 0;
  lookups(pool, f32.view(), large, out, sum, mean, mean(by_weight), pooling{sum, skip(skipped)},
          pooling{mean, skip}, pooling{mean(by_weight), skip}, pooling{sum, assume_valid},
          pooling{mean, assume_valid}, pooling{mean(by_weight), assume_valid});
  lookups(pool, f16s.view(), small, out, sum, pooling{mean(by_weight), skip});
  lookups(here, bf16s.view(), unsigned_ids, narrow, mean, pooling{sum, assume_valid});
  lookups(here, bf16s.view(), unsigned_offsets, narrow, pooling{mean(by_weight), skip});
  lookups(here, fixed.view(), small, half, mean(by_weight));
  lookups(pool, as_table(out), large, out, sum);
  lookups(ctx, resolving_source{f32.view()}, unsigned_ids, out, sum);

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
  int8s.initialize(pool, zero_rows{});
  lookups(pool, int8s.view(), small, out, sum);
  lookups(pool, int4s.view(), large, half, mean);
  lookups(ctx, e4m3s.view(), large, out, sum);
  lookups(here, splits.view(), large, out, sum);
  failures += high_halves(splits.view()).rows() < 0;

  updates(pool, f32, large, out, sum, sgd{}, rowwise_adagrad{}, adagrad{}, own_optimizer{});
  updates(ctx, f16s, small, out, mean, sgd{}, rowwise_adagrad{});
  updates(here, bf16s, unsigned_ids, out, pooling{mean(by_weight), skip(skipped)}, adagrad{});
  updates(here, fixed, unsigned_offsets, out, pooling{sum, assume_valid}, rowwise_adagrad{});
  apply_row(own_optimizer{}, narrow.row(0), floats, floats, n);

  // Dense layers.
  const matrix_view<const float> in = out;
  mlp<> model({n, n, 1}, mlp_output{}, counter_rng(1));
  expect(model.forward(pool, in));
  expect(model.backward(pool, in, input_gradient{}));
  expect(model.step(here, sgd{}));
  expect(model.step(here, adagrad{}));
  expect(gemm(ctx, {.a = gemm_operand::transposed}, in, in, out));
  expect(linear_forward(here, in, in, in, out));
  expect(linear_backward(here, in, in, in, out, out, out));
  expect(relu_forward(pool, in, out));
  expect(relu_backward(pool, in, in, out));
  expect(dot_interaction_forward(pool, in, in, out));
  expect(dot_interaction_backward(pool, in, in, in, out, out));
  double loss = 0;
  expect(logistic_loss_forward(pool, in, in, loss));
  expect(logistic_loss_backward(here, in, in, out));
  auc area;
  log_loss losses;
  expect(area.add(in, in));
  expect(losses.add(in, in));
  failures += area.value() > 0.5 && losses.value() > loss;

  // Tensor operators.
  const bool flags[] = {true, false};
  expect(row_select(pool, std::vector<std::uint8_t>(16), in, out, out));
  expect(row_select(ctx, flags, half, half, matrix_view(half.data_handle(), n, dim<8>())));

  // Readers.
  const std::string_view text(static_cast<const char*>(memory), static_cast<std::size_t>(n));
  read(pool, criteo_format{}, text);
  read(here, feasign_format(slot_range(2, n)), text);
  read(ctx, libsvm_format{}, text);
  read(pool, key_value_format{}, text);

  failures += static_cast<int>(hash_bytes(text, mix64(7)) % 2);
  return failures;
}
