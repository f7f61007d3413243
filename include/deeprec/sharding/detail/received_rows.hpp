// Rows that came from other ranks, as a table: row i lies at i strides from the beginning of the buffer.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/embedding/tables/row_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Where the bytes of a step came to; it changes from step to step.
struct received_bytes {
  const std::byte* first = nullptr;
  index_t bytes = 0;
};

/// A direct row source. Rows of other widths lie between those that slots name.
template <class Row>
struct received_rows {
  using format_type = plain_rows<Row>;
  using space = host_space;

  const received_bytes* bytes = nullptr;
  index_t width = 0;

  [[nodiscard]] index_t rows() const noexcept { return bytes->bytes / format().stride_bytes(); }
  [[nodiscard]] const std::byte* data() const noexcept { return bytes->first; }
  [[nodiscard]] format_type format() const noexcept { return {width}; }
};

/// The rows of a table of which this rank has a part: what ids are checked against.
struct logical_rows {
  using format_type = f32_rows;
  using space = host_space;

  index_t count = 0, width = 0;

  [[nodiscard]] index_t rows() const noexcept { return count; }
  [[nodiscard]] const std::byte* data() const noexcept { return &none; }
  [[nodiscard]] format_type format() const noexcept { return {width}; }

 private:
  static constexpr std::byte none{};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
