// Tables over many ranks against one process that has all of them: lookups and updates, bit for bit.
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_options.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/rank_threads.hpp"
#include "sharding/thread_trial.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE(
    "sharded_group: lookups and updates have the bits of one process, where sums are in the order of the "
    "ranks") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const bool on_threads : {false, true}) {
      CHECK(same(trial<sgd>{n, with_columns(kinds_for(n)), {.learning_rate = 0.125F}}, on_threads));
      CHECK(same(trial<rowwise_adagrad>{n, kinds_for(n), {.learning_rate = 0.1F}}, on_threads));
    }
  }
}
TEST_CASE("sharded_group: sums in order have the bits of one process on the batches in the order of ranks") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const bool on_threads : {false, true}) {
      const auto check = [&](auto model) {
        model.sums = row_sums::in_order;
        CHECK(same(std::move(model), on_threads));
      };
      check(trial<sgd>{n, kinds_for(n), {.learning_rate = 0.125F}});
      check(trial<rowwise_adagrad>{n, random_model(n, random), {.learning_rate = 0.1F}});
      check(trial<adam>{n, with_columns(random_model(n, random)), {.learning_rate = 0.1F}});
    }
  }
  // Rows that more than 4,096 positions use are summed by a tree.
  trial<sgd> large{3, {{kind::rows_mean, 2, 3}}, {.learning_rate = 0.125F}};
  large.most_bags = 20000;
  large.sums = row_sums::in_order;
  CHECK(same(std::move(large)));
}
TEST_CASE("sharded_group: owners that pool send sums of bags, and step as sums in order do") {
  std::mt19937_64 random(deeprec_test::seed() + 2);
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const row_sums sums : {row_sums::by_parts, row_sums::in_order}) {
      trial<sgd> all{n, with_columns(pooled_by_owners(kinds_for(n))), {.learning_rate = 0.125F}};
      trial<rowwise_adagrad> any{n, pooled_by_owners(random_model(n, random)), {.learning_rate = 0.1F}};
      all.sums = any.sums = sums;
      CHECK(same(std::move(all), n % 2 == 0));
      CHECK(same(std::move(any), n % 2 != 0));
    }
  }
}
TEST_CASE(
    "sharded_group: sums of parts, of which each rank has several, have their bits for any number of ranks") {
  std::mt19937_64 random(deeprec_test::seed() + 4);
  for (int n = 1; n <= 4; ++n) {
    CAPTURE(n);
    trial<sgd> all{n, with_columns(pooled_by_owners(kinds_for(n))), {.learning_rate = 0.125F}};
    trial<rowwise_adagrad> any{n, random_model(n, random), {.learning_rate = 0.1F}};
    all.sum_parts = any.sum_parts = 12;
    CHECK(same(std::move(all), n % 2 == 0));
    CHECK(same(std::move(any), n % 2 != 0));
  }
  // 48 bags, in 4 parts of 12: one process's rows after 3 steps, by 1, 2 and 4 ranks.
  std::vector<std::vector<float>> rows;
  for (const int n : {1, 2, 4}) {
    std::vector<float> whole(20 * 5);
    on_ranks(n, {}, [&](thread_rank<> comm) {
      const int me = comm.rank();
      table_type part = make_table(part_rows(me, 20, n), 5, 0, 1);
      for (index_t k = 0; k < part.rows(); ++k) {
        for (index_t c = 0; c < 5; ++c)
          reinterpret_cast<float*>(part.view().row(k))[c] = static_cast<float>(me + k * n) / 7;
      }
      sharded_group<sgd, thread_rank<>> group(comm, {.parts = 4});
      group.add(part.view(), combiner::mean, placement::rows{20});
      inline_executor here;
      for (std::uint64_t t = 0; t < 3; ++t) {
        batch b;
        std::vector<float> g;
        for (int bag = 48 * me / n; bag < 48 * (me + 1) / n; ++bag) {
          for (std::uint64_t k = 0; k < 3; ++k)
            b.ids.push_back(
                static_cast<std::int64_t>(mix64(static_cast<std::uint64_t>(bag) * 7 + k + t) % 20));
          b.offsets.push_back(static_cast<std::int64_t>(b.ids.size()));
          for (int c = 0; c < 5; ++c) g.push_back(1.0F / static_cast<float>(1 + bag + c));
        }
        const std::vector<bags_type> bags{b.view()};
        const auto step = resolve(here, group, bags).or_throw();
        update(here, step, matrix_view<const float>(g.data(), b.bags(), 5), sgd{.learning_rate = 0.3F})
            .or_throw();
      }
      for (index_t k = 0; k < part.rows(); ++k)
        std::copy_n(reinterpret_cast<const float*>(part.view().row(k)), 5, whole.data() + (me + k * n) * 5);
    });
    rows.push_back(whole);
  }
  CHECK(rows[1] == rows[0]);
  CHECK(rows[2] == rows[0]);
}
TEST_CASE("sharded_group: parts that ranks can't have as many of are refused at all") {
  for (const int parts : {-2, 3}) {
    std::vector<status> seen(2);
    on_ranks(2, {}, [&](thread_rank<> comm) {
      table_type t = make_table(part_rows(comm.rank(), 10, 2), 4, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm, {.parts = parts});
      group.add(t.view(), combiner::sum, placement::rows{10});
      const std::vector<std::int64_t> offsets{0, 1}, ids{0};
      const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), 1)};
      inline_executor here;
      const auto rows = resolve(here, group, bags);
      seen[static_cast<std::size_t>(comm.rank())] =
          rows ? status() : static_cast<const status&>(rows.fault());
    });
    for (const status& s : seen) CHECK(s.code() == errc::invalid_value);
  }
}
TEST_CASE("sharded_group: each rank has the rows of long bags added by their owners where it sends less") {
  // Bags of 2 rows of their own, and of 30 rows of one's: bytes of a step at rank 0, by who adds.
  const auto sent = [](pooled_at pooled, index_t hotness, bool apart, std::vector<float>& out) {
    std::uint64_t bytes = 0;
    on_ranks(2, {}, [&](thread_rank<> comm) {
      table_type t = make_table(part_rows(comm.rank(), 4000, 2), 8, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm);
      group.add(t.view(), combiner::mean, placement::rows{4000, pooled});
      batch b;
      for (index_t bag = 0; bag < 20; ++bag) {
        for (index_t k = 0; k < hotness; ++k) b.ids.push_back(apart ? bag * hotness + k : k * 7);
        b.offsets.push_back(static_cast<std::int64_t>(b.ids.size()));
      }
      const std::vector<bags_type> bags{b.view()};
      std::vector<float> mine(20 * 8);
      inline_executor here;
      auto rows = resolve(here, group, bags).or_throw();
      lookup(here, rows, matrix_view<float>(mine.data(), 20, 8)).or_throw();
      update(here, rows, matrix_view<const float>(mine.data(), 20, 8), sgd{}).or_throw();
      if (comm.rank() == 0) {
        bytes = group.traffic().bytes;
        out = mine;
      }
    });
    return bytes;
  };
  for (const auto& [hotness, apart, owners_win] :
       {std::tuple(2, true, false), std::tuple(30, true, true), std::tuple(30, false, false)}) {
    std::vector<float> at_bag, at_owner, chosen;
    const std::uint64_t of_rows = sent(pooled_at::bag, hotness, apart, at_bag);
    const std::uint64_t of_sums = sent(pooled_at::owner, hotness, apart, at_owner);
    CHECK((of_sums < of_rows) == owners_win);
    CHECK(sent(pooled_at::fewer_bytes, hotness, apart, chosen) == (std::min)(of_rows, of_sums));
    CHECK(chosen == (owners_win ? at_owner : at_bag));
    for (std::size_t i = 0; i < at_bag.size(); ++i)
      CHECK(at_owner[i] == doctest::Approx(at_bag[i]).epsilon(1e-5));
  }
}
TEST_CASE("sharded_group: owners can't take the max of a bag") {
  std::vector<status> seen(2);
  on_ranks(2, {}, [&](thread_rank<> comm) {
    const table_type t = make_table(part_rows(comm.rank(), 10, 2), 4, 0, 1);
    sharded_group<lookups_only, thread_rank<>> group(comm);
    group.add(t.view(), combiner::max, placement::rows{10, pooled_at::owner});
    const std::vector<std::int64_t> offsets{0, 1}, ids{0};
    const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), 1)};
    inline_executor here;
    const auto rows = resolve(here, group, bags);
    seen[static_cast<std::size_t>(comm.rank())] = rows ? status() : static_cast<const status&>(rows.fault());
  });
  for (const status& s : seen) CHECK(s.code() == errc::unsupported);
}
TEST_CASE("sharded_group: sums that are exact have the bits of one update of all batches") {
  std::vector<feature> sums;
  for (const feature& f : every_kind) {
    if (f.what == kind::rows_sum || f.what == kind::whole_sum) sums.push_back(f);
  }
  // The positions of default rows come behind each rank's batch, not behind all: equal where sums are exact.
  sums.push_back({kind::whole_default, 40, 12, 0});
  for (int n = 2; n <= 5; ++n) {
    CHECK(same(trial<sgd>{n, sums, {.learning_rate = 0.125F}, true}));
    CHECK(same(trial<sgd>{.ranks = n,
                          .features = sums,
                          .optimizer = {.learning_rate = 0.125F},
                          .integers = true,
                          .sums = row_sums::in_order}));
  }
}
TEST_CASE(
    "sharded_group: mistakes are seen: a rank's gradients that are lost, one of two of a row, those of the "
    "next row, and another order of the ranks") {
  for (const mistake wrong : {mistake::none, mistake::rank_lost, mistake::one_of_two_lost, mistake::next_row,
                              mistake::other_order}) {
    CAPTURE(static_cast<int>(wrong));
    for (const row_sums sums : {row_sums::by_parts, row_sums::in_order}) {
      if (wrong == mistake::one_of_two_lost && sums == row_sums::in_order) continue;
      trial<sgd> model{3, with_columns(kinds_for(3)), {.learning_rate = 0.125F}};
      model.bags_of = {40, 30, 35};
      model.breaks = wrong;
      model.sums = sums;
      CHECK(same(std::move(model)) == (wrong == mistake::none));
    }
  }
  // One order of sums is not the other.
  trial<sgd> ordered{2, {{kind::rows_sum, 4, 16}}, {.learning_rate = 0.125F}};
  trial<sgd> parts{2, {{kind::rows_sum, 4, 16}}, {.learning_rate = 0.125F}};
  ordered.bags_of = parts.bags_of = {40, 40};
  ordered.sums = row_sums::in_order;
  ordered.expect();
  parts.expect();
  CHECK(ordered.expected != parts.expected);
}

