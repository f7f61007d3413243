// The format of libffm: a label, and values that have a field and an index.
//
//   1 0:3:1 0:9:0.5 2:14:1          label field:index:value ...
//   │ └─────┬─────┘ └──┬──┘
//   label  feature 0  feature 2; feature 1: an empty bag
//
// Each field is a feature of the batch; its ids are the indices, its weights the values. Fields of a line are
// separated by spaces or tabs and come in any order. Lines of blanks hold no row.
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The format of libffm's files; labels are any finite numbers.
///
/// @numerics labels and weights are the nearest floats to the decimal text
/// @threads  reentrant
struct libffm_format {
  index_t fields = 1;       ///< a field must be below it
  index_t rows = 0;         ///< an index must be below it; 0 = any
  index_t first_field = 0;  ///< the number of feature 0: 0 or 1

  struct layout {
    bool has_header = false;
  };

  /// Fails (unsupported) for the first invalid option.
  [[nodiscard]] status check() const noexcept {
    if (fields < 1) return {errc::unsupported, "libffm_format: no fields. Fix: fields = 1 or more"};
    if (rows < 0)
      return {errc::unsupported,
              "libffm_format: rows is negative. Fix: 0 for any index, or the table's size"};
    if (first_field < 0 || first_field > 1)
      return {errc::unsupported, "libffm_format: first_field must be 0 or 1"};
    return {};
  }
  [[nodiscard]] constexpr batch_shape shape() const noexcept {
    return {.dense_columns = 0, .features = fields, .bags = bag_size::any, .weights = id_weights::present};
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
      detail::blank_fields parts(line);
      std::string_view part = parts.next();
      if (part.empty()) return detail::no_row;
      if (const char* why = detail::parse_float(part, label)) return detail::bad_field(line, part, why);
      while (!(part = parts.next()).empty()) {
        const std::size_t first = part.find(':');
        const std::size_t second = first == std::string_view::npos ? first : part.find(':', first + 1);
        if (second == std::string_view::npos) return detail::bad_field(line, part, "not field:index:value");
        std::uint64_t field = 0, index = 0;
        float weight = 0;
        const std::string_view index_text = part.substr(first + 1, second - first - 1);
        const std::string_view value = part.substr(second + 1);
        if (const char* why = detail::parse_unsigned(part.substr(0, first), field))
          return detail::bad_field(line, part, why);
        if (const char* why = detail::parse_unsigned(index_text, index))
          return detail::bad_field(line, index_text, why);
        if (const char* why = detail::parse_float(value, weight)) return detail::bad_field(line, value, why);
        const auto base = static_cast<std::uint64_t>(first_field);
        if (field < base || field - base >= static_cast<std::uint64_t>(fields))
          return detail::bad_field(line, part, "the field is beyond the fields of the format");
        if (index > std::uint64_t{0x7fffffffffffffff} || (rows > 0 && static_cast<index_t>(index) >= rows))
          return detail::bad_field(line, index_text, "the id is beyond its table");
        if (!batch.push_id(static_cast<index_t>(field - base), static_cast<std::int64_t>(index), weight))
          return detail::no_room_for_rows;
      }
      return {};
    };
    return detail::for_each_row(text, batch, log, parse_row);
  }
};

static_assert(TextFormat<libffm_format>);

}}  // namespace deeprec::DEEPREC_ABI
