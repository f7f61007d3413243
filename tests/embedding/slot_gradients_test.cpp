// row_gradients of a batch over slots, in memory of the caller: against row_gradients of the same batch, bit
// by bit, and against sums of floats one after another.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/ops/partition_unique.hpp>

#include "embedding/support.hpp"

namespace {

using namespace embedding_test;

std::vector<float> normals(std::mt19937_64& random, index_t n) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& ids, index_t slots) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(slots));
  for (const std::int64_t id : ids) {
    if (id >= 0 && id < slots) ++counts[static_cast<std::size_t>(id)];
  }
  return counts;
}

/// A matrix with a column more, which nobody may write.
struct padded_rows {
  std::vector<float> floats;
  matrix_view<float> view;

  padded_rows(index_t rows, index_t width)
      : floats(static_cast<std::size_t>(rows * (width + 1)), 7.0F),
        view(floats.data(), rows, width, width + 1) {}
  [[nodiscard]] bool untouched_beside() const {
    for (index_t r = 0; r < view.extent(0); ++r) {
      if (view.row(r)[view.extent(1)] != 7.0F) return false;
    }
    return true;
  }
};

/// Whether every row of out has the bits of its row in a sparse gradient, and the others are zeros.
bool same_bits(const sparse_gradient& expected, const padded_rows& out) {
  const auto width = static_cast<std::size_t>(out.view.extent(1));
  std::size_t u = 0;
  for (index_t slot = 0; slot < out.view.extent(0); ++slot) {
    const float* const row = out.view.row(slot);
    if (u < expected.rows.size() && expected.rows[u] == slot) {
      if (std::memcmp(row, expected.values.data() + u++ * width, width * sizeof(float)) != 0) return false;
    } else if (std::any_of(row, row + width, [](float x) { return x != 0.0F; })) {
      return false;
    }
  }
  return u == expected.rows.size() && out.untouched_beside();
}

/// Where the slots lie that one matrix has, or several.
std::vector<matrix_view<float>> cut(const padded_rows& out, std::initializer_list<index_t> at) {
  std::vector<matrix_view<float>> pieces;
  index_t first = 0;
  const auto add = [&](index_t end) {
    pieces.emplace_back(end > first ? out.view.row(first) : nullptr, end - first, out.view.extent(1),
                        out.view.stride(0));
    first = end;
  };
  for (const index_t end : at) add(end);
  add(out.view.extent(0));
  return pieces;
}

/// Runs both verbs on every ISA, alone and with threads, into one matrix and into several.
template <class Bags, class Pooling>
void check_same(const Bags& bags, const std::vector<std::int64_t>& counts, const Pooling& how,
                matrix_view<const float> gradient) {
  const auto slots = static_cast<index_t>(counts.size());
  inline_executor here;
  thread_pool pool(3);
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    sparse_gradient expected;
    const status s = row_gradients(on(here, which), slots, bags, how, gradient, expected);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const auto check = [&](auto& executor) {
      padded_rows out(slots, gradient.extent(1));
      const status t = row_gradients(on(executor, which), counts, bags, how, gradient, out.view);
      REQUIRE_MESSAGE(t.ok(), t.message());
      CHECK(same_bits(expected, out));
      padded_rows pieces(slots, gradient.extent(1));
      const status p = row_gradients(on(executor, which), counts, bags, how, gradient,
                                     cut(pieces, {0, slots / 3, slots / 3, slots - slots / 4}));
      REQUIRE_MESSAGE(p.ok(), p.message());
      CHECK(same_bits(expected, pieces));
    };
    check(here);
    check(pool);
  }
}

}  // namespace

