// The oracle of growing tables: std::map of whole records, victims by std::sort, row numbers by std::set. It
// shares nothing with the table but filters that are objects, which it asks as the table has to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>

#include "growing/growing_support.hpp"

namespace deeprec_test {

/// Rules that the oracle can break, one at a time: the comparison must notice each.
struct broken_rules {
  bool distinct_only = false;         ///< a batch counts a key once, however often it has it
  bool forgets_candidates = false;    ///< a key that was not admitted starts anew
  bool ttl_at_boundary = false;       ///< a row goes when it is exactly as old as it may be
  bool ties_by_number = false;        ///< rows of the same step go by their numbers
  bool keeps_frequency = false;       ///< a key that comes back has the frequency that it had
  bool keeps_state = false;           ///< it has the optimizer state that it had
  bool ignores_kept_steps = false;    ///< rows of the last steps go too
  bool evicts_newest = false;         ///< for being full, rows of the step that goes on go too
  bool loses_found = false;           ///< for being full, rows go that the inserting batch has
  bool sweeps_for_one_batch = false;  ///< room is made for this batch only
  bool newest_number_first = false;   ///< numbers are used again from the last one erased on
  bool ignores_pins = false;          ///< numbers are used again while readers hold them
  bool trains_erased = false;         ///< an update brings back a row that was erased after it was resolved
};

/// A user's filter: by the sum of occurrences and by parities of key and step.
class parity_filter final : public deeprec::admission_filter {
 public:
  void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> occurrences,
             std::uint64_t step, std::span<unsigned char> admitted) noexcept override {
    for (std::size_t k = 0; k < keys.size(); ++k) {
      std::uint32_t& came = came_[keys[k]];
      came += occurrences[k];
      admitted[k] = came > 2 + (keys[k] + step) % 2 + k % 2 ? 1 : 0;
    }
  }

 private:
  std::map<key_type, std::uint32_t> came_;
};

class growing_model {
 public:
  using order = std::tuple<std::uint64_t, std::uint64_t, key_type>;

  growing_model(index_t width, const deeprec::growing_options& options, const broken_rules& rules)
      : width_(width), options_(options), broken_(rules) {}

  std::uint32_t count_to = 1;
  std::unique_ptr<deeprec::admission_filter> filter;
  std::uint64_t step = 0;
  index_t refused = 0, evicted = 0;

  /// What readers hold: the moment since when.
  std::uint64_t pin() {
    pins_.insert(++time_);
    return time_;
  }
  void unpin(std::uint64_t moment) { pins_.erase(moment); }
  [[nodiscard]] index_t pins() const { return static_cast<index_t>(pins_.size()); }
  [[nodiscard]] index_t waiting() const { return static_cast<index_t>(waiting_.size()); }
  [[nodiscard]] index_t size() const { return static_cast<index_t>(rows_.size()); }

