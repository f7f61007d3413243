// What a growing table takes from a file of a checkpoint.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_table.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/growing/row_replacement.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A key that waits for its row, and how often it has come.
struct candidate_record {
  std::uint64_t key;
  std::uint64_t count;
};

/// In the place of the first step: begin_step was never called. Rows that were born until then are of the
/// step that will be the first.
inline constexpr std::uint64_t no_first_step = ~std::uint64_t{0};

/// The names and shapes of a growing table's tables in a file.
template <RowFormat Format>
struct growing_sections {
  growing_sections(std::string of, const Format& format)
      : name(std::move(of)),
        records{name + ", records",
                format_name(format) + " records",
                0,
                format.width(),
                index_t{sizeof(record_head)} + format.row_bytes(),
                static_cast<index_t>(row_record(format).bytes()),
                format.state_floats(),
                std::string(state_owner_of(format))},
        erased{name + ", erased", "u64", 0, 1, 8, 8, 0},
        candidates{name + ", candidates", "u64 u64", 0, 2, 16, 16, 0},
        filter{name + ", filter", "bytes", 1, 0, 0, 0, 0} {}

  std::string name;
  table_entry records, erased, candidates, filter;
};

/// What a growing table takes from a file.
template <RowFormat Format>
class growing_load final : public table_load {
 public:
  growing_load(growing_state<Format>& state, const growing_sections<Format>& names,
               const apply_options& options)
      : state_(state),
        names_(names),
        options_(options),
        record_(state.format),
        replacement_(state, options.memory),
        kept_(options.memory) {}

  result<void> open(const table_file_reader& file) {
    const auto entry = [&](const table_entry& wanted, index_t& at, bool is_needed) -> result<void> {
      at = file.find(wanted.name);
      if (at < 0) {
        if (!is_needed) return {};
        return misfit("table " + in_quotes(wanted.name) + " is not in the file");
      }
      table_entry expected = wanted;
      expected.rows = file.info().tables[static_cast<std::size_t>(at)].rows;
      return check_shape(file.info().tables[static_cast<std::size_t>(at)], expected);
    };
    if (auto done = entry(names_.records, records_, true); !done) return done;
    if (auto done = entry(names_.erased, erased_, false); !done) return done;
    if (state_.count_to > 1) {
      if (auto done = entry(names_.candidates, candidates_, false); !done) return done;
    }
    table_entry filter = names_.filter;
    filter.width = filter.row_bytes = filter_bytes();
    if (filter.width > 0) {
      if (auto done = entry(filter, filter_, false); !done) return done;
      if (filter_ >= 0 && file.info().tables[static_cast<std::size_t>(filter_)].rows != 1)
        return invalid("table " + in_quotes(filter.name) + ": must have one row");
    }
    if (erased_ >= 0 && erased_ < records_) return out_of_order();
    const training_state& numbers = file.info().state;
    const auto number = [&](const char* what, std::uint64_t& value) -> result<void> {
      const auto found = own_number(numbers, names_.name + what);
      if (!found) return invalid("table " + in_quotes(names_.name) + ": has no number" + what);
      value = static_cast<std::uint64_t>(*found);
      return {};
    };
    std::uint64_t rows = 0, whole = 0;
    if (auto done = number(", step", step_); !done) return done;
    if (auto done = number(", first step", first_step_); !done) return done;
    if (auto done = number(", rows", rows); !done) return done;
    if (auto done = number(", whole", whole); !done) return done;
    rows_ = static_cast<index_t>(rows);
    is_whole_ = whole != 0;
    has_begun_ = first_step_ != no_first_step;
    if (!has_begun_) first_step_ = step_;
    const index_t records = file.info().tables[static_cast<std::size_t>(records_)].rows;
    if ((!has_begun_ && step_ != 0) || first_step_ > step_ || (step_ - first_step_) >> 32 != 0 ||
        (is_whole_ ? rows_ != records : rows_ < records))
      return invalid("table " + in_quotes(names_.name) + ": its numbers don't fit together");
    const std::lock_guard lock(state_.mutex);
    if (state_.began && !ends_steps()) first_step_ = state_.first_step;
    if (first_step_ <= step_ && (step_ - first_step_) >> 32 != 0) {
      return misfit("table " + in_quotes(names_.name) + ": is at step " + std::to_string(step_) +
                    " in the file, more than 2^32 after the first one here, " + std::to_string(first_step_));
    }
    if (!options_.takes && rows_ > state_.options.most_rows) {
      return misfit("table " + in_quotes(names_.name) + ": has " + std::to_string(rows_) +
                    " rows in the file, and most_rows is " + std::to_string(state_.options.most_rows));
    }
    return {};
  }

