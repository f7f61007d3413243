// Random histories with cuts at random points: what is restored is what the table was at the cut; and savers
// with a fault, which the same histories must notice.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/growing/admission.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "checkpoints/file_parts.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr key_type history_keys = 300;

enum class by { nothing, counter, bloom };

void admit(trained_table::table_type& table, by filter) {
  if (filter == by::counter) table.admit_by(filters::counter{3}).or_throw();
  if (filter == by::bloom) table.admit_by(filters::counting_bloom{2, 500, 0.01}).or_throw();
}

/// What a table held at the cut before, at one that was not written since (if any), at this one, and when
/// that was written.
struct moments {
  bool full = false;
  keyed_content before = {}, dropped = {}, cut = {}, written = {};
};

/// A saver with at most one fault: the comparison must notice it.
struct saver_kind {
  std::function<void(file_parts&, const moments&)> changes_file = {};
  bool misses_training_before = false;  ///< of the cut: rows are not touched
  bool misses_training_after = false;   ///< rows are not copied before they change
};

/// A random history of calls, cuts and restores; the first difference between a file and its cut, or nothing.
class history {
 public:
  history(by filter, const saver_kind& kind, std::uint64_t seed)
      : filter_(filter), kind_(kind), random_(seed), table_(seed) {
    admit(*table_, filter);
    admit(*followed_, filter);
    saves_.add("items", *table_).or_throw();
    follower_.add("items", *followed_).or_throw();
  }
  std::string run(int cuts) {
    for (int cut = 0; cut < cuts; ++cut) {
      std::string difference = one_cut(cut == 0 || draw(5) == 0);
      if (!difference.empty()) return "cut " + std::to_string(cut) + ": " + difference;
    }
    return {};
  }

 private:
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  void change() { table_.change(history_keys, static_cast<int>(draw(5))); }
  // Some rows, in the step that goes on.
  void train(bool is_missed) {
    std::vector<key_type> keys;
    for (const auto& [key, row] : table_.content().rows)
      if (draw(4) == 0) keys.push_back(key);
    detail::row_changes* const changes = std::exchange(table_->state().changes, nullptr);
    if (!is_missed) table_->state().changes = changes;
    if (!keys.empty()) table_.train(keys);
    table_->state().changes = changes;
  }

  std::string one_cut(bool full) {
    moments now{.full = full, .before = last_};
    if (draw(6) == 0 && saves_.position().chain != 0) {  // a new process: the table goes back
      change();
      saves_.restore().or_throw();
      if (table_.content().rows != last_.rows) return "the table does not go back";
    }
    change();
    now.dropped = last_;
    if (draw(4) == 0 && saves_.position().chain != 0) {
      const auto dropped = take(saves_, draw(2) == 0);
      now.dropped = table_.content();
      change();
    }
    train(kind_.misses_training_before);
    const training_state state{.step = table_.steps(), .numbers = {{"rate", 0.5}}};
    auto taken = full ? saves_.take_full(state) : saves_.take_delta(state);
    taken.or_throw();
    now.cut = last_ = table_.content();
    if (draw(2) == 0) train(kind_.misses_training_after);
    change();
    now.written = table_.content();
    const std::string path = taken.value().path();
    if (const auto done = taken.value().write(); !done) return done.fault().message();
    if (kind_.changes_file) {
      file_parts parts = parts_of(path);
      kind_.changes_file(parts, now);
      write_parts(path, parts);
    }
    change();
    return difference(now, state);
  }
  std::string difference(const moments& now, const training_state& state) {
    const auto same = [&](const keyed_content& read) {
      // What filters count is in full files.
      return now.full ? read == now.cut : read.rows == now.cut.rows && read.step == now.cut.step;
    };
    trained_table other(1);
    admit(*other, filter_);
    checkpoint_folder reader(folder_.path());
    reader.add("items", *other).or_throw();
    const auto read = reader.restore();
    if (!read) return read.fault().message();
    if (!read.value()) return "no file";
    if (!read.value()->passed_over.empty()) return read.value()->passed_over.front().message();
    if (read.value()->at != saves_.position()) return "another position";
    if (read.value()->state != state) return "another training state";
    if (!same(other.content())) return "another content";
    if (const auto polled = follower_.poll(); !polled) return polled.fault().message();
    if (follower_.position() != saves_.position()) return "the follower has another position";
    if (!same(followed_.content())) return "the follower has another content";
    return {};
  }

