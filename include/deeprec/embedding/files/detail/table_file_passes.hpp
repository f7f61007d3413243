// A whole file of tables: written in one pass, read in one or two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/files/detail/table_file_layout.hpp>
#include <deeprec/embedding/files/detail/whole_file.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_options.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline result<index_t> write_tables(const std::string& path, std::span<const const_named_table> tables,
                                    const training_state& state, const save_options& options) {
  constexpr std::size_t most = (std::numeric_limits<std::uint32_t>::max)();
  constexpr std::size_t longest_text = table_file_longest_text;
  if (options.block_bytes <= 0) return invalid("block_bytes is not positive");
  if (const auto done = check_tables(tables); !done) return done.fault();
  if (tables.size() > most || state.numbers.size() > most) return invalid("too many tables or numbers");
  const auto too_long = [&](const std::string& what) {
    return invalid(in_quotes(what.substr(0, 100)) + "...: a name or format of more than " +
                   std::to_string(longest_text) + " bytes");
  };
  for (const named_number& number : state.numbers) {
    if (number.name.size() > longest_text) return too_long(number.name);
  }
  const auto block_bytes = static_cast<std::uint64_t>(options.block_bytes);
  std::uint64_t blocks_bytes = 0, longest = 0;
  for (const const_named_table& t : tables) {
    if (t.name.size() > longest_text) return too_long(t.name);
    if (t.format.size() > longest_text) return too_long(t.format);
    if (t.state_owner.size() > longest_text) return too_long(t.state_owner);
    std::uint64_t length = 0, blocks = 0;
    if (!packed_length(t, length) || !blocks_length(length, block_bytes, blocks) ||
        !multiply_add(1, blocks_bytes, blocks, blocks_bytes)) {
      return invalid("table " + in_quotes(t.name) + ": too large for a file");
    }
    longest = (std::max)(longest, length);
  }
  std::uint64_t header_hash = 0;
  const byte_writer header = header_of(tables, state, block_bytes, blocks_bytes, header_hash);
  block_buffer buffer(options.memory);
  if (!buffer.reserve(largest_block(block_bytes, longest))) {
    return status(errc::out_of_memory, "memory for a block was refused");
  }

  replacement_file file;
  if (const auto done = file.open(path); !done) return done.fault();
  if (const auto done = file.write(header.data(), header.size()); !done) return done.fault();
  std::uint64_t number = 0;
  std::uint64_t file_hash = header_hash;
  for (const const_named_table& t : tables) {
    std::uint64_t length = 0;
    (void)packed_length(t, length);
    for (std::uint64_t from = 0; from < length; from += block_bytes, ++number) {
      const std::uint64_t to = from + (std::min)(block_bytes, length - from);
      std::byte* end = buffer.data();
      packed(t).each_piece(from, to, [&](const std::byte* source, std::size_t n) {
        std::memcpy(end, source, n);
        end += n;
      });
      const auto bytes = static_cast<std::size_t>(to - from);
      const std::uint64_t seed = block_seed(header_hash, number);
      const std::uint64_t hash = hash_of(buffer.data(), bytes, seed);
      std::memcpy(end, &hash, sizeof(hash));
      file_hash = with_block(file_hash, hash);
      if (const auto done = file.write(buffer.data(), bytes + sizeof(hash)); !done) return done.fault();
    }
  }
  std::byte end[sizeof(file_hash)];
  std::memcpy(end, &file_hash, sizeof(file_hash));
  if (const auto done = file.write(end, sizeof(end)); !done) return done.fault();
  if (const auto done = file.commit(); !done) return done.fault();
  return static_cast<index_t>(header.size() + blocks_bytes + sizeof(end));
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
  std::uint64_t longest = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const table_entry& in_file = header.info.tables[i];
    std::uint64_t length = 0;
    (void)packed_length(in_file, length);
    longest = (std::max)(longest, length);
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
  if (!buffer.reserve(largest_block(block_bytes, longest))) {
    return status(errc::out_of_memory, "memory for a block was refused");
  }
  if (options.check == load_options::check_at::before) {
    if (const auto done = read_blocks(file, header, buffer, {}); !done) return done.fault();
  }
  if (const auto done = read_blocks(file, header, buffer, targets); !done) return done.fault();
  return std::move(read.value().info.state);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