TEST_CASE("row_gradients over slots: the bits of row_gradients, for every shape, pooling and width") {
  std::mt19937_64 random(seed() + 1);
  const index_t slots = 37, bags = 300;
  index_t skipped = 0;
  for (const shape_of_batch shape : every_shape) {
    CAPTURE(static_cast<int>(shape));
    auto made = make_batch(random, shape, bags, slots, 5);
    const auto counts = counts_of(made.ids, slots);
    const auto width = static_cast<index_t>(1 + random() % 130);
    CAPTURE(width);
    const auto g = normals(random, bags * width);
    const matrix_view<const float> gradient(g.data(), bags, width);
    for (const bool weighted : {false, true}) {
      CAPTURE(weighted);
      const auto view = made.view(weighted);
      check_same(view, counts, combiner::sum, gradient);
      check_same(view, counts, combiner::mean, gradient);
      check_same(view, counts, combiner::mean(combiner::by_weight), gradient);
      check_same(view, counts, combiner::sqrtn, gradient);
      check_same(view, counts, pooling{combiner::sum, bounds::assume_valid}, gradient);
      check_same(view, counts, pooling{combiner::mean, padding::id{3}}, gradient);
      check_same(view, counts, pooling{combiner::mean, padding::prune}, gradient);
      check_same(view, counts, pooling{combiner::sum, empty_bag::default_row{5}}, gradient);
      check_same(view, counts, pooling{combiner::sqrtn, empty_bag::default_row{36}, padding::id{0}},
                 gradient);
    }
    // Ids that are no slots, where they are skipped: in no count.
    for (std::size_t k = 0; k < made.ids.size(); k += 7) made.ids[k] = k % 2 == 0 ? -1 : slots;
    check_same(made.view(), counts_of(made.ids, slots), pooling{combiner::mean, bounds::skip(skipped)},
               gradient);
  }
}

TEST_CASE(
    "row_gradients over slots: one id in each bag, in every form, and slots of more than 4096 positions") {
  std::mt19937_64 random(seed() + 2);
  for (const index_t n : {1, 100, 20000}) {
    for (const index_t width : {1, 16, 33}) {
      CAPTURE(n);
      CAPTURE(width);
      std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
      for (auto& id : ids) id = random() % 3 == 0 ? static_cast<std::int64_t>(random()) : -7;  // one for most
      unique_parts<> parts;
      REQUIRE(partition_unique(inline_executor{}, ids, owner_by_modulo(3), parts).ok());
      const std::vector<std::int64_t> counts(parts.counts.begin(), parts.counts.end());
      std::vector<index_t> offsets(static_cast<std::size_t>(n) + 1);
      std::iota(offsets.begin(), offsets.end(), index_t{0});
      const auto g = normals(random, n * width), weights = normals(random, n);
      const matrix_view<const float> gradient(g.data(), n, width);
      const std::int64_t* const slots = parts.slots.data();
      check_same(jagged_view<>(offsets.data(), n, slots, n), counts, combiner::sum, gradient);
      check_same(jagged_view<>(offsets.data(), n, slots, n, weights.data()), counts, combiner::sum, gradient);
      check_same(fixed_hotness_view<>(slots, n, 1), counts, combiner::mean, gradient);
      check_same(fixed_hotness_view<>(slots, n, 1), counts, combiner::sum, gradient);
      // One gradient for all bags, by a stride of 0.
      check_same(fixed_hotness_view<>(slots, n, 1), counts, combiner::sum,
                 matrix_view<const float>(g.data(), n, width, 0));
    }
  }
}

TEST_CASE("row_gradients over slots: sums in the order of positions; another order or one lost is seen") {
  std::mt19937_64 random(seed() + 3);
  const index_t bags = 2000, slots = 20, width = 9;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(bags));
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % slots);
  const auto g = normals(random, bags * width);
  inline_executor here;
  padded_rows out(slots, width);
  REQUIRE(row_gradients(here, counts_of(ids, slots), fixed_hotness_view<>(ids.data(), bags, 1), combiner::sum,
                        matrix_view<const float>(g.data(), bags, width), out.view)
              .ok());
  enum class mistake { none, order, lost, twice, next_slot };
  const auto agrees = [&](mistake wrong) {
    std::vector<float> sums(static_cast<std::size_t>(slots * width));
    for (index_t i = 0; i < bags; ++i) {
      const index_t b = wrong == mistake::order ? bags - 1 - i : i;
      index_t slot = ids[static_cast<std::size_t>(b)];
      if (b == bags / 2 && wrong == mistake::lost) continue;
      if (b == bags / 2 && wrong == mistake::next_slot) slot = (slot + 1) % slots;
      for (int times = b == bags / 2 && wrong == mistake::twice ? 2 : 1; times > 0; --times) {
        for (index_t j = 0; j < width; ++j) {
          sums[static_cast<std::size_t>(slot * width + j)] += g[static_cast<std::size_t>(b * width + j)];
        }
      }
    }
    bool same = true;
    for (index_t s = 0; s < slots; ++s) {
      for (index_t j = 0; j < width; ++j) {
        same = same && out.view(s, j) == sums[static_cast<std::size_t>(s * width + j)];
      }
    }
    return same;
  };
  CHECK(agrees(mistake::none));
  for (const mistake wrong : {mistake::order, mistake::lost, mistake::twice, mistake::next_slot}) {
    CHECK_FALSE(agrees(wrong));
  }
}