  void check(std::span<table_section> sections) override {
    section(sections, records_) = {
        record_.bytes(), [this](const std::byte* records, index_t n) { return check_records(records, n); }};
    if (erased_ >= 0) {
      section(sections, erased_) = {sizeof(std::uint64_t),
                                    [this, last = last_key()](const std::byte* keys, index_t n) mutable {
                                      return check_erased(keys, n, last);
                                    }};
    }
    if (candidates_ >= 0) {
      section(sections, candidates_) = {sizeof(candidate_record),
                                        [this, last = last_key()](const std::byte* all, index_t n) mutable {
                                          return check_candidates(all, n, last);
                                        }};
    }
  }
  void apply(std::span<table_section> sections) override {
    begin();
    if (is_whole_) replacement_.erase_candidates();
    section(sections, records_) = {
        record_.bytes(), [this](const std::byte* records, index_t n) -> result<void> {
          return options_.takes ? put_taken(records, n) : result<void>(replacement_.put(records, n));
        }};
    if (erased_ >= 0) {
      section(sections, erased_) = {sizeof(std::uint64_t),
                                    [this](const std::byte* keys, index_t n) { return erase(keys, n); }};
    }
    if (candidates_ >= 0) {
      section(sections, candidates_) = {sizeof(candidate_record), [this](const std::byte* all, index_t n) {
                                          return put_candidates(all, n);
                                        }};
    }
    if (filter_ >= 0) {
      section(sections, filter_) = {1, [this](const std::byte* bytes, index_t n) {
                                      std::memcpy(state_.filter->state().data() + filter_at_, bytes,
                                                  static_cast<std::size_t>(n));
                                      filter_at_ += static_cast<std::size_t>(n);
                                      return result<void>();
                                    }};
    }
  }
  result<void> end() override {
    if (is_whole_) replacement_.erase_others();
    const std::lock_guard lock(state_.mutex);
    if (is_whole_ && step_ >= state_.first_step) {  // no row is of a later step
      state_.step.store(static_cast<std::uint32_t>(step_ - state_.first_step), std::memory_order_relaxed);
    }
    if (options_.takes || state_.rows.rows() == rows_) return {};
    return invalid("table " + in_quotes(names_.name) + ": has " + std::to_string(state_.rows.rows()) +
                   " rows now and " + std::to_string(rows_) +
                   " in the file: it was not that of the file before");
  }

