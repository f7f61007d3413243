// Lookups of entries (row, id, weight): one in each row, rows in order, and all that the fused lookup is for.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

enum class entries_are { one_in_each_row, in_order, untidy, weighted };

/// Batches of entries over a table of 1 M rows, D = 16. Untidy: out of order, one id in 10 invalid, a third
/// of the bags empty, with weights. Weighted: untidy, and means by weight.
template <entries_are Kind, int Batch>
struct fused {
  static constexpr bool tidy = Kind == entries_are::one_in_each_row || Kind == entries_are::in_order;
  static constexpr index_t width = 16, rows = 1 << 20, parts = 32;
  static constexpr index_t entries = Kind == entries_are::one_in_each_row ? Batch : 4 * index_t{Batch};
  static constexpr double items = entries;

  explicit fused(const host& h)
      : table(h.memory<char>("table", rows * width * 4, fill_rows)),
        ids(h.memory<std::int64_t>("ids", parts * entries,
                                   [](std::int64_t* to, index_t n) {
                                     for (index_t k = 0; k < n; ++k) {
                                       const auto i = static_cast<std::uint64_t>(k);
                                       const bool bad = !tidy && draw_below(5, i, 10) == 0;
                                       to[k] = bad ? -1 : draw_skewed(4, i, rows);
                                     }
                                   })),
        row_of(h.memory<std::int64_t>("row of", parts * entries,
                                      [](std::int64_t* to, index_t n) {
                                        for (index_t k = 0; k < n; ++k) {
                                          to[k] = k % entries * Batch / entries;
                                          if (!tidy) {
                                            to[k] =
                                                draw_below(6, static_cast<std::uint64_t>(k), Batch) / 3 * 2;
                                          }
                                        }
                                      })),
        weights(tidy ? nullptr
                     : h.memory<float>("weights", entries,
                                       [](float* to, index_t n) {
                                         for (index_t k = 0; k < n; ++k) {
                                           to[k] = 1 + draw_float(7, static_cast<std::uint64_t>(k)) / 2;
                                         }
                                       })),
        out(h.memory<float>("out", Batch * width)),
        turn(h, parts) {}

  void run() {
    const index_t part = turn.next();
    const const_table_view<f32_rows> from(reinterpret_cast<const std::byte*>(table), rows, f32_rows(width));
    const coo_view<> batch(row_of + part * entries, ids + part * entries, entries, Batch, weights);
    const matrix_view<float> bags(out, index_t{Batch}, width);
    if constexpr (Kind == entries_are::weighted) {
      must(fused_lookup(here, from, batch, combiner::mean(combiner::by_weight), bags));
    } else {
      must(fused_lookup(here, from, batch, combiner::mean, bags));
    }
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, Batch * width);
  }

  char* table;
  std::int64_t *ids, *row_of;
  float *weights, *out;
  turns turn;
  inline_executor here;
};

}  // namespace

DEEPREC_BODIES(body<fused<entries_are::one_in_each_row, 128>>("fused_lookup/onehot/batch:128", "entry"),
               body<fused<entries_are::one_in_each_row, 2048>>("fused_lookup/onehot/batch:2048", "entry"),
               body<fused<entries_are::in_order, 2048>>("fused_lookup/in_order/batch:2048", "entry"),
               body<fused<entries_are::untidy, 128>>("fused_lookup/untidy/batch:128", "entry"),
               body<fused<entries_are::untidy, 2048>>("fused_lookup/untidy/batch:2048", "entry"),
               body<fused<entries_are::weighted, 2048>>("fused_lookup/weighted/batch:2048", "entry"))
