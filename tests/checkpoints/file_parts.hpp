// Table files in parts, to be changed and written again with the right checksums.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <string>
#include <variant>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>

namespace deeprec_test {

using deeprec::index_t;

struct file_parts {
  deeprec::training_state state;
  std::vector<deeprec::table_entry> tables;
  std::vector<std::string> bytes;  // of each table

  deeprec::table_entry& table(const std::string& name) {
    for (deeprec::table_entry& one : tables)
      if (one.name == name) return one;
    FAIL("no table ", name);
    return tables.front();
  }
  std::string& bytes_of(const std::string& name) {
    return bytes[static_cast<std::size_t>(&table(name) - tables.data())];
  }
  index_t& number(const std::string& name) {
    for (deeprec::named_number& one : state.numbers)
      if (one.name == name) return std::get<index_t>(one.value);
    FAIL("no number ", name);
    return std::get<index_t>(state.numbers.front().value);
  }
  /// The rows of a table, each as its bytes.
  std::vector<std::string> rows_of(const std::string& name) {
    const std::string& all = bytes_of(name);
    const auto count = static_cast<std::size_t>(table(name).rows);
    const std::size_t length = count > 0 ? all.size() / count : 0;
    std::vector<std::string> rows(count);
    for (std::size_t r = 0; r < count; ++r) rows[r] = all.substr(r * length, length);
    return rows;
  }
  void set_rows(const std::string& name, const std::vector<std::string>& rows) {
    table(name).rows = static_cast<index_t>(rows.size());
    std::string& all = bytes_of(name);
    all.clear();
    for (const std::string& row : rows) all += row;
  }
  [[nodiscard]] bool has(const std::string& name) const {
    return std::any_of(tables.begin(), tables.end(), [&](const auto& one) { return one.name == name; });
  }
  void remove_number(const std::string& name) {
    std::erase_if(state.numbers, [&](const deeprec::named_number& one) { return one.name == name; });
  }
  void remove_table(const std::string& name) {
    const auto at = &table(name) - tables.data();
    tables.erase(tables.begin() + at);
    bytes.erase(bytes.begin() + at);
  }
};
inline file_parts parts_of(const std::string& path) {
  deeprec::table_file_reader file(std::pmr::new_delete_resource());
  REQUIRE(file.open(path));
  file_parts parts{file.info().state, file.info().tables, {}};
  parts.bytes.resize(parts.tables.size());
  std::vector<deeprec::table_section> sections(parts.tables.size());
  for (std::size_t i = 0; i < sections.size(); ++i) {
    sections[i] = {1, [&parts, i](const std::byte* bytes, index_t n) {
                     parts.bytes[i].append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
                     return deeprec::result<void>();
                   }};
  }
  REQUIRE(file.read(sections));
  return parts;
}
inline void write_parts(const std::string& path, const file_parts& parts) {
  std::vector<deeprec::const_named_table> tables;
  for (const deeprec::table_entry& one : parts.tables) tables.emplace_back(one, nullptr, one.row_bytes);
  deeprec::table_file_writer file(std::pmr::new_delete_resource());
  REQUIRE(file.open(path, tables, parts.state, 256));
  for (const std::string& bytes : parts.bytes)
    file.put(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  REQUIRE(file.finish());
}

}  // namespace deeprec_test
