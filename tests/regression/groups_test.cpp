// Regressions of feature groups and of resolved batches: calls after refused memory, seeds of tables, the
// stop token, guards.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

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
#include <deeprec/optim/sgd.hpp>

#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

inline_executor here;

template <class Format>
dense_table<Format> table_of(index_t rows, index_t width, float value) {
  dense_table<Format> table(rows, Format(width), std::pmr::new_delete_resource());
  const std::vector<float> values(static_cast<std::size_t>(width), value);
  for (index_t r = 0; r < rows; ++r) table.format().encode(values.data(), table.view().row(r));
  return table;
}

template <class Format>
bool same_bytes(const dense_table<Format>& a, const dense_table<Format>& b) {
  return std::memcmp(a.view().data(), b.view().data(), a.bytes()) == 0;
}

}  // namespace

TEST_CASE("n02: an update of resolved features whose scratch was refused groups its rows at the next call") {
  auto table = table_of<f32_rows>(100, 4, 0), right = table_of<f32_rows>(100, 4, 0);
  const std::vector<std::int64_t> offsets{0, 2, 3, 5}, ids{7, 9, 7, 50, 60};
  const std::vector<float> g(3 * 4, 1.0F);
  const matrix_view<const float> gradient(g.data(), 3, 4);
  const jagged_view<> batch(offsets.data(), 3, ids.data(), 5);
  REQUIRE(update(here, right.view(), batch, combiner::sum, gradient, sgd{1.0F}).ok());
  feature_group<sgd> group;
  group.add(table.view(), combiner::sum);
  const std::vector<jagged_view<>> bags{batch};
  allowance of_scratch;
  refusing_resource scratch(of_scratch);
  allowance unlimited;
  refusing_resource kept(unlimited);
  context resolving(here), updating(here);
  resolving.memory = &kept;
  updating.memory = &scratch;
  const auto rows = resolve(resolving, group, bags).or_throw();
  status s(errc::out_of_memory, "");
  for (long granted = 0; !s.ok(); ++granted) {
    REQUIRE(s.code() == errc::out_of_memory);
    of_scratch.left = granted;
    s = update(updating, rows, gradient, sgd{1.0F});
  }
  CHECK(of_scratch.refused > 2);
  CHECK(same_bytes(table, right));
}

TEST_CASE("n09: an update of a group rounds every table by a seed of its own") {
  constexpr index_t rows = 300, width = 32;
  auto a = table_of<bf16_rows>(rows, width, 1), b = table_of<bf16_rows>(rows, width, 1);
  auto alone_a = table_of<bf16_rows>(rows, width, 1), alone_b = table_of<bf16_rows>(rows, width, 1);
  std::vector<std::int64_t> ids;
  for (index_t r = 0; r < rows; ++r) ids.push_back(r);
  const std::vector<float> g(static_cast<std::size_t>(rows * 3 * width), 1.0F);
  const matrix_view<const float> gradient(g.data(), rows, width), joint(g.data(), rows, 3 * width);
  using bags_type = fixed_hotness_view<>;
  const bags_type all(ids.data(), rows, 1), none(ids.data(), rows, 0);
  feature_group<sgd, bags_type, float, rounding::stochastic> group;
  group.add(a.view(), combiner::sum);
  group.add(a.view(), combiner::sum);  // the same table
  group.add(b.view(), combiner::sum);
  const std::vector<bags_type> bags{all, none, all};
  const auto rows_of_group = resolve(here, group, bags).or_throw();
  for (std::uint64_t t = 0; t < 100; ++t) {
    const rounding::stochastic at{.seed = 5, .step = t};
    REQUIRE((t % 2 == 0 ? update(here, group, bags, joint, sgd{1e-4F}, at)
                        : update(here, rows_of_group, joint, sgd{1e-4F}, at))
                .ok());
    REQUIRE(update(here, alone_a.view(), all, combiner::sum, gradient, sgd{1e-4F}, at.of_table(0)).ok());
    REQUIRE(update(here, alone_b.view(), all, combiner::sum, gradient, sgd{1e-4F}, at.of_table(1)).ok());
  }
  CHECK(same_bytes(a, alone_a));
  CHECK(same_bytes(b, alone_b));
  double xy = 0, xx = 0, yy = 0;
  std::vector<float> of_a(width), of_b(width);
  for (index_t r = 0; r < rows; ++r) {
    a.format().decode(a.view().row(r), of_a.data());
    b.format().decode(b.view().row(r), of_b.data());
    for (std::size_t j = 0; j < width; ++j) {
      const double x = of_a[j] - 0.99, y = of_b[j] - 0.99;
      xy += x * y;
      xx += x * x;
      yy += y * y;
    }
  }
  CHECK(std::fabs(xy / std::sqrt(xx * yy)) < 0.1);  // of 9600 elements: 10 deviations
}