 private:
  static table_section& section(std::span<table_section> all, index_t at) {
    return all[static_cast<std::size_t>(at)];
  }
  result<void> out_of_order() const {
    return invalid("table " + in_quotes(names_.name) + ": erased keys come before the records");
  }
  [[nodiscard]] index_t filter_bytes() const {
    return state_.filter == nullptr ? 0 : static_cast<index_t>(state_.filter->state().size());
  }
  result<void> check_records(const std::byte* records, index_t n) const {
    for (index_t k = 0; k < n; ++k, records += record_.bytes()) {
      const record_head head = record_head::of(records);
      const auto bad = [&](const char* what) {
        return invalid("table " + in_quotes(names_.name) + ": key " + std::to_string(head.key) + ": " + what);
      };
      if (head.step > step_) return bad("its step is after that of the file");
      if (head.step < first_step_) return bad("its step is before the first one of the table");
      if (head.frequency > row_facts::most_frequency || head.zero != 0) return bad("its frequency can't be");
    }
    return {};
  }
  // Keys ascend: no key comes twice.
  using last_key = std::optional<std::uint64_t>;
  result<void> check_order(std::uint64_t key, last_key& last) const {
    const bool is_next = !last || key > *last;
    last = key;
    if (is_next) return {};
    return invalid("table " + in_quotes(names_.name) + ": key " + std::to_string(key) +
                   " is not larger than the one before it");
  }
  result<void> check_erased(const std::byte* bytes, index_t n, last_key& last) const {
    for (index_t k = 0; k < n; ++k, bytes += sizeof(std::uint64_t)) {
      std::uint64_t key = 0;
      std::memcpy(&key, bytes, sizeof(key));
      if (auto done = check_order(key, last); !done) return done;
    }
    return {};
  }
  result<void> check_candidates(const std::byte* bytes, index_t n, last_key& last) const {
    for (index_t k = 0; k < n; ++k, bytes += sizeof(candidate_record)) {
      candidate_record one{};
      std::memcpy(&one, bytes, sizeof(one));
      if (auto done = check_order(one.key, last); !done) return done;
      if (one.count < 1 || one.count > filters::counter::most)
        return invalid("table " + in_quotes(names_.name) + ": key " + std::to_string(one.key) +
                       ": its count of occurrences can't be");
    }
    return {};
  }
  // The table goes back to where it had not begun.
  [[nodiscard]] bool ends_steps() const noexcept { return is_whole_ && !has_begun_; }
  void begin() {
    const std::lock_guard lock(state_.mutex);
    if (ends_steps()) {
      state_.first_step = 0;
      state_.began = false;
    } else if (!state_.began && has_begun_) {
      state_.first_step = first_step_;
      state_.began = true;
    }
    const auto now = static_cast<std::uint32_t>(step_ - state_.first_step);
    if (step_ >= state_.first_step)
      state_.step.store((std::max)(now, state_.step.load(std::memory_order_relaxed)),
                        std::memory_order_relaxed);
  }
  [[nodiscard]] bool takes(std::uint64_t key) const {
    return !options_.takes || options_.takes(names_.name, key);
  }
  result<void> put_taken(const std::byte* records, index_t n) {
    kept_.clear();
    for (index_t k = 0; k < n; ++k, records += record_.bytes()) {
      if (takes(record_head::of(records).key)) kept_.insert(kept_.end(), records, records + record_.bytes());
    }
    return replacement_.put(kept_.data(), static_cast<index_t>(kept_.size() / record_.bytes()));
  }
  result<void> erase(const std::byte* bytes, index_t n) {
    std::pmr::vector<std::uint64_t> keys(static_cast<std::size_t>(n), options_.memory);
    std::memcpy(keys.data(), bytes, keys.size() * sizeof(std::uint64_t));
    std::erase_if(keys, [&](std::uint64_t key) { return !takes(key); });
    replacement_.erase(keys);
    return {};
  }
  result<void> put_candidates(const std::byte* bytes, index_t n) {
    // A key that waits in the file may have a row here.
    if (is_whole_ && !std::exchange(are_others_erased_, true)) replacement_.erase_others();
    std::pmr::vector<std::uint64_t> keys(options_.memory);
    std::pmr::vector<std::uint32_t> codes(options_.memory);
    for (index_t k = 0; k < n; ++k, bytes += sizeof(candidate_record)) {
      candidate_record one{};
      std::memcpy(&one, bytes, sizeof(one));
      if (!takes(one.key)) continue;
      keys.push_back(one.key);
      codes.push_back(first_candidate + static_cast<std::uint32_t>(one.count));
    }
    return replacement_.put_candidates(keys, codes);
  }

  growing_state<Format>& state_;
  const growing_sections<Format>& names_;
  const apply_options& options_;
  row_record record_;
  row_replacement<Format> replacement_;
  std::pmr::vector<std::byte> kept_;
  index_t records_ = -1, erased_ = -1, candidates_ = -1, filter_ = -1;
  std::size_t filter_at_ = 0;
  std::uint64_t step_ = 0, first_step_ = 0;
  index_t rows_ = 0;
  bool is_whole_ = false, has_begun_ = false, are_others_erased_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
