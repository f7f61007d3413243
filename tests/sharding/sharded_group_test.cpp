// Tables over many ranks against one process that has all of them: lookups and updates, bit for bit.
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "comm/rank_threads.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::on_ranks;

namespace {

using table_type = dense_table<f32_rows>;
using bags_type = jagged_view<>;

struct batch {
  std::vector<std::int64_t> offsets{0}, ids;
  std::vector<float> weights;
  [[nodiscard]] index_t bags() const { return static_cast<index_t>(offsets.size()) - 1; }
  [[nodiscard]] bags_type view() const {
    return {offsets.data(), bags(), ids.data(), static_cast<index_t>(ids.size()),
            weights.empty() ? nullptr : weights.data()};
  }
  void append(const batch& other) {
    for (std::size_t b = 1; b < other.offsets.size(); ++b)
      offsets.push_back(static_cast<std::int64_t>(ids.size()) + other.offsets[b]);
    ids.insert(ids.end(), other.ids.begin(), other.ids.end());
    weights.insert(weights.end(), other.weights.begin(), other.weights.end());
  }
};

enum class kind { rows_sum, rows_mean, rows_weighted, rows_sqrtn, whole_sum, whole_mean, whole_default };
struct feature {
  kind what;
  index_t rows, width;
  int rank = 0;  // of a whole table
  [[nodiscard]] bool is_whole() const { return what >= kind::whole_sum; }
  [[nodiscard]] bool is_weighted() const { return what == kind::rows_weighted || what == kind::whole_mean; }
};
template <class F>
void with_pooling(kind k, const F& f) {
  switch (k) {
    case kind::rows_sum:
    case kind::whole_sum:
      return f(combiner::sum);
    case kind::rows_mean:
      return f(combiner::mean);
    case kind::rows_weighted:
      return f(combiner::mean(combiner::by_weight));
    case kind::rows_sqrtn:
      return f(combiner::sqrtn);
    case kind::whole_mean:
      return f(combiner::mean);
    case kind::whole_default:
      return f(pooling{combiner::sum, empty_bag::default_row{0}});
  }
}

batch draw(const feature& f, index_t bags, std::mt19937_64& random, bool integers) {
  batch b;
  for (index_t i = 0; i < bags; ++i) {
    for (auto n = random() % 5; n > 0; --n) {
      // Few rows have most of the ids.
      const auto r = static_cast<std::uint64_t>(f.rows);
      b.ids.push_back(
          static_cast<std::int64_t>(random() % 3 == 0 ? random() % r : random() % (r < 4 ? r : 4)));
      if (f.is_weighted())
        b.weights.push_back(integers ? 1.0F : 0.25F + static_cast<float>(random() % 100) / 64);
    }
    b.offsets.push_back(static_cast<std::int64_t>(b.ids.size()));
  }
  return b;
}

table_type make_table(index_t rows, index_t width, index_t state, std::uint64_t seed) {
  table_type t(rows, f32_rows(width, {.state_floats = state}));
  if (rows > 0) t.initialize(inline_executor{}, row_init::uniform{.seed = seed, .bound = 0.25F});
  return t;
}
void copy_row(const table_type& from, index_t a, const table_type& to, index_t b) {
  std::memcpy(const_cast<std::byte*>(to.view().row(b)), from.view().row(a),
              static_cast<std::size_t>(from.view().format().stride_bytes()));
}

// A model, its batches, and what one process makes of it.
template <class Optimizer>
struct trial {
  int ranks;
  std::vector<feature> features;
  Optimizer optimizer;
  index_t state;
  bool integers = false;
  index_t steps = 3;
  int breaks = 0;  // a mistake in what one process does, which must be seen

  std::vector<table_type> tables{}, first{};
  std::vector<std::vector<std::vector<batch>>> batches{};  // [step][rank][feature]
  std::vector<index_t> bags_of{};
  index_t width = 0;

