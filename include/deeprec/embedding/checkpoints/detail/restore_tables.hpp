// Tables filled from the newest chain of a folder that is whole.
#pragma once

#include <algorithm>
#include <cstddef>
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
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Whether a fault is one of the file, so that an older file may do.
inline bool is_of_file(const fault& why) noexcept {
  return why.code() == errc::io_error || why.code() == errc::invalid_value;
}

/// Which tables files of a folder go to.
struct checkpoint_source {
  const std::string& folder;
  std::span<const std::unique_ptr<checkpoint_table>> tables;
  const apply_options& options;
};

/// Applies the deltas of a chain that follow a position, until one is missing or not whole.
///
/// @param at    moves with each delta
/// @param state becomes that of the last one
inline result<void> follow_chain(const checkpoint_source& from, std::span<const folder_file> files,
                                 checkpoint_position& at, std::optional<training_state>& state,
                                 std::vector<fault>& passed_over) {
  for (const folder_file& file : files) {
    if (file.is_full || file.number <= at.number) continue;
    const std::string path = from.folder + '/' + file.name();
    checked_file delta(from.options.memory);
    const auto link = delta.open(path, file.number);
    if (link && link.value().chain != at.chain) continue;
    result<void> checked = link ? check_link(link.value(), at) : result<void>(link.fault());
    if (checked) checked = delta.check(from.tables, from.options);
    if (!checked) {
      fault why = fault(checked.fault()).in_file(path);
      if (!is_of_file(why)) return why;
      passed_over.push_back(std::move(why));
      return {};
    }
    auto applied = delta.apply();
    if (!applied) return fault(applied.fault()).in_file(path);
    state = std::move(applied).value();
    at.number = link.value().to;
  }
  return {};
}

/// The newest full file that is whole and has a larger number than `after`, and its deltas; nothing where the
/// folder has no such file.
inline result<std::optional<restored_checkpoint>> restore_tables(const checkpoint_source& from,
                                                                 std::uint64_t after = 0) {
  const auto listed = list_folder(from.folder);
  if (!listed) return listed.fault();
  const std::vector<folder_file>& files = listed.value();
  if (files.empty()) return std::optional<restored_checkpoint>();
  restored_checkpoint read;
  for (std::size_t i = files.size(); i-- > 0;) {
    if (!files[i].is_full || files[i].number <= after) continue;
    const std::string path = from.folder + '/' + files[i].name();
    checked_file full(from.options.memory);
    const auto link = full.open(path, files[i].number);
    result<void> checked = link ? result<void>() : result<void>(link.fault());
    if (checked && !link.value().is_full()) checked = invalid("is a delta, by its numbers");
    if (checked) checked = full.check(from.tables, from.options);
    if (!checked) {
      fault why = fault(checked.fault()).in_file(path);
      if (!is_of_file(why)) return why;
      read.passed_over.push_back(std::move(why));
      continue;
    }
    auto applied = full.apply();
    if (!applied) return fault(applied.fault()).in_file(path);
    std::optional<training_state> state = std::move(applied).value();
    read.at = {link.value().chain, link.value().to};
    if (const auto done = follow_chain(from, files, read.at, state, read.passed_over); !done)
      return done.fault();
    read.state = std::move(*state);
    read.path = from.folder + '/' + folder_file{read.at.number == link.value().to, read.at.number}.name();
    return std::optional<restored_checkpoint>(std::move(read));
  }
  if (!read.passed_over.empty()) return read.passed_over.front();
  if (after > 0) return std::optional<restored_checkpoint>();
  return fault(errc::io_error, "has deltas only, and no full file", from.folder);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
