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

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/files/detail/table_file_layout.hpp>
#include <deeprec/embedding/files/detail/table_file_passes.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_options.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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
