// Checkpoints of tables while training goes on: full files, and deltas of what changed since.
//
//   checkpoint_folder saves("/models/ctr");
//   saves.add("items", items).or_throw();                growing tables
//   saves.add(name_table("w0", as_table(weights)));      dense values
//   if (auto last = saves.restore().or_throw()) step = last->state.step;
//
//   auto cut = saves.take_full({.step = step}).or_throw();   between two steps: the state of one moment
//   std::thread([&] { cut.write().or_throw(); });            on any thread, while training goes on
//   auto next = saves.take_delta({.step = step}).or_throw();
//
//   full-1.drt <── delta-2.drt <── delta-3.drt      full-4.drt <── ...       chains; older ones are removed
//
// A row that changes after the cut is copied before. Deltas have rows that were trained or inserted, and the
// keys of rows that were erased, in O(those). Files are table files (embedding/files/table_file.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_cut.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_list.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_table.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_state.hpp>
#include <deeprec/embedding/checkpoints/detail/growing_checkpoint.hpp>
#include <deeprec/embedding/checkpoints/detail/restore_tables.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Tables, and a folder that their checkpoints are in.
///
/// Invariant: a file has the tables and the training state of one moment. What restore() returns is a cut
/// whose write() was reported as done, or a newer one; also after a power failure, where the file system
/// keeps what was synced.
/// @pre     tables outlive it, but for its destructor
/// @threads add, remove, restore: exclusive. take_*: between two steps, no update of the tables runs; beside
///          insertions, evictions and finds. A cut: see there
class checkpoint_folder {
 public:
  /// Nothing is read or made before it is needed.
  explicit checkpoint_folder(std::string path, const checkpoint_options& options = {})
      : state_(std::move(path), options) {}
  checkpoint_folder(const checkpoint_folder&) = delete;
  checkpoint_folder& operator=(const checkpoint_folder&) = delete;

  /// A table whose changes are followed from now on. The next cut has to be a full one.
  ///
  /// @cost    O(rows)
  /// @threads exclusive
  /// @error   invalid_value: no name, a name that another table has or one of its tables in files, a table
  ///          that is followed already, options that can't be, and while a cut exists
  template <RowFormat Format>
  status add(std::string name, growing_table<Format>& table) {
    if (table.state().changes != nullptr)
      return {errc::invalid_value, "checkpoint_folder::add: a table must be in one folder only"};
    if (const status s = may_change(name); !s) return s;
    state_.tables.push_back(
        std::make_unique<detail::growing_checkpoint<Format>>(std::move(name), table, state_.options));
    end_chain();
    return {};
  }
  /// Dense values: copied at each cut, and whole in each file.
  status add(named_table table) {
    if (const status s = may_change(table.name); !s) return s;
    if (const status s = detail::dense_fault(table); !s) return s;
    state_.tables.push_back(
        std::make_unique<detail::dense_checkpoint>(std::move(table), state_.options.memory));
    end_chain();
    return {};
  }
  /// The files that follow don't have the table. The next cut has to be a full one.
  ///
  /// @error   invalid_value: no table of this name, and while a cut exists
  status remove(std::string_view name) {
    if (state_.is_running)
      return {errc::invalid_value,
              "checkpoint_folder::remove: the cut before must be written or destroyed first"};
    const auto found = std::find_if(state_.tables.begin(), state_.tables.end(),
                                    [&](const auto& t) { return t->name() == name; });
    if (found == state_.tables.end())
      return {errc::invalid_value,
              "checkpoint_folder::remove: the name must be that of a table (none has it)"};
    state_.tables.erase(found);
    end_chain();
    return {};
  }

