// Lines of Criteo's logs to rows, in two ways that must agree.
//
//   parse_criteo_lines    the fast path: 64 bytes at a time, fields in their usual form
//   careful_criteo_line   the plain path, field by field: lines with a fault, and its location
//
// Branchless selection was tried for signs and missing fields: slower by a fifth on the real logs, where a
// column is mostly present or mostly missing.
// A field that the fast path can't parse (a float, a token of nine bytes) is parsed by the careful function
// for that field. Part of criteo_format.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/detail/byte_words.hpp>
#include <deeprec/data/detail/fast_fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr int criteo_dense = 13;
inline constexpr int criteo_features = 26;

/// What makes an id of a token: the bucket of its hash, in the fast form, or where some table has 0 rows the
/// hash; both in the plain form; the function of the option bucket; or its digits.
enum class criteo_tokens : std::uint8_t { hashed, hashes, hashed_one_by_one, by_function, as_is };

/// Everything needed to parse a line, made once for each piece of text.
struct criteo_plan {
  index_t rows[criteo_features];
  index_t missing_row[criteo_features];
  std::uint64_t hash_starts[criteo_features];
  index_t longest_token;
  float missing_dense;
  int id_columns;
  int label_columns;
  char delimiter;
  criteo_tokens tokens;
  bucket_function bucket;

  [[nodiscard]] DEEPREC_INLINE int fields() const noexcept {
    return id_columns + label_columns + criteo_dense + criteo_features;
  }

  [[nodiscard]] DEEPREC_INLINE index_t id_of_hash(int feature, std::uint64_t hash) const noexcept {
    return rows[feature] == 0 ? static_cast<index_t>(hash) : hash_bucket(hash, rows[feature]);
  }
  /// hash_bytes(token, feature) for a token of eight bytes.
  [[nodiscard]] DEEPREC_INLINE std::uint64_t hash_of_eight(int feature, std::uint64_t token) const noexcept {
    return detail::hash_of_eight(hash_starts[feature], token);
  }
};

/// The destination of rows; the first `count` are complete.
struct criteo_rows {
  float* labels;
  float* dense;
  std::int64_t* ids[criteo_features];
  index_t count;
};

inline bool criteo_missing(std::string_view field) noexcept {
  return field.empty() || (field.size() == 2 && field[0] == '"' && field[1] == '"');
}

/// Why a field is malformed that begins with a quotation mark; null where it doesn't end with one.
inline const char* criteo_quoted(std::string_view field) noexcept {
  const bool quoted = field.size() > 2 && field.front() == '"' && field.back() == '"';
  return quoted ? "a field in quotes. Fix: write it without (R: quote = FALSE, pandas: quoting = 3)"
                : nullptr;
}

inline const char* criteo_dense_reason(const criteo_plan& plan, std::string_view field,
                                       float& value) noexcept {
  if (criteo_missing(field)) {
    value = plan.missing_dense;
    return nullptr;
  }
  const char* const reason = parse_count(field, value);
  const char* const quoted = reason == nullptr ? nullptr : criteo_quoted(field);
  return quoted == nullptr ? reason : quoted;
}

inline const char* criteo_token_reason(const criteo_plan& plan, int feature, std::string_view field,
                                       std::int64_t& row) noexcept {
  const bool is_fast = plan.tokens == criteo_tokens::hashed || plan.tokens == criteo_tokens::hashes;
  if (field.size() != 8 || !is_fast) {  // the fast form looks at no byte of these
    if (const char* const reason = criteo_quoted(field)) return reason;
  }
  if (plan.tokens == criteo_tokens::as_is) {
    if (const char* reason = parse_id(criteo_missing(field) ? std::string_view() : field, row)) {
      return reason;
    }
    return row < plan.rows[feature] ? nullptr : "the id is beyond its table";
  }
  if (static_cast<index_t>(field.size()) > plan.longest_token) return "the token is too long";
  if (plan.tokens == criteo_tokens::by_function) {
    return bucket_reason(plan.bucket, criteo_missing(field) ? std::string_view() : field, feature,
                         plan.rows[feature], row);
  }
  row = criteo_missing(field)
            ? plan.missing_row[feature]
            : plan.id_of_hash(feature, hash_bytes(field, static_cast<std::uint64_t>(feature)));
  return nullptr;
}

