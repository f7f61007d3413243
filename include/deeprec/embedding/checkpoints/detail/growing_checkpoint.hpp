// A growing table of checkpoints.
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
#include <deeprec/embedding/checkpoints/detail/growing_load.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/growing/row_replacement.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @tparam is_tracked whether changes of the table are followed: to write cuts, and not only to read files
template <RowFormat Format>
class growing_checkpoint final : public checkpoint_table {
 public:
  growing_checkpoint(std::string name, growing_table<Format>& table)
      : checkpoint_table(std::move(name)), state_(table.state()), sections_(this->name(), state_.format) {}
  growing_checkpoint(std::string name, growing_table<Format>& table, const checkpoint_options& options)
      : growing_checkpoint(std::move(name), table) {
    const std::lock_guard lock(state_.mutex);
    changes_ = std::make_unique<row_changes>(state_.rows, row_record(state_.format), options.memory,
                                             options.copy_budget);
    changes_->forget(false);
    state_.changes = changes_.get();
  }
  ~growing_checkpoint() override {
    if (changes_ == nullptr || !changes_->is_attached()) return;
    const std::lock_guard lock(state_.mutex);
    state_.changes = nullptr;
  }

  std::mutex* mutex() noexcept override { return &state_.mutex; }
  void copy(bool full) override {
    candidates_.clear();
    filter_.clear();
    is_whole_ = full || changes_->is_lost();
    if (!full) return;
    if (state_.count_to > 1) {
      state_.index.for_each([&](std::uint64_t key, std::uint32_t code) {
        if (is_candidate_code(code)) candidates_.push_back({key, code - first_candidate});
      });
      std::sort(candidates_.begin(), candidates_.end(),
                [](const auto& a, const auto& b) { return a.key < b.key; });
    }
    if (state_.filter != nullptr) {
      const auto all = state_.filter->state();
      filter_.assign(all.begin(), all.end());
    }
  }
  void begin(bool full) noexcept override {
    is_full_ = full;
    has_begun_ = state_.began;
    first_step_ = state_.first_step;
    step_ = state_.first_step + state_.step.load(std::memory_order_relaxed);
    all_rows_ = state_.rows.rows();
    rows_ = changes_->begin(is_whole_, first_step_);
  }
  void describe(std::vector<const_named_table>& tables, std::vector<named_number>& numbers) override {
    const auto add = [&](const table_entry& like, std::size_t rows) {
      const_named_table& added = tables.emplace_back(like, nullptr, like.row_bytes);
      added.rows = static_cast<index_t>(rows);
    };
    add(sections_.records, static_cast<std::size_t>(rows_));
    if (!is_whole_) add(sections_.erased, changes_->erased_keys().size());
    if (is_full_ && state_.count_to > 1) add(sections_.candidates, candidates_.size());
    if (is_full_ && !filter_.empty()) {
      add(sections_.filter, 1);
      tables.back().width = tables.back().row_bytes = static_cast<index_t>(filter_.size());
    }
    const auto number = [&](const char* what, std::uint64_t value) {
      numbers.push_back({name() + what, static_cast<index_t>(value)});
    };
    number(", step", step_);
    number(", first step", has_begun_ ? first_step_ : no_first_step);
    number(", rows", static_cast<std::uint64_t>(all_rows_));
    number(", whole", is_whole_ ? 1 : 0);
  }
  result<void> write(table_file_writer& file, const std::stop_token* stop) override {
    const std::size_t record_bytes = row_record(state_.format).bytes();
    bool is_bad = false;
    const status done = changes_->write(
        [&](const std::byte* records, index_t n) {
          file.put(records, static_cast<std::size_t>(n) * record_bytes);
          is_bad = !file.state();
        },
        [&] { return is_bad || (stop != nullptr && stop->stop_requested()); });
    if (is_bad) return file.state();
    if (!done) return done;
    if (!is_whole_) put(file, changes_->erased_keys());
    if (is_full_) {
      put(file, candidates_);
      put(file, filter_);
    }
    return file.state();
  }
  void end(bool was_written) noexcept override {
    changes_->end(was_written);
    candidates_.clear();
    filter_.clear();
  }

  result<std::unique_ptr<table_load>> load(const table_file_reader& file,
                                           const apply_options& options) override {
    auto made = std::make_unique<growing_load<Format>>(state_, sections_, options);
    if (auto done = made->open(file); !done) return done.fault();
    return std::unique_ptr<table_load>(std::move(made));
  }
  void forget_changes() noexcept override {
    if (changes_ == nullptr) return;
    const std::lock_guard lock(state_.mutex);
    changes_->forget(true);
  }

 private:
  template <class List>
  static void put(table_file_writer& file, const List& all) {
    file.put(reinterpret_cast<const std::byte*>(all.data()), all.size() * sizeof(*all.data()));
  }

  growing_state<Format>& state_;
  growing_sections<Format> sections_;
  std::unique_ptr<row_changes> changes_;
  // Of the cut.
  bool is_full_ = false, is_whole_ = false, has_begun_ = false;
  std::uint64_t step_ = 0, first_step_ = 0;
  index_t rows_ = 0, all_rows_ = 0;
  std::vector<candidate_record> candidates_;
  std::vector<std::byte> filter_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
