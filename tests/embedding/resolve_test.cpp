// Resolved rows, and verbs over a row source with hashed keys whose rows move when it grows. The oracle is a
// direct table with the same rows: results have the same bits.
#include <deeprec/embedding/resolve.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/batches.hpp"
#include "support/hashed_source.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 300, width = 20, bags = 40;

std::uint64_t key_of(index_t id) { return mix64(static_cast<std::uint64_t>(id) + 1); }
index_t signed_key(index_t id) { return static_cast<index_t>(key_of(id)); }

void initial_values(std::uint64_t key, float* values) {
  for (index_t j = 0; j < width; ++j) {
    values[j] = static_cast<float>(mix64(key + static_cast<std::uint64_t>(j)) % 2000) / 1000 - 1;
  }
}

/// A direct table and a hashed one with the same rows, and a batch for each.
template <class Format = f32_rows>
struct twins {
  explicit twins(row_layout layout = {}, bool fill = true)
      : format(width, layout), direct(rows, format), hashed(format, initial_values) {
    std::vector<float> values(width);
    for (index_t r = 0; r < rows; ++r) {
      std::memset(direct.view().row(r), 0, static_cast<std::size_t>(format.stride_bytes()));
      initial_values(key_of(r), values.data());
      format.encode(values.data(), direct.view().row(r));
      keys_by_row.push_back(key_of(r));
    }
    if (fill) REQUIRE(hashed.insert(keys_by_row.data(), rows).ok());
    std::mt19937_64 random(seed());
    made = make_batch(random, shape_of_batch::skewed, bags, rows, 6);
    for (float& w : made.weights) w = std::fabs(w) + 0.25F;
    std::normal_distribution<float> normal;
    for (index_t i = 0; i < bags * width; ++i) gradient.push_back(normal(random));
    for (const std::int64_t id : made.ids) keys.push_back(key_of(id));
  }
  [[nodiscard]] jagged_view<> by_id(bool weighted = false) const { return made.view(weighted); }
  [[nodiscard]] jagged_view<std::uint64_t> by_key(bool weighted = false) const {
    return {made.offsets.data(), bags, keys.data(), static_cast<index_t>(keys.size()),
            weighted ? made.weights.data() : nullptr};
  }
  [[nodiscard]] hashed_rows<Format> source() { return hashed_rows<Format>(hashed); }
  [[nodiscard]] matrix_view<const float> slope() const { return {gradient.data(), bags, width}; }
  /// Rows whose bytes differ between the tables.
  [[nodiscard]] std::size_t differing_rows() {
    std::size_t differ = 0;
    for (index_t r = 0; r < rows; ++r) {
      const std::byte* at = nullptr;
      hashed.find(&keys_by_row[static_cast<std::size_t>(r)], 1, &at);
      if (at == nullptr ||
          std::memcmp(at, direct.view().row(r), static_cast<std::size_t>(format.stride_bytes())) != 0) {
        ++differ;
      }
    }
    return differ;
  }

  Format format;
  dense_table<Format> direct;
  hashed_table<Format> hashed;
  std::vector<std::uint64_t> keys_by_row;
  batch<std::int64_t, std::int64_t> made;
  std::vector<std::uint64_t> keys;
  std::vector<float> gradient;
};

/// The outputs of a call that fills (n, width); empty where it failed.
template <class Call>
std::vector<float> filled(index_t n, const Call& call) {
  std::vector<float> out(static_cast<std::size_t>(n * width), -7.0F);
  const status s = call(matrix_view<float>(out.data(), n, width));
  INFO(s.message());
  CHECK(s.ok());
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// An id that counts how often it is read.
struct counted_id {
  std::int64_t number = 0;
  static inline std::atomic<int> reads{0};
  friend std::int64_t id_value(const counted_id& id) noexcept {
    ++reads;
    return id.number;
  }
};

int reads_of(const auto& call) {
  counted_id::reads = 0;
  call();
  return counted_id::reads;
}

}  // namespace

static_assert(BagId<counted_id> && !IdInteger<counted_id>);
static_assert(KeyedRowSource<hashed_rows<f32_rows>, std::uint64_t> &&
              GrowingRowSource<hashed_rows<f32_rows>, std::uint64_t> &&
              GuardedRowSource<hashed_rows<f32_rows>> && !GuardedRowSource<unguarded_rows<f32_rows>> &&
              WritableRowSource<hashed_rows<f32_rows>> &&
              EnumerableRowSource<hashed_rows<f32_rows>, std::uint64_t> &&
              !BoundedRowSource<hashed_rows<f32_rows>>);