[[gnu::noinline]] inline bool criteo_dense_field(const criteo_plan& plan, std::string_view field,
                                                 float& value) noexcept {
  return criteo_dense_reason(plan, field, value) == nullptr;
}
[[gnu::noinline]] inline bool criteo_token_field(const criteo_plan& plan, int feature, std::string_view field,
                                                 std::int64_t& row) noexcept {
  return criteo_token_reason(plan, feature, field, row) == nullptr;
}

/// Parses one line field by field and locates its first fault; false when the log ends the parsing.
[[gnu::noinline]] inline bool careful_criteo_line(const criteo_plan& plan, std::string_view line,
                                                  criteo_rows& rows, line_log& log) noexcept {
  log.count_lines(1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line.empty()) return true;
  if (const status s = check_line(line, log); !s) return log.reject(s);
  const int wanted = plan.fields();
  index_t fields = 1;
  std::size_t surplus = line.size();
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == plan.delimiter && ++fields == wanted + 1) surplus = i + 1;
  }
  if (fields != wanted) {
    return log.reject({errc::parse_error,
                       "wrong number of fields",
                       {.line = log.lines(),
                        .column = static_cast<index_t>(surplus) + 1,
                        .is = fields,
                        .must_be = wanted}});
  }
  const int first_dense = plan.id_columns + plan.label_columns;
  float& label = rows.labels[rows.count];
  label = 0.0F;
  std::size_t begin = 0;
  for (int f = 0; f < wanted; ++f) {
    const std::size_t stop = (std::min)(line.find(plan.delimiter, begin), line.size());
    const std::string_view field = line.substr(begin, stop - begin);
    const int column = f - first_dense;
    const char* reason = nullptr;
    if (column >= criteo_dense) {
      const int feature = column - criteo_dense;
      reason = criteo_token_reason(plan, feature, field, rows.ids[feature][rows.count]);
    } else if (column >= 0) {
      reason = criteo_dense_reason(plan, field, rows.dense[rows.count * criteo_dense + column]);
    } else if (f >= plan.id_columns) {
      reason = parse_float(field, label);
      if (reason == nullptr && label != 0.0F && label != 1.0F) reason = "the label is neither 0 nor 1";
    }
    if (reason != nullptr) {
      return log.reject(
          {errc::parse_error, reason, {.line = log.lines(), .column = static_cast<index_t>(begin) + 1}});
    }
    begin = stop + 1;
  }
  ++rows.count;
  return true;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail

#include <deeprec/simd/begin_portable.hpp>