  void prepare() {
    std::mt19937_64 random(deeprec_test::seed());
    for (std::size_t f = 0; f < features.size(); ++f) {
      tables.push_back(make_table(features[f].rows, features[f].width, state, f));
      first.push_back(make_table(features[f].rows, features[f].width, state, f));
      width += features[f].width;
    }
    for (int r = 0; r < ranks; ++r) bags_of.push_back(r == 1 ? 0 : static_cast<index_t>(random() % 40));
    for (index_t t = 0; t < steps; ++t) {
      batches.emplace_back();
      for (int r = 0; r < ranks; ++r) {
        batches.back().emplace_back();
        for (const feature& f : features)
          batches.back().back().push_back(draw(f, bags_of[static_cast<std::size_t>(r)], random, integers));
      }
    }
  }
  [[nodiscard]] float gradient(index_t step, int rank, index_t bag, index_t column) const {
    const std::uint64_t h =
        mix64(static_cast<std::uint64_t>(((step * 64 + rank) * 1000 + bag) * 1000 + column));
    return integers ? static_cast<float>(static_cast<int>(h % 7) - 3)
                    : static_cast<float>(static_cast<int>(h % 2001) - 1000) / 777.0F;
  }
  [[nodiscard]] std::vector<float> gradients(index_t step, int rank, index_t column, index_t columns) const {
    std::vector<float> g;
    for (index_t b = 0; b < bags_of[static_cast<std::size_t>(rank)]; ++b) {
      for (index_t c = 0; c < columns; ++c) g.push_back(gradient(step, rank, b, column + c));
    }
    return g;
  }

  // The outputs of the ranks, one after the other, in a step; then the tables are stepped.
  std::vector<std::vector<float>> one_process(index_t step) {
    inline_executor here;
    std::vector<std::vector<float>> outs;
    for (int r = 0; r < ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      outs.emplace_back(static_cast<std::size_t>(bags_of[i] * width));
      index_t column = 0;
      for (std::size_t f = 0; f < features.size(); ++f) {
        with_pooling(features[f].what, [&](const auto& pooled) {
          lookup(here, tables[f].view(), batches[static_cast<std::size_t>(step)][i][f].view(), pooled,
                 matrix_view<float>(outs.back().data() + column, bags_of[i], features[f].width, width))
              .or_throw();
        });
        column += features[f].width;
      }
    }
    index_t column = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      with_pooling(features[f].what, [&](const auto& pooled) { step_table(step, f, column, pooled); });
      column += features[f].width;
    }
    return outs;
  }
  template <class Pooling>
  void step_table(index_t step, std::size_t f, index_t column, const Pooling& pooled) {
    inline_executor here;
    const index_t d = features[f].width;
    batch all;
    std::vector<float> g;
    for (int r = 0; r < ranks; ++r) {
      const batch& b = batches[static_cast<std::size_t>(step)][static_cast<std::size_t>(r)][f];
      const std::vector<float> mine = gradients(step, r, column, d);
      if (breaks == 1 && r == ranks - 1) continue;  // a rank's gradient is lost
      if (features[f].is_whole() || integers) {
        all.append(b);
        g.insert(g.end(), mine.begin(), mine.end());
        continue;
      }
      // Summed within the rank; each row once.
      if constexpr (requires { typename Pooling::empty_mode; }) {
        continue;  // a whole table
      } else {
        sparse_gradient sums;
        row_gradients(here, features[f].rows, b.view(), pooled,
                      matrix_view<const float>(mine.data(), b.bags(), d), sums)
            .or_throw();
        for (std::size_t k = 0; k < sums.rows.size(); ++k) {
          if (breaks == 2 && !all.ids.empty() && sums.rows[k] == all.ids.front())
            continue;  // of two, one is lost
          all.ids.push_back(sums.rows[k]);
          all.offsets.push_back(static_cast<std::int64_t>(all.ids.size()));
          const float* const row = sums.values.data() + static_cast<index_t>(k) * d;
          g.insert(g.end(), row, row + d);
        }
      }
    }
    const matrix_view<const float> gradient(g.data(), all.bags(), d);
    if (features[f].is_whole() || integers) {
      update(here, tables[f].view(), all.view(), pooled, gradient, optimizer).or_throw();
    } else {
      update(here, tables[f].view(), all.view(), combiner::sum, gradient, optimizer).or_throw();
    }
  }