  /// Bytes of the caller that are no table, of any length, in each file from the next cut on: in the place of
  /// those with the same name. restore() and readers pass them over; load_tables reads them from
  /// restored_checkpoint::path, as one row of the format "bytes".
  ///
  /// @cost    O(name)
  /// @threads exclusive
  /// @error   invalid_value: no name, that of a table, or no bytes, and while a cut exists
  status attach(std::string name, std::vector<std::byte> bytes) {
    if (state_.is_running)
      return {errc::invalid_value,
              "checkpoint_folder::attach: the cut before must be written or destroyed first"};
    if (const status s = detail::name_fault(state_.tables, name); !s) return s;
    if (bytes.empty()) return {errc::invalid_value, "checkpoint_folder::attach: there must be bytes"};
    std::erase_if(state_.attached, [&](const auto& one) { return one.name == name; });
    state_.attached.push_back({std::move(name), std::move(bytes)});
    return {};
  }

  /// Takes a cut, of which a full file is written: it begins a chain.
  ///
  /// @pre     no update of the tables runs
  /// @cost    O(tables), and the bytes of dense tables; with filters::counter O(its index), with a Bloom
  ///          filter its bytes
  /// @threads beside insertions, evictions and finds
  /// @error   would_block: the cut before must be written or destroyed first · invalid_value: a number of the
  ///          caller begins with "checkpoint, " · io_error: the folder can't be listed · out_of_memory. Then
  ///          no cut was taken
  result<checkpoint_cut> take_full(const training_state& state) {
    return detail::take_cut(state_, state, true);
  }
  /// The same, of which a delta is written: what changed since the cut that was written last.
  ///
  /// @error   as take_full, and invalid_value where no full file was written or restored since tables were
  ///          added or removed
  result<checkpoint_cut> take_delta(const training_state& state) {
    return detail::take_cut(state_, state, false);
  }

  /// Fills the tables from the newest full file that is whole, and its deltas as far as they are whole.
  /// Rows of other keys are erased, and the tables' steps are those of the file. Nothing where the folder has
  /// no file. A delta can follow where no newer file was passed over and all keys were taken.
  ///
  /// @pre     no cut exists; nothing else inserts into or updates the tables
  /// @post    after a fault of a full file the tables are unchanged; after one of a delta, and where a file
  ///          changed meanwhile, they are those of the files before; after out_of_memory rows are of two
  ///          files
  /// @cost    two passes over each file
  /// @threads beside finds, for growing tables
  /// @error   io_error: no full file is whole (the fault of the newest) · shape_mismatch, unsupported: the
  ///          newest whole file doesn't fit the tables · out_of_memory · would_block: a cut exists
  result<std::optional<restored_checkpoint>> restore(const apply_options& options = {}) {
    if (state_.is_running)
      return status(errc::would_block,
                    "checkpoint_folder::restore: the cut before must be written or destroyed first");
    auto read = detail::on_file(state_.path, "checkpoint_folder::restore", [&] {
      return detail::restore_tables({state_.path, state_.tables, options});
    });
    if (!read || !read.value()) return read;
    const bool is_newest = read.value()->passed_over.empty() && !options.takes;
    state_.at = is_newest ? read.value()->at : checkpoint_position{};
    state_.is_on_disk = false;  // the saver of these files may have been killed
    for (const auto& table : state_.tables) table->forget_changes();
    return read;
  }

  /// What the next delta continues; chain 0 where the next cut has to be a full one.
  [[nodiscard]] checkpoint_position position() const {
    const std::lock_guard lock(state_.mutex);
    return state_.at;
  }
  [[nodiscard]] const std::string& path() const noexcept { return state_.path; }

 private:
  status may_change(const std::string& name) const {
    const checkpoint_options& options = state_.options;
    if (options.copy_budget < 1 || options.block_bytes < 1 || options.memory == nullptr)
      return {errc::invalid_value,
              "checkpoint_folder::add: copy_budget and block_bytes must be at least 1, and memory not null"};
    if (state_.is_running)
      return {errc::invalid_value,
              "checkpoint_folder::add: the cut before must be written or destroyed first"};
    for (const auto& one : state_.attached) {
      if (one.name == name)
        return {errc::invalid_value, "checkpoint_folder::add: names of tables must not be those of bytes"};
    }
    return detail::name_fault(state_.tables, name);
  }
  // Files of one chain have the same tables.
  void end_chain() noexcept { state_.at = {}; }

  detail::folder_state state_;
};

}}  // namespace deeprec::DEEPREC_ABI