TEST_CASE("resolve: a lookup and an update of resolved rows have the bits of the plain verbs") {
  twins<> two({.state_floats = width}), reference({.state_floats = width});
  thread_pool pool(3);
  //! [resolve]
  auto resolved = resolve(pool, two.direct.view(), two.by_id(), combiner::mean);
  REQUIRE(resolved.ok());
  const auto& found = resolved.value();
  const std::vector<float> out = filled(bags, [&](auto to) { return lookup(pool, found, to); });
  REQUIRE(update(pool, found, two.slope(), adagrad{}).ok());
  //! [resolve]
  const std::vector<float> expected = filled(
      bags, [&](auto to) { return lookup(pool, reference.direct.view(), two.by_id(), combiner::mean, to); });
  CHECK(same_bits(out, expected));
  REQUIRE(
      update(pool, reference.direct.view(), reference.by_id(), combiner::mean, reference.slope(), adagrad{})
          .ok());
  CHECK(std::memcmp(two.direct.view().data(), reference.direct.view().data(),
                    static_cast<std::size_t>(rows * two.format.stride_bytes())) == 0);
  CHECK(found.positions() == static_cast<index_t>(two.made.ids.size()));
}

TEST_CASE("resolve: faults are those of lookup, and name the position") {
  twins<> two;
  inline_executor here;
  two.made.ids[5] = rows;
  const auto bad = resolve(here, two.direct.view(), two.by_id(), combiner::sum);
  REQUIRE(!bad.ok());
  std::vector<float> out(bags * width);
  const status expected = lookup(here, two.direct.view(), two.by_id(), combiner::sum,
                                 matrix_view<float>(out.data(), bags, width));
  CHECK(bad.fault().code() == expected.code());
  CHECK(bad.fault().place() == expected.place());
  CHECK(expected.place().position == 5);
  CHECK(resolve(here, two.direct.view(), two.by_id(), pooling{combiner::sum, bounds::skip}).ok());

  const std::int64_t decreasing[] = {0, 3, 2};
  CHECK(resolve(here, two.direct.view(), jagged_view<>(decreasing, 2, two.made.ids.data(), 3), combiner::sum)
            .fault()
            .code() == errc::offsets_decreasing);
  CHECK(resolve(here, two.direct.view(), two.by_id(), pooling{combiner::sum, max_norm{0}}).fault().code() ==
        errc::invalid_value);
}

TEST_CASE("resolve: an output of another shape is refused, nothing is written") {
  twins<> two;
  inline_executor here;
  const auto found = resolve(here, two.source(), two.by_key(), combiner::sum);
  REQUIRE(found.ok());
  std::vector<float> out(bags * width, -1.0F);
  CHECK(lookup(here, found.value(), matrix_view<float>(out.data(), bags - 1, width)).code() ==
        errc::shape_mismatch);
  CHECK(update(here, found.value(), matrix_view<const float>(out.data(), bags, width - 1), sgd{}).code() ==
        errc::shape_mismatch);
  CHECK(update(here, found.value(), two.slope(), adam{}).code() == errc::shape_mismatch);  // no state
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == -1.0F; }));
}

TEST_CASE("resolve: each id is read once in resolve and once in pooling, and not again for a second update") {
  constexpr index_t columns = 16;  // one panel in every region: pooling reads the ids once for each
  std::vector<counted_id> ids(200);
  for (std::size_t k = 0; k < ids.size(); ++k) ids[k].number = static_cast<std::int64_t>(k * 7 % 50);
  dense_table<f32_rows> table(50, f32_rows(columns, {.state_floats = columns}));
  inline_executor here;
  table.initialize(here, row_init::zeros{});
  const fixed_hotness_view<counted_id> batch(ids.data(), 40, 5);
  std::vector<float> out(40 * columns);
  const matrix_view<float> to(out.data(), 40, columns);
  auto found = resolve(here, table.view(), batch, combiner::sum);
  REQUIRE(found.ok());
  CHECK(reads_of([&] { REQUIRE(resolve(here, table.view(), batch, combiner::sum).ok()); }) == 200);
  CHECK(reads_of([&] { REQUIRE(lookup(here, found.value(), to).ok()); }) == 200);
  CHECK(reads_of([&] { REQUIRE(lookup(here, table.view(), batch, combiner::sum, to).ok()); }) == 400);
  const auto of_update = [&] {
    REQUIRE(update(here, found.value(), matrix_view<const float>(out.data(), 40, columns), sgd{}).ok());
  };
  CHECK(reads_of(of_update) > 0);
  CHECK(reads_of(of_update) == 0);
  const auto with_other_optimizer = [&] {
    REQUIRE(update(here, found.value(), matrix_view<const float>(out.data(), 40, columns), adagrad{}).ok());
  };
  CHECK(reads_of(with_other_optimizer) == 0);
}