  by filter_;
  const saver_kind& kind_;
  std::mt19937_64 random_;
  temporary_folder folder_;
  trained_table table_, followed_{1};
  checkpoint_folder saves_{folder_.path(), {.block_bytes = 700}};
  checkpoint_reader follower_{folder_.path()};
  keyed_content last_;
};

/// The first difference in some histories.
std::string first_difference(const saver_kind& kind, std::uint64_t histories) {
  for (std::uint64_t h = 0; h < histories; ++h) {
    for (const by filter : {by::nothing, by::counter, by::bloom}) {
      std::string difference = history(filter, kind, seed() + h).run(12);
      if (!difference.empty())
        return "seed " + std::to_string(seed() + h) + ", filter " + std::to_string(static_cast<int>(filter)) +
               ", " + difference;
    }
  }
  return {};
}

// --- faults of savers ------------------------------------------------------------------------------------

using detail::record_head;

record_head head_of(const std::string& record) {
  return record_head::of(reinterpret_cast<const std::byte*>(record.data()));
}
void set_head(std::string& record, const record_head& head) {
  std::memcpy(record.data(), &head, sizeof(head));
}

std::set<key_type> erased_in(file_parts& file) {
  std::set<key_type> keys;
  if (!file.has("items, erased")) return keys;
  for (const std::string& row : file.rows_of("items, erased")) {
    key_type key = 0;
    std::memcpy(&key, row.data(), sizeof(key));
    keys.insert(key);
  }
  return keys;
}
/// The number of rows that a restore will find, so that only the rows are wrong.
void set_number_of_rows(file_parts& file, const moments& now) {
  std::set<key_type> keys;
  if (!now.full) {
    for (const auto& [key, row] : now.before.rows) keys.insert(key);
    for (const key_type key : erased_in(file)) keys.erase(key);
  }
  for (const std::string& record : file.rows_of("items, records")) keys.insert(head_of(record).key);
  file.number("items, rows") = static_cast<index_t>(keys.size());
}
/// A saver whose records are those that change() returns true for, after it changed them.
template <class Change>
saver_kind with_records(const Change& change) {
  return {.changes_file = [change](file_parts& file, const moments& now) {
    std::vector<std::string> records = file.rows_of("items, records");
    const std::set<key_type> erased = erased_in(file);
    std::erase_if(records, [&](std::string& record) {
      record_head head = head_of(record);
      const bool stays = change(head, now, erased);
      set_head(record, head);
      return !stays;
    });
    file.set_rows("items, records", records);
    set_number_of_rows(file, now);
  }};
}
template <class Change>
saver_kind with_file(const Change& change) {
  return {.changes_file = [change](file_parts& file, const moments& now) {
    change(file, now);
    set_number_of_rows(file, now);
  }};
}
bool is_same(const keyed_content& a, const keyed_content& b, key_type key) {
  const auto in_a = a.rows.find(key), in_b = b.rows.find(key);
  return (in_a == a.rows.end()) == (in_b == b.rows.end()) &&
         (in_a == a.rows.end() || in_a->second == in_b->second);
}

}  // namespace

TEST_CASE("checkpoint: a full file and its deltas are the table at the cut") {
  CHECK(first_difference({}, 5) == "");
  CHECK(first_difference(with_records([](auto&, auto&, auto&) { return true; }), 1) == "");
}