  /// Whether all ranks have the outputs and rows of one process, to the bit.
  bool same(bool on_threads = false) {
    prepare();
    std::vector<std::vector<std::vector<float>>> expected;
    for (index_t t = 0; t < steps; ++t) expected.push_back(one_process(t));
    std::mutex mutex;
    bool fine = true;
    on_ranks(ranks, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      const int me = comm.rank();
      const auto i = static_cast<std::size_t>(me);
      std::vector<table_type> parts;
      sharded_group<Optimizer, thread_rank<>> group(comm);
      for (std::size_t f = 0; f < features.size(); ++f) {
        const feature& x = features[f];
        const bool holds = x.is_whole() && x.rank == me;
        parts.push_back(make_table(x.is_whole() ? (holds ? x.rows : 0) : part_rows(me, x.rows, ranks),
                                   x.width, state, 0));
        for (index_t k = 0; k < parts.back().rows(); ++k)
          copy_row(first[f], holds ? k : k * ranks + me, parts.back(), k);
      }
      for (std::size_t f = 0; f < features.size(); ++f) {
        const feature& x = features[f];
        if (x.is_whole()) {
          with_pooling(x.what, [&](const auto& p) {
            group.add(parts[f].view(), p, placement::whole{x.rank, x.rows});
          });
        } else if (x.what == kind::rows_sum) {
          group.add(parts[f].view(), combiner::sum, placement::rows{x.rows});
        } else if (x.what == kind::rows_mean) {
          group.add(parts[f].view(), combiner::mean, placement::rows{x.rows});
        } else if (x.what == kind::rows_weighted) {
          group.add(parts[f].view(), combiner::mean(combiner::by_weight), placement::rows{x.rows});
        } else {
          group.add(parts[f].view(), combiner::sqrtn, placement::rows{x.rows});
        }
      }
      thread_pool pool(on_threads ? 3 : 1);
      bool mine = true;
      for (index_t t = 0; t < steps; ++t) {
        std::vector<bags_type> bags;
        for (const batch& b : batches[static_cast<std::size_t>(t)][i]) bags.push_back(b.view());
        std::vector<float> out(static_cast<std::size_t>(bags_of[i] * width)), g = gradients(t, me, 0, width);
        auto rows = resolve(pool, group, bags);
        if (!rows) MESSAGE(rows.fault().message());
        mine = mine && rows;
        if (!rows) break;
        status s = lookup(pool, rows.value(), matrix_view<float>(out.data(), bags_of[i], width));
        if (s.ok())
          s = update(pool, rows.value(), matrix_view<const float>(g.data(), bags_of[i], width), optimizer);
        if (!s) MESSAGE(s.message());
        mine = mine && s.ok() &&
               std::memcmp(out.data(), expected[static_cast<std::size_t>(t)][i].data(),
                           out.size() * sizeof(float)) == 0;
      }
      for (std::size_t f = 0; f < features.size() && mine; ++f) {
        const bool holds = features[f].is_whole();
        for (index_t k = 0; k < parts[f].rows(); ++k) {
          const std::size_t bytes = static_cast<std::size_t>(features[f].width + state) * sizeof(float);
          mine = mine && std::memcmp(parts[f].view().row(k), tables[f].view().row(holds ? k : k * ranks + me),
                                     bytes) == 0;
        }
      }
      const std::lock_guard lock(mutex);
      fine = fine && mine;
    });
    return fine;
  }
};

const std::vector<feature> every_kind = {
    {kind::rows_sum, 50, 16},      {kind::whole_sum, 30, 17, 0}, {kind::rows_mean, 7, 1},
    {kind::rows_weighted, 90, 24}, {kind::rows_sqrtn, 3, 130},   {kind::whole_mean, 11, 5, 1},
    {kind::rows_sum, 1, 4},
};
std::vector<feature> kinds_for(int ranks) {
  std::vector<feature> all = every_kind;
  for (feature& f : all) f.rank = f.rank % ranks;
  return all;
}

}  // namespace

