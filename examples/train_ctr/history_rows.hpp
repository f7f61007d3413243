// What users had, one item after the other, and which of these positions train and test:
//
//   user 0   i4 i9 i2 i7 │ i3        each position but the first trains, with the items before it;
//   user 1   i9 i1 i5 │ i2           the last one tests
//
// Read from lines of user, item and time, with the categories of items beside it, or generated. A negative of
// a user is an item of a kind that the user's list does not have, drawn uniformly: each item is of its own
// kind but where histories are generated, whose kinds are hidden groups. What goes wrong is thrown as a
// failure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>

#include "models/history_data.hpp"
#include "table_lines.hpp"

namespace ctr {

/// An item that a user had, and that the items before it are to predict.
struct history_position {
  index_t user = 0, at = 0;  // at: among all items of all users
};

class user_histories {
 public:
  history_tables tables;
  std::vector<std::int64_t> item_ids;  ///< of each item, as the file has it
  std::vector<history_position> train, test;

  [[nodiscard]] index_t users() const { return static_cast<index_t>(first_.size()) - 1; }
  [[nodiscard]] row_id item(const history_position& p) const {
    return items_[static_cast<std::size_t>(p.at)];
  }
  /// The items before it, the latest `most` of them.
  [[nodiscard]] std::span<const row_id> history(const history_position& p, index_t most) const {
    const index_t first = std::max(first_[static_cast<std::size_t>(p.user)], p.at - most);
    return {items_.data() + first, static_cast<std::size_t>(p.at - first)};
  }
  /// Of all that training depends on.
  [[nodiscard]] std::uint64_t hash() const {
    std::uint64_t sum = 0;
    const auto add = [&sum](const auto& all) {
      sum = deeprec::hash_bytes({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(*all.data())},
                                sum);
    };
    add(items_);
    add(first_);
    add(train);
    add(item_ids);
    add(tables.category_of);
    return sum;
  }
  /// Number `n` of a stream of negatives.
  [[nodiscard]] row_id negative(index_t user, deeprec::counter_rng rng, std::uint64_t stream,
                                std::uint64_t n) const {
    const auto number = static_cast<double>(tables.items);
    auto drawn = static_cast<row_id>(rng.uniform(stream, n << 8) * number);
    for (std::uint64_t draw = 1; draw < 256 && had(user, drawn); ++draw) {
      drawn = static_cast<row_id>(rng.uniform(stream, n << 8 | draw) * number);
    }
    for (index_t tried = 0; had(user, drawn); ++tried) {  // of a user who had nearly all of them
      if (tried == tables.items) throw failure("a user had all items: there is no negative");
      drawn = (drawn + 1) % static_cast<row_id>(tables.items);
    }
    return drawn;
  }

  /// Lines "user_id item_id time" and, unless empty, "item_id i_category", of columns by these names; the
  /// last item of each user tests, or, to choose options by, the one before it, without the last.
  static user_histories read(const std::string& path, const std::string& items_path, bool validate);
  /// Items of 100 hidden groups of four. A history has items of different groups, and the next item is of one
  /// of these groups; negatives are of none of them. Of five users one tests, with a history of 50 items; the
  /// others train, with 1 to 50.
  static user_histories generate(index_t users, std::uint64_t seed);

 private:
  [[nodiscard]] std::int32_t kind(row_id item) const {
    return kinds_.empty() ? item : kinds_[static_cast<std::size_t>(item)];
  }
  [[nodiscard]] bool had(index_t user, row_id item) const {
    const auto u = static_cast<std::size_t>(user);
    return std::any_of(items_.begin() + first_[u], items_.begin() + first_[u + 1],
                       [&](row_id one) { return kind(one) == kind(item); });
  }

