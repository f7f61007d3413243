// What the tests of embedding/ share: guarded tables, the comparison with the oracle, every ISA.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/batches.hpp"
#include "support/guarded.hpp"
#include "support/isas.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"

namespace embedding_test {

using namespace deeprec;
using namespace deeprec_test;

/// A table in memory that ends at a guard page, one of the same rows that begins behind one, and their exact
/// values.
template <class T>
struct guarded_table {
  guarded_table(std::mt19937_64& random, index_t rows, index_t width)
      : bytes(static_cast<std::size_t>(rows * width) * sizeof(T)),
        bytes_behind_fence(bytes.size(), fence::before),
        view(bytes.data(), rows, plain_rows<T>(width)) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(static_cast<std::size_t>(width));
    for (index_t i = 0; i < rows; ++i) {
      for (float& x : row) x = normal(random);
      view.format().encode(row.data(), view.row(i));
      view.format().decode(view.row(i), row.data());
      values.emplace_back(row.begin(), row.end());
    }
    copy();
  }
  /// Another value for an element.
  void set(index_t row, index_t column, float x) {
    std::vector<double>& numbers = values[static_cast<std::size_t>(row)];
    numbers[static_cast<std::size_t>(column)] = static_cast<double>(x);
    const std::vector<float> floats(numbers.begin(), numbers.end());
    view.format().encode(floats.data(), view.row(row));
    copy();
  }
  table_view<plain_rows<T>> at(fence side) const {
    return side == fence::behind ? view : table_view<plain_rows<T>>(front, view.rows(), view.format());
  }
  void copy() {
    front = bytes_behind_fence.data();
    if (bytes.size() > 0) std::memcpy(front, bytes.data(), bytes.size());
  }
  guarded<std::byte> bytes;
  guarded<std::byte> bytes_behind_fence;
  std::byte* front = nullptr;
  table_view<plain_rows<T>> view;
  std::vector<std::vector<double>> values;
};

template <class Out>
constexpr double storage_roundoff() {
  return std::is_same_v<Out, float> ? 0x1p-24 : std::is_same_v<Out, f16> ? 0x1p-11 : 0x1p-8;
}

// Every row of `out` against the oracle, under the bound that the documentation names.
template <class Out, class Bags>
bool agrees(const std::vector<std::vector<double>>& table, const Bags& bags, matrix_view<const Out> out,
            pooled_as how, long long padding = -1) {
  for (index_t b = 0; b < bags.bags(); ++b) {
    const oracle_row expected = pool_one(table, bags, b, out.extent(1), how, padding);
    const auto n = static_cast<double>(bags.ranges().end(b) - bags.ranges().begin(b));
    for (index_t j = 0; j < out.extent(1); ++j) {
      const auto i = static_cast<std::size_t>(j);
      const double bound = (2 * n + 4) * 0x1p-24 * expected.magnitude[i] +
                           storage_roundoff<Out>() * std::fabs(expected.value[i]) + 1e-7;
      if (!(std::fabs(static_cast<double>(out(b, j)) - expected.value[i]) <= bound)) {
        MESSAGE("bag ", b, " column ", j, ": ", static_cast<double>(out(b, j)), " for ", expected.value[i],
                " (bound ", bound, ")");
        return false;
      }
    }
  }
  return true;
}

// The library's answer in a buffer beside a guard page.
template <class Out, class Context, class Source, class Bags, class How>
guarded<Out> looked_up(const Context& ctx, const Source& source, const Bags& bags, const How& how,
                       fence side = fence::behind) {
  const index_t width = source.format().width();
  guarded<Out> out(static_cast<std::size_t>(bags.bags() * width), side);
  std::memset(static_cast<void*>(out.data()), 0xff, out.size() * sizeof(Out));  // NaN: unwritten shows
  const status s = lookup(ctx, source, bags, how, matrix_view<Out>(out.data(), bags.bags(), width));
  REQUIRE_MESSAGE(s.ok(), s.message());
  return out;
}

template <class T>
bool same_bits(const guarded<T>& a, const guarded<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A batch whose arrays all lie beside guard pages.
template <class Id, class Offset>
struct guarded_batch {
  guarded_batch(const batch<Id, Offset>& made, fence side)
      : ids(guarded<Id>::copy_of(made.ids, side)),
        offsets(guarded<Offset>::copy_of(made.offsets, side)),
        weights(guarded<float>::copy_of(made.weights, side)) {}
  jagged_view<Id, Offset> view(bool weighted) const {
    return {offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
            static_cast<index_t>(ids.size()), weighted ? weights.data() : nullptr};
  }
  guarded<Id> ids;
  guarded<Offset> offsets;
  guarded<float> weights;
};

template <class Out, class Table, class Batch, class Combiner>
void check_every_isa(const Table& table, const Batch& made, bool weighted, Combiner how) {
  inline_executor here;
  const auto reference = looked_up<Out>(on(here, isa::portable), table.view, made.view(weighted), how);
  for (const fence side : every_fence) {
    CAPTURE(static_cast<int>(side));
    const guarded_batch fenced(made, side);
    const auto bags = fenced.view(weighted);
    for (const isa which : runnable_isas()) {
      CAPTURE(std::string(to_string(which)));
      const auto out = looked_up<Out>(on(here, which), table.at(side), bags, how, side);
      CHECK(agrees<Out>(table.values, bags, {out.data(), bags.bags(), table.view.width()}, kind(how)));
      if (!weighted) CHECK(same_bits(out, reference));
    }
  }
}

/// The bits of a bag in the batch that it came with, in every other part of it, and alone: on every ISA.
template <class Source, class Bags, class How>
void check_bags_apart(const Source& source, const Bags& bags, const How& how) {
  inline_executor here;
  const index_t width = source.format().width();
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    const auto whole = looked_up<float>(on(here, which), source, bags, how);
    for (const index_t count : {index_t{1}, index_t{2}, (bags.bags() + 1) / 2}) {
      CAPTURE(count);
      for (index_t first = 0; first < bags.bags(); first += count) {
        CAPTURE(first);
        const auto part = bags.slice(first, (std::min)(count, bags.bags() - first));
        const auto out = looked_up<float>(on(here, which), source, part, how);
        CHECK(std::memcmp(out.data(), whole.data() + first * width, out.size() * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace embedding_test