TEST_CASE("hashed rows: lookups have the bits of a direct table, for every combiner and policy") {
  twins<> two;
  thread_pool pool(2);
  two.made.offsets[3] = two.made.offsets[2];  // an empty bag
  const auto compare = [&](const auto& of_ids, const auto& of_keys, bool weighted) {
    const auto expected = filled(
        bags, [&](auto to) { return lookup(pool, two.direct.view(), two.by_id(weighted), of_ids, to); });
    CHECK(same_bits(expected, filled(bags, [&](auto to) {
                      return lookup(pool, two.source(), two.by_key(weighted), of_keys, to);
                    })));
    const auto resolved = resolve(pool, two.source(), two.by_key(weighted), of_keys);
    REQUIRE(resolved.ok());
    CHECK(same_bits(expected, filled(bags, [&](auto to) { return lookup(pool, resolved.value(), to); })));
  };
  for (const bool weighted : {false, true}) {
    CAPTURE(weighted);
    compare(combiner::sum, combiner::sum, weighted);
    compare(combiner::mean, combiner::mean, weighted);
    compare(combiner::mean(combiner::by_weight), combiner::mean(combiner::by_weight), weighted);
    compare(combiner::sqrtn, combiner::sqrtn, weighted);
    compare(pooling{combiner::sum, max_norm{0.5F}}, pooling{combiner::sum, max_norm{0.5F}}, weighted);
    compare(pooling{combiner::mean, empty_bag::default_row{9}},
            pooling{combiner::mean, empty_bag::default_row{signed_key(9)}}, weighted);
    compare(pooling{combiner::mean, padding::id{4}}, pooling{combiner::mean, padding::id{signed_key(4)}},
            weighted);
    compare(pooling{combiner::sum, bounds::skip, empty_bag::keep},
            pooling{combiner::sum, bounds::skip, empty_bag::keep}, weighted);
  }
  compare(combiner::max, combiner::max, false);
  const auto n = static_cast<index_t>(two.keys.size());
  CHECK(same_bits(filled(n, [&](auto to) { return gather(pool, two.direct.view(), two.made.ids, to); }),
                  filled(n, [&](auto to) { return gather(pool, two.source(), two.keys, to); })));
}

TEST_CASE("hashed rows: weights not above zero are pruned, entries in any order are looked up") {
  twins<> two;
  inline_executor here;
  two.made.weights[2] = -1;
  two.made.weights[9] = 0;
  const pooling how{combiner::mean, padding::prune};
  CHECK(same_bits(
      filled(bags, [&](auto to) { return lookup(here, two.direct.view(), two.by_id(true), how, to); }),
      filled(bags, [&](auto to) { return lookup(here, two.source(), two.by_key(true), how, to); })));
  std::vector<std::int64_t> row_of;
  for (index_t b = 0; b < bags; ++b) {
    for (auto k = two.made.offsets[static_cast<std::size_t>(b)];
         k < two.made.offsets[static_cast<std::size_t>(b + 1)]; ++k) {
      row_of.push_back((b * 17) % bags);
    }
  }
  const auto n = static_cast<index_t>(row_of.size());
  const coo_view<> by_id(row_of.data(), two.made.ids.data(), n, bags, two.made.weights.data());
  const coo_view<std::uint64_t> by_key(row_of.data(), two.keys.data(), n, bags, two.made.weights.data());
  CHECK(same_bits(
      filled(bags, [&](auto to) { return fused_lookup(here, two.direct.view(), by_id, combiner::mean, to); }),
      filled(bags, [&](auto to) { return fused_lookup(here, two.source(), by_key, combiner::mean, to); })));
}

