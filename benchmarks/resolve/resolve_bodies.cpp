// One training step of 26 one-hot features, D = 16, tables of 24 to 4 M rows: lookup and row-wise Adagrad.
// Rows are resolved once for both.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <vector>

#include "support/bodies.hpp"
#include "support/ctr_features.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

template <int Batch>
struct step {
  static constexpr index_t width = 16, features = 26, parts = 65536 / Batch;
  static constexpr double items = double(Batch) * features;

  explicit step(const host& h)
      : ids(ids_of_features<Batch>(h, features, parts)),
        gradient(h.memory<float>("gradient", Batch * features * width,
                                 [](float* to, index_t n) {
                                   for (index_t i = 0; i < n; ++i)
                                     to[i] = draw_float(10, static_cast<std::uint64_t>(i)) / 2;
                                 })),
        out(h.memory<float>("out", Batch * features * width)),
        turn(h, parts) {
    for (index_t t = 0; t < features; ++t) all += rows_of(t);
    table = h.memory<std::byte>("tables", all * format.stride_bytes());
    index_t before = 0;
    for (index_t t = 0; t < features; ++t) {
      const table_view<f32_rows> rows(table + before * format.stride_bytes(), rows_of(t), format);
      group.add(rows, combiner::sum);
      before += rows_of(t);
    }
    bags.resize(features);
  }

  void run() {
    const std::int64_t* const from = ids + turn.next() * features * Batch;
    for (index_t t = 0; t < features; ++t) {
      bags[static_cast<std::size_t>(t)] = {from + t * Batch, Batch, 1};
    }
    const matrix_view<float> to(out, index_t{Batch}, features * width);
    const matrix_view<const float> slope(gradient, index_t{Batch}, features * width);
    const auto rows = resolve(executor, group, bags);
    must(rows ? status() : status(rows.fault()));
    must(lookup(executor, rows.value(), to));
    must(update(executor, rows.value(), slope, rowwise_adagrad{}));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, Batch * features * width) +
           checksum_of(table, index_t{4096} * format.stride_bytes());
  }

  const f32_rows format{width, {.state_floats = 1}};
  std::int64_t* ids;
  float *gradient, *out;
  std::byte* table = nullptr;
  index_t all = 0;
  turns turn;
  feature_group<rowwise_adagrad, fixed_hotness_view<>> group;
  std::vector<fixed_hotness_view<>> bags;
  inline_executor executor;
};

}  // namespace

DEEPREC_BODIES(body<step<2048>>("resolve/step/batch:2048", "row"))