namespace {

// A rank of a small model: two tables by rows, one whole at rank 0.
template <class Wire = wire<>>
struct small_rank {
  explicit small_rank(thread_rank<> comm, index_t width = 8,
                      std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
                      row_sums sums = row_sums::by_parts, pooled_at pooled = pooled_at::bag)
      : group(comm, {.patience = std::chrono::seconds(60), .sums = sums}, memory) {
    const int n = comm.size(), me = comm.rank();
    tables.push_back(make_table(part_rows(me, 20, n), width, 0, 1));
    tables.push_back(make_table(part_rows(me, 30, n), 4, 0, 2));
    tables.push_back(make_table(me == 0 ? 10 : 0, 5, 0, 3));
    group.add(tables[0].view(), combiner::sum, placement::rows{20, pooled});
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
    return update(on, rows.value(), matrix_view<const float>(g.data(), 2, columns),
                  sgd{.learning_rate = 0.5F});
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
  sharded_group<sgd, thread_rank<>, bags_type, Wire> group;
  const std::vector<std::int64_t> offsets{0, 1, 3};
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<float> out;
};

}  // namespace

TEST_CASE(
    "sharded_group: an id out of range, on whichever ranks, is the fault of all; nothing is written, and "
    "they go on") {
  for (const bool two : {false, true}) {
    std::vector<status> seen(3);
    std::vector<char> fine(3);
    on_ranks(3, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      small_rank<> r(comm);
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
  for (const int way : {0, 1, 2, 3}) {  // width; order; number; none differs
    std::vector<status> seen(3);
    on_ranks(3, {}, [&](thread_rank<> comm) {
      const bool differs = comm.rank() == 1;
      std::vector<feature> model{{kind::rows_sum, 20, 8}, {kind::rows_sum, 30, 4}};
      if (differs && way == 0) model[0].width = 9;
      if (differs && way == 1) std::swap(model[0], model[1]);
      if (differs && way == 2) model.push_back({kind::rows_sum, 5, 2});
      std::vector<table_type> parts;
      for (const feature& f : model)
        parts.push_back(make_table(part_rows(comm.rank(), f.rows, 3), f.width, 0, 1));
      sharded_group<sgd, thread_rank<>> group(comm, {.patience = std::chrono::seconds(60)});
      for (std::size_t f = 0; f < model.size(); ++f)
        group.add(parts[f].view(), combiner::sum, placement::rows{model[f].rows});
      const std::vector<std::int64_t> offsets{0, 1, 3}, ids{1, 2, 3};
      const std::vector<bags_type> bags(model.size(), bags_type(offsets.data(), 2, ids.data(), 3));
      inline_executor here;
      const auto rows = resolve(here, group, bags);
      std::vector<float> out(static_cast<std::size_t>(2 * group.total_width()));
      seen[static_cast<std::size_t>(comm.rank())] =
          rows ? lookup(here, rows.value(), matrix_view<float>(out.data(), 2, group.total_width()))
               : static_cast<const status&>(rows.fault());
    });
    for (const status& s : seen) {
      CHECK(s.code() == (way == 3 ? errc::ok : errc::invalid_value));
      CHECK((s.place().rank >= 0) == (way != 3));
    }
  }
}

TEST_CASE(
    "sharded_group: columns at ranks that are none, or come twice, and slices of another size, are named") {
  const auto says = [](const std::vector<int>& ranks, index_t rows, index_t width) {
    std::string words;
    on_ranks(1, {}, [&](thread_rank<> comm) {
      table_type t = make_table(rows, width, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm);
      group.add(t.view(), combiner::sum, placement::columns{ranks, 10, 5});
      const std::vector<std::int64_t> offsets{0, 1}, ids{0};
      const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), 1)};
      inline_executor here;
      const auto rows_of_step = resolve(here, group, bags);
      words = rows_of_step ? "ok" : rows_of_step.fault().message();
    });
    return words;
  };
  CHECK(says({0}, 10, 5) == "ok");
  CHECK(says({}, 10, 5).find("columns must lie at a rank at least") != std::string::npos);
  CHECK(says({0, 1}, 10, 3).find("the ranks of columns must be some of the ranks") != std::string::npos);
  CHECK(says({-1}, 0, 5).find("the ranks of columns must be some of the ranks") != std::string::npos);
  CHECK(says({0, 0}, 10, 2).find("the ranks of columns must differ") != std::string::npos);
  CHECK(says({0}, 9, 5).find("all of the rows") != std::string::npos);
  CHECK(says({0}, 10, 4).find("part_rows(i, width, ranks) columns") != std::string::npos);
}