TEST_CASE("hashed rows: a bag of more than 4096 keys, and a row used more than 4096 times") {
  twins<> two;
  thread_pool pool(2);
  const index_t n = 10'000;
  std::vector<std::int64_t> ids, offsets{0, 9'000, n};
  std::vector<std::uint64_t> keys;
  for (index_t k = 0; k < n; ++k) {
    ids.push_back(k % 2 == 0 ? 7 : k % rows);
    keys.push_back(key_of(ids.back()));
  }
  const jagged_view<> by_id(offsets.data(), 2, ids.data(), n);
  const jagged_view<std::uint64_t> by_key(offsets.data(), 2, keys.data(), n);
  CHECK(same_bits(
      filled(2, [&](auto to) { return lookup(pool, two.direct.view(), by_id, combiner::mean, to); }),
      filled(2, [&](auto to) { return lookup(pool, two.source(), by_key, combiner::mean, to); })));
  const matrix_view<const float> slope(two.gradient.data(), 2, width);
  REQUIRE(update(pool, two.direct.view(), by_id, combiner::mean, slope, sgd{}).ok());
  REQUIRE(update(pool, two.source(), by_key, combiner::mean, slope, sgd{}).ok());
  CHECK(two.differing_rows() == 0);
}

TEST_CASE("hashed rows: updates by every optimizer have the bits of a direct table") {
  const auto train = [](auto optimizer, auto how, auto format) {
    using optimizer_type = decltype(optimizer);
    using format_type = decltype(format);
    twins<format_type> two(
        {.state_floats = optimizer_type::row_state + optimizer_type::element_state * width});
    thread_pool pool(2);
    auto resolved = resolve(pool, two.source(), two.by_key(true), how);
    REQUIRE(resolved.ok());
    for (int step = 0; step < 3; ++step) {
      REQUIRE(update(pool, two.direct.view(), two.by_id(true), how, two.slope(), optimizer).ok());
      if (step == 1) {
        REQUIRE(update(pool, resolved.value(), two.slope(), optimizer).ok());
      } else {
        REQUIRE(update(pool, two.source(), two.by_key(true), how, two.slope(), optimizer).ok());
      }
      next_step(optimizer);
    }
    CHECK(two.differing_rows() == 0);
  };
  const auto with = [&](auto optimizer) { train(optimizer, combiner::sum, f32_rows(width)); };
  train(rowwise_adagrad{}, pooling{combiner::mean, max_norm{0.75F}}, f32_rows(width));
  train(adam{}, combiner::sqrtn, bf16_rows(width));
  with(sgd{});
  with(momentum{});
  with(adagrad{});
  with(rowwise_adagrad{});
  with(adagrad_decay{});
  with(rmsprop{});
  with(centered_rmsprop{});
  with(adam{});
  with(rowwise_adam{});
  with(adamw(adam{}, 0.01F));
  with(adam_async{});
  with(adam_async_rmsprop{});
  with(ftrl{});
  with(clipped_by_norm(sgd{}, 0.5F));
}

TEST_CASE("hashed rows: gradients of rows by ascending key, and of weights") {
  twins<> two;
  inline_executor here;
  sparse_gradient of_ids, of_keys;
  REQUIRE(row_gradients(here, rows, two.by_id(), combiner::mean, two.slope(), of_ids).ok());
  const auto resolved = resolve(here, two.source(), two.by_key(), combiner::mean);
  REQUIRE(resolved.ok());
  REQUIRE(row_gradients(here, resolved.value(), two.slope(), of_keys).ok());
  REQUIRE(of_keys.rows.size() == of_ids.rows.size());
  CHECK(std::is_sorted(of_keys.rows.begin(), of_keys.rows.end()));
  std::map<index_t, index_t> id_of;
  for (const index_t id : of_ids.rows) id_of[signed_key(id)] = id;
  for (std::size_t g = 0; g < of_keys.rows.size(); ++g) {
    REQUIRE(id_of.count(of_keys.rows[g]) == 1);
    const auto at = std::lower_bound(of_ids.rows.begin(), of_ids.rows.end(), id_of[of_keys.rows[g]]);
    const auto other = static_cast<std::size_t>(at - of_ids.rows.begin());
    CHECK(std::memcmp(of_keys.values.data() + g * width, of_ids.values.data() + other * width,
                      width * sizeof(float)) == 0);
  }
  std::vector<float> by_id(two.made.ids.size()), by_key(by_id.size()), again(by_id.size());
  REQUIRE(
      weight_gradients(here, two.direct.view(), two.by_id(true), combiner::mean, two.slope(), by_id).ok());
  REQUIRE(weight_gradients(here, two.source(), two.by_key(true), combiner::mean, two.slope(), by_key).ok());
  CHECK(same_bits(by_id, by_key));
  const auto weighted = resolve(here, two.source(), two.by_key(true), combiner::mean);
  REQUIRE(weight_gradients(here, weighted.value(), two.slope(), again).ok());
  CHECK(same_bits(by_id, again));
}

TEST_CASE(
    "hashed rows: absent keys are faults, are left out, or read the default row; inserted keys are rows") {
  twins<> two;
  inline_executor here;
  two.keys[4] = 12345;
  std::vector<float> out(bags * width, -1.0F);
  const matrix_view<float> to(out.data(), bags, width);
  const status absent = lookup(here, two.source(), two.by_key(), combiner::sum, to);
  CHECK(absent.code() == errc::id_out_of_range);
  CHECK(absent.place().position == 4);
  CHECK(absent.place().value == 12345);
  CHECK(update(here, two.source(), two.by_key(), combiner::sum, two.slope(), sgd{}).code() ==
        errc::id_out_of_range);
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == -1.0F; }));

  index_t skipped = 0;
  REQUIRE(
      lookup(here, two.source(), two.by_key(), pooling{combiner::sum, bounds::skip_t{&skipped}}, to).ok());
  CHECK(skipped == 1);
  two.made.ids[4] = rows;  // out of range: left out, too
  CHECK(same_bits(out, filled(bags, [&](auto expected) {
                    return lookup(here, two.direct.view(), two.by_id(), pooling{combiner::sum, bounds::skip},
                                  expected);
                  })));

  // A default row is read, and never written.
  std::vector<float> default_values(width, 0.125F);
  const auto* const default_row =
      static_cast<const std::byte*>(static_cast<const void*>(default_values.data()));
  const defaulted_rows<f32_rows> with_default(two.hashed, default_row);
  const index_t position = 4;
  const std::uint64_t only[] = {two.keys[position]};
  const auto one = filled(1, [&](auto one_row) {
    return lookup(here, with_default, fixed_hotness_view<std::uint64_t>(only, 1, 1), combiner::sum, one_row);
  });
  CHECK(same_bits(one, default_values));
  const auto before = two.hashed.size();
  REQUIRE(update(here, with_default, two.by_key(), combiner::sum, two.slope(), sgd{}).ok());
  CHECK(default_values == std::vector<float>(width, 0.125F));
  CHECK(two.hashed.size() == before);

  // Inserted: a row with its initial values.
  const auto inserted = resolve(here, with_default, fixed_hotness_view<std::uint64_t>(only, 1, 1),
                                combiner::sum, keys::find_or_insert);
  REQUIRE(inserted.ok());
  CHECK(two.hashed.size() == before + 1);
  std::vector<float> initial(width);
  initial_values(only[0], initial.data());
  CHECK(same_bits(initial, filled(1, [&](auto one_row) { return lookup(here, inserted.value(), one_row); })));
}