TEST_CASE(
    "sharded_group: lookups and updates have the bits of one process, where sums are in the order of the "
    "ranks") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const bool on_threads : {false, true}) {
      CHECK(trial<sgd>{n, kinds_for(n), {.learning_rate = 0.125F}, 0}.same(on_threads));
      CHECK(trial<rowwise_adagrad>{n, kinds_for(n), {.learning_rate = 0.1F}, rowwise_adagrad::row_state}.same(
          on_threads));
    }
  }
}
TEST_CASE("sharded_group: sums that are exact have the bits of one update of all batches") {
  std::vector<feature> sums;
  for (const feature& f : every_kind) {
    if (f.what == kind::rows_sum || f.what == kind::whole_sum) sums.push_back(f);
  }
  // The positions of default rows come behind each rank's batch, not behind all: equal where sums are exact.
  sums.push_back({kind::whole_default, 40, 12, 0});
  for (int n = 2; n <= 5; ++n) CHECK(trial<sgd>{n, sums, {.learning_rate = 0.125F}, 0, true}.same());
}
TEST_CASE("sharded_group: mistakes are seen: the gradient of a rank that is lost, and one of two of a row") {
  CHECK(!trial<sgd>{3, kinds_for(3), {.learning_rate = 0.125F}, 0, false, 3, 1}.same());
  CHECK(!trial<sgd>{3, kinds_for(3), {.learning_rate = 0.125F}, 0, false, 3, 2}.same());
}

namespace {

// A rank of a small model: two tables by rows, one whole at rank 0.
struct small_rank {
  explicit small_rank(thread_rank<> comm, index_t width = 8, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : group(comm, {.patience = std::chrono::seconds(60)}, memory) {
    const int n = comm.size(), me = comm.rank();
    tables.push_back(make_table(part_rows(me, 20, n), width, 0, 1));
    tables.push_back(make_table(part_rows(me, 30, n), 4, 0, 2));
    tables.push_back(make_table(me == 0 ? 10 : 0, 5, 0, 3));
    group.add(tables[0].view(), combiner::sum, placement::rows{20});
    group.add(tables[1].view(), combiner::mean, placement::rows{30});
    group.add(tables[2].view(), combiner::sum, placement::whole{0, 10});
    ids.assign(3, {1, 2, 3});
  }
  [[nodiscard]] std::vector<bags_type> bags() const {
    std::vector<bags_type> all;
    for (const auto& list : ids) all.emplace_back(offsets.data(), 2, list.data(), 3);
    return all;
  }
  // A whole step; the status of the first verb that has one.
  template <class Executor>
  status step(Executor&& on, index_t columns_of_gradient = -1) {
    const std::vector<bags_type> batches = bags();
    std::fill(out.begin(), out.end(), -7.0F);
    const index_t width = group.total_width();
    out.resize(static_cast<std::size_t>(2 * width), -7.0F);
    auto rows = resolve(on, group, batches);
    if (!rows) return rows.fault();
    if (const status s = lookup(on, rows.value(), matrix_view<float>(out.data(), 2, width)); !s) return s;
    const index_t columns = columns_of_gradient < 0 ? width : columns_of_gradient;
    const std::vector<float> g(static_cast<std::size_t>(2 * columns), 1.0F);
    return update(on, rows.value(), matrix_view<const float>(g.data(), 2, columns), sgd{.learning_rate = 0.5F});
  }
  [[nodiscard]] std::vector<float> all_rows() const {
    std::vector<float> all;
    for (const table_type& t : tables) {
      for (index_t k = 0; k < t.rows(); ++k) {
        const auto* const row = reinterpret_cast<const float*>(t.view().row(k));
        all.insert(all.end(), row, row + t.view().format().width());
      }
    }
    return all;
  }

  std::vector<table_type> tables;
  sharded_group<sgd, thread_rank<>> group;
  const std::vector<std::int64_t> offsets{0, 1, 3};
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<float> out;
};

}  // namespace

TEST_CASE("sharded_group: an id out of range, on whichever ranks, is the fault of all; nothing is written, and they go on") {
  for (const bool two : {false, true}) {
    std::vector<status> seen(3);
    std::vector<char> fine(3);
    on_ranks(3, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      small_rank r(comm);
      inline_executor here;
      const std::vector<float> before = r.all_rows();
      if (comm.rank() == 2) r.ids[1][2] = 30;
      if (comm.rank() == 1 && two) r.ids[2][0] = -1;
      seen[i] = r.step(here);
      const bool untouched = r.all_rows() == before &&
                             std::all_of(r.out.begin(), r.out.end(), [](float x) { return x == -7.0F; });
      r.ids.assign(3, {1, 2, 3});
      fine[i] = untouched && r.step(here).ok() && r.all_rows() != before;
    });
    for (const status& s : seen) {
      CHECK(s.code() == errc::id_out_of_range);
      CHECK(s.place().rank == (two ? 1 : 2));
      CHECK(s.place().table == (two ? 2 : 1));
      CHECK(s.place().bag == (two ? 0 : 1));
      CHECK(s.place().position == (two ? 0 : 2));
      CHECK(s.place().value == (two ? -1 : 30));
    }
    CHECK(std::all_of(fine.begin(), fine.end(), [](char f) { return f != 0; }));
  }
}

