// 26 tables in one call, looked up or updated: as many one-hot features, D = 16, tables of 24 to 4 M rows.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <type_traits>
#include <vector>

#include "support/bodies.hpp"
#include "support/ctr_features.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

template <int Batch, int Threads = 0>
struct grouped {
  static constexpr index_t width = 16, features = 26, parts = 65536 / Batch;
  static constexpr double items = double(Batch) * features;

  explicit grouped(const host& h)
      : ids(ids_of_features<Batch>(h, features, parts)),
        offsets(h.memory<std::int64_t>("offsets", Batch + 1,
                                       [](std::int64_t* to, index_t n) {
                                         for (index_t b = 0; b < n; ++b) to[b] = b;
                                       })),
        out(h.memory<float>("out", Batch * features * width)),
        turn(h, parts) {
    index_t all = 0;
    for (index_t t = 0; t < features; ++t) all += rows_of(t);
    char* const table = h.memory<char>("tables", all * width * 4, fill_rows);
    index_t before = 0;
    for (index_t t = 0; t < features; ++t) {
      group.add(const_table_view<f32_rows>(reinterpret_cast<const std::byte*>(table) + before * width * 4,
                                           rows_of(t), f32_rows(width)),
                combiner::sum);
      before += rows_of(t);
    }
    bags.resize(features);
  }

  void run() {
    const std::int64_t* const from = ids + turn.next() * features * Batch;
    for (index_t t = 0; t < features; ++t) {
      bags[static_cast<std::size_t>(t)] = {offsets, Batch, from + t * Batch, Batch};
    }
    must(lookup(executor, group, bags, matrix_view(out, index_t{Batch}, features * width)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, Batch * features * width);
  }

  std::int64_t *ids, *offsets;
  float* out;
  turns turn;
  feature_group<> group;
  std::vector<jagged_view<>> bags;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

template <int Batch, int Threads = 0>
struct trained {
  static constexpr index_t width = 16, features = 26, parts = 65536 / Batch;
  static constexpr double items = double(Batch) * features;

  explicit trained(const host& h)
      : ids(ids_of_features<Batch>(h, features, parts)),
        gradient(h.memory<float>("gradient", Batch * features * width,
                                 [](float* to, index_t n) {
                                   for (index_t i = 0; i < n; ++i)
                                     to[i] = draw_float(10, static_cast<std::uint64_t>(i)) / 2;
                                 })),
        turn(h, parts) {
    index_t all = 0;
    for (index_t t = 0; t < features; ++t) all += rows_of(t);
    table = h.memory<std::byte>("tables", all * format.stride_bytes());
    index_t before = 0;
    for (index_t t = 0; t < features; ++t) {
      group.add(table_view<f32_rows>(table + before * format.stride_bytes(), rows_of(t), format),
                combiner::sum);
      before += rows_of(t);
    }
    bags.resize(features);
  }

  void run() { step(ids + turn.next() * features * Batch); }
  void step(const std::int64_t* from) {
    for (index_t t = 0; t < features; ++t) {
      bags[static_cast<std::size_t>(t)] = fixed_hotness_view<>(from + t * Batch, Batch, 1);
    }
    must(update(executor, group, bags, matrix_view<const float>(gradient, Batch, features * width),
                rowwise_adagrad{}));
  }
  std::uint64_t checksum() {
    step(ids);
    std::uint64_t sum_of_rows = 0;
    std::byte* first = table;
    for (index_t t = 0; t < features; ++t) {
      for (index_t k = 0; k < Batch; ++k) {
        sum_of_rows += checksum_of(first + ids[t * Batch + k] * format.stride_bytes(), format.stride_bytes());
      }
      first += rows_of(t) * format.stride_bytes();
    }
    return sum_of_rows;
  }

  const f32_rows format{width, {.state_floats = rowwise_adagrad::row_state}};
  std::int64_t* ids;
  float* gradient;
  std::byte* table;
  turns turn;
  feature_group<rowwise_adagrad, fixed_hotness_view<>> group;
  std::vector<fixed_hotness_view<>> bags;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

}  // namespace

DEEPREC_BODIES(body<grouped<16>>("table_group/batch:16", "row"),
               body<grouped<128>>("table_group/batch:128", "row"),
               body<grouped<2048>>("table_group/batch:2048", "row"),
               body<grouped<2048, 2>>("table_group/batch:2048/threads:2", "row", 2),
               body<trained<2048>>("table_group/update/batch:2048", "row"),
               body<trained<2048, 2>>("table_group/update/batch:2048/threads:2", "row", 2))
