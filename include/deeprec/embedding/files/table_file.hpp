// Tables with their optimizer state, and the training state, in one file.
//
//   save_tables("model.drt", {name_table("items", items.view()), name_table("users", users.view())},
//               {.step = 1000, .numbers = {{"learning rate", 0.01}}}).or_throw();
//   const training_state at =
//       load_tables("model.drt", {name_table("items", items.view()), name_table("users", users.view())})
//           .or_throw();
//
// The new file is written next to the old one and renamed when it is complete: at any time, the name refers
// to one complete save. Truncated, corrupted and foreign files are refused, with reason and byte offset. Rows
// pass through one buffer of a block, so tables may be larger than memory (mapped). Dense weights are tables
// too: as_table(matrix). Not here: changes only (deltas), compression, other byte orders.
//
// A file keeps whose optimizer's state each table holds, where the table tells, and load_tables refuses that
// of another one. Files of before (version 1) and tables that don't tell hold anybody's. The learning rate is
// a number of training_state: optimizers are the caller's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory_resource>
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

namespace deeprec { inline namespace DEEPREC_ABI {

struct save_options {
  index_t block_bytes = index_t{4} << 20;  ///< unit of writing and of checksums
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

struct load_options {
  /// When load_tables checks the rows.
  enum class check_at : unsigned char {
    before,   ///< the whole file first, then it is read again: a bad file leaves the tables as they are
    on_read,  ///< each block as it is read: one pass less, but a bad file leaves half-loaded tables
  };

  /// Handling of tables that are in the file but not passed to load_tables.
  enum class unknown : unsigned char { refuse, ignore };

  check_at check = check_at::before;
  unknown others = unknown::refuse;
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

namespace detail {

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

}  // namespace detail

/// Writes tables and `state` to a file that atomically replaces the one at `path`, if any. Gaps between
/// rows are not written. A symbolic link at `path` is replaced, not followed; the old file's mode is kept;
/// the owner is the saving user. A name or format has at most 65535 bytes.
///
/// @space   host
/// @pre     no thread writes the tables
/// @post    on success the file is on the disk under its name; after a fault the old file is unchanged
///          and no temporary file is left (only when the folder can't be synced to the disk, which the fault
///          reports, the new file has replaced it). A process that is killed may leave `path`.saving, which
///          the next save of `path` removes
/// @cost    O(bytes): one pass through a buffer of block_bytes from options.memory, and the disk's time
/// @threads reentrant; of two concurrent saves of one path, in any process, the second fails
/// @error   io_error (with the system's message; also for the file that an interrupted save left on a file
///          system without locks: remove it), invalid_value (names, sizes, block_bytes), out_of_memory;
///          the value is the length of the file
inline result<index_t> save_tables(const std::string& path, std::span<const const_named_table> tables,
                                   const training_state& state = {}, const save_options& options = {}) {
  return detail::on_file(path, "save_tables",
                         [&] { return detail::write_tables(path, tables, state, options); });
}

/// The same, for the list that load_tables takes.
inline result<index_t> save_tables(const std::string& path, std::span<const named_table> tables,
                                   const training_state& state = {}, const save_options& options = {}) {
  return detail::on_file(path, "save_tables", [&] {
    return detail::write_tables(path, std::vector<const_named_table>(tables.begin(), tables.end()), state,
                                options);
  });
}
/// The same, for a list in braces.
inline result<index_t> save_tables(const std::string& path, std::initializer_list<const_named_table> tables,
                                   const training_state& state = {}, const save_options& options = {}) {
  return save_tables(path, std::span(tables.begin(), tables.size()), state, options);
}

/// Reads the description of a file's contents. Checks the header and the length, not the rows.
///
/// @cost    reads the header
/// @threads reentrant
/// @error   as load_tables, except for the rows and the shapes
inline result<table_file_info> describe_file(const std::string& path) {
  return detail::on_file(path, "describe_file", [&]() -> result<table_file_info> {
    detail::input_file file;
    if (const auto done = file.open(path); !done) return done.fault();
    auto header = detail::read_header_of(file);
    if (!header) return header.fault();
    return std::move(header.value().info);
  });
}

/// Fills tables from a file, by their names. Rows, width, format, floats of state and, where both tell, the
/// owner of the state must be the same; the stride may differ. Gaps between rows are left as they are.
///
/// @space   host
/// @pre     no other thread reads or writes the tables
/// @post    after a fault the tables are unchanged; but their contents are unspecified when the file changed
///          or became unreadable between the two passes, and with check_at::on_read
/// @cost    O(bytes): two passes over the file (one with check_at::on_read) through a buffer of one of its
///          blocks from options.memory
/// @threads reentrant
/// @error   io_error (with the system's message) · invalid_value: truncated, corrupted (with the bytes whose
///          checksum differs), foreign · unsupported: version, byte order, or the state of another optimizer
///          · shape_mismatch: the table and what differs, or a table that is only in memory or only in the
///          file · out_of_memory
inline result<training_state> load_tables(const std::string& path, std::span<const named_table> tables,
                                          const load_options& options = {}) {
  return detail::on_file(path, "load_tables", [&] { return detail::read_tables(path, tables, options); });
}
/// The same, for a list in braces.
inline result<training_state> load_tables(const std::string& path, std::initializer_list<named_table> tables,
                                          const load_options& options = {}) {
  return load_tables(path, std::span(tables.begin(), tables.size()), options);
}

}}  // namespace deeprec::DEEPREC_ABI
