// Backward pass and optimizer step in one: batches of 512 bags of 20 ids over 1.5 M rows.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <type_traits>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

enum class ids_are { uniform, skewed };

template <class Optimizer, int Width, ids_are Kind = ids_are::uniform, int Threads = 0>
struct trained {
  static constexpr index_t rows = 1'500'000, bags = 512, hotness = 20, ids = bags * hotness, parts = 96;
  static constexpr double items = ids;

  explicit trained(const host& h)
      : all(h.memory<std::int64_t>("ids", parts * ids,
                                   [](std::int64_t* to, index_t n) {
                                     for (index_t k = 0; k < n; ++k) {
                                       const auto i = static_cast<std::uint64_t>(k);
                                       to[k] = Kind == ids_are::uniform ? draw_below(9, i, rows)
                                                                        : draw_skewed(9, i, rows);
                                     }
                                   })),
        gradient(h.memory<float>("gradient", bags * Width,
                                 [](float* to, index_t n) {
                                   for (index_t i = 0; i < n; ++i)
                                     to[i] = draw_float(10, static_cast<std::uint64_t>(i)) / 2;
                                 })),
        table(h.memory<std::byte>("table", rows * format.stride_bytes())),
        turn(h, parts) {}

  void run() {
    const fixed_hotness_view<> batch(all + turn.next() * ids, bags, hotness);
    const table_view<f32_rows> into(table, rows, format);
    const matrix_view<const float> slope(gradient, bags, Width);
#if __has_include(<deeprec/plan/effects.hpp>)
    must(update(executor, into, batch, combiner::sum, slope, Optimizer{}));
#else  // the table came last
    must(update(executor, batch, slope, combiner::sum, Optimizer{}, into));
#endif
  }
  std::uint64_t checksum() {
    run();
    std::uint64_t sum_of_rows = 0;
    for (index_t k = 0; k < ids; ++k) {
      sum_of_rows += checksum_of(table + all[k] * format.stride_bytes(), format.stride_bytes());
    }
    return sum_of_rows;
  }

  const f32_rows format{index_t{Width},
                        {.state_floats = Optimizer::row_state + Optimizer::element_state * Width}};
  std::int64_t* all;
  float* gradient;
  std::byte* table;
  turns turn;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

}  // namespace

DEEPREC_BODIES(
    body<trained<rowwise_adagrad, 64>>("update/rowwise_adagrad/d:64", "id"),
    body<trained<rowwise_adagrad, 24>>("update/rowwise_adagrad/d:24", "id"),
    body<trained<sgd, 64>>("update/sgd/d:64", "id"), body<trained<adagrad, 64>>("update/adagrad/d:64", "id"),
    body<trained<adam, 64>>("update/adam/d:64", "id"),
    body<trained<rowwise_adagrad, 64, ids_are::skewed>>("update/skewed/d:64", "id"),
    body<trained<rowwise_adagrad, 64, ids_are::uniform, 2>>("update/rowwise_adagrad/d:64/threads:2", "id", 2))
