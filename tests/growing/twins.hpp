// A growing table beside a dense one: the same program runs on both, and must leave the same bits.
//
//   same_in_every_setting<f32_rows>(format, [](const auto& ctx, const auto& rows, transcript& out) { ... });
//
// The dense table is read and trained by one thread; the growing one on every executor, with other seeds of
// its hash, other granules, and row numbers in another order. Each instruction set is its own reference.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/support/key_hash.hpp>

#include "support/batches.hpp"
#include "support/isas.hpp"
#include "support/seed.hpp"

namespace growing_test {

using namespace deeprec;
using namespace deeprec_test;

using context_ref = context<executor_ref>;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// What nobody may see of a growing table.
struct table_kind {
  std::uint64_t seed = 0;
  index_t granule_bytes = 4096;

  [[nodiscard]] detail::key_seed hash_seed() const {
    detail::key_seed made{mix64(seed + 1), {}};
    for (std::uint64_t& word : made.key) word = mix64(made.start += 77) | 1;
    return made;
  }
  [[nodiscard]] growing_options options() const {
    growing_options made;
    made.granule_bytes = granule_bytes;
    return made;
  }
};
inline constexpr table_kind every_kind[] = {
    {0, 4096}, {1, index_t{2} << 20}, {1, 4096}, {0, index_t{2} << 20}};

inline const row_init::uniform first_values{.seed = 5, .bound = 1.0F};

template <class Format>
std::unique_ptr<growing_table<Format>> growing_of(const Format& format, const table_kind& kind) {
  return std::make_unique<growing_table<Format>>(format, first_values, kind.options(), kind.hash_seed());
}
template <class Format>
dense_table<Format> dense_of(const Format& format, index_t rows) {
  dense_table<Format> made(rows, format);
  made.initialize(inline_executor{}, first_values);
  return made;
}

/// Room for the state of an optimizer.
template <class O>
row_layout room_for(index_t width) {
  return {.state_floats = O::row_state + O::element_state * width};
}

/// Rows for the ids 0 .. rows-1, in a random order, in some calls.
template <class Format>
void fill(const context_ref& ctx, growing_table<Format>& table, index_t rows) {
  std::vector<std::int64_t> ids(at(rows));
  for (index_t r = 0; r < rows; ++r) ids[at(r)] = r;
  std::mt19937_64 random(seed() + static_cast<std::uint64_t>(rows));
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<const std::byte*> addresses(ids.size());
  const reclaimer::pin pinned = table.rows().guard();
  for (index_t from = 0; from < rows; from += 97) {
    const index_t n = (std::min)(index_t{97}, rows - from);
    REQUIRE(table.rows().insert(ctx, ids.data() + from, n, addresses.data() + from).ok());
  }
  REQUIRE(table.size() == rows);
}

/// The bytes of the row of a key; empty where it has none.
template <class Format, class Id>
std::vector<std::byte> row_of(growing_table<Format>& table, const Id& key) {
  const auto pinned = table.rows().guard();
  const std::byte* row = nullptr;
  table.rows().find(&key, 1, &row);
  if (row == nullptr) return {};
  return {row, row + table.format().stride_bytes()};
}
template <class Format>
std::vector<std::byte> row_of(dense_table<Format>& table, index_t id) {
  const std::byte* const row = table.view().row(id);
  return {row, row + table.format().stride_bytes()};
}
template <class Format, class Id>
std::vector<float> values_of(growing_table<Format>& table, const Id& key) {
  const std::vector<std::byte> row = row_of(table, key);
  std::vector<float> values(at(table.format().width()), NAN);
  if (!row.empty()) table.format().decode(row.data(), values.data());
  return values;
}

/// What a program found, bit by bit.
class transcript {
 public:
  template <class T>
  void add(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(std::span<const T>(values));
  }
  void add(const status& found) {
    const fault_place& place = found.place();
    const std::int64_t numbers[] = {static_cast<std::int64_t>(found.code()), place.bag, place.position,
                                    place.value, place.table};
    add(std::span<const std::int64_t>(numbers));
    faults += found.ok() ? 0 : 1;
  }
  friend bool operator==(const transcript& a, const transcript& b) { return a.bytes_ == b.bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  int faults = 0;

 private:
  std::vector<std::byte> bytes_;
};

/// Executors of 1 (the caller), 1, 2, 3 and 7 threads.
class executors {
 public:
  executors() {
    for (const int threads : {1, 2, 3, 7})
      pools_.push_back(
          std::make_unique<thread_pool>(thread_pool_options{.threads = threads, .oversubscribe = true}));
    all_.emplace_back(here_);
    for (const auto& pool : pools_) all_.emplace_back(*pool);
  }
  [[nodiscard]] std::span<executor_ref> all() { return all_; }

 private:
  inline_executor here_;
  std::vector<std::unique_ptr<thread_pool>> pools_;
  std::vector<executor_ref> all_;
};

/// Calls reference(ctx) and then run(ctx, kind), which must answer the same: on every instruction set, on
/// every executor, for every kind of table.
template <class Reference, class Run>
void same_in_every_setting(const Reference& reference, const Run& run) {
  executors executor;
  std::size_t turn = 0;
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    const auto expected = reference(on(executor.all()[0], which));
    for (std::size_t e = 0; e < executor.all().size(); ++e) {
      CAPTURE(e);
      const std::size_t kinds = e == 0 ? 4 : 1;  // every pair occurs in some turn
      for (std::size_t k = 0; k < kinds; ++k, ++turn) {
        const table_kind& kind = every_kind[turn % 4];
        CAPTURE(kind.seed);
        CAPTURE(kind.granule_bytes);
        CHECK(run(on(executor.all()[e], which), kind) == expected);
      }
    }
  }
}

/// The same for a program, program(ctx, source, transcript), over the rows 0 .. rows-1; afterwards all rows.
template <class Format, class Program>
void same_in_every_setting(const Format& format, index_t rows, const Program& program) {
  same_in_every_setting(
      [&](const context_ref& ctx) {
        dense_table<Format> table = dense_of(format, rows);
        transcript found;
        program(ctx, table.view(), found);
        for (index_t r = 0; r < rows; ++r) found.add(row_of(table, r));
        CHECK(found.size() > 0);
        return found;
      },
      [&](const context_ref& ctx, const table_kind& kind) {
        const auto table = growing_of(format, kind);
        fill(ctx, *table, rows);
        transcript found;
        program(ctx, table->rows(), found);
        for (index_t r = 0; r < rows; ++r) found.add(row_of(*table, r));
        CHECK(table->statistics().pins == 0);
        return found;
      });
}

/// A batch with empty bags and positive weights, and a gradient for each bag.
struct sampled {
  batch<std::int64_t, std::int64_t> made;
  std::vector<float> gradient;
  index_t bags, width;

  sampled(index_t of_bags, index_t of_width, index_t rows, std::uint64_t salt = 0,
          shape_of_batch shape = shape_of_batch::skewed, index_t hotness = 4)
      : bags(of_bags), width(of_width) {
    std::mt19937_64 random(seed() + 1000 * salt + static_cast<std::uint64_t>(width));
    made = make_batch(random, shape, bags, rows, hotness);
    for (float& w : made.weights) w = std::fabs(w) + 0.25F;
    std::normal_distribution<float> normal;
    gradient.resize(at(bags * width));
    for (float& g : gradient) g = normal(random);
  }
  [[nodiscard]] jagged_view<> view(bool weighted = false) const { return made.view(weighted); }
  [[nodiscard]] matrix_view<const float> slope() const { return {gradient.data(), bags, width}; }
};

}  // namespace growing_test
