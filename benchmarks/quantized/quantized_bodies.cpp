// Pooled lookups over rows of codes, of which no cache holds many, and writing such rows.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

enum class reads { sums, clipped_sums, copies };

/// Rows that repeat after a MB: writing codes is slow. Rows: of how many (0: of more than the caches hold).
template <class Format, int Width, int Hotness, reads How = reads::sums, int Rows = 0>
struct pooled {
  static constexpr index_t ids = 20480 / Hotness * Hotness, bags = ids / Hotness, patterns = 8192;
  static constexpr double items = ids;

  explicit pooled(const host& h)
      : rows(Rows != 0 ? Rows : cold_bytes() / format.row_bytes() / patterns * patterns),
        parts(std::max<index_t>(4, (Rows != 0 ? 0 : cold_bytes()) / (ids * format.row_bytes()))),
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
    const fixed_hotness_view<> batch(all + turn.next() * ids, bags, Hotness);
    const matrix_view to(out, bags, index_t{Width});
    if constexpr (How == reads::copies) {
      must(lookup(here, from, batch, combiner::concat, to));
    } else if constexpr (How == reads::clipped_sums) {
      must(lookup(here, from, batch, pooling{combiner::sum, max_norm{1.0F}}, to));
    } else {
      must(lookup(here, from, batch, combiner::sum, to));
    }
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

template <class Format, int Width, int Hotness>
using cold = pooled<Format, Width, Hotness>;
template <class Format, int Width>
using clipped = pooled<Format, Width, 20, reads::clipped_sums>;
template <class Format, int Width, int Rows = 0>
using copied = pooled<Format, Width, 1, reads::copies, Rows>;

}  // namespace

DEEPREC_BODIES(body<cold<int8_rows, 128, 20>>("quantized/int8/d:128", "row"),
               body<cold<int4_rows, 128, 20>>("quantized/int4/d:128", "row"),
               body<cold<int8_rows, 128, 100>>("quantized/int8/d:128/hotness:100", "row"),
               body<clipped<int8_rows, 128>>("quantized/max_norm/int8/d:128", "row"),
               body<clipped<int8_rows, 100>>("quantized/max_norm/int8/d:100", "row"),
               body<clipped<int4_rows, 100>>("quantized/max_norm/int4/d:100", "row"),
               body<copied<int8_rows, 128>>("quantized/gather/int8/d:128", "row"),
               body<copied<int8_rows, 128, 8192>>("quantized/gather/warm/int8/d:128", "row"),
               body<copied<int8_rows, 100, 8192>>("quantized/gather/warm/int8/d:100", "row"),
               body<copied<int4_rows, 128, 8192>>("quantized/gather/warm/int4/d:128", "row"),
               body<written<int8_rows>>("quantized/write/int8/d:128", "row"))