TEST_CASE("row_gradients over slots: counts of another batch name the first slot, and nothing is written") {
  std::mt19937_64 random(seed() + 4);
  const index_t bags = 50, slots = 12, width = 3;
  const auto made = make_batch(random, shape_of_batch::uniform, bags, slots, 6);
  const auto counts = counts_of(made.ids, slots);
  const auto g = normals(random, bags * width);
  const matrix_view<const float> gradient(g.data(), bags, width);
  inline_executor here;
  const auto refused = [&](const auto& wrong, const auto& how, index_t slot) {
    padded_rows out(slots, width);
    const auto before = out.floats;
    const status s = row_gradients(here, wrong, made.view(), how, gradient, out.view);
    CHECK(s.code() == errc::invalid_value);
    CHECK(s.place().row == slot);
    CHECK(s.place().is == static_cast<index_t>(wrong[static_cast<std::size_t>(slot)]));
    CHECK(s.place().must_be == counts[static_cast<std::size_t>(slot)]);
    CHECK(out.floats == before);
  };
  const auto changed = [&](std::initializer_list<std::pair<std::size_t, std::int64_t>> by) {
    auto wrong = counts;
    for (const auto& [slot, more] : by) wrong[slot] += more;
    return wrong;
  };
  using limits = std::numeric_limits<std::int64_t>;
  const auto check = [&](const auto& how) {
    refused(changed({{4, 1}}), how, 4);
    refused(changed({{11, -1}}), how, 11);
    refused(changed({{9, 1}, {2, -1}}), how, 2);  // the sum fits
    refused(changed({{0, 5}, {11, -5}}), how, 0);
    refused(changed({{0, -counts[0]}, {1, counts[0]}}), how, 0);
    refused(changed({{7, limits::min()}}), how, 7);
    refused(changed({{7, limits::max() - counts[7]}, {8, limits::max() - counts[8]}}), how, 7);
    std::vector<std::uint32_t> narrow(counts.begin(), counts.end());
    narrow[3] += 2;
    refused(narrow, how, 3);
  };
  check(combiner::sum);
  check(combiner::mean);
  check(pooling{combiner::mean, padding::id{2}});
  padded_rows out(slots, width);
  CHECK(row_gradients(here, changed({{4, 1}}), made.view(), combiner::sum, gradient, out.view).message() ==
        "invalid value: row_gradients: counts must be how often each slot comes; row 4 (is " +
            std::to_string(counts[4] + 1) + ", must be " + std::to_string(counts[4]) + ")");
}

