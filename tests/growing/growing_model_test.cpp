// Growing tables against their oracle, over random histories of all calls; and the oracle with one rule
// broken, which the same comparison must notice.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/seed.hpp"

#include "growing/growing_model.hpp"
#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

enum class by { nothing, counter, bloom, probability, users };

struct history {
  by filter = by::nothing;
  index_t most_rows = 1'000'000;
  when_full full = when_full::refuse;
  bool has_default = true;
  int threads = 1;
  index_t granule_bytes = 4096;
  key_type keys = 200;
  int calls = 150;
};

class twins {
 public:
  static constexpr index_t width = 5, hotness = 2;
  using table_type = growing_table<f32_rows>;

  twins(const history& of, const broken_rules& rules, std::uint64_t seed)
      : of_(of),
        random_(seed),
        pool_(threads(of.threads)),
        table_(f32_rows(width, {.state_floats = width}), first_values, options()),
        model_(width, options(), rules) {
    const filters::counting_bloom bloom{3, 50, 0.3, 7};  // small: many keys come too early
    const filters::probabilistic probability{0.4, 9};
    switch (of.filter) {
      case by::nothing:
        break;
      case by::counter:
        table_.admit_by(filters::counter{3}).or_throw();
        model_.count_to = 3;
        break;
      case by::bloom:
        table_.admit_by(bloom).or_throw();
        model_.filter =
            std::make_unique<detail::bloom_filter<std::uint8_t>>(bloom, std::pmr::get_default_resource());
        break;
      case by::probability:
        table_.admit_by(probability).or_throw();
        model_.filter = std::make_unique<detail::probabilistic_filter>(probability);
        break;
      case by::users:
        table_.admit_by(std::make_unique<parity_filter>()).or_throw();
        model_.filter = std::make_unique<parity_filter>();
        break;
    }
    if (of.has_default) {
      default_.assign(static_cast<std::size_t>(width), 0.25F);
      table_.default_row(default_).or_throw();
    }
    model_.step = std::uint64_t{1} << 33;
    table_.begin_step(model_.step);
  }

  /// Makes the calls of the history; the first difference, or nothing.
  std::string run() {
    for (int call = 0; call < of_.calls; ++call) {
      const std::string what = one_call();
      const std::string difference = what.empty() ? std::string() : compare();
      if (!difference.empty()) return "call " + std::to_string(call) + ", " + what + ": " + difference;
      if (!read_difference_.empty())
        return "call " + std::to_string(call) + ", " + what + ": " + read_difference_;
    }
    return {};
  }
  [[nodiscard]] index_t most_rows_seen() const { return most_seen_; }

 private:
  [[nodiscard]] growing_options options() const {
    return {.most_rows = of_.most_rows, .full = of_.full, .granule_bytes = of_.granule_bytes};
  }
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  key_type draw_key() {
    const auto& special = special_keys();
    if (draw(16) == 0) return special[draw(special.size())];
    return draw(2) == 0 ? draw(of_.keys) : draw(of_.keys) * draw(of_.keys) / of_.keys;
  }
  std::vector<key_type> draw_keys(std::uint64_t most) {
    std::vector<key_type> keys(draw(most / 2 + 1) * 2);
    for (key_type& key : keys) key = draw_key();
    return keys;
  }