TEST_CASE(
    "sharded_group: of replicated tables no rows are sent, and one of another size at a rank is refused at "
    "all") {
  for (const bool wrong : {false, true}) {
    std::vector<std::uint64_t> bytes(2);
    std::vector<status> seen(2);
    on_ranks(2, {}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      table_type t = make_table(wrong && comm.rank() == 1 ? 9 : 10, 4, 0, 1);
      sharded_group<sgd, thread_rank<>> group(comm);
      group.add(t.view(), combiner::sum, placement::replicated{10});
      const std::vector<std::int64_t> offsets{0, 2}, ids{7, 3};
      const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), 2)};
      std::vector<float> out(4);
      inline_executor here;
      const auto rows = resolve(here, group, bags);
      seen[i] = rows ? status() : static_cast<const status&>(rows.fault());
      if (!rows) return;
      const std::uint64_t before = group.traffic().bytes;
      lookup(here, rows.value(), matrix_view<float>(out.data(), 1, 4)).or_throw();
      bytes[i] = group.traffic().bytes - before;
    });
    for (const status& s : seen) {
      CHECK(s.code() == (wrong ? errc::shape_mismatch : errc::ok));
      CHECK(s.place().rank == (wrong ? 1 : -1));
    }
    if (!wrong) CHECK(bytes == std::vector<std::uint64_t>(2, sizeof(message_header)));
  }
}

