// libFuzzer: any bytes, any format, any chunk size. Reading in chunks must equal parsing the whole,
// and every batch must be sound. The first three bytes choose; the rest is the text.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/exec/inline_executor.hpp>

namespace {

using namespace deeprec;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Rows as one number, the labels, dense values, ids and weights of each in turn.
std::uint64_t digest(const sparse_batch& batch, std::uint64_t sum) {
  const auto add = [&sum](std::uint64_t value) { sum = mix64(sum ^ value) + value; };
  for (index_t r = 0; r < batch.rows(); ++r) {
    add(std::bit_cast<std::uint32_t>(batch.labels()[static_cast<std::size_t>(r)]));
    for (index_t c = 0; c < batch.dense().extent(1); ++c) {
      add(std::bit_cast<std::uint32_t>(batch.dense()(r, c)));
    }
    for (index_t s = 0; s < batch.feature_count(); ++s) {
      const auto bags = batch.feature(s);
      require(bags.validate().ok() && bags.bags() == batch.rows());
      for (std::int64_t k = bags.offsets()[r]; k < bags.offsets()[r + 1]; ++k) {
        add(static_cast<std::uint64_t>(bags.ids()[k]));
        if (bags.weights() != nullptr) add(std::bit_cast<std::uint32_t>(bags.weights()[k]));
      }
      add(1);
    }
  }
  return sum;
}

template <class Format>
void check(const Format& format, std::string_view text, index_t chunk_bytes, index_t max_rows) {
  const inline_executor executor;
  sparse_batch batch;
  const auto whole = parse_text(format, text, batch, {.on_malformed = malformed::drop});
  if (!detail::expect_text(text)) {  // no text: a fault of any reader, not of a line
    require(!whole.ok());
    auto reader = read_text(executor, format, text, {.chunk_bytes = chunk_bytes}).or_throw();
    require(reader.next(batch, max_rows).code() == whole.code());
    return;
  }
  require(whole.ok());
  const std::uint64_t expected = digest(batch, 0);
  const index_t skipped = whole.value().skipped_lines;

  auto reader =
      read_text(executor, format, text, {.on_malformed = malformed::drop, .chunk_bytes = chunk_bytes})
          .or_throw();
  std::uint64_t sum = 0;
  while (reader.next(batch, max_rows).or_throw() > 0) sum = digest(batch, sum);
  require(sum == expected && reader.skipped_lines() == skipped);
  require(parse_text(format, text, batch).ok() == (skipped == 0));
}

index_t bucket_of_size(std::string_view token, int, index_t rows) noexcept {
  return static_cast<index_t>(token.size()) % rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const index_t chunk = 1 + data[1];
  const index_t rows = 1 + data[2] % 8;
  switch (data[0] % 8) {
    case 0:
      check(criteo_format{.rows = criteo_format::same_size(
                              data[0] / 24 % 2 == 0 || data[0] / 12 % 2 == 1 ? 1000 : 0),
                          .bucket = data[0] / 12 % 2 == 0 ? nullptr : bucket_of_size,
                          .labels = data[0] / 6 % 2 == 0 ? label_column::present : label_column::by_fields},
            text, chunk, rows);
      break;
    case 1:
      check(criteo_format{.rows = criteo_format::same_size(1000), .tokens = token_use::as_is}, text, chunk,
            rows);
      break;
    case 2:
      check(libsvm_format{.rows = 1000}, text, chunk, rows);
      break;
    case 3:
      check(feasign_format(feasign_format::slots(2, 5)), text, chunk, rows);
      break;
    case 6:
    case 7: {  // of any number of columns, of which the first is read
      csv_column first = csv_column::tokens("a", '|', 50);
      if (data[0] / 8 % 2 == 0) first.separator = '\0';
      check(
          csv_format{
              .columns = {first}, .quote = data[0] % 8 == 6 ? '"' : '\0', .header = csv_header::absent},
          text, chunk, rows);
      break;
    }
    case 4:
      check(key_value_format{.features = 2, .label_field = 0}, text, chunk, rows);
      break;
    default:
      check(key_value_format{.keys = token_use::hashed, .pair_delimiter = ' '}, text, chunk, rows);
      break;
  }
  return 0;
}