  std::string one_call() {
    const std::uint64_t kind = draw(20);
    if (kind < 11) return train(kind < 8, kind % 2 == 0);
    if (kind == 11) return evict_by_order();
    if (kind == 12) return evict_by_rule();
    switch (kind) {
      case 13: {
        const auto keys = draw_keys(20);
        const auto erased = table_.erase(pool_, keys);
        note(erased.ok() && erased.value() == model_.erase(keys), "the number of rows that erase returns");
        return "erase";
      }
      case 14: {
        const auto keys = draw_keys(20);
        table_.rows().insert(keys.data(), static_cast<index_t>(keys.size())).or_throw();
        model_.insert(keys, false);
        return "insert without the filter";
      }
      case 15:
        guards_.emplace_back(table_.rows().guard(), model_.pin());
        return "guard";
      case 16:
        if (guards_.empty()) return "nothing";
        model_.unpin(guards_.front().second);
        guards_.pop_front();
        return "end of a guard";
      default:
        model_.step += draw(3);
        table_.begin_step(model_.step);
        table_.begin_step(model_.step - 1);  // changes nothing
        note(table_.step() == model_.step, "step()");
        return "begin_step";
    }
  }
  // Resolves a batch, looks it up, and makes a step where it is told to.
  std::string train(bool steps, bool with_adagrad) {
    const auto keys = draw_keys(60);
    const index_t bags = static_cast<index_t>(keys.size()) / hotness;
    const fixed_hotness_view<key_type> batch(keys.data(), bags, hotness);
    const pooling how{combiner::sum, bounds::skip};
    const auto rows = resolve(pool_, table_.rows(), batch, how, keys::find_or_insert);
    if (!rows) rows.fault().or_throw();
    const auto read = model_.resolve(keys);
    std::vector<float> out(static_cast<std::size_t>(bags * width)), expected(out.size());
    lookup(pool_, rows.value(), matrix_view<float>(out.data(), bags, width)).or_throw();
    std::vector<float> slopes(out.size());
    for (float& g : slopes) g = static_cast<float>(draw(5)) - 2;
    std::vector<std::vector<float>> of_positions;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::size_t bag = k / hotness * width;
      const std::vector<float>& values = read[k] ? *read[k] : default_;
      for (std::size_t j = 0; j < values.size(); ++j) expected[bag + j] += values[j];
      of_positions.emplace_back(slopes.begin() + static_cast<std::ptrdiff_t>(bag),
                                slopes.begin() + static_cast<std::ptrdiff_t>(bag + width));
    }
    note(out == expected, "the rows that lookup reads");
    if (!steps) return "resolve";
    const matrix_view<const float> gradient(slopes.data(), bags, width);
    if (with_adagrad) {
      update(pool_, rows.value(), gradient, adagrad{.learning_rate = 0.25F}).or_throw();
    } else {
      update(pool_, rows.value(), gradient, sgd{.learning_rate = 0.125F}).or_throw();
    }
    model_.update(keys, of_positions, with_adagrad, with_adagrad ? 0.25F : 0.125F);
    return "update";
  }
  std::string evict_by_order() {
    const std::uint64_t kept = draw(3);
    const auto left = static_cast<index_t>(draw(of_.keys));
    const bool by_frequency = draw(2) == 0;
    const auto gone = by_frequency ? evict_rows(pool_, table_, evict::least_frequent{left}, kept)
                                   : evict_rows(pool_, table_, evict::least_recent{left}, kept);
    note(gone.ok() && gone.value() == model_.evict_least(kept, left, by_frequency), "the number of victims");
    return "eviction of the least";
  }
  std::string evict_by_rule() {
    const std::uint64_t kept = draw(3), kind = draw(4);
    if (kind < 2) {
      const std::uint64_t age = draw(5);
      const auto gone = evict_rows(pool_, table_, evict::step_ttl{age}, kept);
      note(gone.ok() && gone.value() == model_.evict_ttl(kept, age), "the number of victims");
      return "eviction by age";
    }
    if (kind == 2) {
      const float threshold = static_cast<float>(draw(16)) / 8;
      const auto gone = evict_rows(pool_, table_, evict::l2_below{threshold}, kept);
      const auto expected = model_.evict_if(kept, [&](const row_record& row) {
        float sum = 0;
        for (const float x : row.values) sum += x * x;
        return sum / 2 < threshold;
      });
      note(gone.ok() && gone.value() == expected, "the number of victims");
      return "eviction of small rows";
    }
    const std::uint64_t mask = draw(8);
    const auto gone = evict_rows(
        pool_, table_,
        [&](const evictee& row) {
          float first = 0;
          std::memcpy(&first, row.row, sizeof(first));
          return ((row.key ^ row.step ^ row.frequency) & mask) == 1 || first > 2;
        },
        kept);
    const auto expected = model_.evict_if(kept, [&](const row_record& row) {
      return ((row.key ^ row.step ^ row.frequency) & mask) == 1 || row.values[0] > 2;
    });
    note(gone.ok() && gone.value() == expected, "the number of victims");
    return "eviction by a predicate";
  }

  void note(bool same, const char* what) {
    if (!same && read_difference_.empty()) read_difference_ = what;
  }
  std::string compare() {
    const table_content ours = content_of(table_), theirs = model_.content();
    most_seen_ = std::max(most_seen_, model_.size());
    if (ours.rows.size() != theirs.rows.size()) return "the number of rows";
    for (std::size_t r = 0; r < ours.rows.size(); ++r) {
      const row_record &a = ours.rows[r], &b = theirs.rows[r];
      const std::string of_key = " of key " + std::to_string(b.key);
      if (a.key != b.key) return "the order of rows";
      if (a.values != b.values) return "values" + of_key;
      if (a.state != b.state) return "state" + of_key;
      if (a.step != b.step) return "step" + of_key;
      if (a.frequency != b.frequency) return "frequency" + of_key;
    }
    if (ours.candidates != theirs.candidates) return "candidates";
    if (ours.filter != theirs.filter) return "the filter's memory";
    const growing_statistics now = table_.statistics();
    if (now.rows != model_.size() || table_.size() != model_.size()) return "statistics: rows";
    if (now.candidates != static_cast<index_t>(theirs.candidates.size())) return "statistics: candidates";
    if (now.waiting_rows != model_.waiting()) return "statistics: waiting rows";
    if (now.pins != model_.pins()) return "statistics: pins";
    if (now.refused != model_.refused) return "statistics: refused keys";
    if (now.evicted != model_.evicted) return "statistics: evicted rows";
    return {};
  }

  history of_;
  std::mt19937_64 random_;
  thread_pool pool_;
  table_type table_;
  growing_model model_;
  std::vector<float> default_;
  std::list<std::pair<reclaimer::pin, std::uint64_t>> guards_;
  std::string read_difference_;
  index_t most_seen_ = 0;
};

