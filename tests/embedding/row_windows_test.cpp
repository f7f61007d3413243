// Kernels take ids of any type, addresses, absent ids, weights and norms at run time, and locate rows in
// windows where they must: every form of one batch gives the same bits, whatever the length of its bags.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "support/isas.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 300;

/// Bags shorter and longer than a window, which holds 256 rows, and than a chunk, which holds 4096.
struct batch {
  std::vector<std::int64_t> offsets{0}, wide;
  std::vector<std::int32_t> narrow;
  std::vector<std::uint32_t> without_sign;
  std::vector<float> weights, ones;

  explicit batch(std::mt19937_64& random, int longest = 4100) {
    for (const int length : {0, 1, 3, 255, 0, 256, 257, 20, 700, 1, longest, 2}) {
      for (int k = 0; k < length; ++k) {
        const auto id = static_cast<std::int64_t>(random() % rows);
        wide.push_back(id);
        narrow.push_back(static_cast<std::int32_t>(id));
        without_sign.push_back(static_cast<std::uint32_t>(id));
        weights.push_back(static_cast<float>(random() % 1000) / 256 - 1);
        ones.push_back(1);
      }
      offsets.push_back(static_cast<std::int64_t>(wide.size()));
    }
  }
  [[nodiscard]] index_t bags() const { return static_cast<index_t>(offsets.size()) - 1; }
  template <class Id>
  [[nodiscard]] jagged_view<Id> view(const std::vector<Id>& ids, bool weighted) const {
    return {offsets.data(), bags(), ids.data(), static_cast<index_t>(ids.size()),
            weighted ? weights.data() : nullptr};
  }
  [[nodiscard]] jagged_view<> with_ones() const {
    return {offsets.data(), bags(), wide.data(), static_cast<index_t>(wide.size()), ones.data()};
  }
};

/// A row source whose rows have addresses of no order.
template <class Table>
struct located {
  using format_type = typename Table::format_type;
  using space = host_space;
  const Table* table;
  [[nodiscard]] const format_type& format() const { return table->format(); }
  [[nodiscard]] index_t rows() const { return table->rows(); }
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k) {
      addresses[k] = table->data() + static_cast<index_t>(ids[k]) * table->format().stride_bytes();
    }
  }
};

template <class Out, class Source, class Bags, class Pooling>
std::vector<Out> pooled(isa which, const Source& source, const Bags& bags, const Pooling& pooling) {
  inline_executor here;
  const index_t width = source.format().width();
  const bool concat =
      std::is_same_v<typename decltype(detail::as_pooling(pooling))::combiner, combiner::concat_t>;
  const index_t height = concat ? bags.id_count() : bags.bags();
  std::vector<Out> out(static_cast<std::size_t>(height * width), Out(7.0F));
  const status s = lookup(on(here, which), source, bags, pooling, matrix_view(out.data(), height, width));
  REQUIRE_MESSAGE(s.ok(), s.message());
  return out;
}

template <class Out>
bool same_bits(const std::vector<Out>& a, const std::vector<Out>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Out)) == 0;
}

/// Every form of the batch under one combiner.
template <class Out, class Table, class Combiner>
void check_forms(isa which, const Table& table, const batch& of, bool weighted, Combiner combiner) {
  const located<Table> source{&table};
  const auto expected = pooled<Out>(which, table, of.view(of.wide, weighted), combiner);
  CHECK(same_bits(expected, pooled<Out>(which, table, of.view(of.narrow, weighted), combiner)));
  CHECK(same_bits(expected, pooled<Out>(which, table, of.view(of.without_sign, weighted), combiner)));
  CHECK(same_bits(expected, pooled<Out>(which, source, of.view(of.wide, weighted), combiner)));
  const auto skips = pooling{combiner, bounds::skip};
  if (weighted) {
    CHECK(same_bits(expected, pooled<Out>(which, table, of.view(of.wide, true), skips)));
    CHECK(same_bits(expected, pooled<Out>(which, source, of.view(of.narrow, true), skips)));
    CHECK(same_bits(expected,
                    pooled<Out>(which, table, of.view(of.wide, true), pooling{combiner, max_norm{1e30F}})));
    return;
  }
  // A factor of 1 changes no bit.
  CHECK(same_bits(expected, pooled<Out>(which, table, of.view(of.wide, false), skips)));
  CHECK(same_bits(expected,
                  pooled<Out>(which, table, of.view(of.narrow, false), pooling{combiner, padding::id{-5}})));
  CHECK(same_bits(expected,
                  pooled<Out>(which, table, of.view(of.wide, false), pooling{combiner, max_norm{1e30F}})));
  CHECK(same_bits(expected,
                  pooled<Out>(which, source, of.view(of.wide, false), pooling{combiner, max_norm{1e30F}})));
  if constexpr (!std::is_same_v<Combiner, combiner::max_t>) {
    CHECK(same_bits(expected, pooled<Out>(which, table, of.with_ones(), combiner)));
  }
}

template <class Format, class Out = float>
void check_format(std::mt19937_64& random) {
  const inline_executor here;
  for (const index_t width : {index_t{1}, index_t{7}, index_t{16}, index_t{17}, index_t{31}, index_t{37},
                              index_t{64}, index_t{77}, index_t{96}, index_t{111}, index_t{131}}) {
    const Format format(width);
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 300;
    std::vector<std::byte> memory(static_cast<std::size_t>(rows * format.stride_bytes()));
    const table_view<Format> made(memory.data(), rows, format);
    REQUIRE(quantize(here, matrix_view<const float>(values.data(), rows, width), made).ok());
    const const_table_view<Format> table(memory.data(), rows, format);
    const batch of(random);
    for (const isa which : runnable_isas()) {
      CAPTURE(width);
      CAPTURE(to_string(which));
      check_forms<Out>(which, table, of, false, combiner::sum);
      check_forms<Out>(which, table, of, true, combiner::sum);
      check_forms<Out>(which, table, of, true, combiner::mean_t<combiner::by_weight_t>{});
      check_forms<Out>(which, table, of, false, combiner::max);
      check_forms<Out>(which, table, of, true, combiner::concat);
    }
  }
}