/// Appends the good lines of [p, end) to the rows; false when the log ended the parsing. Labels: whether they
/// begin with a label, plan.label_columns.
template <int Labels>
bool parse_criteo_lines(const detail::criteo_plan& plan, const char* p, const char* const end,
                        detail::criteo_rows& rows, line_log& log) {
  constexpr int most = 64;  // a line with more separators is bad anyway
  std::uint32_t places[most + 2 * 64 + 8];
  places[0] = ~std::uint32_t{0};  // one before the line's first byte
  const int separators = detail::criteo_dense + detail::criteo_features + Labels - 1 + plan.id_columns;
  const std::uint32_t* const stops = places + plan.id_columns;
  const char delimiter = plan.delimiter;
  while (p < end) {
    // Find the separators and the end of the line.
    int count = 0;
    bool nul = false;
    std::uint32_t length = 0;
    for (std::uint32_t at = 0;; at += 64) {
      byte_block block;
      if (end - p - static_cast<std::ptrdiff_t>(at) >= 64) [[likely]] {
        block = load_block(p + at);
      } else {  // the text's last bytes, followed by a line end
        char tail[64];
        std::memset(tail, '\n', 64);
        std::memcpy(tail, p + at, static_cast<std::size_t>(end - p) - at);
        block = load_block(tail);
      }
      nul |= any_nul(block);
      const std::uint64_t line_ends = equal_bits(block, '\n');
      std::uint64_t bits = equal_bits(block, delimiter);
      if (line_ends != 0) {
        bits &= (line_ends & (~line_ends + 1)) - 1;
        count += write_places(bits, at, places + 1 + count);
        length = at + static_cast<std::uint32_t>(std::countr_zero(line_ends));
        break;
      }
      count += write_places(bits, at, places + 1 + count);
      if (count > most || at > (1U << 20)) {  // far too long or too many fields: only find the end
        const void* found = std::memchr(p + at, '\n', static_cast<std::size_t>(end - p) - at);
        const char* stop = found == nullptr ? end : static_cast<const char*>(found);
        const std::string_view line(p, static_cast<std::size_t>(stop - p));
        p = stop == end ? end : stop + 1;
        if (!detail::careful_criteo_line(plan, line, rows, log)) return false;
        count = -1;
        break;
      }
    }
    if (count < 0) continue;
    const char* const line = p;
    p = end - line > static_cast<std::ptrdiff_t>(length) ? line + length + 1 : end;
    if (length > 0 && line[length - 1] == '\r') --length;
    places[1 + count] = length;

    bool good = count == separators && !nul && static_cast<index_t>(length) <= log.longest_line();
    if (good) [[likely]] {
      if constexpr (Labels == 1) {
        const char* const label_at = line + (stops[0] + 1);
        const auto label = static_cast<unsigned char>(*label_at - '0');
        good = stops[1] - (stops[0] + 1) == 1 && label <= 1;
        rows.labels[rows.count] = static_cast<float>(label);
      } else {
        rows.labels[rows.count] = 0.0F;
      }
      float* const dense = rows.dense + rows.count * 13;
      for (int i = 0; i < 13; ++i) {
        const char* const field = line + (stops[Labels + i] + 1);
        const std::uint32_t size = stops[Labels + 1 + i] - (stops[Labels + i] + 1);
        // The nine bytes from the field on are inside the line: 26 separators still follow.
        if (!parse_small_integer(field, size, plan.missing_dense, dense[i])) [[unlikely]]
          good &= detail::criteo_dense_field(plan, {field, size}, dense[i]);
      }
      const auto by_hash = [&](const auto& id_of) {
        for (int i = 0; i < 26; ++i) {
          const char* const field = line + (stops[Labels + 13 + i] + 1);
          const std::uint32_t size = stops[Labels + 14 + i] - (stops[Labels + 13 + i] + 1);
          if ((size & ~8U) != 0) [[unlikely]] {
            good &= detail::criteo_token_field(plan, i, {field, size}, rows.ids[i][rows.count]);
            continue;
          }
          const index_t row = id_of(i, plan.hash_of_eight(i, detail::read_u64(size != 0 ? field : line)));
          rows.ids[i][rows.count] = size != 0 ? row : plan.missing_row[i];
        }
      };
      if (plan.tokens == detail::criteo_tokens::hashed) [[likely]] {
        by_hash([&](int i, std::uint64_t hash) { return hash_bucket(hash, plan.rows[i]); });
      } else if (plan.tokens == detail::criteo_tokens::hashes) {
        by_hash([&](int i, std::uint64_t hash) { return plan.id_of_hash(i, hash); });
      } else {
        for (int i = 0; i < 26; ++i) {
          const char* const field = line + (stops[Labels + 13 + i] + 1);
          const std::uint32_t size = stops[Labels + 14 + i] - (stops[Labels + 13 + i] + 1);
          good &= detail::criteo_token_field(plan, i, {field, size}, rows.ids[i][rows.count]);
        }
      }
    }
    if (good) [[likely]] {
      ++rows.count;
      log.count_lines(1);
    } else if (!detail::careful_criteo_line(plan, {line, length}, rows, log)) {
      return false;
    }
  }
  return true;
}

#include <deeprec/simd/end_portable.hpp>
