// Pooled lookups: rows that no cache holds, rows that one holds, and calls so small that the call itself
// counts.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <type_traits>
#include <vector>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

/// Bags of Hotness uniform ids. Rows: of how many (0: of more than the caches hold); Threads: 0, the caller
/// alone.
template <class Element, int Width, int Hotness, int Rows = 0, int Threads = 0, bool Weighted = false>
struct pooled {
  static constexpr index_t ids = 20480 / Hotness * Hotness;
  static constexpr index_t bags = ids / Hotness;
  static constexpr double items = ids;

  explicit pooled(const host& h)
      : rows(Rows != 0 ? Rows : cold_bytes() / format.row_bytes()),
        parts(std::max<index_t>(4, (Rows != 0 ? 0 : cold_bytes()) / (ids * format.row_bytes()))),
        table(h.memory<char>("table", rows * format.row_bytes(), fill_rows)),
        all(h.memory<std::int64_t>("ids", parts * ids,
                                   [&](std::int64_t* to, index_t n) {
                                     for (index_t k = 0; k < n; ++k) {
                                       to[k] = draw_below(2, static_cast<std::uint64_t>(k), rows);
                                     }
                                   })),
        offsets(h.memory<std::int64_t>("offsets", bags + 1,
                                       [](std::int64_t* to, index_t n) {
                                         for (index_t b = 0; b < n; ++b) to[b] = b * Hotness;
                                       })),
        weights(!Weighted ? nullptr
                          : h.memory<float>("weights", ids,
                                            [](float* to, index_t n) {
                                              for (index_t k = 0; k < n; ++k)
                                                to[k] =
                                                    0.5F + draw_float(3, static_cast<std::uint64_t>(k)) / 4;
                                            })),
        out(h.memory<float>("out", bags * Width)),
        turn(h, parts) {}

  void run() {
    const const_table_view<plain_rows<Element>> from(reinterpret_cast<const std::byte*>(table), rows, format);
    const jagged_view<> batch(offsets, bags, all + turn.next() * ids, ids, weights);
    must(lookup(executor, from, batch, combiner::sum, matrix_view(out, bags, index_t{Width})));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, bags * Width);
  }

  const plain_rows<Element> format{index_t{Width}};
  index_t rows, parts;
  char* table;
  std::int64_t *all, *offsets;
  float *weights, *out;
  turns turn;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

template <int Width, int Hotness>
using cold = pooled<float, Width, Hotness>;

/// One bag of one id in each call, of a table in the cache.
struct calls {
  static constexpr index_t many = 1024, rows = 4096, width = 16;
  static constexpr double items = many;

  explicit calls(const host& h)
      : table(h.memory<char>("table", rows * width * 4, fill_rows)),
        out(h.memory<float>("out", width * many)) {}
  void run() {
    const const_table_view<f32_rows> from(reinterpret_cast<const std::byte*>(table), rows, f32_rows(width));
    const std::int64_t offsets[] = {0, 1};
    for (index_t c = 0; c < many; ++c) {
      const std::int64_t id = c * 37 % rows;
      must(lookup(here, from, jagged_view<>(offsets, 1, &id, 1), combiner::sum,
                  matrix_view(out + c * width, 1, width)));
    }
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, width * many);
  }
  char* table;
  float* out;
  inline_executor here;
};

}  // namespace

DEEPREC_BODIES(body<cold<16, 20>>("lookup/cold/d:16", "row"), body<cold<64, 20>>("lookup/cold/d:64", "row"),
               body<cold<64, 100>>("lookup/cold/d:64/hotness:100", "row"),
               body<cold<17, 20>>("lookup/cold/d:17", "row"), body<cold<128, 20>>("lookup/cold/d:128", "row"),
               body<cold<128, 1>>("lookup/onehot/d:128", "row"),
               body<cold<64, 1>>("lookup/onehot/d:64", "row"),
               body<pooled<f16, 64, 20>>("lookup/cold/f16/d:64", "row"),
               body<pooled<bf16, 64, 20>>("lookup/cold/bf16/d:64", "row"),
               body<pooled<float, 64, 20, 0, 2>>("lookup/cold/d:64/threads:2", "row", 2),
               body<pooled<float, 64, 20, 4096>>("lookup/warm/d:64", "row"),
               body<pooled<float, 64, 20, 4096, 0, true>>("lookup/warm/weights/d:64", "row"),
               body<calls>("lookup/calls", "call"))
