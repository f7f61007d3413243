// The format of libsvm and svmlight: a label and the values that are not zero.
//
//   +1 3:0.5 17:1 40:-2.25   # comment        label index:value ...
//   │  └─────────┬───────┘
//   label    feature 0: ids {2, 16, 39}, weights {0.5, 1, -2.25}     (indices from 1; ids from 0)
//
// Fields are separated by spaces or tabs. Lines of blanks or a comment only hold no row. A field qid:7 behind
// the label is the row's group, where groups are present.
// Not here: several labels.
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/detail/fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The format of libsvm's files: one feature, with weights; labels are any finite numbers.
///
/// @numerics labels and weights are the nearest floats to the decimal text
/// @threads  reentrant
struct libsvm_format {
  /// The first index of a file.
  enum class index_base : std::uint8_t { zero, one };

  index_base base = index_base::one;
  index_t rows = 0;  ///< an id must be below it; 0 = any id
  /// Whether each label is followed by qid:NUMBER, the row's group in the batch.
  enum class query_ids : std::uint8_t { absent, present };
  query_ids groups = query_ids::absent;

  struct layout {
    bool has_header = false;
  };

  /// Fails (unsupported) for the first invalid option.
  [[nodiscard]] status check() const noexcept {
    if (rows >= 0) return {};
    return {errc::unsupported, "libsvm_format: rows is negative. Fix: 0 for any id, or the table's size"};
  }
  [[nodiscard]] constexpr batch_shape shape() const noexcept {
    return {.dense_columns = 0,
            .features = 1,
            .bags = bag_size::any,
            .weights = id_weights::present,
            .extras = {.groups = groups == query_ids::present}};
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
    const auto parse_row = [&](std::string_view line, float& label) -> status {
      const std::string_view data = line.substr(0, line.find('#'));
      detail::blank_fields fields(data);
      std::string_view field = fields.next();
      if (field.empty()) return detail::no_row;
      if (const char* why = detail::parse_float(field, label)) {
        return detail::bad_field(line, field, why);
      }
      if (groups == query_ids::present) {
        field = fields.next();
        std::uint64_t query = 0;
        if (!field.starts_with("qid:"))
          return detail::bad_field(line, field.empty() ? data.substr(data.size()) : field, "not qid:number");
        if (const char* why = detail::parse_unsigned(field.substr(4), query)) {
          return detail::bad_field(line, field, why);
        }
        *batch.next_group() = static_cast<std::int64_t>(query);
      }
      while (!(field = fields.next()).empty()) {
        const std::size_t colon = field.find(':');
        if (colon == std::string_view::npos) {
          return detail::bad_field(line, field, "not index:value");
        }
        std::uint64_t index = 0;
        float weight = 0;
        const std::string_view value = field.substr(colon + 1);
        if (field.starts_with("qid:"))
          return detail::bad_field(line, field,
                                   "a qid. Fix: groups = query_ids::present, qid behind the label");
        if (const char* why = detail::parse_unsigned(field.substr(0, colon), index)) {
          return detail::bad_field(line, field, why);
        }
        if (base == index_base::one && index-- == 0) {
          return detail::bad_field(line, field, "index 0 where indices count from 1");
        }
        if (index > std::uint64_t{0x7fffffffffffffff} || (rows > 0 && static_cast<index_t>(index) >= rows)) {
          return detail::bad_field(line, field, "the id is beyond its table");
        }
        if (const char* why = detail::parse_float(value, weight)) {
          return detail::bad_field(line, value, why);
        }
        if (!batch.push_id(0, static_cast<std::int64_t>(index), weight)) return detail::no_room_for_rows;
      }
      return {};
    };
    return detail::for_each_row(text, batch, log, parse_row);
  }
};

static_assert(TextFormat<libsvm_format>);

}}  // namespace deeprec::DEEPREC_ABI
