// Tables of checkpoints, and what a file does to all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_table.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_files.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What is wrong with the name of a table beside others.
inline status name_fault(std::span<const std::unique_ptr<checkpoint_table>> tables, std::string_view name) {
  if (name.empty()) return {errc::invalid_value, "checkpoints: a table must have a name"};
  const auto is_part = [](std::string_view part, std::string_view whole) {
    if (!part.starts_with(whole)) return false;
    part.remove_prefix(whole.size());
    return part.empty() || part == ", records" || part == ", erased" || part == ", candidates" ||
           part == ", filter";
  };
  for (const auto& table : tables) {
    if (is_part(name, table->name()) || is_part(table->name(), name))
      return {errc::invalid_value, "checkpoints: names of tables, and of their parts in files, must differ"};
  }
  return {};
}
/// What is wrong with a dense table.
inline status dense_fault(const named_table& table) {
  if (check_tables(std::span<const named_table>(&table, 1))) return {};
  return {errc::invalid_value, "checkpoints: rows and sizes of a dense table must fit together"};
}

/// Which link of which chain a file is. A full file has from = 0.
struct checkpoint_link {
  std::uint64_t chain = 0, from = 0, to = 0;

  [[nodiscard]] bool is_full() const noexcept { return from == 0; }
};

inline result<checkpoint_link> link_of(const table_file_info& info) {
  checkpoint_link link;
  for (const auto& [name, value] :
       {std::pair(checkpoint_chain, &link.chain), std::pair(checkpoint_from, &link.from),
        std::pair(checkpoint_to, &link.to)}) {
    const auto number = own_number(info.state, name);
    if (!number) return invalid("no checkpoint: has no number \"" + std::string(name) + '"');
    *value = static_cast<std::uint64_t>(*number);
  }
  if (link.chain == 0 || link.to == 0 || link.from >= link.to)
    return invalid("its place in a chain can't be");
  return link;
}

/// A file that was checked as a whole, for the tables of a list.
class checked_file {
 public:
  explicit checked_file(std::pmr::memory_resource* memory) : file_(memory) {}

  /// @param number that its name has; 0: any
  [[nodiscard]] result<checkpoint_link> open(const std::string& path, std::uint64_t number = 0) {
    if (const auto done = file_.open(path); !done) return done.fault();
    auto link = link_of(file_.info());
    if (link && number != 0 && link.value().to != number)
      return invalid("is the file " + std::to_string(link.value().to) + ", and its name has another number");
    return link;
  }
  /// One pass, which changes nothing.
  [[nodiscard]] result<void> check(std::span<const std::unique_ptr<checkpoint_table>> tables,
                                   const apply_options& options) {
    std::vector<table_section> sections(file_.info().tables.size());
    for (const auto& table : tables) {
      auto load = table->load(file_, options);
      if (!load) return load.fault();
      load.value()->check(sections);
      loads_.push_back(std::move(load).value());
    }
    return file_.read(sections);
  }
  /// The other pass. The numbers of the caller are returned.
  [[nodiscard]] result<training_state> apply() {
    std::vector<table_section> sections(file_.info().tables.size());
    for (const auto& load : loads_) load->apply(sections);
    if (const auto done = file_.read(sections); !done) return done.fault();
    for (const auto& load : loads_) {
      if (const auto done = load->end(); !done) return done.fault();
    }
    training_state state = file_.info().state;
    state.numbers.resize(state.numbers.size() - own_numbers(state).size());
    return state;
  }

 private:
  table_file_reader file_;
  std::vector<std::unique_ptr<table_load>> loads_;
};

/// Whether a delta continues what stands at a position, or is in it already; a fault that names the gap where
/// it does not.
inline result<void> check_link(const checkpoint_link& link, const checkpoint_position& at) {
  if (link.is_full()) return invalid("is a full file, and not a delta");
  if (link.chain != at.chain) return invalid("is a delta of another full file");
  if (link.from == at.number || link.to <= at.number) return {};
  return invalid("is the delta from " + std::to_string(link.from) + " to " + std::to_string(link.to) +
                 ", and the table is at " + std::to_string(at.number) +
                 (link.from > at.number ? ": a delta is missing" : ": it continues an older state"));
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
