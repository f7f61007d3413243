// A table that is trained at random, folders for its checkpoints, and what a table holds by its keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "growing/growing_support.hpp"

namespace deeprec_test {

/// A folder of its own, which is removed.
class temporary_folder {
 public:
  temporary_folder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("deeprec ckpt " + std::to_string(::getpid()) + " " + std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  /// The names in it, sorted, but for that of the lock.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& one : std::filesystem::directory_iterator(path_)) {
      const std::string name = one.path().filename().string();
      if (name != "checkpoint.lock") all.push_back(name);
    }
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::filesystem::path path_;
};

/// What files hold of a table: by keys, not by numbers of rows.
template <class Format>
table_content keyed_content(deeprec::growing_table<Format>& table) {
  table_content now = content_of(table);
  std::sort(now.rows.begin(), now.rows.end(),
            [](const row_record& a, const row_record& b) { return a.key < b.key; });
  return now;
}

/// A growing table with Adagrad, and random calls that change it.
class trained_table {
 public:
  static constexpr index_t width = 5;
  using table_type = deeprec::growing_table<deeprec::f32_rows>;

  explicit trained_table(std::uint64_t seed,
                         const deeprec::growing_options& options = {.granule_bytes = 4096})
      : random_(seed), table_(width, deeprec::state_of<deeprec::adagrad>, first_values, options) {}

  table_type& operator*() { return table_; }
  table_type* operator->() { return &table_; }
  [[nodiscard]] table_content content() { return keyed_content(table_); }

  /// One step over random keys below `keys`: rows are inserted and updated.
  void step(key_type keys, index_t size = 40) {
    table_.begin_step(++step_);
    std::vector<key_type> ids(static_cast<std::size_t>(size));
    for (key_type& id : ids) id = draw(keys);
    train(ids);
  }
  void train(const std::vector<key_type>& ids) {
    const auto n = static_cast<index_t>(ids.size());
    const deeprec::fixed_hotness_view<key_type> bags(ids.data(), n, 1);
    std::vector<float> gradient(static_cast<std::size_t>(n * width));
    for (float& g : gradient) g = static_cast<float>(random_() % 2001) / 1000.0F - 1;
    auto rows =
        deeprec::resolve(here_, table_.rows(), bags, deeprec::combiner::sum, deeprec::keys::find_or_insert);
    rows.or_throw();
    deeprec::update(here_, rows.value(), deeprec::matrix_view<const float>(gradient.data(), n, width),
                    deeprec::adagrad{})
        .or_throw();
  }
  void erase(const std::vector<key_type>& keys) { table_.erase(here_, keys).or_throw(); }
  void evict(std::uint64_t steps) {
    deeprec::evict_rows(here_, table_, deeprec::evict::step_ttl{steps}).or_throw();
  }
  /// One of all calls.
  void change(key_type keys) {
    switch (random_() % 8) {
      case 0: {
        std::vector<key_type> some(5);
        for (key_type& key : some) key = draw(keys);
        return erase(some);
      }
      case 1:
        return evict(3 + random_() % 10);
      default:
        return step(keys);
    }
  }
  [[nodiscard]] std::uint64_t steps() const { return step_; }

 private:
  key_type draw(key_type keys) {
    const key_type k = random_() % keys;
    return k < special_keys().size() ? special_keys()[static_cast<std::size_t>(k)]
                                     : k * 0x9e3779b97f4a7c15ULL;
  }

  std::mt19937_64 random_;
  deeprec::inline_executor here_;
  table_type table_;
  std::uint64_t step_ = 100;
};

}  // namespace deeprec_test