TEST_CASE("checkpoint: random histories notice a saver that breaks a rule") {
  using head = record_head&;
  using const_moments = const moments&;
  using keys = const std::set<key_type>&;
  const std::pair<const char*, saver_kind> broken[] = {
      {"rows are not touched", {.misses_training_before = true}},
      {"rows are not copied before they change", {.misses_training_after = true}},
      {"erased keys are left out", with_file([](file_parts& f, const_moments) {
         if (f.has("items, erased")) f.set_rows("items, erased", {});
       })},
      {"a key that came back stays erased",
       with_records([](head h, const_moments, keys erased) { return !erased.contains(h.key); })},
      {"rows of the step of the cut are left out",
       with_records([](head h, const_moments now, keys) { return now.full || h.step != now.cut.step; })},
      {"rows of the step of the cut before are left out",
       with_records([](head h, const_moments now, keys) { return now.full || h.step != now.before.step; })},
      {"rows that were inserted are left out", with_records([](head h, const_moments now, keys) {
         return now.full || now.before.rows.contains(h.key);
       })},
      {"rows that a cut had which was not written are left out",
       with_records([](head h, const_moments now, keys) {
         return now.full || is_same(now.before, now.dropped, h.key) || !is_same(now.dropped, now.cut, h.key);
       })},
      {"a row is left out of full files", with_records([](head h, const_moments now, keys) {
         return !now.full || h.key != now.cut.rows.begin()->first;
       })},
      {"a row that was born after the cut", with_file([](file_parts& f, const_moments now) {
         auto records = f.rows_of("items, records");
         for (const auto& [key, row] : now.written.rows) {
           if (now.cut.rows.contains(key) || records.empty()) continue;
           record_head born = head_of(records.front());
           born.key = key;
           records.push_back(records.front());
           set_head(records.back(), born);
           break;
         }
         f.set_rows("items, records", records);
       })},
      {"the step of rows", with_records([](head h, const_moments now, keys) {
         if (h.step < now.cut.step) ++h.step;
         return true;
       })},
      {"the frequency of rows", with_records([](head h, const_moments, keys) {
         h.frequency = 1;
         return true;
       })},
      {"the last float of the state", with_file([](file_parts& f, const_moments) {
         auto records = f.rows_of("items, records");
         for (std::string& record : records) record.replace(record.size() - 4, 4, 4, '\0');
         f.set_rows("items, records", records);
       })},
      {"the table's step", with_file([](file_parts& f, const_moments) { ++f.number("items, step"); })},
      {"the caller's step", with_file([](file_parts& f, const_moments) { --f.state.step; })},
      {"the caller's numbers", with_file([](file_parts& f, const_moments) { f.remove_number("rate"); })},
      {"the cut that a delta continues", with_file([](file_parts& f, const_moments now) {
         if (!now.full && f.number("checkpoint, from") > 1) --f.number("checkpoint, from");
       })},
      {"keys that wait", with_file([](file_parts& f, const_moments) {
         if (f.has("items, candidates")) f.set_rows("items, candidates", {});
       })},
      {"how often keys that wait have come", with_file([](file_parts& f, const_moments) {
         if (!f.has("items, candidates")) return;
         auto rows = f.rows_of("items, candidates");
         for (std::string& row : rows) row[8] = 1;
         f.set_rows("items, candidates", rows);
       })},
      {"keys that wait, as they were later", with_file([](file_parts& f, const_moments now) {
         if (!f.has("items, candidates")) return;
         std::vector<std::string> rows;
         for (const auto& [key, count] : now.written.candidates) {
           detail::candidate_record one{key, count};
           rows.emplace_back(reinterpret_cast<const char*>(&one), sizeof(one));
         }
         f.set_rows("items, candidates", rows);
       })},
      {"the state of a filter, as it was later", with_file([](file_parts& f, const_moments now) {
         if (!f.has("items, filter")) return;
         f.bytes_of("items, filter")
             .assign(reinterpret_cast<const char*>(now.written.filter.data()), now.written.filter.size());
       })},
  };
  for (const auto& [what, kind] : broken) {
    CAPTURE(std::string(what));
    CHECK(first_difference(kind, 8) != "");
  }
}

TEST_CASE("checkpoint_reader: follows deltas, and full files where a chain ends or breaks") {
  temporary_folder folder;
  trained_table table(seed()), served(1);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  checkpoint_reader files(folder.path());
  files.add("items", *served).or_throw();
  CHECK_FALSE(files.poll().or_throw());  // the folder is empty

  const auto write = [&](bool full) {
    table.step(200);
    table.evict(7);
    const training_state state{.step = table.steps(), .numbers = {}};
    auto cut = full ? saves.take_full(state) : saves.take_delta(state);
    cut.or_throw();
    cut.value().write().or_throw();
  };
  const auto follows = [&] {
    REQUIRE(files.poll().or_throw());
    CHECK(files.position() == saves.position());
    CHECK(files.state().step == table.steps());
    REQUIRE(served.content() == table.content());
    CHECK_FALSE(files.poll().or_throw());
  };
  write(true);
  follows();
  write(false);
  follows();
  write(false);
  write(false);
  follows();
  write(true);  // the next chain
  write(false);
  follows();

  write(false);
  const std::string digits = std::to_string(saves.position().number);
  REQUIRE(std::filesystem::remove(folder.path() + "/delta-" + std::string(12 - digits.size(), '0') + digits +
                                  ".drt"));  // a gap
  write(false);
  CHECK_FALSE(files.poll().or_throw());
  REQUIRE(files.passed_over().size() == 1);
  CHECK(files.passed_over()[0].message().find("a delta is missing") != std::string::npos);
  write(true);
  follows();
}