TEST_CASE("row_gradients over slots: bad input is said, and nothing is written") {
  inline_executor here;
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{1, 0, 1}, counts{1, 2};
  const std::vector<float> weights{1, 2, std::nanf("")};
  std::vector<float> g(2 * 4, 1.0F), floats(2 * 4, 7.0F);
  const jagged_view<> bags(offsets.data(), 2, ids.data(), 3);
  const matrix_view<const float> gradient(g.data(), 2, 4);
  const matrix_view<float> out(floats.data(), 2, 4);
  const auto code = [&](const auto& given, const auto& batch, matrix_view<const float> slope,
                        matrix_view<float> to) {
    return row_gradients(here, given, batch, combiner::sum, slope, to).code();
  };
  using list = std::span<const std::int64_t>;
  CHECK(code(counts, bags, gradient, {floats.data(), 1, 4}) == errc::shape_mismatch);
  CHECK(code(counts, bags, gradient, {floats.data(), 2, 3}) == errc::shape_mismatch);
  CHECK(code(counts, bags, gradient, {nullptr, 2, 4}) == errc::shape_mismatch);
  CHECK(code(counts, bags, gradient, {floats.data(), 2, 4, 3}) == errc::shape_mismatch);
  CHECK(code(counts, bags, {nullptr, 2, 4}, out) == errc::shape_mismatch);
  CHECK(code(counts, bags, {g.data(), 1, 4}, out) == errc::shape_mismatch);
  CHECK(code(list(static_cast<const std::int64_t*>(nullptr), 2), bags, gradient, out) ==
        errc::shape_mismatch);
  CHECK(code(list(counts).first(1), bags, gradient, {floats.data(), 1, 4}) == errc::id_out_of_range);
  CHECK(code(counts, jagged_view<>(offsets.data(), 2, ids.data(), 3, weights.data()), gradient, out) ==
        errc::weight_is_nan);
  CHECK(code(counts, jagged_view<>(offsets.data(), 2, ids.data(), 2), gradient, out) ==
        errc::offsets_beyond_ids);
  CHECK(row_gradients(here, counts, bags, pooling{combiner::sum, empty_bag::default_row{2}}, gradient, out)
            .code() == errc::id_out_of_range);
  // Memory that is read.
  CHECK(code(counts, bags, gradient, {g.data(), 2, 4}) == errc::unsupported);
  const auto at = [](const auto& of) {
    return static_cast<float*>(const_cast<void*>(static_cast<const void*>(of.data())));
  };
  const std::vector<std::int64_t> long_ids(16, 0), long_offsets{0, 16}, all{16};
  const jagged_view<> one_bag(long_offsets.data(), 1, long_ids.data(), 16);
  const matrix_view<const float> one(g.data(), 1, 4);
  CHECK(code(all, one_bag, one, {at(long_ids) + 28, 1, 4}) == errc::unsupported);
  CHECK(code(all, one_bag, one, {at(long_offsets), 1, 4}) == errc::unsupported);
  CHECK(code(all, one_bag, one, {at(all) - 2, 1, 4}) == errc::unsupported);
  // Several matrices.
  using several = std::vector<matrix_view<float>>;
  const auto into = [&](const several& to) {
    return row_gradients(here, counts, bags, combiner::sum, gradient, to).code();
  };
  CHECK(into({out, {floats.data(), 1, 4}}) == errc::shape_mismatch);
  CHECK(into({{floats.data(), 1, 4}}) == errc::shape_mismatch);
  CHECK(into({}) == errc::shape_mismatch);
  CHECK(into({{floats.data(), 1, 4}, {floats.data() + 4, 1, 3}}) == errc::shape_mismatch);
  CHECK(into({{floats.data(), 1, 4}, {nullptr, 1, 4}}) == errc::shape_mismatch);
  CHECK(into({{floats.data(), 1, 4}, {g.data(), 1, 4}}) == errc::unsupported);
  CHECK(floats == std::vector<float>(8, 7.0F));

  // Nothing at all, and rows without columns.
  CHECK(code(list(), jagged_view<>(), {nullptr, 0, 4}, {nullptr, 0, 4}) == errc::ok);
  CHECK(code(counts, bags, {nullptr, 2, 0}, {nullptr, 2, 0}) == errc::ok);
  CHECK(row_gradients(here, list(), jagged_view<>(), combiner::sum, {nullptr, 0, 4}, several()).ok());
}

TEST_CASE("row_gradients over slots: an example") {
  //! [row_gradients_slots]
  const std::vector<std::int64_t> ids{70, 10, 70};
  unique_parts<> parts;
  partition_unique(inline_executor{}, ids, owner_by_modulo(2), parts).or_throw();
  const std::vector<std::int64_t> offsets{0, 1, 3};
  const jagged_view<> bags(offsets.data(), 2, parts.slots.data(), 3);  // (70) (10 70) as slots: (0) (1 0)
  const std::vector<float> gradient{1, 2, 30, 40};
  std::vector<float> rows(4);
  row_gradients(inline_executor{}, parts.counts, bags, combiner::sum,
                matrix_view<const float>(gradient.data(), 2, 2), matrix_view<float>(rows.data(), 2, 2))
      .or_throw();
  CHECK(rows == std::vector<float>{31, 42, 30, 40});
  //! [row_gradients_slots]
}
