// A delta of a checkpoint_folder applied to one table that others read.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_list.hpp>
#include <deeprec/embedding/checkpoints/detail/growing_checkpoint.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Applies the delta of a file to the table that the file calls `name`. Rows are replaced and never written
/// in place: a lookup meanwhile sees each row as it was or as it is then; the rows of one batch may be of
/// both.
///
/// @param   at what the table stands on; that of the delta afterwards. A delta that it has already is passed
///          over
/// @space   host
/// @pre     nothing else inserts into the table
/// @cost    two passes over the file; O(rows of the delta), not of the table
/// @threads beside finds
/// @error   io_error, invalid_value, unsupported: as load_tables; invalid_value: a delta of another full
///          file, or one before it is missing; shape_mismatch: another format, another width, no table of
///          this name, more rows than most_rows. Then nothing changed. out_of_memory: rows are of both; the
///          same delta again completes it. invalid_value that names both numbers of rows: the table was not
///          as the files before had it
template <RowFormat Format>
result<training_state> apply_delta(const std::string& path, std::string name, growing_table<Format>& table,
                                   checkpoint_position& at, const apply_options& options = {}) {
  return detail::on_file(path, "apply_delta", [&]() -> result<training_state> {
    const std::array<std::unique_ptr<detail::checkpoint_table>, 1> tables{
        std::make_unique<detail::growing_checkpoint<Format>>(std::move(name), table)};
    detail::checked_file file(options.memory);
    const auto link = file.open(path);
    if (!link) return link.fault();
    if (const auto done = detail::check_link(link.value(), at); !done) return done.fault();
    if (const auto done = file.check(tables, options); !done) return done.fault();
    if (link.value().to <= at.number) return training_state{};
    auto state = file.apply();
    if (state) at.number = link.value().to;
    return state;
  });
}

}}  // namespace deeprec::DEEPREC_ABI