TEST_CASE("sharded_group: ranks whose features differ, in width, order or number, are refused at all ranks") {
  std::vector<status> seen(3);
  on_ranks(3, {}, [&](thread_rank<> comm) {
    small_rank r(comm, comm.rank() == 1 ? 9 : 8);
    inline_executor here;
    seen[static_cast<std::size_t>(comm.rank())] = r.step(here);
  });
  for (const status& s : seen) {
    CHECK(s.code() == errc::invalid_value);
    CHECK(s.place().rank >= 0);
  }
}

TEST_CASE("sharded_group: what a rank has wrong is named: parts, batches, outputs, gradients, offsets") {
  std::vector<std::string> words(2);
  on_ranks(2, {}, [&](thread_rank<> comm) {
    const bool wrong = comm.rank() == 1;
    inline_executor here;
    std::string& all = words[static_cast<std::size_t>(comm.rank())];
    {
      table_type t = make_table(5, 4, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm.duplicate().or_throw());
      group.add(t.view(), combiner::sum, placement::rows{wrong ? index_t{99} : index_t{10}});
      const std::vector<std::int64_t> offsets{0, 1}, ids{0};
      const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), 1)};
      const auto rows = resolve(here, group, bags);
      all += std::string(to_string(rows.fault().code())) + "; ";
    }
    {
      small_rank r(comm.duplicate().or_throw());
      std::vector<bags_type> bags = r.bags();
      if (wrong) bags.pop_back();
      all += std::string(to_string(resolve(here, r.group, bags).fault().code())) + "; ";
      bags = r.bags();
      const std::vector<std::int64_t> later{1, 2, 3};
      if (wrong) bags[1] = bags_type(later.data(), 2, r.ids[1].data(), 3);
      all += std::string(to_string(resolve(here, r.group, bags).fault().code())) + "; ";
      all += std::string(to_string(r.step(here, wrong ? 3 : -1).code())) + "; ";
      all += std::string(to_string(r.step(here).code())) + "; ";
    }
  });
  CHECK(words[0] == words[1]);
  CHECK(words[0] == "shape mismatch; shape mismatch; unsupported; shape mismatch; ok; ");
}

