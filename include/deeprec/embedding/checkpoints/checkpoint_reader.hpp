// Tables that follow the files of a folder, which another process writes.
//
//   checkpoint_reader files("/models/ctr");
//   files.add("items", items).or_throw();
//   for (;;) if (files.poll().or_throw()) serve(files.state().step);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_list.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_table.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_files.hpp>
#include <deeprec/embedding/checkpoints/detail/growing_checkpoint.hpp>
#include <deeprec/embedding/checkpoints/detail/restore_tables.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Applies full files and deltas of a checkpoint_folder in their order. Rows of growing tables are replaced
/// and never written in place, so others look them up meanwhile; dense tables are written in place.
///
/// @pre     tables outlive it; nothing else inserts into them
/// @threads exclusive; beside finds in growing tables
class checkpoint_reader {
 public:
  explicit checkpoint_reader(std::string folder, apply_options options = {})
      : folder_(std::move(folder)), options_(std::move(options)) {}

  /// A table under the name that the folder has for it.
  ///
  /// @cost    O(tables)
  /// @threads exclusive
  /// @error   invalid_value: no name, or a name that another table has
  template <RowFormat Format>
  status add(std::string name, growing_table<Format>& table) {
    if (const status s = detail::name_fault(tables_, name); !s) return s;
    tables_.push_back(std::make_unique<detail::growing_checkpoint<Format>>(std::move(name), table));
    return {};
  }
  status add(named_table table) {
    if (const status s = detail::name_fault(tables_, table.name); !s) return s;
    if (const status s = detail::dense_fault(table); !s) return s;
    tables_.push_back(std::make_unique<detail::dense_checkpoint>(std::move(table), options_.memory));
    return {};
  }

  /// Applies the files that are new: deltas of the chain, and where it has ended or is broken the newest full
  /// file that is whole, with its deltas. Whether anything was applied.
  ///
  /// @post    after a fault the tables are those of position(), but for out_of_memory: then rows are of two
  ///          files, and the next poll completes it
  /// @cost    a listing of the folder; two passes over each new file
  /// @threads exclusive; beside finds
  /// @error   io_error: the folder can't be listed · shape_mismatch, unsupported: a file does not fit the
  ///          tables · out_of_memory. Files that are not whole are no fault: passed_over()
  result<bool> poll() {
    return detail::on_file(folder_, "checkpoint_reader::poll", [&]() -> result<bool> {
      passed_over_.clear();
      const checkpoint_position before = at_;
      const auto files = detail::list_folder(folder_);
      if (!files) return files.fault();
      if (at_.chain != 0) {
        std::optional<training_state> state;
        const auto done =
            detail::follow_chain({folder_, tables_, options_}, files.value(), at_, state, passed_over_);
        if (state) state_ = std::move(*state);
        if (!done) return done.fault();
      }
      auto read = detail::restore_tables({folder_, tables_, options_}, at_.number);
      if (!read) {
        if (!detail::is_of_file(read.fault())) return read.fault();
        passed_over_.push_back(read.fault());
      } else if (read.value()) {
        at_ = read.value()->at;
        state_ = std::move(read.value()->state);
        passed_over_ = std::move(read.value()->passed_over);
      }
      return at_ != before;
    });
  }

  [[nodiscard]] const checkpoint_position& position() const noexcept { return at_; }
  /// The training state of the last file.
  [[nodiscard]] const training_state& state() const noexcept { return state_; }
  /// Files that the last poll found and that are not whole, or don't continue the chain, and why.
  [[nodiscard]] std::span<const fault> passed_over() const noexcept { return passed_over_; }

 private:
  std::string folder_;
  apply_options options_;
  std::vector<std::unique_ptr<detail::checkpoint_table>> tables_;
  checkpoint_position at_;
  training_state state_;
  std::vector<fault> passed_over_;
};

}}  // namespace deeprec::DEEPREC_ABI