  std::vector<row_id> items_;         // user by user, in the order of time
  std::vector<index_t> first_ = {0};  // of each user; one more
  std::vector<std::int32_t> kinds_;   // of each item; empty: its own
};

inline user_histories user_histories::read(const std::string& path, const std::string& items_path,
                                           bool validate) {
  struct event {
    row_id user, item;
    std::int64_t time;
  };
  std::vector<event> events;
  std::vector<std::string> first_use;  // of each item: the file and the line
  id_numbers users, items;
  user_histories made;
  table_lines lines(path, {"user_id", "item_id", "time"});
  while (lines.next()) {
    const std::int64_t user = lines[0], item = lines[1], time = lines[2];
    events.push_back({users(user), items(item), time});
    if (static_cast<std::size_t>(items.size()) > first_use.size()) {
      first_use.push_back(items_path.empty() ? std::string() : lines.place());
      made.item_ids.push_back(item);
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const event& a, const event& b) {
    return a.user != b.user ? a.user < b.user : a.time < b.time;
  });

  made.tables.items = items.size();
  made.tables.uses.resize(first_use.size());
  for (std::size_t i = 0; i < events.size();) {
    const auto user = static_cast<index_t>(events[i].user);
    const index_t first = made.first_.back();
    for (; i < events.size() && events[i].user == user; ++i) made.items_.push_back(events[i].item);
    if (validate) made.items_.pop_back();
    const auto end = static_cast<index_t>(made.items_.size());
    made.first_.push_back(end);
    if (end - first < 2) continue;  // nothing before it
    for (index_t at = first; at + 1 < end; ++at) {
      ++made.tables.uses[static_cast<std::size_t>(made.items_[static_cast<std::size_t>(at)])];
      if (at > first) made.train.push_back({user, at});
    }
    made.test.push_back({user, end - 1});
  }
  if (items_path.empty()) return made;

  std::unordered_map<std::int64_t, std::int64_t> category;
  table_lines facts(items_path, {"item_id", "i_category"});
  while (facts.next()) category[facts[0]] = facts[1];
  id_numbers categories;
  for (std::size_t i = 0; i < first_use.size(); ++i) {
    const auto found = category.find(made.item_ids[i]);
    if (found == category.end()) {
      throw failure(first_use[i] + ": item " + std::to_string(made.item_ids[i]) + " has no category in " +
                    items_path);
    }
    made.tables.category_of.push_back(categories(found->second));
  }
  made.tables.categories = categories.size();
  return made;
}

inline user_histories user_histories::generate(index_t users, std::uint64_t seed) {
  constexpr index_t groups = 100, of_group = 4, most = 50;
  const deeprec::counter_rng rng(seed);
  user_histories made;
  made.tables.items = groups * of_group;
  made.tables.uses.resize(static_cast<std::size_t>(made.tables.items));
  for (index_t i = 0; i < made.tables.items; ++i) {
    made.kinds_.push_back(static_cast<std::int32_t>(i / of_group));
    made.item_ids.push_back(i);
  }
  std::vector<index_t> order(static_cast<std::size_t>(groups));
  for (index_t user = 0; user < users; ++user) {
    std::uint64_t draws = 0;
    const auto below = [&](index_t end) {
      const double u = rng.uniform(20000 + static_cast<std::uint64_t>(user), draws++);
      return static_cast<index_t>(u * static_cast<double>(end));
    };
    const bool tests = user % 5 == 0;
    const index_t length = tests ? most : 1 + below(most);
    std::iota(order.begin(), order.end(), index_t{0});
    for (index_t k = 0; k < length; ++k) {
      std::swap(order[static_cast<std::size_t>(k)], order[static_cast<std::size_t>(k + below(groups - k))]);
      const index_t one = order[static_cast<std::size_t>(k)];
      made.items_.push_back(static_cast<row_id>(one * of_group + below(of_group)));
    }
    const index_t group = order[static_cast<std::size_t>(below(length))];
    made.items_.push_back(static_cast<row_id>(group * of_group + below(of_group)));
    const auto end = static_cast<index_t>(made.items_.size());
    made.first_.push_back(end);
    (tests ? made.test : made.train).push_back({user, end - 1});
    for (index_t at = end - length - 1; at < end - (tests ? 1 : 0); ++at) {
      ++made.tables.uses[static_cast<std::size_t>(made.items_[static_cast<std::size_t>(at)])];
    }
  }
  return made;
}

}  // namespace ctr
