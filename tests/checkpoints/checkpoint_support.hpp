// A table that is trained at random, folders for its checkpoints, and what a table holds by its keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "growing/growing_support.hpp"
#include "support/temporary_folder.hpp"

namespace deeprec_test {

/// What files hold of a table: by keys, not by numbers of rows. All bytes of rows, gaps too.
struct keyed_content {
  struct row {
    std::vector<std::byte> bytes;
    std::uint64_t step = 0;
    std::uint32_t frequency = 0;

    friend bool operator==(const row&, const row&) = default;
  };
  std::map<key_type, row> rows;
  std::map<key_type, std::uint32_t> candidates;
  std::vector<std::byte> filter;
  std::uint64_t step = 0;

  friend bool operator==(const keyed_content&, const keyed_content&) = default;
};
template <class Format>
keyed_content keyed_content_of(deeprec::growing_table<Format>& table) {
  keyed_content now;
  auto& state = table.state();
  const auto stride = static_cast<std::size_t>(table.format().stride_bytes());
  table.rows().for_each_row([&](key_type key, const std::byte* row) {
    const deeprec::detail::row_facts& facts = state.rows.facts_of(row);
    now.rows[key] = {{row, row + stride},
                     state.first_step + facts.step.load(),
                     deeprec::detail::row_facts::frequency_of(facts.rest.load())};
  });
  table_content others = content_of(table);
  now.candidates = std::move(others.candidates);
  now.filter = std::move(others.filter);
  now.step = table.step();
  return now;
}

/// Keys among which are those that peers reserve.
inline key_type key_number(key_type k) {
  return k < special_keys().size() ? special_keys()[static_cast<std::size_t>(k)] : k * 0x9e3779b97f4a7c15ULL;
}

/// A growing table with Adagrad, and random calls that change it.
template <class Format>
class trained {
 public:
  static constexpr index_t width = 5;
  using table_type = deeprec::growing_table<Format>;

  explicit trained(std::uint64_t seed, const deeprec::growing_options& options = {.granule_bytes = 4096})
      : random_(seed), table_(width, deeprec::state_of<deeprec::adagrad>, first_values, options) {}

  table_type& operator*() { return table_; }
  table_type* operator->() { return &table_; }
  [[nodiscard]] keyed_content content() { return keyed_content_of(table_); }

  /// One step over random keys below `keys`: rows are inserted and updated.
  void step(key_type keys, index_t size = 40) {
    begin_step();
    train(draw(keys, size));
  }
  void begin_step() { table_.begin_step(++step_); }
  template <class Executor>
  void train_on(Executor& executor, const std::vector<key_type>& ids) {
    const auto n = static_cast<index_t>(ids.size());
    const deeprec::fixed_hotness_view<key_type> bags(ids.data(), n, 1);
    std::vector<float> gradient(static_cast<std::size_t>(n * width));
    for (float& g : gradient) g = static_cast<float>(random_() % 2001) / 1000.0F - 1;
    auto rows = deeprec::resolve(executor, table_.rows(), bags,
                                 deeprec::pooling{deeprec::combiner::sum, deeprec::bounds::skip},
                                 deeprec::keys::find_or_insert);
    rows.or_throw();
    deeprec::update(executor, rows.value(), deeprec::matrix_view<const float>(gradient.data(), n, width),
                    deeprec::adagrad{})
        .or_throw();
  }
  void train(const std::vector<key_type>& ids) { train_on(here_, ids); }
  void erase(const std::vector<key_type>& keys) { table_.erase(here_, keys).or_throw(); }
  template <class Policy>
  void evict_by(const Policy& policy) {
    deeprec::evict_rows(here_, table_, policy).or_throw();
  }
  void evict(std::uint64_t steps) { evict_by(deeprec::evict::step_ttl{steps}); }
  /// One of all calls.
  void change(key_type keys) {
    switch (random_() % 8) {
      case 0:
        return erase(draw(keys, 5));
      case 1:
        return evict(3 + random_() % 10);
      case 2: {
        const std::vector<key_type> some = draw(keys, 7);  // rows that are never trained
        return insert(table_, some).or_throw();
      }
      default:
        return step(keys);
    }
  }
  void change(key_type keys, int calls) {
    for (; calls > 0; --calls) change(keys);
  }
  [[nodiscard]] std::uint64_t steps() const { return step_; }
  void reseed(std::uint64_t seed) { random_.seed(seed); }
  /// Steps go on from here.
  void steps(std::uint64_t now) { step_ = now; }
  std::vector<key_type> draw(key_type keys, index_t n) {
    std::vector<key_type> ids(static_cast<std::size_t>(n));
    for (key_type& id : ids) id = key_number(random_() % keys);
    return ids;
  }

 private:
  std::mt19937_64 random_;
  deeprec::inline_executor here_;
  table_type table_;
  std::uint64_t step_ = 100;
};
using trained_table = trained<deeprec::f32_rows>;

/// Writes a cut; the length of its file.
inline index_t written(deeprec::result<deeprec::checkpoint_cut> taken) {
  taken.or_throw();
  return taken.value().write().or_throw();
}
inline deeprec::result<deeprec::checkpoint_cut> take(deeprec::checkpoint_folder& saves, bool full,
                                                     std::uint64_t step = 1) {
  const deeprec::training_state state{.step = step, .numbers = {}};
  return full ? saves.take_full(state) : saves.take_delta(state);
}
inline index_t save(deeprec::checkpoint_folder& saves, bool full, std::uint64_t step = 1) {
  return written(take(saves, full, step));
}

/// What a folder gives to a table of one name, and where that stands.
struct read_back {
  keyed_content content;
  deeprec::checkpoint_position at;
  deeprec::training_state state;
  std::size_t passed_over = 0;
};
template <class Format = deeprec::f32_rows, class Prepare = void (*)(deeprec::growing_table<Format>&)>
read_back restored(
    const std::string& folder, const std::string& name = "items",
    const Prepare& prepare = [](deeprec::growing_table<Format>&) {},
    const deeprec::apply_options& options = {}) {
  trained<Format> table(1);
  prepare(*table);
  deeprec::checkpoint_folder saves(folder);
  saves.add(name, *table).or_throw();
  auto read = saves.restore(options).or_throw();
  if (!read) return {};
  return {table.content(), read->at, read->state, read->passed_over.size()};
}

/// The path of a file of a folder.
inline std::string path_of(const temporary_folder& folder, bool full, std::uint64_t number) {
  return folder.path() + '/' + deeprec::detail::folder_file{full, number}.name();
}

}  // namespace deeprec_test
