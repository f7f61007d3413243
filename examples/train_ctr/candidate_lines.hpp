// Candidates as text: an item, and the items that a user had before it.
//
//   history    item_id  label      items by their ids, the latest last; an empty history is one
//   10,20,30   40       1          the label is read where it is wanted
//
// An item that the model does not know is left out of a history; a candidate that it does not know is
// unknown_item.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <deeprec/embedding/files/named_table.hpp>

#include "models/history_data.hpp"
#include "output_file.hpp"
#include "table_lines.hpp"

namespace ctr {

inline constexpr row_id unknown_item = -1;

/// Of a model of histories: how many items of a history it looks at, the id and the category of each item.
struct item_vocabulary {
  index_t history = 0, items = 0, categories = 0;
  bool has_categories = false;
  std::vector<std::int64_t> ids;
  std::vector<row_id> category_of;

  item_vocabulary() = default;
  item_vocabulary(const history_tables& tables, const std::vector<std::int64_t>& item_ids, index_t most)
      : history(most),
        items(tables.items),
        categories(tables.categories),
        has_categories(tables.categories > 0),
        ids(item_ids),
        category_of(tables.category_of) {}

  template <class Visit>
  void for_each_size(Visit&& visit) {
    visit("items of a history", history);
    visit("items", items);
    visit("items have categories", has_categories);
    if (has_categories) visit("categories", categories);
  }
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    ids.resize(static_cast<std::size_t>(items));
    std::vector<deeprec::named_table> all = {deeprec::name_keys("ids of the items", std::span(ids))};
    if (!has_categories) return all;
    category_of.resize(ids.size());
    all.push_back(deeprec::name_keys("categories of the items", std::span(category_of)));
    return all;
  }
};

/// Whether candidates have a label, 0 or 1.
enum class candidate_labels : std::uint8_t { absent, present };

/// Reads candidates. Throws a failure.
class candidate_lines {
 public:
  candidate_lines(const std::string& path, const item_vocabulary& known, candidate_labels labels,
                  bool shows_progress)
      : lines_(path, names(labels), shows_progress),
        most_(static_cast<std::size_t>(known.history)),
        has_labels_(labels == candidate_labels::present) {
    for (std::size_t i = 0; i < known.ids.size(); ++i) {
      number_.emplace(known.ids[i], static_cast<row_id>(i));
    }
  }
  /// The next rows, `most` of them but at the end; false: there are none.
  bool next(history_batch& batch, index_t most) {
    batch.clear();
    while (batch.rows < most && lines_.next()) {
      lines_.list(0, ids_);
      history_.clear();
      for (const std::int64_t id : ids_) {
        if (const row_id item = number_of(id); item != unknown_item) history_.push_back(item);
      }
      std::span<const row_id> latest = history_;
      if (latest.size() > most_) latest = latest.last(most_);
      const std::int64_t label = has_labels_ ? lines_[2] : 0;
      if (label > 1) lines_.fail("a label must be 0 or 1 (is " + std::to_string(label) + ")");
      batch.append(number_of(lines_[1]), latest, static_cast<float>(label));
    }
    return batch.rows > 0;
  }

 private:
  static std::vector<std::string_view> names(candidate_labels labels) {
    std::vector<std::string_view> all = {"history", "item_id"};
    if (labels == candidate_labels::present) all.emplace_back("label");
    return all;
  }
  [[nodiscard]] row_id number_of(std::int64_t id) const {
    const auto found = number_.find(id);
    return found == number_.end() ? unknown_item : found->second;
  }

  table_lines lines_;
  std::size_t most_;
  bool has_labels_;
  std::unordered_map<std::int64_t, row_id> number_;
  std::vector<std::int64_t> ids_;
  std::vector<row_id> history_;
};

/// Writes candidates with their labels. Throws a failure.
class candidate_writer {
 public:
  candidate_writer(const std::string& path, const std::vector<std::int64_t>& ids) : file_(path), ids_(&ids) {
    file_.line("history\titem_id\tlabel");
  }
  void add(const history_batch& batch) {
    for (std::size_t b = 0; b < batch.targets.size(); ++b) {
      std::string text;
      for (std::int32_t n = batch.offsets[b]; n < batch.offsets[b + 1]; ++n) {
        if (!text.empty()) text += ',';
        text += id_of_item(batch.positions[static_cast<std::size_t>(n)]);
      }
      text += '\t' + id_of_item(batch.targets[b]) + (batch.labels[b] > 0 ? "\t1" : "\t0");
      file_.line(text);
    }
  }
  void close() { file_.close(); }

 private:
  [[nodiscard]] std::string id_of_item(row_id item) const {
    return std::to_string((*ids_)[static_cast<std::size_t>(item)]);
  }

  output_file file_;
  const std::vector<std::int64_t>* ids_;
};

}  // namespace ctr