TEST_CASE("h02: the verbs of a group that was stopped neither check nor allocate") {
  auto table = table_of<f32_rows>(4, 8, 0);
  feature_group<sgd> group;
  group.add(table.view(), combiner::sum);
  const std::vector<std::int64_t> offsets{0, 1}, ids{1};
  const std::vector<jagged_view<>> bags{jagged_view<>(offsets.data(), 1, ids.data(), 1)};
  const auto rows = resolve(here, group, bags).or_throw();
  std::vector<float> values(8);
  std::stop_source source;
  source.request_stop();
  const std::stop_token token = source.get_token();
  context ctx(here);
  ctx.stop = &token;
  ctx.memory = std::pmr::null_memory_resource();
  for (const index_t width : {4, 8}) {
    const matrix_view<float> out(values.data(), 1, width);
    const matrix_view<const float> gradient(values.data(), 1, width);
    CHECK(lookup(ctx, group, bags, out).message() == "stopped: lookup");
    CHECK(lookup(ctx, rows, out).message() == "stopped: lookup");
    CHECK(update(ctx, group, bags, gradient, sgd{}).message() == "stopped: update");
    CHECK(update(ctx, rows, gradient, sgd{}).message() == "stopped: update");
  }
}

namespace {

/// Rows that are lost as soon as nobody holds a guard: they may move then.
struct fleeting_rows {
  std::map<std::int64_t, float> rows;
  int guards = 0;
};

struct fleeting_source {
  using format_type = f32_rows;
  using space = host_space;
  using byte_type = const std::byte;

  [[nodiscard]] f32_rows format() const { return f32_rows(1); }
  void find(const std::int64_t* keys, index_t n, const std::byte** at) const {
    for (index_t k = 0; k < n; ++k) {
      const auto row = of->rows.find(keys[k]);
      at[k] = row == of->rows.end() ? nullptr : reinterpret_cast<const std::byte*>(&row->second);
    }
  }
  [[nodiscard]] std::shared_ptr<fleeting_rows> guard() const {
    ++of->guards;
    return {of, [](fleeting_rows* held) {
              if (--held->guards > 0) return;
              for (auto& row : held->rows) row.second = -777;
            }};
  }

  fleeting_rows* of;
};
static_assert(KeyedRowSource<fleeting_source, std::int64_t> && GuardedRowSource<fleeting_source>);

}  // namespace

TEST_CASE("n04: a verb holds the guards of its sources until it has read their rows") {
  fleeting_rows a, b;
  const auto renew = [&] {
    for (int i = 0; i < 6; ++i) (i % 2 == 0 ? a : b).rows[i / 2] = static_cast<float>(10 + i);
  };
  const std::vector<std::int64_t> ids{0, 1, 2, 3, 4, 5}, offsets{0, 1, 2, 3}, keys{2, 0, 1};
  std::vector<float> out(6);
  const std::vector<float> of_a{14, 10, 12};
  partitioned_ids<> parts;
  REQUIRE(partition(here, ids, index_t{1} << 40, 2, partition_strategy::mod, parts).ok());
  const std::vector<fleeting_source> sources{{&a}, {&b}};
  renew();
  CHECK(gather(here, sources, parts, matrix_view<float>(out.data(), 6, 1)).ok());
  CHECK(out == std::vector<float>{10, 11, 12, 13, 14, 15});

  const jagged_view<> bags(offsets.data(), 3, keys.data(), 3);
  const matrix_view<float> three(out.data(), 3, 1);
  const auto seen = [&] { return std::vector<float>(out.begin(), out.begin() + 3); };
  renew();
  CHECK(gather(here, sources[0], keys, three).ok());
  CHECK(seen() == of_a);
  renew();
  CHECK(lookup(here, sources[0], bags, combiner::sum, three).ok());
  CHECK(seen() == of_a);
  renew();
  CHECK(fused_lookup(here, sources[0], coo_view<>(ids.data(), keys.data(), 3, 3), combiner::sum, three).ok());
  CHECK(seen() == of_a);
  feature_group<> group;
  group.add(sources[0], combiner::sum);
  const std::vector<jagged_view<>> batches{bags};
  renew();
  CHECK(lookup(here, group, batches, three).ok());
  CHECK(seen() == of_a);
  renew();
  {
    const auto rows = resolve(here, sources[0], bags, combiner::sum).or_throw();
    CHECK(lookup(here, rows, three).ok());
  }
  CHECK(seen() == of_a);
  renew();
  {
    const auto rows = resolve(here, group, batches).or_throw();
    CHECK(lookup(here, rows, three).ok());
  }
  CHECK(seen() == of_a);
  renew();
  const std::vector<float> ones(3, 1.0F);
  CHECK(weight_gradients(here, sources[0], bags, combiner::sum, matrix_view<const float>(ones.data(), 3, 1),
                         std::span(out).first(3))
            .ok());
  CHECK(seen() == of_a);
  CHECK(a.guards == 0);
  CHECK(b.guards == 0);
}
