// The rows of a keyed source in table files: two tables, the rows and their keys.
//
//   const auto items = name_rows<std::uint64_t>("items", source);      saves: every row, in order of the keys
//   save_tables(path, items.tables(), state);
//
//   auto items = name_rows<std::uint64_t>("items", source, path);      loads: inserts the keys of the file
//   if (!items) return items.fault();
//   load_tables(path, items.value().tables());
//
// The object keeps the source's guard: no row moves while it exists.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/tables/row_source.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Rows and keys of a source, as two named tables: "NAME" and "NAME, keys". Movable.
///
/// @threads no other thread inserts keys, or writes rows, while it exists
template <class Key, RowSource Source>
class named_rows {
 public:
  using byte_type = std::conditional_t<WritableRowSource<Source>, std::byte, const std::byte>;

  /// The two tables; they refer to this object.
  [[nodiscard]] std::array<basic_named_table<byte_type>, 2> tables() {
    return {rows_table(), name_keys(name_ + ", keys", std::span<Key>(keys_))};
  }
  [[nodiscard]] std::array<const_named_table, 2> tables() const {
    return {const_named_table(rows_table()), name_keys(name_ + ", keys", std::span<const Key>(keys_))};
  }
  /// The keys, in the order of the rows in the file.
  [[nodiscard]] std::span<const Key> keys() const noexcept { return keys_; }

  /// For name_rows.
  named_rows(std::string name, const Source& source, std::pmr::memory_resource* memory)
      : name_(std::move(name)), source_(source), keys_(memory), addresses_(memory) {}
  status list() {
    take_guard();
    const auto count = static_cast<std::size_t>(source_.size());
    keys_.reserve(count);
    source_.for_each_row([&](Key key, const std::byte*) { keys_.push_back(key); });
    std::sort(keys_.begin(), keys_.end());
    return locate();
  }
  status insert(std::pmr::vector<Key> keys) {
    keys_ = std::move(keys);
    if (const status s = source_.insert(keys_.data(), static_cast<index_t>(keys_.size())); !s) return s;
    take_guard();
    if (const status s = locate(); !s) return s;
    const auto absent = std::find(addresses_.begin(), addresses_.end(), nullptr);
    if (absent == addresses_.end()) {
      if constexpr (requires { source_.before_write(addresses_.data(), index_t{1}); })
        source_.before_write(addresses_.data(), static_cast<index_t>(addresses_.size()));
      return {};
    }
    const auto k = static_cast<std::size_t>(absent - addresses_.begin());
    return {errc::invalid_value,
            "name_rows: the source must admit the keys of the file",
            {.position = static_cast<index_t>(k), .value = static_cast<index_t>(keys_[k])}};
  }

 private:
  void take_guard() {
    if constexpr (GuardedRowSource<Source>) guard_.emplace(source_.guard());
  }
  status locate() {
    addresses_.resize(keys_.size());
    std::vector<const std::byte*, std::pmr::polymorphic_allocator<const std::byte*>> found(
        keys_.size(), addresses_.get_allocator().resource());
    const auto count = static_cast<index_t>(keys_.size());
    if constexpr (std::is_void_v<decltype(source_.find(keys_.data(), count, found.data()))>) {
      source_.find(keys_.data(), count, found.data());
    } else {
      if (const status s = source_.find(keys_.data(), count, found.data()); !s) return s;
    }
    for (std::size_t k = 0; k < keys_.size(); ++k) addresses_[k] = const_cast<byte_type*>(found[k]);
    return {};
  }
  [[nodiscard]] basic_named_table<byte_type> rows_table() const {
    const auto& format = source_.format();
    index_t state_offset = 0;
    if (format.state_floats() > 0 && !addresses_.empty()) {
      auto* const first = const_cast<std::byte*>(static_cast<const std::byte*>(addresses_[0]));
      state_offset = static_cast<std::byte*>(static_cast<void*>(format.state(first))) - first;
    }
    basic_named_table<byte_type> table(
        {name_, detail::format_name(format), static_cast<index_t>(keys_.size()), format.width(),
         format.row_bytes(), format.stride_bytes(), format.state_floats(),
         std::string(detail::state_owner_of(format))},
        nullptr, state_offset);
    table.addresses = addresses_.data();
    return table;
  }

  std::string name_;
  Source source_;
  std::pmr::vector<Key> keys_;
  std::pmr::vector<byte_type*> addresses_;
  [[no_unique_address]] std::optional<typename detail::guard_of<Source>::type> guard_;
};

/// Names all rows of a source, in ascending order of their keys.
///
/// @space   host
/// @cost    O(R log R); 24 bytes a row from `memory`
/// @threads as named_rows
/// @error   throws std::bad_alloc, and an error with the status of find()
template <class Key, EnumerableRowSource<Key> Source>
named_rows<Key, Source> name_rows(std::string name, const Source& source,
                                  std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  named_rows<Key, Source> rows(std::move(name), source, memory);
  result<void>(rows.list()).or_throw();
  return rows;
}

/// Inserts the keys that a file holds for a source, and names their rows, so that load_tables fills them.
/// Rows of other keys stay as they are.
///
/// @space   host
/// @cost    reads the keys; 24 bytes a row from `memory`
/// @threads as named_rows
/// @error   as load_tables, for the table of keys; the status of insert(); invalid_value when the source
///          refuses a key; out_of_memory: keys that it has inserted stay in the source
template <class Key, GrowingRowSource<Key> Source>
result<named_rows<Key, Source>> name_rows(
    std::string name, const Source& source, const std::string& path,
    std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  return detail::on_file(path, "name_rows", [&]() -> result<named_rows<Key, Source>> {
    const auto info = describe_file(path);
    if (!info) return info.fault();
    const std::string keys_name = name + ", keys";
    std::pmr::vector<Key> keys(memory);
    for (const table_entry& entry : info.value().tables) {
      if (entry.name != keys_name) continue;
      table_entry expected = name_keys(keys_name, std::span<Key>());
      expected.rows = entry.rows;
      if (const auto done = detail::check_shape(entry, expected); !done) return done.fault();
      keys.resize(static_cast<std::size_t>(entry.rows));
    }
    const named_table wanted[] = {name_keys(keys_name, std::span<Key>(keys))};
    load_options options;
    options.others = load_options::unknown::ignore;
    options.memory = memory;
    if (auto loaded = load_tables(path, wanted, options); !loaded) return loaded.fault();
    named_rows<Key, Source> rows(std::move(name), source, memory);
    if (const status s = rows.insert(std::move(keys)); !s) return s;
    return rows;
  });
}

}}  // namespace deeprec::DEEPREC_ABI