TEST_CASE("sharded_group: replicated tables that only are read send no ids") {
  std::vector<std::uint64_t> bytes(2);
  std::vector<char> same(2);
  on_ranks(2, {}, [&](thread_rank<> comm) {
    const auto i = static_cast<std::size_t>(comm.rank());
    const table_type t = make_table(10, 4, 0, 1);
    sharded_group<lookups_only, thread_rank<>> group(comm);
    group.add(t.view(), combiner::sum, placement::replicated{10});
    const auto sent = [&](index_t count) {  // of a batch of one bag
      const std::vector<std::int64_t> offsets{0, count}, ids{7, 3, 7, 1, 0, 9};
      const std::vector<bags_type> bags{bags_type(offsets.data(), 1, ids.data(), count)};
      std::vector<float> out(4), expected(4);
      const inline_executor here;
      const std::uint64_t before = group.traffic().bytes;
      const auto rows = resolve(here, group, bags).or_throw();
      lookup(here, rows, matrix_view<float>(out.data(), 1, 4)).or_throw();
      lookup(here, t.view(), bags[0], combiner::sum, matrix_view<float>(expected.data(), 1, 4)).or_throw();
      same[i] = out == expected;
      return group.traffic().bytes - before;
    };
    bytes[i] = sent(6) - sent(0);
  });
  CHECK(bytes == std::vector<std::uint64_t>(2, 0));
  CHECK(same == std::vector<char>(2, 1));
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
      small_rank<> r(comm.duplicate().or_throw());
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

TEST_CASE(
    "sharded_group: ranks whose data end at different steps go on with empty batches, and no sample is "
    "lost") {
  const std::vector<index_t> steps{3, 5, 0};
  std::vector<index_t> made(3);
  on_ranks(3, {}, [&](thread_rank<> comm) {
    const auto i = static_cast<std::size_t>(comm.rank());
    small_rank<> r(comm);
    inline_executor here;
    const index_t width = r.group.total_width();
    const std::vector<std::int64_t> zero{0};
    for (index_t t = 0; t < 20; ++t) {
      const bool more = t < steps[i];
      const std::vector<bags_type> bags =
          more ? r.bags() : std::vector<bags_type>(3, bags_type(zero.data(), 0, zero.data(), 0));
      const index_t b = more ? 2 : 0;
      std::vector<float> out(static_cast<std::size_t>(2 * width), 1.0F);
      // [sharded]
      auto rows = resolve(here, r.group, bags).or_throw();
      if (rows.bags_of_all() == 0) {  // the data of all ranks have ended
        made[i] = t;
        break;
      }
      lookup(here, rows, matrix_view<float>(out.data(), b, width)).or_throw();
      // ... the gradient of what was looked up, here itself ...
      update(here, rows, matrix_view<const float>(out.data(), b, width), sgd{}).or_throw();
      // [sharded]
    }
  });
  CHECK(made == std::vector<index_t>{5, 5, 5});
}

TEST_CASE(
    "sharded_group: three messages a step and rank, whatever the features; nothing is allocated in the end") {
  const auto check = [](int features, row_sums sums, pooled_at pooled, auto elements, int parts = 0) {
    std::vector<std::uint64_t> messages(3);
    std::vector<index_t> allocations(3);
    on_ranks(3, {}, [&](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      counting_resource memory;
      table_type t = make_table(part_rows(comm.rank(), 40, 3), 4, 0, 1);
      sharded_group<sgd, thread_rank<>, bags_type, decltype(elements)> group(
          comm, {.sums = sums, .parts = parts}, &memory);
      for (int f = 0; f < features; ++f) group.add(t.view(), combiner::sum, placement::rows{40, pooled});
      const std::vector<std::int64_t> offsets{0, 1, 3}, ids{7, 39, 12};
      const std::vector<bags_type> bags(static_cast<std::size_t>(features),
                                        bags_type(offsets.data(), 2, ids.data(), 3));
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
  };
  check(1, row_sums::by_parts, pooled_at::bag, wire<>());
  check(200, row_sums::by_parts, pooled_at::bag, wire<>());
  check(200, row_sums::by_parts, pooled_at::bag, wire<>(), 6);
  check(200, row_sums::in_order, pooled_at::bag, wire<bf16>());
  check(200, row_sums::by_parts, pooled_at::owner, wire<bf16, bf16>());
}

TEST_CASE(
    "sharded_group: memory that one rank is refused, at any allocation of a step, is the fault of all") {
  const auto check = [](row_sums sums, pooled_at pooled, auto elements) {
    int shared = 0, alone = 0;
    for (index_t nth = 0; nth < 400; ++nth) {
      std::vector<status> seen(3), after(3);
      std::vector<char> untouched(3);
      bool refused = false;
      on_ranks(3, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
        const auto i = static_cast<std::size_t>(comm.rank());
        allowance granted;
        refusing_resource memory(granted);
        small_rank<decltype(elements)> r(comm, 8, &memory, sums, pooled);
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
  };
  check(row_sums::by_parts, pooled_at::bag, wire<>());
  check(row_sums::in_order, pooled_at::bag, wire<>());
  check(row_sums::by_parts, pooled_at::owner, wire<bf16, bf16>());
}

TEST_CASE(
    "sharded_group: keys of any value are inserted by their owners, and have the rows of one growing table") {
  using growing = growing_table<f32_rows>;
  constexpr index_t width = 6, steps = 4;
  const row_init::uniform init{.seed = 5, .bound = 0.5F};
  for (const auto& [n, sums] : {std::pair(1, row_sums::by_parts), std::pair(2, row_sums::by_parts),
                                std::pair(5, row_sums::by_parts), std::pair(5, row_sums::in_order)}) {
    // Integers as gradients, so that sums are exact, where they are not in order.
    const float unit = sums == row_sums::in_order ? 0.3F : 1.0F;
    std::vector<std::vector<batch>> batches(static_cast<std::size_t>(steps));  // [step][rank]
    std::mt19937_64 random(deeprec_test::seed());
    for (auto& step : batches) {
      for (int r = 0; r < n; ++r) {
        batch b;
        for (index_t i = 0; i < (r == 1 ? 0 : 20); ++i) {
          for (auto k = random() % 4; k > 0; --k) {
            const std::int64_t ends[] = {-1, 0, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()};
            b.ids.push_back(random() % 3 == 0 ? ends[random() % 4]
                                              : static_cast<std::int64_t>(random() % 50) - 25);
          }
          b.offsets.push_back(static_cast<std::int64_t>(b.ids.size()));
        }
        step.push_back(b);
      }
    }
    const auto gradient = [unit](index_t bags) {
      std::vector<float> g(static_cast<std::size_t>(bags * width));
      for (std::size_t i = 0; i < g.size(); ++i)
        g[i] = unit * static_cast<float>(static_cast<int>(i % 5) - 2);
      return g;
    };
    growing whole(f32_rows(width), init);
    inline_executor here;
    std::vector<std::vector<std::vector<float>>> expected;  // [step][rank]
    for (const auto& step : batches) {
      batch all;
      std::vector<float> g;
      for (const batch& b : step) {
        all.append(b);
        const std::vector<float> mine = gradient(b.bags());
        g.insert(g.end(), mine.begin(), mine.end());
      }
      auto rows = resolve(here, whole.rows(), all.view(), combiner::sum, keys::find_or_insert).or_throw();
      std::vector<float> out(static_cast<std::size_t>(all.bags() * width));
      lookup(here, rows, matrix_view<float>(out.data(), all.bags(), width)).or_throw();
      update(here, rows, matrix_view<const float>(g.data(), all.bags(), width), sgd{.learning_rate = 0.5F})
          .or_throw();
      expected.emplace_back();
      auto from = out.begin();
      for (const batch& b : step) {
        expected.back().emplace_back(from, from + b.bags() * width);
        from += b.bags() * width;
      }
    }
    std::atomic<index_t> keys_of_all{0};
    on_ranks(n, {.sent = sent_blocks::poisoned}, [&, sums = sums](thread_rank<> comm) {
      const auto i = static_cast<std::size_t>(comm.rank());
      growing part(f32_rows(width), init);
      sharded_group<sgd, thread_rank<>> group(comm, {.sums = sums});
      group.add(part.rows(), combiner::sum, placement::keys{});
      inline_executor mine;
      for (std::size_t t = 0; t < batches.size(); ++t) {
        const batch& b = batches[t][i];
        const std::vector<bags_type> bags{b.view()};
        auto rows = resolve(mine, group, bags, keys::find_or_insert).or_throw();
        std::vector<float> out(static_cast<std::size_t>(b.bags() * width), -7.0F), g = gradient(b.bags());
        lookup(mine, rows, matrix_view<float>(out.data(), b.bags(), width)).or_throw();
        update(mine, rows, matrix_view<const float>(g.data(), b.bags(), width), sgd{.learning_rate = 0.5F})
            .or_throw();
        CHECK(out == expected[t][i]);
      }
      keys_of_all += part.size();
    });
    CHECK(keys_of_all == whole.size());
  }
}
