// Named tables of any formats, and named numbers: the contents of a table file.
//
//   const named_table parts[] = {name_table("items", items.view()), name_table("w0", as_table(weights))};
//   training_state at{.step = 1000, .numbers = {{"learning rate", 0.01}, {"seed", 42}}};
//
// A table tells whose optimizer's state it holds (row_layout::state_owner); of state that is a table of its
// own the caller does: part.state_owner = net.state_owner().
//
// Types only; saving and loading: table_file.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Description of a table in a file.
struct table_entry {
  std::string name;
  std::string format;  ///< "f32", "f16", "bf16", "e4m3", "e5m2", or the format's file_name()
  index_t rows = 0;
  index_t width = 0;
  index_t row_bytes = 0;
  index_t stride_bytes = 0;  ///< in memory when it was saved; may differ on load
  index_t state_floats = 0;
  std::string state_owner{};  ///< the optimizer whose state it holds, beside rows or as rows; empty: unknown

  friend bool operator==(const table_entry&, const table_entry&) = default;
};

/// A named table of any format, as bytes. Byte is std::byte (to load) or const std::byte (to save).
///
/// @threads as a table view
template <class Byte>
struct basic_named_table : table_entry {
  Byte* data = nullptr;
  index_t state_offset = 0;          ///< of a row's optimizer state in the row
  Byte* const* addresses = nullptr;  ///< of each row, where rows are not at a stride (named_rows.hpp)

  basic_named_table() = default;
  basic_named_table(table_entry entry, Byte* first_row, index_t offset_of_state)
      : table_entry(std::move(entry)), data(first_row), state_offset(offset_of_state) {}
  template <class Other>
    requires(std::is_convertible_v<Other*, Byte*> && !std::is_same_v<Other, Byte>)
  basic_named_table(const basic_named_table<Other>& other)
      : basic_named_table(static_cast<const table_entry&>(other), other.data, other.state_offset) {
    addresses = other.addresses;
  }
};

using named_table = basic_named_table<std::byte>;
using const_named_table = basic_named_table<const std::byte>;

/// A table view with a name, for save_tables and load_tables. `format` identifies what decoding depends
/// on; formats that aren't plain rows have a member file_name(), or get their name here.
///
/// @shape   table (R,D)
/// @space   host
/// @cost    O(name)
/// @threads reentrant
/// @error   none
template <RowFormat Format, MemorySpace Space, class Byte>
  requires(reachable_as<Space, host_space>)
basic_named_table<Byte> name_table(std::string name, const basic_table_view<Format, Space, Byte>& table,
                                   std::string format) {
  static_assert(
      !requires(const Format& apart) { apart.state_of(index_t{0}); },
      "deeprec::name_table: the state of these rows lies apart from them. Fix: name two tables, the rows "
      "without with_state and as_table(state).");
  const Format& rows = table.format();
  index_t state_offset = 0;
  if (rows.state_floats() > 0 && table.rows() > 0) {
    auto* const first = const_cast<std::byte*>(table.data());  // only its address
    state_offset = static_cast<std::byte*>(static_cast<void*>(rows.state(first))) - first;
  }
  return {{std::move(name), std::move(format), table.rows(), rows.width(), rows.row_bytes(),
           rows.stride_bytes(), rows.state_floats(), std::string(detail::state_owner_of(rows))},
          table.data(),
          state_offset};
}
/// The same, for a format that has a name.
template <RowFormat Format, MemorySpace Space, class Byte>
  requires(reachable_as<Space, host_space>)
basic_named_table<Byte> name_table(std::string name, const basic_table_view<Format, Space, Byte>& table) {
  return name_table(std::move(name), table, detail::format_name(table.format()));
}

/// A list of keys as a table of integers with one column: the keys of a source (named_rows.hpp).
///
/// @shape   keys (N), contiguous
/// @space   host
/// @cost    O(name)
/// @threads reentrant
/// @error   none
template <class Key>
  requires IdInteger<std::remove_const_t<Key>>
auto name_keys(std::string name, std::span<Key> keys) {
  using key_type = std::remove_const_t<Key>;
  using byte_type = std::conditional_t<std::is_const_v<Key>, const std::byte, std::byte>;
  constexpr index_t bytes = sizeof(key_type);
  const char* const format =
      std::is_signed_v<key_type> ? (bytes == 8 ? "i64" : "i32") : (bytes == 8 ? "u64" : "u32");
  return basic_named_table<byte_type>(
      {std::move(name), format, static_cast<index_t>(keys.size()), 1, bytes, bytes, 0},
      reinterpret_cast<byte_type*>(keys.data()), 0);
}

/// An integer or a floating-point number; both are stored exactly.
struct named_number {
  std::string name;
  std::variant<index_t, double> value;

  friend bool operator==(const named_number&, const named_number&) = default;
};

/// Training state that is saved together with the tables.
struct training_state {
  std::uint64_t step = 0;
  std::vector<named_number> numbers;

  /// The integer or the floating-point number of a name; nullopt when there is none of that kind.
  [[nodiscard]] std::optional<index_t> whole(std::string_view name) const { return get<index_t>(name); }
  [[nodiscard]] std::optional<double> real(std::string_view name) const { return get<double>(name); }

  friend bool operator==(const training_state&, const training_state&) = default;

 private:
  template <class T>
  [[nodiscard]] std::optional<T> get(std::string_view name) const {
    for (const named_number& number : numbers) {
      if (number.name != name) continue;
      if (const T* value = std::get_if<T>(&number.value)) return *value;
    }
    return std::nullopt;
  }
};

/// Contents of a file.
struct table_file_info {
  std::uint32_t version = 0;
  index_t bytes = 0;  ///< of the file
  index_t block_bytes = 0;
  training_state state;
  std::vector<table_entry> tables;
};

}}  // namespace deeprec::DEEPREC_ABI
