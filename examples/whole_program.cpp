// Text to a trained and saved model. A batch stays where the reader wrote it: its ids go to lookup uncopied.
//
//   log.tsv ──> [read: sparse_batch] ──2 leases──> [train: lookup, MLP, loss, update] ──> log.model
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <fstream>
#include <optional>
#include <vector>

using namespace deeprec;

// A click log in Criteo's format, where two tokens decide most of the clicks.
void write_log(const std::string& path, std::uint64_t rows) {
  std::ofstream text(path);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const auto draw = [&](std::uint64_t c, int n) { return int(counter_rng(7).uniform(c, i) * n); };
    const bool clicked = (draw(14, 20) < 7) != (draw(15, 20) < 7);
    text << (draw(0, 10) > 0 ? clicked : !clicked);
    for (std::uint64_t c = 1; c <= 13; ++c) text << '\t' << draw(c, 100);
    for (std::uint64_t c = 14; c <= 39; ++c) text << "\ttoken" << draw(c, 20);
    text << '\n';
  }
}

int main() {
  const std::string name = "whole_program_" + std::to_string(::getpid());
  write_log(name + ".tsv", 20'000);
  constexpr index_t width = 8, rows = 1000, dense = 13, features = 26, batch_size = 200;
  thread_pool pool;
  inline_executor reading;  // the reader has a thread of its own, and needs no more
  dense_table<f32_rows> table(features * rows, width, state_of<rowwise_adagrad>);
  table.initialize(pool, row_init::uniform{.seed = 1, .bound = 0.05F});
  feature_group<rowwise_adagrad> group;
  for (index_t f = 0; f < features; ++f)
    group.add(table_view<f32_rows>(table.view().row(f * rows), rows, table.view().format()), combiner::sum);
  mlp<> stack({dense + features * width, 64, 1}, mlp_output::linear, counter_rng(1));
  std::vector<float> input(batch_size * stack.size(0)), slope(batch_size);
  std::vector<jagged_view<>> bags(features);
  const criteo_format format{.rows = criteo_format::same_size(rows)};
  std::optional<decltype(read_files(reading, format, {name}))> reader;
  staging_pool<sparse_batch> batches(4);
  using lease = staging_pool<sparse_batch>::lease;
  double loss = 0, sum = 0;

  const auto read = [&]() -> result<std::optional<lease>> {
    lease batch = batches.acquire();
    const auto got = reader->value().next(*batch, batch_size);
    if (!got) return got.fault();
    return got.value() > 0 ? std::optional(std::move(batch)) : std::nullopt;
  };
  const auto train = [&](lease& batch) {
    const index_t n = batch->rows();
    const matrix_view<float> x(input.data(), n, stack.size(0)), gradient(slope.data(), n, 1);
    const matrix_view<const float> labels(batch->labels().data(), n, 1);
    for (index_t f = 0; f < features; ++f) bags[f] = batch->feature(f);
    auto rows_of_batch = resolve(pool, group, std::span<const jagged_view<>>(bags)).or_throw();
    lookup(pool, rows_of_batch, x.columns(dense, features * width)).or_throw();
    for (index_t i = 0; i < n * dense; ++i)
      x(i / dense, i % dense) = batch->dense()(i / dense, i % dense) / 100;
    stack.forward(pool, x).or_throw();
    logistic_loss_forward(pool, stack.output(), labels, loss).or_throw();
    sum += loss * static_cast<double>(n);
    logistic_loss_backward(pool, stack.output(), labels, gradient).or_throw();
    stack.backward(pool, gradient).or_throw();
    const matrix_view<const float> to_rows = stack.input_gradient().columns(dense, features * width);
    update(pool, rows_of_batch, to_rows, rowwise_adagrad{.learning_rate = 0.05F}).or_throw();
    stack.step(pool, adagrad{.learning_rate = 0.02F}).or_throw();
  };
  pipeline epoch(pool, source("read", read) | sink("train", train).own_thread(), {.capacity = 2});
  for (int e = 1; e <= 3; ++e, sum = 0) {
    reader.emplace(read_files(reading, format, {name + ".tsv"}));
    epoch.run().or_throw();
    std::printf("epoch %d: log loss %.2f\n", e, sum / 20'000);
  }
  const const_named_table parts[] = {name_table("rows", table.view()),
                                     name_table("stack", as_table(stack.parameters()))};
  save_tables(name + ".model", parts).or_throw();
  for (const char* end : {".tsv", ".model"}) std::remove((name + end).c_str());
}