std::vector<history> histories() {
  std::vector<history> all;
  for (const by filter : {by::nothing, by::counter, by::bloom, by::probability, by::users}) {
    for (const when_full full :
         {when_full::refuse, when_full::evict_least_recent, when_full::evict_least_frequent}) {
      all.push_back({.filter = filter, .most_rows = 70, .full = full, .has_default = filter != by::bloom});
    }
    all.push_back({.filter = filter, .threads = 3, .keys = 2000});
  }
  all.push_back({.most_rows = 1, .full = when_full::evict_least_recent});
  all.push_back(
      {.most_rows = 500, .full = when_full::evict_least_recent, .threads = 2, .keys = 1500, .calls = 300});
  all.push_back({.granule_bytes = index_t{2} << 20});
  return all;
}
std::string difference(const history& of, const broken_rules& rules, std::uint64_t seed) {
  return twins(of, rules, seed).run();
}

TEST_CASE(
    "growing table: every history of calls gives the rows, numbers, filters and statistics of the oracle") {
  std::size_t number = 0;
  for (const history& of : histories()) {
    for (std::uint64_t more = 0; more < 3; ++more) {
      const std::uint64_t seed = deeprec_test::seed() + 1000 * more + number;
      CAPTURE(seed);
      CAPTURE(number);
      twins both(of, {}, seed);
      CHECK(both.run() == "");
      CHECK(both.most_rows_seen() >= std::min<index_t>(of.most_rows, 10));
    }
    ++number;
  }
}

TEST_CASE("growing table: the comparison with the oracle notices each broken rule") {
  const history counted{.filter = by::counter, .most_rows = 70, .full = when_full::evict_least_recent};
  const history small{.most_rows = 70, .full = when_full::evict_least_frequent};
  const history unlimited{};
  const auto is_noticed = [](const history& of, const broken_rules& rules) {
    for (std::uint64_t more = 0; more < 20; ++more) {
      if (!difference(of, rules, deeprec_test::seed() + more).empty()) return true;
    }
    return false;
  };
  CHECK(is_noticed(counted, {.distinct_only = true}));
  CHECK(is_noticed({.filter = by::users}, {.distinct_only = true}));
  CHECK(is_noticed(counted, {.forgets_candidates = true}));
  CHECK(is_noticed(unlimited, {.ttl_at_boundary = true}));
  for (const history& of : {counted, small}) {
    CHECK(is_noticed(of, {.ties_by_number = true}));
    CHECK(is_noticed(of, {.keeps_frequency = true}));
    CHECK(is_noticed(of, {.keeps_state = true}));
    CHECK(is_noticed(of, {.ignores_kept_steps = true}));
    CHECK(is_noticed(of, {.evicts_newest = true}));
    CHECK(is_noticed(of, {.loses_found = true}));
    CHECK(is_noticed(of, {.sweeps_for_one_batch = true}));
    CHECK(is_noticed(of, {.newest_number_first = true}));
    CHECK(is_noticed(of, {.ignores_pins = true}));
    CHECK(is_noticed(of, {.trains_erased = true}));
  }
}

}  // namespace
