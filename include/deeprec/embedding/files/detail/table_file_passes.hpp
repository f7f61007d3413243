// A whole file of tables: written in one pass, read in one or two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/files/detail/table_file_layout.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_options.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline result<index_t> write_tables(const std::string& path, std::span<const const_named_table> tables,
                                    const training_state& state, const save_options& options) {
  if (const auto done = check_tables(tables); !done) return done.fault();
  table_file_writer file(options.memory);
  if (const auto done = file.open(path, tables, state, options.block_bytes); !done) return done.fault();
  for (const const_named_table& t : tables) {
    std::uint64_t length = 0;
    (void)packed_length(t, length);
    for (std::uint64_t from = 0; from < length;) {
      // By blocks, so that what can't be written is not packed.
      const std::uint64_t to =
          from + (std::min)(static_cast<std::uint64_t>(options.block_bytes), length - from);
      packed(t).each_piece(from, to, [&](const std::byte* bytes, std::size_t n) { file.put(bytes, n); });
      if (const auto done = file.state(); !done) return done.fault();
      from = to;
    }
  }
  return file.finish();
}

inline result<training_state> read_tables(const std::string& path, std::span<const named_table> tables,
                                          const load_options& options) {
  if (const auto done = check_tables(tables); !done) return done.fault();
  input_file file;
  if (const auto done = file.open(path); !done) return done.fault();
  auto read = read_header_of(file);
  if (!read) return read.fault();
  const read_header& header = read.value();

  std::vector<const named_table*> targets(header.info.tables.size(), nullptr);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const table_entry& in_file = header.info.tables[i];
    for (const named_table& t : tables) {
      if (t.name != in_file.name) continue;
      if (const auto done = check_shape(in_file, t); !done) return done.fault();
      targets[i] = &t;
    }
    if (targets[i] == nullptr && options.others == load_options::unknown::refuse) {
      return misfit("table " + in_quotes(in_file.name) + " is only in the file");
    }
  }
  for (const named_table& t : tables) {
    if (std::find(targets.begin(), targets.end(), &t) == targets.end()) {
      return misfit("table " + in_quotes(t.name) + " is not in the file");
    }
  }
  block_buffer buffer(options.memory);
  const auto block_bytes = static_cast<std::uint64_t>(header.info.block_bytes);
  if (!buffer.reserve(largest_block(block_bytes, header.info.tables))) {
    return status(errc::out_of_memory, "memory for a block was refused");
  }
  if (options.check == load_options::check_at::before) {
    const auto pass_over = [](std::size_t, std::uint64_t, const std::byte*, std::size_t) {
      return result<void>();
    };
    if (const auto done = read_blocks(file, header, buffer, pass_over); !done) return done.fault();
  }
  const auto fill = [&](std::size_t i, std::uint64_t from, const std::byte* bytes, std::size_t count) {
    if (targets[i] != nullptr) unpack(*targets[i], from, bytes, count);
    return result<void>();
  };
  if (const auto done = read_blocks(file, header, buffer, fill); !done) return done.fault();
  return std::move(read.value().info.state);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
