// Sparse fields in the format of PAI-TF's parsing ops: pairs of a key and a value, or keys alone.
//
//   1 \t 3:0.5,17,40:2 \t \t 8     fields by one delimiter, pairs by another, key:value by a third
//   │    └─────┬─────┘   │   └─ feature 2: {8}, weight 1
//   label    feature 0    feature 1: an empty bag
//
// Each field but the label is a feature. A space that separates pairs may be repeated; other delimiters may
// not. An empty line is an empty bag where lines have a single field; otherwise it is ignored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/detail/fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The format of lines of key:value fields.
///
/// @numerics weights are the nearest floats to the decimal text; a key alone has weight 1. hashed:
///           hash_bucket(hash_bytes(key, seed = feature), rows), or the hash itself with rows = 0, or
///           bucket(key, feature, rows)
/// @threads  reentrant
struct key_value_format {
  index_t features = 1;      ///< fields that hold pairs
  index_t label_field = -1;  ///< index of the label's field in the line; -1 = none (labels are 0)
  token_use keys = token_use::as_is;
  index_t rows = 0;                  ///< of every table; 0 = keep 64 bits
  bucket_function bucket = nullptr;  ///< computes the row of a key, such as farmhash_bucket; null: the hash
  char field_delimiter = '\t';
  char pair_delimiter = ',';
  char value_delimiter = ':';

  struct layout {
    bool has_header = false;
  };

  /// Fails (unsupported) for the first invalid option.
  [[nodiscard]] status check() const noexcept {
    if (features < 1) return {errc::unsupported, "key_value_format: no features. Fix: features = 1 or more"};
    if (rows < 0)
      return {errc::unsupported,
              "key_value_format: rows is negative. Fix: 0 for 64-bit keys, or the table's size"};
    if (bucket != nullptr && keys == token_use::as_is)
      return {errc::unsupported, "key_value_format: keys must be hashed where bucket is set (are as_is)"};
    if (bucket != nullptr && rows == 0)
      return {errc::unsupported, "key_value_format: rows must be above 0 where bucket is set (is 0)"};
    if (label_field > features)
      return {errc::unsupported, "key_value_format: label_field is beyond the fields of a line"};
    if (field_delimiter == pair_delimiter || pair_delimiter == value_delimiter ||
        field_delimiter == value_delimiter) {
      return {errc::unsupported,
              "key_value_format: two delimiters are the same character. Fix: three different ones"};
    }
    for (const char c : {field_delimiter, pair_delimiter, value_delimiter}) {
      if (c == '\0' || c == '\n' || c == '\r' || c == '+' || c == '-' || c == '.' || (c >= '0' && c <= '9') ||
          c == 'e' || c == 'E') {
        return {errc::unsupported,
                "key_value_format: a delimiter may be part of a number or of a line end. Fix: "
                "choose "
                "another character"};
      }
    }
    return {};
  }
  [[nodiscard]] batch_shape shape() const noexcept {
    return {.dense_columns = 0, .features = features, .bags = bag_size::any, .weights = id_weights::present};
  }
  /// There are no headers.
  [[nodiscard]] static layout detect(std::string_view) noexcept { return {}; }

  /// Appends the rows of whole lines to the batch.
  ///
  /// @post    rows before a line that ended the parsing are in the batch; a bad line adds nothing
  /// @cost    one pass; allocates when the batch must grow
  /// @threads reentrant; needs exclusive access to the batch and the log
  /// @error   parse_error (the log has the location), out_of_memory
  DEEPREC_PER_UNIT status parse(const layout&, std::string_view text, sparse_batch& batch,
                                line_log& log) const {
    const index_t wanted = features + (label_field >= 0 ? 1 : 0);
    const auto parse_row = [&](std::string_view line, float& label) -> status {
      if (line.empty() && wanted > 1) return detail::no_row;
      std::size_t begin = 0;
      index_t feature = 0;
      for (index_t f = 0;; ++f) {
        const std::size_t stop = (std::min)(line.find(field_delimiter, begin), line.size());
        const std::string_view field = line.substr(begin, stop - begin);
        const bool last = stop == line.size();
        if (last ? f + 1 != wanted : f + 1 == wanted) {
          const index_t fields = 1 + std::count(line.begin(), line.end(), field_delimiter);
          return detail::bad_field(line, line.substr(last ? stop : stop + 1), "wrong number of fields",
                                   {.is = fields, .must_be = wanted});
        }
        if (f == label_field) {
          if (const char* why = detail::parse_float(field, label)) {
            return detail::bad_field(line, field, why);
          }
        } else if (const status s = parse_pairs(line, field, feature++, batch); !s) {
          return s;
        }
        if (last) return {};
        begin = stop + 1;
      }
    };
    return detail::for_each_row(text, batch, log, parse_row);
  }

 private:
  status parse_pairs(std::string_view line, std::string_view field, index_t feature,
                     sparse_batch& batch) const noexcept {
    if (field.empty()) return {};
    for (std::size_t begin = 0;;) {
      const std::size_t stop = (std::min)(field.find(pair_delimiter, begin), field.size());
      const std::string_view pair = field.substr(begin, stop - begin);
      if (!pair.empty()) {
        const std::size_t colon = pair.find(value_delimiter);
        const std::string_view key = pair.substr(0, colon);
        std::uint64_t id = 0;
        float weight = 1.0F;
        if (key.empty()) return detail::bad_field(line, pair, "a key is missing");
        if (bucket != nullptr) {
          std::int64_t row = 0;
          if (const char* why = detail::bucket_reason(bucket, key, static_cast<int>(feature), rows, row)) {
            return detail::bad_field(line, key, why);
          }
          id = static_cast<std::uint64_t>(row);
        } else if (keys == token_use::hashed) {
          id = hash_bytes(key, static_cast<std::uint64_t>(feature));
          if (rows > 0) id = static_cast<std::uint64_t>(hash_bucket(id, rows));
        } else if (const char* why = detail::parse_unsigned(key, id)) {
          return detail::bad_field(line, key, why);
        } else if (rows > 0 && id >= static_cast<std::uint64_t>(rows)) {
          return detail::bad_field(line, key, "the id is beyond its table");
        }
        if (colon != std::string_view::npos) {
          const std::string_view value = pair.substr(colon + 1);
          if (const char* why = detail::parse_float(value, weight)) {
            return detail::bad_field(line, value, why);
          }
        }
        if (!batch.push_id(feature, static_cast<std::int64_t>(id), weight)) return detail::no_room_for_rows;
      } else if (pair_delimiter != ' ') {
        return detail::bad_field(line, pair, "a key is missing");
      }
      if (stop == field.size()) return {};
      begin = stop + 1;
    }
  }
};

static_assert(TextFormat<key_value_format>);

}}  // namespace deeprec::DEEPREC_ABI
