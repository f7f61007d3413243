// The tables of all collections that are alive, by their numbers.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "tables.hpp"

namespace deeprec_torch {

/// @threads every member is thread-safe
class live_tables {
 public:
  static live_tables& shared() {
    static live_tables all;
    return all;
  }
  /// @param rule number_of_rule of what steps them
  std::int64_t add(std::shared_ptr<tables> made, std::int64_t rule) {
    const std::unique_lock lock(mutex_);
    tables_.emplace(++last_, entry{std::move(made), rule});
    return last_;
  }
  void remove(std::int64_t number) {
    const std::unique_lock lock(mutex_);
    tables_.erase(number);
  }
  std::shared_ptr<tables> at(std::int64_t number) { return find(number).all; }
  std::int64_t rule_of(std::int64_t number) { return find(number).rule; }

 private:
  struct entry {
    std::shared_ptr<tables> all;
    std::int64_t rule;
  };
  entry find(std::int64_t number) {
    const std::shared_lock lock(mutex_);
    const auto found = tables_.find(number);
    TORCH_CHECK_VALUE(found != tables_.end(), "deeprec: the tables of this op must be alive (number ", number,
                      ")");
    return found->second;
  }

  std::shared_mutex mutex_;
  std::map<std::int64_t, entry> tables_;
  std::int64_t last_ = 0;
};

}  // namespace deeprec_torch
