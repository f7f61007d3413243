// The state of tables at one moment, to be written while they change.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_list.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_files.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_state.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

class checkpoint_cut;
namespace detail {
result<checkpoint_cut> take_cut(folder_state& folder, const training_state& state, bool full);
}  // namespace detail

/// Movable. One that is destroyed before it was written, or whose write failed, leaves its changes to the
/// next delta.
///
/// @pre     the folder outlives it
/// @threads one thread at a time, any; beside everything that tables allow
class checkpoint_cut {
 public:
  checkpoint_cut(checkpoint_cut&& other) noexcept
      : folder_(std::exchange(other.folder_, nullptr)),
        link_(other.link_),
        state_(std::move(other.state_)),
        path_(std::move(other.path_)) {}
  checkpoint_cut& operator=(checkpoint_cut&&) = delete;
  ~checkpoint_cut() { end(false); }

  /// The number of its file.
  [[nodiscard]] std::uint64_t number() const noexcept { return link_.to; }
  /// That of its file.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Whether it has not been written.
  [[nodiscard]] bool is_running() const noexcept { return folder_ != nullptr; }

  /// Writes the file; returns its length. Training goes on meanwhile, but writers of rows wait where
  /// copy_budget bytes of copies wait. After a full file old chains are removed.
  ///
  /// @param stop ends it between two pieces of rows
  /// @post    on success the file is on the disk under its name. After a fault no file was left
  /// @cost    O(bytes); for deltas O(rows that changed)
  /// @threads one thread, beside training
  /// @error   io_error · stopped · out_of_memory, also where memory for copies of rows was refused ·
  ///          invalid_value: rows were updated while the cut was taken, it was written before, or another
  ///          saver has written to the folder: a full file has to be next
  result<index_t> write(const std::stop_token* stop = nullptr) {
    if (folder_ == nullptr)
      return status(errc::invalid_value, "checkpoint_cut::write: a cut must be written once only");
    auto done = detail::on_file(path_, "checkpoint_cut::write", [&] { return write_file(stop); });
    end(done.ok());
    return done;
  }

 private:
  friend result<checkpoint_cut> detail::take_cut(detail::folder_state& folder, const training_state& state,
                                                 bool full);
  checkpoint_cut(detail::folder_state& folder, const detail::checkpoint_link& link, training_state state,
                 std::string path) noexcept
      : folder_(&folder), link_(link), state_(std::move(state)), path_(std::move(path)) {}

  result<index_t> write_file(const std::stop_token* stop) {
    std::vector<const_named_table> tables;
    training_state state = state_;
    const auto number = [&](std::string_view name, std::uint64_t value) {
      state.numbers.push_back({std::string(name), static_cast<index_t>(value)});
    };
    number(detail::checkpoint_chain, link_.chain);
    number(detail::checkpoint_from, link_.from);
    number(detail::checkpoint_to, link_.to);
    for (const auto& table : folder_->tables) table->describe(tables, state.numbers);
    for (const auto& one : folder_->attached) tables.push_back(one.table());
    detail::folder_lock lock;
    if (const auto done = lock.take(folder_->path, folder_->is_on_disk); !done) return done.fault();
    if (const auto done = check_newest(); !done) return done.fault();
    table_file_writer file(folder_->options.memory);
    if (const auto done = file.open(path_, tables, state, folder_->options.block_bytes); !done)
      return done.fault();
    for (const auto& table : folder_->tables) {
      if (const auto done = table->write(file, stop); !done) return done.fault();
    }
    for (const auto& one : folder_->attached) file.put(one.bytes.data(), one.bytes.size());
    auto done = file.finish();
    if (!done) {
      ::unlink(path_.c_str());  // it may have its name already: it is not part of the chain
    } else if (link_.is_full()) {
      detail::prune_folder(folder_->path, folder_->options.kept_chains);
    }
    return done;
  }
  // A file that another saver wrote is not overwritten, and not continued by changes since an older one.
  result<void> check_newest() {
    const auto files = detail::list_folder(folder_->path);
    if (!files) return files.fault();
    const std::uint64_t newest = files.value().empty() ? 0 : files.value().back().number;
    if (newest < (link_.is_full() ? link_.to : link_.from + 1)) return {};
    folder_->last_number = (std::max)(folder_->last_number, newest);
    return detail::invalid("the folder has the file " + std::to_string(newest) + ", which this one, " +
                           std::to_string(link_.to) + ", does not know of: a full file must be next");
  }
  void end(bool was_written) noexcept {
    if (folder_ == nullptr) return;
    for (const auto& table : folder_->tables) table->end(was_written);
    if (was_written) {
      const std::lock_guard lock(folder_->mutex);
      folder_->at = {link_.chain, link_.to};
    } else {
      folder_->is_on_disk = false;
    }
    folder_->is_running.store(false, std::memory_order_release);
    folder_ = nullptr;
  }

  detail::folder_state* folder_;
  detail::checkpoint_link link_;
  training_state state_;
  std::string path_;
};

namespace detail {

inline result<checkpoint_cut> take_cut(folder_state& folder, const training_state& state, bool full) {
  const char* const operation = full ? "checkpoint_folder::take_full" : "checkpoint_folder::take_delta";
  return on_file(folder.path, operation, [&]() -> result<checkpoint_cut> {
    if (folder.is_running.load(std::memory_order_acquire))
      return status(errc::would_block,
                    "checkpoint_folder: the cut before must be written or destroyed first");
    if (!full && folder.at.chain == 0)
      return status(
          errc::invalid_value,
          "checkpoint_folder::take_delta: a full file must come before (none of these tables was written or "
          "restored)");
    for (const named_number& number : state.numbers) {
      if (std::string_view(number.name).starts_with(checkpoint_prefix))
        return invalid("number " + in_quotes(number.name) +
                       ": its name must not begin with \"checkpoint, \"");
    }
    if (folder.last_number == 0) {
      const auto files = list_folder(folder.path);
      if (!files) return files.fault();
      if (!files.value().empty()) folder.last_number = files.value().back().number;
    }
    checkpoint_link link{folder.at.chain, full ? 0 : folder.at.number, folder.last_number + 1};
    if (full) {
      std::random_device random;
      link.chain = (std::uint64_t{random()} << 31 ^ random()) | 1;  // fits a signed number
    }
    std::vector<std::unique_lock<std::mutex>> locks;
    locks.reserve(folder.tables.size());
    for (const auto& table : folder.tables) {
      if (std::mutex* const one = table->mutex(); one != nullptr) locks.emplace_back(*one);
    }
    for (const auto& table : folder.tables) table->copy(full);
    training_state kept = state;
    std::string path = folder.path + '/' + folder_file{full, link.to}.name();
    for (const auto& table : folder.tables) table->begin(full);
    folder.is_running.store(true, std::memory_order_release);
    folder.last_number = link.to;
    return checkpoint_cut(folder, link, std::move(kept), std::move(path));
  });
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