/// The batch with other ids at some positions, and the batch without these positions.
struct batch_with_absent {
  batch with, without;

  template <class IsAbsent>
  batch_with_absent(const batch& of, std::int64_t absent_id, IsAbsent is_absent) : with(of), without(of) {
    without.offsets = {0};
    without.wide.clear();
    without.narrow.clear();
    without.weights.clear();
    for (std::size_t bag = 1; bag < of.offsets.size(); ++bag) {
      for (auto k = static_cast<std::size_t>(of.offsets[bag - 1]);
           k < static_cast<std::size_t>(of.offsets[bag]); ++k) {
        if (is_absent(k)) {
          with.wide[k] = absent_id;
          with.narrow[k] = static_cast<std::int32_t>(absent_id);
        } else {
          without.wide.push_back(of.wide[k]);
          without.narrow.push_back(of.narrow[k]);
          without.weights.push_back(of.weights[k]);
        }
      }
      without.offsets.push_back(static_cast<std::int64_t>(without.wide.size()));
    }
  }
};

template <class Table, class Combiner, class Rule>
void check_absent(isa which, const Table& table, const batch_with_absent& of, bool weighted,
                  Combiner combiner, Rule rule) {
  const auto absent = pooling{combiner, rule};
  const auto expected = pooled<float>(which, table, of.without.view(of.without.wide, weighted), combiner);
  CHECK(same_bits(expected, pooled<float>(which, table, of.with.view(of.with.wide, weighted), absent)));
  CHECK(same_bits(expected, pooled<float>(which, table, of.with.view(of.with.narrow, weighted), absent)));
  const auto clipped = pooling{combiner, max_norm{20}};
  CHECK(same_bits(pooled<float>(which, table, of.without.view(of.without.wide, weighted), clipped),
                  pooled<float>(which, table, of.with.view(of.with.wide, weighted),
                                pooling{combiner, rule, max_norm{20}})));
}

}  // namespace

TEST_CASE("lookup: absent ids are as if they were not there, wherever in a window they are") {
  std::mt19937_64 random(seed() + 153);
  const batch whole(random, 1000);  // no chunks, whose ends absent ids count for
  const auto n = whole.wide.size();
  std::vector<bool> drawn(n);
  for (std::size_t k = 0; k < n; ++k) drawn[k] = random() % 10 == 0;
  for (const index_t width : {index_t{7}, index_t{16}, index_t{100}}) {
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 300;
    const auto table = as_table(matrix_view<const float>(values.data(), rows, width));
    for (int pattern = 0; pattern < 8; ++pattern) {
      const auto is_absent = [&](std::size_t k) -> bool {
        switch (pattern) {
          case 0:
            return drawn[k];
          case 1:
            return k == 0 || k + 1 == n;
          case 2:
            return k >= 300 && k < 900;  // more than a window
          case 3:
            return k < 300;
          case 4:
            return k % 256 == 255;
          case 5:
            return k % 256 == 0;
          case 6:
            return k % 3 != 0;
          default:
            return true;
        }
      };
      CAPTURE(width);
      CAPTURE(pattern);
      const batch_with_absent negative(whole, -1, is_absent),
          padded(whole, 3, [&](std::size_t k) { return is_absent(k) || whole.wide[k] == 3; });
      for (const isa which : runnable_isas()) {
        CAPTURE(to_string(which));
        check_absent(which, table, negative, false, combiner::sum, bounds::skip);
        check_absent(which, table, negative, true, combiner::sum, bounds::skip);
        check_absent(which, table, negative, true, combiner::mean_t<combiner::by_weight_t>{}, bounds::skip);
        check_absent(which, table, negative, false, combiner::mean, bounds::skip);
        check_absent(which, table, negative, false, combiner::max, bounds::skip);
        check_absent(which, table, padded, true, combiner::sum, padding::id{3});
      }
    }
  }
}

TEST_CASE("lookup: any form of a batch gives the same bits, for rows of floats") {
  std::mt19937_64 random(seed() + 150);
  check_format<f32_rows>(random);
  check_format<bf16_rows>(random);
  check_format<f16_rows, f16>(random);
}

TEST_CASE("lookup: any form of a batch gives the same bits, for rows of codes and of split floats") {
  std::mt19937_64 random(seed() + 151);
  check_format<int8_rows>(random);
  check_format<int4_rows>(random);
  check_format<split_bf16_rows, bf16>(random);
}

TEST_CASE("lookup: one other id in a bag of many windows is seen") {
  std::mt19937_64 random(seed() + 152);
  const batch of(random);
  std::vector<float> values(rows * 20);
  for (float& x : values) x = static_cast<float>(random() % 1000);
  const auto table = as_table(matrix_view<const float>(values.data(), rows, 20));
  const auto expected = pooled<float>(best_isa(), table, of.view(of.wide, false), combiner::sum);
  std::vector<std::int32_t> other = of.narrow;
  other[other.size() - 500] = (other[other.size() - 500] + 1) % rows;
  CHECK_FALSE(same_bits(expected, pooled<float>(best_isa(), table, of.view(other, false), combiner::sum)));
}
