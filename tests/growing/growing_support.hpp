// What a growing table holds, as plain values; batches for it; a resource that counts and refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/test_resources.hpp"

namespace deeprec_test {

using key_type = std::uint64_t;
using deeprec::index_t;

/// The first values of all rows in these tests.
inline constexpr deeprec::row_init::uniform first_values{.seed = 42, .bound = 0.5F};
inline std::vector<float> first_values_of(key_type key, index_t width) {
  std::vector<float> values(static_cast<std::size_t>(width));
  first_values(static_cast<index_t>(key), values.data(), width);
  return values;
}

/// Keys that peers reserve, and the ends of the ranges.
inline const std::vector<key_type>& special_keys() {
  static const std::vector<key_type> keys = {0,
                                             1,
                                             static_cast<key_type>(-1),
                                             static_cast<key_type>(-2),
                                             1ULL << 63,
                                             ~0ULL >> 1,
                                             (1ULL << 63) + 1,
                                             0xffff'ffffULL,
                                             1ULL << 31,
                                             0x7fff'ffffULL,
                                             0xffff'ffff'8000'0000ULL,
                                             ~0ULL << 32,
                                             0x5a5a'5a5a'5a5a'5a5aULL,
                                             0xa5a5'a5a5'a5a5'a5a5ULL};
  return keys;
}

struct row_record {
  key_type key = 0;
  std::vector<float> values, state;
  std::uint64_t step = 0;
  std::uint32_t frequency = 0;

  friend bool operator==(const row_record&, const row_record&) = default;
};

/// Everything that calls can see later: rows in the order of their numbers, candidates, the filter's memory.
struct table_content {
  std::vector<row_record> rows;
  std::map<key_type, std::uint32_t> candidates;
  std::vector<std::byte> filter;

  friend bool operator==(const table_content&, const table_content&) = default;
};
template <class Format>
table_content content_of(deeprec::growing_table<Format>& table) {
  table_content now;
  auto& state = table.state();
  const auto width = static_cast<std::size_t>(table.format().width());
  table.rows().for_each_row([&](key_type key, const std::byte* row) {
    row_record one{key, std::vector<float>(width), {}, 0, 0};
    table.format().decode(row, one.values.data());
    if (const float* slots = table.format().state(const_cast<std::byte*>(row)))
      one.state.assign(slots, slots + table.format().state_floats());
    const deeprec::detail::row_facts& facts = state.rows.facts_of(row);
    one.step = state.first_step + facts.step.load();
    one.frequency = deeprec::detail::row_facts::frequency_of(facts.rest.load());
    now.rows.push_back(std::move(one));
  });
  state.index.for_each([&](key_type key, std::uint32_t code) {
    if (deeprec::detail::is_candidate_code(code))
      now.candidates[key] = code - deeprec::detail::first_candidate;
  });
  if (table.filter() != nullptr) {
    const auto bytes = table.filter()->state();
    now.filter.assign(bytes.begin(), bytes.end());
  }
  return now;
}
template <class Format>
std::vector<key_type> keys_in(deeprec::growing_table<Format>& table) {
  std::vector<key_type> keys;
  table.rows().for_each_row([&](key_type key, const std::byte*) { keys.push_back(key); });
  return keys;
}

template <class T>
deeprec::status status_of(const deeprec::result<T>& given) {
  if (!given) return given.fault();
  return {};
}
/// One key a bag.
inline deeprec::fixed_hotness_view<key_type> one_hot(const std::vector<key_type>& keys) {
  return {keys.data(), static_cast<index_t>(keys.size()), 1};
}
template <class Table, class Context>
auto resolve_new(const Context& ctx, Table& table, const std::vector<key_type>& keys) {
  return deeprec::resolve(ctx, table.rows(), one_hot(keys),
                          deeprec::pooling{deeprec::combiner::sum, deeprec::bounds::skip},
                          deeprec::keys::find_or_insert);
}
template <class Table, class Context>
void resolve_new(const Context& ctx, Table& table,
                 std::vector<key_type>&& keys) = delete;  // the batch is not copied
/// Rows for keys by the filter, without training.
template <class Table, class Context>
deeprec::status insert(const Context& ctx, Table& table, const std::vector<key_type>& keys) {
  std::vector<const std::byte*> rows(keys.size());
  return table.rows().insert(ctx, keys.data(), static_cast<index_t>(keys.size()), rows.data());
}
template <class Table>
deeprec::status insert(Table& table, const std::vector<key_type>& keys) {
  deeprec::inline_executor here;
  return insert(deeprec::context(here), table, keys);
}
/// One step of rows that were resolved one key a bag; every gradient is `slope`.
template <class Rows>
deeprec::status step_rows(const Rows& rows, float slope = 1) {
  deeprec::inline_executor here;
  const index_t bags = rows.bags().bags(), width = rows.source().format().width();
  const std::vector<float> gradient(static_cast<std::size_t>(bags * width), slope);
  return deeprec::update(here, rows, deeprec::matrix_view<const float>(gradient.data(), bags, width),
                         deeprec::sgd{.learning_rate = 0.125F});
}
/// Resolves, inserting, and makes a step.
template <class Table>
deeprec::status train(Table& table, const std::vector<key_type>& keys, float slope = 1) {
  deeprec::inline_executor here;
  const auto rows = resolve_new(deeprec::context(here), table, keys);
  if (!rows) return rows.fault();
  return step_rows(rows.value(), slope);
}
template <class Table>
const std::byte* address_of(Table& table, key_type key) {
  const auto rows = table.rows();
  const auto pinned = rows.guard();
  const std::byte* address = nullptr;
  rows.find(&key, 1, &address);
  return address;
}
template <class Table>
bool holds(Table& table, key_type key) {
  return address_of(table, key) != nullptr;
}
inline std::vector<key_type> keys_from(key_type first, std::size_t count, key_type step = 1) {
  std::vector<key_type> keys(count);
  for (std::size_t i = 0; i < count; ++i) keys[i] = first + step * i;
  return keys;
}

/// Threads that run at once, however many processors there are.
inline deeprec::thread_pool_options threads(int n) { return {.threads = n, .oversubscribe = true}; }

}  // namespace deeprec_test
