// Pooled lookups over rows of codes, of which no cache holds many, and writing such rows.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

/// Rows that repeat after a MB: writing codes is slow.
template <class Format, int Width, int Hotness>
struct cold {
  static constexpr index_t ids = 20480 / Hotness * Hotness, bags = ids / Hotness, patterns = 8192;
  static constexpr double items = ids;

  explicit cold(const host& h)
      : rows(cold_bytes() / format.row_bytes() / patterns * patterns),
        parts(std::max<index_t>(4, cold_bytes() / (ids * format.row_bytes()))),
        table(h.memory<std::byte>("table", rows * format.row_bytes(),
                                  [&](std::byte* to, index_t n) {
                                    float values[Width];
                                    for (index_t r = 0; r < patterns; ++r) {
                                      for (index_t j = 0; j < Width; ++j) {
                                        values[j] = draw_float(11, static_cast<std::uint64_t>(r * Width + j));
                                      }
                                      format.encode(values, to + r * format.row_bytes());
                                    }
                                    const index_t pattern = patterns * format.row_bytes();
                                    for (index_t at = pattern; at < n; at += pattern) {
                                      std::memcpy(to + at, to, static_cast<std::size_t>(pattern));
                                    }
                                  })),
        all(h.memory<std::int64_t>("ids", parts * ids,
                                   [&](std::int64_t* to, index_t n) {
                                     for (index_t k = 0; k < n; ++k) {
                                       to[k] = draw_below(12, static_cast<std::uint64_t>(k), rows);
                                     }
                                   })),
        out(h.memory<float>("out", bags * Width)),
        turn(h, parts) {}

  void run() {
    const const_table_view<Format> from(table, rows, format);
    must(lookup(here, from, fixed_hotness_view<>(all + turn.next() * ids, bags, Hotness), combiner::sum,
                matrix_view(out, bags, index_t{Width})));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, bags * Width);
  }

  const Format format{index_t{Width}};
  index_t rows, parts;
  std::byte* table;
  std::int64_t* all;
  float* out;
  turns turn;
  inline_executor here;
};

template <class Format>
struct written {
  static constexpr index_t rows = 1024, width = 128;
  static constexpr double items = rows;

  explicit written(const host& h)
      : source(h.memory<float>("source", rows * width,
                               [](float* to, index_t n) {
                                 for (index_t i = 0; i < n; ++i)
                                   to[i] = draw_float(13, static_cast<std::uint64_t>(i));
                               })),
        table(h.memory<std::byte>("table", rows * format.row_bytes())) {}
  void run() {
    must(quantize(here, matrix_view<const float>(source, rows, width),
                  table_view<Format>(table, rows, format)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(table, rows * format.row_bytes());
  }

  const Format format{width};
  float* source;
  std::byte* table;
  inline_executor here;
};

}  // namespace

DEEPREC_BODIES(body<cold<int8_rows, 128, 20>>("quantized/int8/d:128", "row"),
               body<cold<int4_rows, 128, 20>>("quantized/int4/d:128", "row"),
               body<cold<int8_rows, 128, 100>>("quantized/int8/d:128/hotness:100", "row"),
               body<written<int8_rows>>("quantized/write/int8/d:128", "row"))
