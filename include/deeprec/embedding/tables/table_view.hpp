// Non-owning views of a table: the row sources whose row i is at data + i * stride (row_source.hpp).
//
//   table_view        rows of a format at one address
//   const_table_view  the same, read only; a table_view converts to it
#pragma once

#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/row_source.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Non-owning table; Byte is std::byte or const std::byte. Trivially copyable.
///
/// @threads as its memory: concurrent lookups are safe; a writer of a row excludes its readers
template <RowFormat Format, MemorySpace Space, class Byte>
class basic_table_view {
 public:
  using format_type = Format;
  using space = Space;
  using byte_type = Byte;

  constexpr basic_table_view() noexcept = default;
  /// @param data the first row @param rows number of rows
  DEEPREC_HD constexpr basic_table_view(Byte* data, index_t rows, Format format) noexcept
      : data_(data), rows_(rows), format_(format) {}

  /// Converts to a read-only view, or to a space from which this memory is reachable.
  template <MemorySpace From, class OtherByte>
    requires(std::is_convertible_v<OtherByte*, Byte*> && reachable_as<From, Space>)
  DEEPREC_HD constexpr basic_table_view(const basic_table_view<Format, From, OtherByte>& other) noexcept
      : basic_table_view(other.data(), other.rows(), other.format()) {}
  template <MemorySpace From, class OtherByte>
    requires(!reachable_as<From, Space>)
  basic_table_view(const basic_table_view<Format, From, OtherByte>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr Byte* data() const noexcept { return data_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t rows() const noexcept { return rows_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t width() const noexcept { return format_.width(); }
  [[nodiscard]] DEEPREC_HD constexpr const Format& format() const noexcept { return format_; }
  [[nodiscard]] DEEPREC_HD constexpr Byte* row(index_t i) const noexcept {
    return data_ + i * format_.stride_bytes();
  }

 private:
  Byte* data_ = nullptr;
  index_t rows_ = 0;
  Format format_{};
};

template <RowFormat Format, MemorySpace Space = host_space>
using table_view = basic_table_view<Format, Space, std::byte>;
template <RowFormat Format, MemorySpace Space = host_space>
using const_table_view = basic_table_view<Format, Space, const std::byte>;

/// A framework's own weight matrix, read as a table without a copy.
///
/// @shape   weights (R,D), any row stride
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T, MemorySpace Space>
  requires Storage<std::remove_const_t<T>>
auto as_table(matrix_view<T, Space> weights) {
  using format_type = plain_rows<std::remove_const_t<T>>;
  using byte_type = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  const format_type format(weights.extent(1),
                           {.stride_bytes = capped_product(weights.stride(0), index_t{sizeof(T)})});
  return basic_table_view<format_type, Space, byte_type>(reinterpret_cast<byte_type*>(weights.data_handle()),
                                                         weights.extent(0), format);
}

}}  // namespace deeprec::DEEPREC_ABI
