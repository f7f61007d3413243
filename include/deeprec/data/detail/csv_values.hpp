// The values of rows of CSV in a batch: each field is converted by the use of its column.
//
//   room() ── convert(field), or field by field ──> finish_row()      reserve() when there is room no more
//                                              └──> drop_row()
//
// Part of csv_format.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/csv_column.hpp>
#include <deeprec/data/detail/csv_plan.hpp>
#include <deeprec/data/detail/fast_fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A field without the spaces and tabs around it.
inline std::string_view trimmed_csv(std::string_view text) noexcept {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// The values of one call of parse(): appended to a batch.
class csv_values {
 public:
  csv_values(const csv_rules& rules, const csv_plan& plan, sparse_batch& batch)
      : rules_(rules), plan_(plan), batch_(batch), shape_(batch.shape()) {
    const auto fields = static_cast<std::size_t>(plan.fields);
    missing_.resize(fields);
    tokens_.resize(fields);
    for (std::size_t f = 0; f < fields; ++f) {
      if (plan.column[f] < 0) continue;
      const csv_column& column = rules.columns[static_cast<std::size_t>(plan.column[f])];
      missing_[f] = column.missing.value_or(0.0F);
      if (column.use != csv_use::token) continue;
      const auto seed = static_cast<std::uint64_t>(plan.out[f]);
      token& of = tokens_[f] = {.hash_start = hash_start(seed), .rows = column.rows, .feature = plan.out[f]};
      of.missing = of.id(hash_bytes({}, seed));
    }
  }

  /// Whether the next row has room; else reserve().
  [[nodiscard]] bool room() const noexcept { return filled_ < room_; }
  /// @param bytes  of the text whose rows come
  status reserve(index_t bytes) {
    if (shape_.bags == bag_size::one) batch_.commit_rows(filled_);
    filled_ = 0;
    const index_t shortest = std::max<index_t>(plan_.fields, 2);
    room_ = std::clamp<index_t>(bytes / shortest + 1, 1, shape_.bags == bag_size::one ? 4096 : 256);
    if (const status s = batch_.reserve_rows(room_); !s) {
      room_ = 0;
      return s;
    }
    labels_ = batch_.next_label();
    dense_ = batch_.next_dense();
    if (shape_.bags == bag_size::one) {
      for (token& of : tokens_) {
        if (of.feature >= 0) of.ids = batch_.next_id(of.feature);
      }
    }
    if (shape_.extras.weights) weights_ = batch_.next_row_weight();
    if (shape_.extras.groups) groups_ = batch_.next_group();
    return {};
  }
  void finish_row() noexcept {
    if (!plan_.labelled) labels_[filled_] = 0;
    ++filled_;
    if (shape_.bags == bag_size::any) batch_.commit_rows(1);
  }
  void drop_row() noexcept {
    if (shape_.bags == bag_size::any) batch_.drop_row();
  }
  status close(const status& found) noexcept {
    if (shape_.bags == bag_size::one) batch_.commit_rows(filled_);
    drop_row();
    filled_ = room_ = 0;
    return found;
  }

  /// Whether memory for names or ids was refused: the row is not complete.
  [[nodiscard]] bool no_room() const noexcept { return no_room_; }

  /// Converts the fields field(0) ...; false: one of them is malformed. Words: eight bytes can be read from
  /// each on.
  template <bool Words, class Field>
  bool convert(const Field& field) noexcept {
    bool good = true;
    const std::int32_t* const outs = plan_.out.data();
    const auto general = [&](std::size_t f) { good &= field_reason(f, field(f)) == nullptr; };
    for (const csv_run& run : plan_.runs) {
      const auto first = static_cast<std::size_t>(run.first),
                 last = first + static_cast<std::size_t>(run.count);
      switch (Words || run.is == run_kind::ignored ? run.is : run_kind::any) {
        case run_kind::ignored:
          break;
        case run_kind::label: {
          const std::string_view text = field(first);
          const auto label = static_cast<unsigned char>(*text.data() - '0');
          labels_[filled_] = static_cast<float>(label);
          if (text.size() != 1 || label > 1) [[unlikely]]
            general(first);
          break;
        }
        case run_kind::integers: {
          float* const dense = dense_ + filled_ * shape_.dense_columns;
          for (std::size_t f = first; f < last; ++f) {
            const std::string_view text = field(f);
            if (!DEEPREC_PORTABLE::parse_small_integer(text.data(), static_cast<std::uint32_t>(text.size()),
                                                       missing_[f], dense[outs[f]])) [[unlikely]]
              general(f);
          }
          break;
        }
        case run_kind::tokens: {
          const index_t to = filled_;
          for (std::size_t f = first; f < last; ++f) {
            const std::string_view text = field(f);
            const token& of = tokens_[f];
            if ((text.size() & ~std::size_t{8}) != 0) [[unlikely]] {
              general(f);
              continue;
            }
            const std::int64_t id = of.id(hash_of_eight(of.hash_start, read_u64(text.data())));
            of.ids[to] = text.empty() ? of.missing : id;
          }
          break;
        }
        case run_kind::any:
          for (std::size_t f = first; f < last; ++f) general(f);
      }
    }
    return good;
  }

  /// Converts one field; null, or why it is malformed.
  const char* field_reason(std::size_t f, std::string_view text) noexcept {
    if (plan_.column[f] < 0) return nullptr;
    const csv_column& column = column_of(f);
    const index_t out = plan_.out[f];
    if (rules_.trims) text = trimmed_csv(text);
    switch (column.use) {
      case csv_use::ignored:
        return nullptr;
      case csv_use::label:
        return label_reason(column, text, labels_[filled_]);
      case csv_use::dense: {
        float& value = dense_[filled_ * shape_.dense_columns + out];
        if (is_missing(text)) {
          value = missing_[f];
          return nullptr;
        }
        if (const char* const reason = parse_float(text, value)) return reason;
        if (column.scale != csv_scale::none) value = column.scaled(value);
        return nullptr;
      }
      case csv_use::token:
        return tokens_reason(column, f, text);
      case csv_use::weight:
        return weight_reason(column, text, weights_[filled_]);
      case csv_use::group:
        groups_[filled_] = static_cast<std::int64_t>(hash_bytes(text));
        return nullptr;
      case csv_use::name: {
        const index_t ahead = shape_.bags == bag_size::one ? filled_ : 0;
        return batch_.set_name(ahead, text) ? nullptr : out_of_room();
      }
    }
    return nullptr;
  }

  /// Converts one of `count` tokens of a field, which come one by one.
  const char* element_reason(std::size_t f, std::string_view text, index_t count) noexcept {
    if (text.empty() || (count == 1 && is_missing(text))) return nullptr;
    return token_reason(column_of(f), f, text);
  }

 private:
  using run_kind = csv_run::kind;

  struct token {
    std::uint64_t hash_start = 0;
    index_t rows = 0;  ///< of its table; 0: ids are hashes
    std::int64_t missing = 0;
    std::int64_t* ids = nullptr;  ///< of bags of one id: that of the first reserved row
    std::int32_t feature = -1;    ///< -1: the field is no token

    [[nodiscard]] DEEPREC_INLINE std::int64_t id(std::uint64_t hash) const noexcept {
      return rows == 0 ? static_cast<std::int64_t>(hash) : hash_bucket(hash, rows);
    }
  };

  /// @pre plan_.column[f] >= 0
  [[nodiscard]] const csv_column& column_of(std::size_t f) const noexcept {
    return rules_.columns[static_cast<std::size_t>(plan_.column[f])];
  }
  [[nodiscard]] bool is_missing(std::string_view text) const noexcept {
    return text.empty() ||
           std::find(rules_.missing.begin(), rules_.missing.end(), text) != rules_.missing.end();
  }

  static const char* label_reason(const csv_column& column, std::string_view text, float& label) noexcept {
    if (column.rule == csv_label::one_of) {
      const auto among = [&](const std::vector<std::string>& words) {
        return std::find(words.begin(), words.end(), text) != words.end();
      };
      const bool positive = among(column.positive);
      label = positive ? 1.0F : 0.0F;
      if (positive || column.negative.empty() || among(column.negative)) return nullptr;
      return "the label is none of its words";
    }
    if (const char* const reason = parse_float(text, label)) return reason;
    if (column.rule == csv_label::binary && label != 0.0F && label != 1.0F)
      return "the label is neither 0 nor 1";
    if (column.rule == csv_label::at_least) label = label >= column.threshold ? 1.0F : 0.0F;
    return nullptr;
  }
  const char* weight_reason(const csv_column& column, std::string_view text, float& weight) const noexcept {
    if (is_missing(text)) {
      weight = column.missing.value_or(0.0F);
      return column.missing ? nullptr : "the weight of a row is missing";
    }
    if (const char* const reason = parse_float(text, weight)) return reason;
    if (weight < 0) return "the weight of a row is negative";
    return weight > csv_column::most_weight ? "the weight of a row is above 2^20" : nullptr;
  }
  const char* tokens_reason(const csv_column& column, std::size_t f, std::string_view text) noexcept {
    if (column.separator == '\0') return token_reason(column, f, is_missing(text) ? "" : text);
    if (is_missing(text)) return nullptr;  // an empty bag
    for (;;) {
      const std::size_t stop = text.find(column.separator);
      const std::string_view one = text.substr(0, stop);
      if (!one.empty()) {
        if (const char* const reason = token_reason(column, f, one)) return reason;
      }
      if (stop == std::string_view::npos) return nullptr;
      text.remove_prefix(stop + 1);
    }
  }
  const char* token_reason(const csv_column& column, std::size_t f, std::string_view text) noexcept {
    if (static_cast<index_t>(text.size()) > rules_.longest_token) return "the token is too long";
    const token& of = tokens_[f];
    std::int64_t id = 0;
    if (column.vocabulary != nullptr) {
      id = text.empty() ? 0 : column.vocabulary->number_of(text);
    } else {
      id = of.id(hash_bytes(text, static_cast<std::uint64_t>(of.feature)));
    }
    if (shape_.bags == bag_size::one) {
      of.ids[filled_] = id;
      return nullptr;
    }
    return batch_.push_id(of.feature, id) ? nullptr : out_of_room();
  }
  const char* out_of_room() noexcept {
    no_room_ = true;
    return "no room";
  }

  const csv_rules& rules_;
  const csv_plan& plan_;
  sparse_batch& batch_;
  batch_shape shape_;
  std::vector<float> missing_;  // of each field: the value of a missing number
  std::vector<token> tokens_;   // of each field
  float* labels_ = nullptr;
  float* dense_ = nullptr;
  float* weights_ = nullptr;
  std::int64_t* groups_ = nullptr;
  index_t filled_ = 0, room_ = 0;  // rows of the reserved ones
  bool no_room_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