TEST_CASE("hashed rows: a source that refuses keys or fails, bad weights, and no memory for addresses") {
  twins<> two({}, false);
  inline_executor here;
  two.hashed.admits = [](std::uint64_t key) { return key % 2 == 0; };
  const auto refused = resolve(here, two.source(), two.by_key(), combiner::sum, keys::find_or_insert);
  REQUIRE(!refused.ok());
  CHECK(refused.fault().code() == errc::id_out_of_range);
  std::vector<float> default_values(width, 0.0F);
  const defaulted_rows<f32_rows> with_default(
      two.hashed, static_cast<const std::byte*>(static_cast<const void*>(default_values.data())));
  CHECK(resolve(here, with_default, two.by_key(), combiner::sum, keys::find_or_insert).ok());

  two.hashed.admits = {};
  two.hashed.fails_at =
      *std::find_if(two.keys.begin(), two.keys.end(), [](auto key) { return key % 2 != 0; });
  CHECK(resolve(here, two.source(), two.by_key(), combiner::sum, keys::find_or_insert).fault().code() ==
        errc::out_of_memory);
  two.hashed.fails_at = 0;
  CHECK(resolve(here, two.source(), two.by_key(), combiner::sum, keys::find_or_insert).ok());

  two.made.weights[7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(bags * width);
  const status nan = lookup(here, two.source(), two.by_key(true), combiner::sum,
                            matrix_view<float>(out.data(), bags, width));
  CHECK(nan.code() == errc::weight_is_nan);
  CHECK(nan.place().position == 7);
  CHECK(lookup(here, two.source(), two.by_key(),
               pooling{combiner::sum, empty_bag::default_row{signed_key(rows + 5)}},
               matrix_view<float>(out.data(), bags, width))
            .code() == errc::id_out_of_range);

  context ctx{here};
  ctx.memory = std::pmr::null_memory_resource();
  CHECK(lookup(ctx, two.source(), two.by_key(), combiner::sum, matrix_view<float>(out.data(), bags, width))
            .code() == errc::out_of_memory);
  CHECK(resolve(ctx, two.source(), two.by_key(), combiner::sum).fault().code() == errc::out_of_memory);
}

TEST_CASE("hashed rows: the guard keeps rows in place while another thread moves them") {
  inline_executor here;
  const auto after_a_move = [&](auto make_source) {
    twins<> two;
    const auto expected = filled(
        bags, [&](auto to) { return lookup(here, two.direct.view(), two.by_id(), combiner::mean, to); });
    std::atomic<bool> waiting{false}, moved{false};
    std::thread mover;
    std::vector<float> got;
    {
      const auto source = make_source(two.hashed);
      const auto resolved = resolve(here, source, two.by_key(), combiner::mean);
      REQUIRE(resolved.ok());
      mover = std::thread([&] {
        two.hashed.move_all([&] { waiting = true; });
        moved = true;
      });
      while (!waiting) std::this_thread::yield();
      if constexpr (!GuardedRowSource<decltype(make_source(two.hashed))>) {
        while (!moved) std::this_thread::yield();
      } else {
        CHECK(!moved);
      }
      got = filled(bags, [&](auto to) { return lookup(here, resolved.value(), to); });
    }
    mover.join();
    CHECK(two.hashed.moves() > 0);
    return same_bits(expected, got);
  };
  CHECK(after_a_move([](auto& table) { return hashed_rows<f32_rows>(table); }));
  // Without the guard the same program reads rows that have moved: this test can fail.
  CHECK(!after_a_move([](auto& table) { return unguarded_rows<f32_rows>(table); }));
}

TEST_CASE("hashed rows: lookups and insertions of growing tables run at the same time") {
  twins<> two;
  const auto expected = [&] {
    inline_executor here;
    return filled(bags,
                  [&](auto to) { return lookup(here, two.direct.view(), two.by_id(), combiner::mean, to); });
  }();
  std::atomic<bool> stop{false};
  std::thread grower([&] {
    for (std::uint64_t key = 1; !stop && key < 2'000; ++key) {
      const std::uint64_t fresh = mix64(key) | 1;
      REQUIRE(two.hashed.insert(&fresh, 1).ok());
      std::this_thread::yield();
    }
  });
  inline_executor here;
  bool all_same = true;
  for (int round = 0; round < 200; ++round) {
    const auto got =
        filled(bags, [&](auto to) { return lookup(here, two.source(), two.by_key(), combiner::mean, to); });
    all_same = all_same && same_bits(expected, got);
  }
  stop = true;
  grower.join();
  CHECK(all_same);
}

TEST_CASE("hashed rows: a group trains direct and hashed tables, and features that share a hashed table") {
  for (const int threads : {1, 3}) {
    thread_pool pool(threads);
    twins<> a({.state_floats = 1}), b({.state_floats = 1});
    twins<> fresh({.state_floats = 1}, false);
    feature_group<rowwise_adagrad, jagged_view<std::uint64_t>> hashed;
    hashed.add(a.source(), combiner::sum);
    hashed.add(fresh.source(), combiner::mean);
    hashed.add(a.source(), pooling{combiner::mean, empty_bag::default_row{signed_key(3)}});
    CHECK(hashed.tables() == 2);
    feature_group<rowwise_adagrad> direct;
    direct.add(a.direct.view(), combiner::sum);
    direct.add(fresh.direct.view(), combiner::mean);
    direct.add(a.direct.view(), pooling{combiner::mean, empty_bag::default_row{3}});

    const jagged_view<std::uint64_t> by_key[] = {a.by_key(), fresh.by_key(), b.by_key()};
    const jagged_view<> by_id[] = {a.by_id(), fresh.by_id(), b.by_id()};
    std::vector<float> expected(bags * 3 * width), out(expected.size()), slope(expected.size());
    for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = a.gradient[i % a.gradient.size()];
    const matrix_view<const float> gradient(slope.data(), bags, 3 * width);
    for (int step = 0; step < 2; ++step) {
      auto resolved = resolve(pool, hashed, by_key, keys::find_or_insert);
      REQUIRE(resolved.ok());
      REQUIRE(lookup(pool, resolved.value(), matrix_view<float>(out.data(), bags, 3 * width)).ok());
      REQUIRE(lookup(pool, direct, by_id, matrix_view<float>(expected.data(), bags, 3 * width)).ok());
      CHECK(same_bits(expected, out));
      REQUIRE(lookup(pool, hashed, by_key, matrix_view<float>(out.data(), bags, 3 * width)).ok());
      CHECK(same_bits(expected, out));
      const rowwise_adagrad optimizer{.learning_rate = 0.1F};
      for (int again = 0; again < 2; ++again) {
        REQUIRE(update(pool, resolved.value(), gradient, optimizer).ok());
        REQUIRE(update(pool, direct, by_id, gradient, optimizer).ok());
      }
      CHECK(a.differing_rows() == 0);
    }
    CHECK(fresh.hashed.size() > 0);
    CHECK(fresh.hashed.size() < static_cast<std::size_t>(rows));
    // The rows that were used are the direct table's; an absent key is named with its feature.
    std::vector<float> used(bags * width), of_direct(bags * width);
    REQUIRE(lookup(pool, fresh.source(), fresh.by_key(), combiner::sum,
                   matrix_view<float>(used.data(), bags, width))
                .ok());
    REQUIRE(lookup(pool, fresh.direct.view(), fresh.by_id(), combiner::sum,
                   matrix_view<float>(of_direct.data(), bags, width))
                .ok());
    CHECK(same_bits(used, of_direct));
    fresh.keys[1] = 77;
    const status absent = update(pool, hashed, by_key, gradient, rowwise_adagrad{});
    CHECK(absent.code() == errc::id_out_of_range);
    CHECK(absent.place().table == 1);
    CHECK(absent.place().position == 1);
    CHECK(resolve(pool, hashed, by_key).fault().code() == errc::id_out_of_range);
  }
}

TEST_CASE("resolve: a group's resolved features serve several updates; direct tables keep the bits") {
  twins<> a({.state_floats = 1}), b({.state_floats = 1});
  thread_pool pool(2);
  feature_group<rowwise_adagrad> group, reference;
  group.add(a.direct.view(), combiner::sum);
  group.add(a.direct.view(), combiner::mean);
  reference.add(b.direct.view(), combiner::sum);
  reference.add(b.direct.view(), combiner::mean);
  const jagged_view<> batches[] = {a.by_id(), a.by_id()};
  std::vector<float> out(bags * 2 * width), expected(out.size());
  const matrix_view<float> to(out.data(), bags, 2 * width), should(expected.data(), bags, 2 * width);
  //! [resolved_features]
  auto resolved = resolve(pool, group, batches);
  REQUIRE(resolved.ok());
  for (int step = 0; step < 3; ++step) {
    REQUIRE(lookup(pool, resolved.value(), to).ok());
    REQUIRE(lookup(pool, reference, batches, should).ok());
    CHECK(same_bits(expected, out));
    REQUIRE(update(pool, resolved.value(), to, rowwise_adagrad{}).ok());
    REQUIRE(update(pool, reference, batches, to, rowwise_adagrad{}).ok());
  }
  //! [resolved_features]
  CHECK(std::memcmp(a.direct.view().data(), b.direct.view().data(),
                    static_cast<std::size_t>(rows * a.format.stride_bytes())) == 0);
}

TEST_CASE("row_gradients: row numbers and positions that don't fit one 64-bit key are grouped by ordinal") {
  constexpr index_t many = index_t{1} << 62;
  const std::int64_t ids[] = {many - 1, 5, 5, many / 2};
  inline_executor here;
  sparse_gradient found;
  const std::vector<float> slope(4, 0.5F);
  REQUIRE(row_gradients(here, many, fixed_hotness_view<>(ids, 4, 1), combiner::sum,
                        matrix_view<const float>(slope.data(), 4, 1), found)
              .ok());
  CHECK(found.rows == std::pmr::vector<index_t>{5, many / 2, many - 1});
  CHECK(found.values == std::pmr::vector<float>{1.0F, 0.5F, 0.5F});
}

TEST_CASE("lookup and update take their scratch in one block") {
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    twins<> two({.state_floats = width});
    std::vector<float> out(bags * width), expected(out.size());
    const matrix_view<float> to(out.data(), bags, width);
    inline_executor here;
    thread_pool pool(threads);
    allowance unlimited;
    refusing_resource memory(unlimited);
    context ctx{pool};
    ctx.memory = &memory;
    // What f allocates; everything is released when it ends.
    const auto blocks = [&](const auto& f) {
      const long before = memory.granted;
      const status s = f();
      REQUIRE_MESSAGE(s.ok(), s.message());
      CHECK(memory.held == 0);
      return memory.granted - before;
    };
    CHECK(blocks([&] { return lookup(ctx, two.direct.view(), two.by_id(), combiner::mean, to); }) == 0);
    REQUIRE(lookup(here, two.direct.view(), two.by_id(), combiner::mean,
                   matrix_view<float>(expected.data(), bags, width))
                .ok());
    CHECK(same_bits(expected, out));
    std::fill(out.begin(), out.end(), -1.0F);
    CHECK(blocks([&] { return lookup(ctx, two.source(), two.by_key(), combiner::mean, to); }) == 1);
    CHECK(same_bits(expected, out));

    const pooling filled_by_key{combiner::mean, empty_bag::default_row{signed_key(2)}};
    CHECK(blocks([&] {
            return update(ctx, two.source(), two.by_key(), filled_by_key, two.slope(), adagrad{});
          }) == 1);
    const pooling filled_by_id{combiner::mean, empty_bag::default_row{2}};
    CHECK(blocks([&] {
            return update(ctx, two.direct.view(), two.by_id(), filled_by_id, two.slope(), adagrad{});
          }) == 1);
    CHECK(two.differing_rows() == 0);

    // A long bag, and many small ones.
    std::vector<std::int64_t> many(9'000);
    for (std::size_t k = 0; k < many.size(); ++k) many[k] = static_cast<std::int64_t>(k) % rows;
    const std::int64_t borders[] = {0, 5'000, 5'001, 9'000};
    const jagged_view<> long_bags(borders, 3, many.data(), 9'000);
    CHECK(blocks([&] {
            return lookup(ctx, two.direct.view(), long_bags, combiner::sum,
                          matrix_view<float>(out.data(), 3, width));
          }) == 1);
    CHECK(blocks([&] {
            return update(ctx, two.direct.view(), long_bags, combiner::sum,
                          matrix_view<const float>(two.gradient.data(), 3, width), adagrad{});
          }) == 1);

    twins<> other({.state_floats = width});
    feature_group<adagrad, jagged_view<std::uint64_t>> group;
    group.add(two.source(), combiner::sum);
    group.add(other.source(), pooling{combiner::mean, empty_bag::default_row{signed_key(5)}});
    group.add(two.source(), combiner::mean);
    const std::vector<jagged_view<std::uint64_t>> batches{two.by_key(), other.by_key(), two.by_key()};
    std::vector<float> side_by_side(3 * out.size());
    std::vector<matrix_view<float>> outs;
    for (std::size_t t = 0; t < 3; ++t) outs.emplace_back(side_by_side.data() + t * out.size(), bags, width);
    const std::vector<matrix_view<const float>> slopes(3, two.slope());
    CHECK(blocks([&] { return lookup(ctx, group, batches, std::span<const matrix_view<float>>(outs)); }) ==
          1);
    CHECK(blocks([&] {
            return update(ctx, group, batches, std::span<const matrix_view<const float>>(slopes), adagrad{});
          }) == 1);
  }
}