TEST_CASE("sharded_group: ranks whose data end at different steps go on with empty batches, and no sample is lost") {
  const std::vector<index_t> steps{3, 5, 0};
  std::vector<index_t> made(3);
  on_ranks(3, {}, [&](thread_rank<> comm) {
    const auto i = static_cast<std::size_t>(comm.rank());
    small_rank r(comm);
    inline_executor here;
    const index_t width = r.group.total_width();
    const std::vector<std::int64_t> zero{0};
    for (index_t t = 0; t < 20; ++t) {
      const bool more = t < steps[i];
      const std::vector<bags_type> bags = more ? r.bags() : std::vector<bags_type>(3, bags_type(zero.data(), 0, zero.data(), 0));
      auto rows = resolve(here, r.group, bags).or_throw();
      if (rows.bags_of_all() == 0) {
        made[i] = t;
        break;
      }
      std::vector<float> out(static_cast<std::size_t>(2 * width), 1.0F);
      const index_t b = more ? 2 : 0;
      lookup(here, rows, matrix_view<float>(out.data(), b, width)).or_throw();
      update(here, rows, matrix_view<const float>(out.data(), b, width), sgd{}).or_throw();
    }
  });
  CHECK(made == std::vector<index_t>{5, 5, 5});
}

TEST_CASE("sharded_group: three messages a step and rank, whatever the features; nothing is allocated in the end") {
  for (const int features : {1, 200}) {
    std::vector<std::uint64_t> messages(3);
    std::vector<index_t> allocations(3);
    on_ranks(3, {}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      counting_resource memory;
      table_type t = make_table(part_rows(comm.rank(), 40, 3), 4, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm, {}, &memory);
      for (int f = 0; f < features; ++f) group.add(t.view(), combiner::sum, placement::rows{40});
      const std::vector<std::int64_t> offsets{0, 1, 3}, ids{7, 39, 12};
      const std::vector<bags_type> bags(static_cast<std::size_t>(features), bags_type(offsets.data(), 2, ids.data(), 3));
      std::vector<float> out(static_cast<std::size_t>(2 * group.total_width()));
      inline_executor here;
      for (int step = 0; step < 6; ++step) {
        const std::uint64_t before = group.traffic().messages;
        const index_t granted = memory.statistics().allocations;
        auto rows = resolve(here, group, bags).or_throw();
        lookup(here, rows, matrix_view<float>(out.data(), 2, group.total_width())).or_throw();
        update(here, rows, matrix_view<const float>(out.data(), 2, group.total_width()), sgd{}).or_throw();
        messages[i] = group.traffic().messages - before;
        allocations[i] = memory.statistics().allocations - granted;
      }
    });
    CHECK(messages == std::vector<std::uint64_t>{6, 6, 6});  // 3 to each of the 2 others
    CHECK(allocations == std::vector<index_t>{0, 0, 0});
  }
}

TEST_CASE("sharded_group: memory that one rank is refused, at any allocation of a step, is the fault of all") {
  int shared = 0, alone = 0;
  for (index_t nth = 0; nth < 400; ++nth) {
    std::vector<status> seen(3), after(3);
    std::vector<char> untouched(3);
    bool refused = false;
    on_ranks(3, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      allowance granted;
      refusing_resource memory(granted);
      small_rank r(comm, 8, &memory);
      inline_executor here;
      context ctx{here};
      ctx.memory = &memory;
      const std::vector<float> before = r.all_rows();
      if (comm.rank() == 1) granted.left = nth;
      seen[i] = r.step(ctx);
      untouched[i] = r.all_rows() == before;
      if (comm.rank() == 1) refused = granted.refused > 0;
      granted.left = allowance::unlimited;
      after[i] = r.step(ctx);
    });
    CAPTURE(nth);
    if (!refused) break;
    CHECK(seen[1].code() == errc::out_of_memory);
    const auto goes_on = [](const status& s) { return s.ok() || s.code() == errc::closed; };
    if (goes_on(seen[0])) {  // behind its last message: the communicator has ended
      ++alone;
      CHECK(goes_on(seen[2]));
      for (const int k : {0, 1, 2}) CHECK(after[static_cast<std::size_t>(k)].code() == errc::closed);
    } else {
      ++shared;
      for (const std::size_t k : {0U, 2U}) {
        CHECK(seen[k].code() == errc::out_of_memory);
        CHECK(seen[k].place().rank == 1);
      }
      for (const std::size_t k : {0U, 1U, 2U}) {
        CHECK(untouched[k] != 0);
        CHECK(after[k].ok());
      }
    }
  }
  CHECK(shared > 20);
  CHECK(alone < shared / 4);
}