  /// The values of a key's row; none where it has no row.
  [[nodiscard]] std::optional<std::vector<float>> find(key_type key) const {
    const auto it = rows_.find(key);
    if (it == rows_.end()) return {};
    return it->second.record.values;
  }
  /// What a batch reads, after the keys without rows were inserted.
  std::vector<std::optional<std::vector<float>>> resolve(const std::vector<key_type>& keys) {
    std::vector<std::optional<std::vector<float>>> read;
    std::vector<key_type> absent;
    for (const key_type key : keys) {
      read.push_back(find(key));
      if (!read.back()) absent.push_back(key);
    }
    const std::uint64_t own = pin();
    insert(absent, true, keys);
    unpin(own);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (!read[k]) read[k] = find(keys[k]);
    }
    return read;
  }
  /// `also`: other keys of the batch, whose rows make no room for these.
  void insert(const std::vector<key_type>& keys, bool asks_filter, const std::vector<key_type>& also = {}) {
    if (keys.empty()) return;
    reclaim();
    std::vector<key_type> absent;
    std::map<key_type, std::uint32_t> occurrences;
    for (const key_type key : keys) {
      if (rows_.contains(key)) continue;
      if (occurrences[key]++ == 0) absent.push_back(key);
    }
    if (absent.empty()) return;
    std::vector<unsigned char> admitted(absent.size(), 1);
    const bool counts = asks_filter && filter == nullptr && count_to > 1;
    auto wanted = static_cast<index_t>(absent.size());
    if (counts) {
      wanted = 0;
      for (std::size_t k = 0; k < absent.size(); ++k) {
        std::uint32_t& came = candidates_[absent[k]];
        if (broken_.forgets_candidates) came = 0;
        came += broken_.distinct_only ? 1 : occurrences[absent[k]];
        admitted[k] = came >= count_to ? 1 : 0;
        wanted += admitted[k];
      }
    }
    held_.clear();
    if (!broken_.loses_found) {
      held_.insert(keys.begin(), keys.end());
      held_.insert(also.begin(), also.end());
    }
    make_room(wanted);
    held_.clear();
    if (asks_filter && filter != nullptr) {
      std::vector<std::uint32_t> came;
      for (const key_type key : absent) came.push_back(broken_.distinct_only ? 1 : occurrences[key]);
      filter->admit(absent, came, step, admitted);
    }
    for (std::size_t k = 0; k < absent.size(); ++k) {
      if (admitted[k] == 0) continue;
      if (size() < options_.most_rows) {
        give_birth(absent[k]);
      } else {
        ++refused;
      }
    }
  }
  /// One step for each row of a batch: gradients are those of the positions.
  void update(const std::vector<key_type>& keys, const std::vector<std::vector<float>>& gradients,
              bool adagrad, float rate) {
    std::map<key_type, std::pair<std::vector<float>, std::uint32_t>> sums;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      auto& [sum, count] = sums[keys[k]];
      sum.resize(static_cast<std::size_t>(width_));
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += gradients[k][j];
      ++count;
    }
    for (const auto& [key, sum] : sums) {
      if (!rows_.contains(key)) {
        if (!broken_.trains_erased || !past_.contains(key)) continue;
        give_birth(key);
      }
      row_record& row = rows_.at(key).record;
      row.step = step;
      row.frequency = std::min(row.frequency + sum.second, (1U << 24) - 1);
      for (std::size_t j = 0; j < row.values.size(); ++j) {
        const float g = sum.first[j];
        if (adagrad) {
          row.state[j] += g * g;
          row.values[j] -= rate * g / (std::sqrt(row.state[j]) + 1e-8F);
        } else {
          row.values[j] -= rate * g;
        }
      }
    }
  }
  index_t erase(const std::vector<key_type>& keys) {
    ++time_;
    index_t erased = 0;
    for (const key_type key : keys) {
      candidates_.erase(key);
      erased += erase_one(key) ? 1 : 0;
    }
    return erased;
  }
  /// Rows for which f(record) is true.
  template <class F>
  index_t evict_if(std::uint64_t kept_steps, const F& f) {
    ++time_;
    std::vector<key_type> gone;
    for (const auto& [key, row] : rows_) {
      if (may_go(row.record, kept_steps) && f(row.record)) gone.push_back(key);
    }
    for (const key_type key : gone) erase_one(key);
    evicted += static_cast<index_t>(gone.size());
    return static_cast<index_t>(gone.size());
  }
  index_t evict_ttl(std::uint64_t kept_steps, std::uint64_t steps_to_live) {
    return evict_if(kept_steps, [&](const row_record& row) {
      return step - row.step > steps_to_live || (broken_.ttl_at_boundary && step - row.step == steps_to_live);
    });
  }
  index_t evict_least(std::uint64_t kept_steps, index_t rows_left, bool by_frequency) {
    return evict_first(size() - rows_left, kept_steps, by_frequency);
  }

  /// Rows in the order of their numbers, and candidates.
  [[nodiscard]] table_content content() {
    table_content now;
    std::map<std::uint32_t, row_record> by_number;
    for (const auto& [key, row] : rows_) by_number[row.number] = row.record;
    for (const auto& [number, record] : by_number) now.rows.push_back(record);
    now.candidates = candidates_;
    if (filter != nullptr) {
      const auto bytes = filter->state();
      now.filter.assign(bytes.begin(), bytes.end());
    }
    return now;
  }

 private:
  struct numbered {
    row_record record;
    std::uint32_t number;
  };

  [[nodiscard]] bool may_go(const row_record& row, std::uint64_t kept_steps) const {
    return !held_.contains(row.key) && (broken_.ignores_kept_steps || step - row.step >= kept_steps);
  }
  void make_room(index_t wanted) {
    const index_t over = size() + wanted - options_.most_rows;
    if (over <= 0 || options_.full == deeprec::when_full::refuse) return;
    ++time_;
    const index_t more = broken_.sweeps_for_one_batch ? over : std::max(over, options_.most_rows / 32);
    evict_first(more, broken_.evicts_newest ? 0 : 1,
                options_.full == deeprec::when_full::evict_least_frequent);
  }
  index_t evict_first(index_t count, std::uint64_t kept_steps, bool by_frequency) {
    std::vector<std::pair<order, key_type>> sorted;
    for (const auto& [key, row] : rows_) {
      const row_record& r = row.record;
      const key_type last = broken_.ties_by_number ? row.number : key;
      if (may_go(r, kept_steps))
        sorted.push_back({by_frequency ? order{r.frequency, r.step, last} : order{0, r.step, last}, key});
    }
    std::sort(sorted.begin(), sorted.end());
    count = std::clamp(count, index_t{0}, static_cast<index_t>(sorted.size()));
    ++time_;
    for (index_t k = 0; k < count; ++k) erase_one(sorted[static_cast<std::size_t>(k)].second);
    evicted += count;
    return count;
  }
  bool erase_one(key_type key) {
    const auto it = rows_.find(key);
    if (it == rows_.end()) return false;
    waiting_.push_back({time_, it->second.number});
    past_[key] = std::move(it->second.record);
    rows_.erase(it);
    return true;
  }
  void reclaim() {
    std::erase_if(waiting_, [&](const auto& one) {
      const bool is_over = broken_.ignores_pins || pins_.empty() || *pins_.begin() > one.first;
      if (is_over) free_.push_back(one.second);
      return is_over;
    });
    if (!broken_.newest_number_first) std::sort(free_.begin(), free_.end(), std::greater<>());
  }
  void give_birth(key_type key) {
    numbered row{
        {key, first_values_of(key, width_), std::vector<float>(static_cast<std::size_t>(width_)), step, 0},
        0};
    if (const auto was = past_.find(key); was != past_.end()) {
      if (broken_.keeps_frequency) row.record.frequency = was->second.frequency;
      if (broken_.keeps_state) row.record.state = was->second.state;
    }
    if (free_.empty()) {
      row.number = fresh_++;
    } else {
      row.number = free_.back();
      free_.pop_back();
    }
    rows_.emplace(key, std::move(row));
    candidates_.erase(key);
  }

  index_t width_;
  deeprec::growing_options options_;
  broken_rules broken_;
  std::map<key_type, numbered> rows_;
  std::map<key_type, std::uint32_t> candidates_;
  std::map<key_type, row_record> past_;                           // as it was erased
  std::vector<std::pair<std::uint64_t, std::uint32_t>> waiting_;  // since when, number
  std::vector<std::uint32_t> free_;                               // the next one is the last
  std::uint32_t fresh_ = 0;
  std::uint64_t time_ = 0;
  std::set<std::uint64_t> pins_;
  std::set<key_type> held_;
};

}  // namespace deeprec_test
