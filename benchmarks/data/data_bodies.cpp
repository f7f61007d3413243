// Criteo's text to sparse batches, from memory.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <cstdio>
#include <string_view>
#include <type_traits>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

/// Rows of a label, 13 integers of 0 to 4 digits and 26 tokens of 8 hex digits, an eighth of the fields
/// missing. Returns how long they are; with `to` null writes nothing.
index_t write_rows(char* to, index_t rows) {
  index_t size = 0;
  char line[512];
  for (index_t r = 0; r < rows; ++r) {
    char* at = line;
    *at++ = draw_below(26, static_cast<std::uint64_t>(r), 4) == 0 ? '1' : '0';
    for (int c = 1; c < 40; ++c) {
      *at++ = '\t';
      const std::uint64_t bits = draw(27, static_cast<std::uint64_t>(r * 40 + c));
      if (bits % 8 == 0) continue;
      const auto value = static_cast<unsigned>(bits >> 40);
      at += c <= 13 ? std::snprintf(at, 12, "%u", value >> (11 + value % 13))
                    : std::snprintf(at, 12, "%08x", value % 4096 * 1048583U);
    }
    *at++ = '\n';
    if (to != nullptr) std::copy(line, at, to + size);
    size += at - line;
  }
  return size;
}

template <int Threads>
struct criteo {
  static constexpr index_t rows = Threads == 0 ? 4096 : 16384;
  static constexpr double items = rows;

  explicit criteo(const host& h)
      : size(h.memory<index_t>("size", 1, [](index_t* to, index_t) { *to = write_rows(nullptr, rows); })),
        text(h.memory<char>("text", *size, [](char* to, index_t) { write_rows(to, rows); })) {}
  template <class Look>
  void read(Look&& look) {
    auto reader =
        read_text(executor, criteo_format{}, std::string_view(text, static_cast<std::size_t>(*size)));
    must(reader);
    for (;;) {
      const auto got = reader.value().next(batch, 2048);
      must(got);
      if (got.value() == 0) break;
      look();
    }
  }
  void run() {
    read([] {});
  }
  std::uint64_t checksum() {
    std::uint64_t sum = 0;
    read([&] {
      sum = sum * 31 + checksum_of(batch.labels().data(), batch.rows());
      for (index_t r = 0; r < batch.rows(); ++r) sum = sum * 31 + checksum_of(&batch.dense()(r, 0), 13);
      for (index_t s = 0; s < 26; ++s) sum = sum * 31 + checksum_of(batch.feature(s).ids(), batch.rows());
    });
    return sum;
  }

  index_t* size;
  char* text;
  sparse_batch batch;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

}  // namespace

DEEPREC_BODIES(body<criteo<0>>("data/criteo", "row"), body<criteo<2>>("data/criteo/threads:2", "row", 2))
