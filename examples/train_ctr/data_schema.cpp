#include "data_schema.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include <deeprec/core/hash.hpp>

#include "opened_text.hpp"

namespace ctr {

namespace {

using deeprec::csv_column;
using deeprec::csv_label;
using deeprec::csv_scale;
using deeprec::csv_use;
using nlohmann::json;

constexpr index_t most_rows = index_t{1} << 26;  // as --table-rows
constexpr std::size_t most_bytes = 60'000;       // of a schema: a model keeps it as a name
constexpr std::size_t most_depth = 8;            // of brackets in brackets

/// The keys of an object, each taken once.
class json_object {
 public:
  json_object(const json& of, std::string where) : of_(&of), where_(std::move(where)) {
    if (!of.is_object()) refuse("must be an object in braces", of);
  }
  [[nodiscard]] bool has(const char* key) const { return of_->contains(key); }
  [[nodiscard]] std::string place(const char* key) const { return where_ + '.' + key; }

  std::string text(const char* key, const std::string& otherwise = {}) {
    return value(key, otherwise, "must be text", [](const json& v) { return v.is_string(); });
  }
  bool choice(const char* key, bool otherwise) {
    return value(key, otherwise, "must be true or false", [](const json& v) { return v.is_boolean(); });
  }
  float number(const char* key, float otherwise) {
    return value(key, otherwise, "must be a number of at most 3.4e38", is_float);
  }
  index_t whole(const char* key, index_t otherwise, index_t least, index_t most) {
    const std::string range =
        "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    return value(key, otherwise, range.c_str(), [&](const json& v) {
      return v.is_number_integer() && v.get<double>() >= static_cast<double>(least) &&
             v.get<double>() <= static_cast<double>(most);
    });
  }
  std::vector<std::string> texts(const char* key) {
    return value(key, std::vector<std::string>{}, "must be a list of texts", [](const json& v) {
      return v.is_array() && std::all_of(v.begin(), v.end(), [](const json& e) { return e.is_string(); });
    });
  }
  std::vector<float> numbers(const char* key) {
    return value(key, std::vector<float>{}, "must be a list of numbers of at most 3.4e38",
                 [](const json& v) { return v.is_array() && std::all_of(v.begin(), v.end(), is_float); });
  }
  /// One of these words: its number.
  int word(const char* key, const char* otherwise, const std::vector<std::string>& words) {
    const std::string is = text(key, otherwise);
    const auto found = std::find(words.begin(), words.end(), is);
    if (found != words.end()) return static_cast<int>(found - words.begin());
    std::string all = "must be ";
    for (std::size_t w = 0; w < words.size(); ++w)
      all += (w == 0 ? "" : w + 1 < words.size() ? ", " : " or ") + words[w];
    throw failure(place(key) + ": " + all + " (is " + is + ")");
  }
  /// A single character, or none.
  char character(const char* key, char otherwise) {
    const std::string is = text(key, otherwise == '\0' ? std::string() : std::string(1, otherwise));
    if (is.size() > 1) throw failure(place(key) + ": must be one character, or none (is " + is + ")");
    return is.empty() ? '\0' : is[0];
  }
  const json& any(const char* key) {
    taken_.insert(key);
    return of_->at(key);
  }
  /// Throws where there is this key, which has no effect.
  void refuse_key(const char* key, const char* why) const {
    if (has(key)) throw failure(place(key) + ": " + why);
  }
  /// Throws where there is a key that nobody took.
  void end() const {
    for (const auto& [key, unused] : of_->items()) {
      if (taken_.count(key) == 0)
        throw failure(where_ + ": has an unknown key: " + key + " (docs/train_ctr_schema.md has all)");
    }
  }

 private:
  static bool is_float(const json& v) {
    return v.is_number() && std::fabs(v.get<double>()) <= double{std::numeric_limits<float>::max()};
  }
  template <class T, class Is>
  T value(const char* key, T otherwise, const char* must, const Is& is) {
    taken_.insert(key);
    const auto found = of_->find(key);
    if (found == of_->end()) return otherwise;
    if (!is(*found)) throw failure(place(key) + ": " + must + " (is " + found->dump() + ")");
    return found->get<T>();
  }
  [[noreturn]] void refuse(const char* must, const json& is) const {
    throw failure(where_ + ": " + must + " (is " + is.dump().substr(0, 60) + ")");
  }

  const json* of_;
  std::string where_;
  std::set<std::string> taken_;
};

std::string text_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw failure(path + ": can't be read");
  return std::move(text).str();
}

/// The JSON of a text, whose objects have each key once.
json parsed(const std::string& text, const std::string& where) {
  struct level {
    std::set<std::string> keys;
    index_t objects = 0;  // in it
  };
  std::vector<level> levels(1);
  const auto see = [&](int, json::parse_event_t event, const json& is) {
    switch (event) {
      case json::parse_event_t::object_start:
        ++levels.back().objects;
        [[fallthrough]];
      case json::parse_event_t::array_start:
        levels.emplace_back();
        if (levels.size() > most_depth)
          throw failure(where + ": must have at most " + std::to_string(most_depth - 1) +
                        " brackets in brackets");
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        levels.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto key = is.get<std::string>();
        if (levels.back().keys.insert(key).second) break;
        const bool of_column = levels.size() == 4;  // in the list, in the object at the top
        throw failure(where + (of_column ? ".columns[" + std::to_string(levels[2].objects - 1) + ']' : "") +
                      ": has a key twice: " + key);
      }
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, see);
  } catch (const json::exception& wrong) {
    throw failure(where + ": is no JSON: " + wrong.what());
  }
}

/// One word a line.
std::vector<std::string> words_of_file(const std::string& path, const std::string& where) {
  std::vector<std::string> words;
  try {
    text_lines lines({path});
    while (lines.next()) {
      if (lines.line().find('\0') != std::string_view::npos) lines.fail("a NUL byte: must be text");
      if (!lines.line().empty()) words.emplace_back(lines.line());
      if (static_cast<index_t>(words.size()) > deeprec::csv_vocabulary::most) break;  // refused by its reader
    }
  } catch (const failure& wrong) {
    throw failure(where + ": " + wrong.what());
  }
  return words;
}

/// The words of a vocabulary: a list, or those of `file`, where that is not empty.
std::shared_ptr<const deeprec::csv_vocabulary> vocabulary_of(json_object& column, const std::string& file,
                                                             std::uint64_t& hash) {
  const std::string where = column.place("vocabulary");
  const std::vector<std::string> words =
      file.empty() ? column.texts("vocabulary") : words_of_file(file, where);
  if (words.empty())
    throw failure(where + ": must have words" + (file.empty() ? "" : " (" + file + " has none)"));
  for (const std::string& word : words) hash = deeprec::hash_bytes(word, hash + 1);
  auto made = deeprec::csv_vocabulary::of(words);
  if (!made) {
    const index_t item = made.fault().place().item;
    throw failure(where + ": " + made.fault().message() +
                  (item < 0 ? "" : " (" + words[static_cast<std::size_t>(item)] + ")"));
  }
  return std::move(made).value();
}

enum class use_of { label, count, dense, token, tokens, weight, group, name, ignored };
const std::vector<std::string> use_words = {"label",  "count", "dense", "token",  "tokens",
                                            "weight", "group", "name",  "ignored"};

csv_column label_of(json_object& in, std::string name) {
  if (in.has("at_least")) {
    in.refuse_key("positive", "is not for a label with at_least");
    in.refuse_key("negative", "is not for a label with at_least");
    return csv_column::label(std::move(name), csv_label::at_least, in.number("at_least", 0));
  }
  if (!in.has("positive")) {
    in.refuse_key("negative", "needs positive, the texts of label 1");
    return csv_column::label(std::move(name));
  }
  csv_column made = csv_column::label(std::move(name), csv_label::one_of);
  made.positive = in.texts("positive");
  made.negative = in.texts("negative");
  return made;
}

csv_column dense_of(json_object& in, std::string name, bool is_count) {
  csv_column made = csv_column::dense(std::move(name));
  made.missing = in.number("missing", std::numeric_limits<float>::quiet_NaN());
  if (is_count) return made;
  made.scale = static_cast<csv_scale>(in.word("scale", "none", {"none", "log", "standard", "quantile"}));
  if (made.scale != csv_scale::standard) {
    for (const char* const key : {"mean", "deviation"}) in.refuse_key(key, "needs \"scale\": \"standard\"");
  }
  if (made.scale != csv_scale::quantile) in.refuse_key("quantiles", "needs \"scale\": \"quantile\"");
  made.mean = in.number("mean", 0);
  made.deviation = in.number("deviation", 1);
  made.quantiles = in.numbers("quantiles");
  return made;
}

}  // namespace

data_schema schema_of(const std::string& text, const std::string& where, const std::string& folder) {
  const json all = parsed(text, where);
  json_object top(all, where);
  data_schema made;
  made.format.delimiter = top.character("delimiter", ',');
  made.format.quote = top.character("quote", '"');
  made.format.header =
      top.choice("header", true) ? deeprec::csv_header::present : deeprec::csv_header::absent;
  made.format.missing = top.texts("missing");
  made.format.trims = top.choice("trims", false);
  if (!top.has("columns") || !top.any("columns").is_array())
    throw failure(where + ".columns: must be a list of columns");
  top.end();

  std::vector<csv_column> counts, numbers, tokens, others;
  std::vector<index_t> rows;
  std::vector<token_bag> bags;
  json resolved = all;
  index_t n = 0;
  bool has_positions = false;
  for (const json& of : all["columns"]) {
    const std::string at = where + ".columns[" + std::to_string(n) + ']';
    json_object in(of, at);
    std::string name = in.text("name");
    const bool has_header = made.format.header == deeprec::csv_header::present;
    if (name.empty() && has_header) throw failure(at + ".name: must be the column's name in the header");
    if (name.empty()) name = std::to_string(n + 1);
    const index_t position = in.whole("position", -1, 0, index_t{1} << 30);
    if (position >= 0 && has_header) throw failure(at + ".position: is not for a file with a header");
    has_positions |= position >= 0;
    csv_column column = csv_column::other(name, csv_use::ignored);
    std::vector<csv_column>* to = &others;
    const auto is = static_cast<use_of>(in.word("use", "", use_words));
    switch (is) {
      case use_of::label:
        column = label_of(in, name);
        break;
      case use_of::count:
        column = dense_of(in, name, true);
        to = &counts;
        break;
      case use_of::dense:
        column = dense_of(in, name, false);
        to = &numbers;
        break;
      case use_of::token:
      case use_of::tokens: {
        column = csv_column::token(name);
        bags.push_back(token_bag::one);
        if (is == use_of::tokens) {
          column.separator = in.character("separator", '|');
          if (column.separator == '\0') throw failure(in.place("separator") + ": must be one character");
          bags.back() = static_cast<token_bag>(1 + in.word("pooling", "sum", {"sum", "mean"}));
        }
        const index_t given = in.whole("rows", 0, 1, most_rows);
        rows.push_back(given);
        if (in.has("vocabulary")) {
          if (given > 0)
            throw failure(at + ".rows: is not for a column with a vocabulary, which has its own");
          std::uint64_t hash = 0;
          json& kept_column = resolved["columns"][static_cast<std::size_t>(n)];
          std::string file;
          if (const json& words = in.any("vocabulary"); words.is_string()) {
            file = words.get<std::string>();
            if (!folder.empty()) file = (std::filesystem::path(folder) / file).lexically_normal();
            kept_column["vocabulary"] = file;
            made.files.push_back(file);
          }
          column.vocabulary = vocabulary_of(in, file, hash);
          rows.back() = column.vocabulary->rows();
          // A model keeps what its words were.
          const auto kept = static_cast<std::int64_t>(hash >> 1);
          if (in.has("hash of the words") && in.any("hash of the words") != kept)
            throw failure(at + ".vocabulary: must have the words that the model was trained with");
          kept_column["hash of the words"] = kept;
        }
        to = &tokens;
        break;
      }
      case use_of::weight:
        column.use = csv_use::weight;
        if (in.has("missing")) column.missing = in.number("missing", 0);
        made.columns.has_weights = true;
        break;
      case use_of::group:
        column.use = csv_use::group;
        break;
      case use_of::name:
        column.use = csv_use::name;
        break;
      case use_of::ignored:
        break;
    }
    in.end();
    column.position = position >= 0 ? position : has_header ? -1 : n;
    to->push_back(std::move(column));
    ++n;
  }
  made.columns.integers = static_cast<index_t>(counts.size());
  made.columns.numbers = static_cast<index_t>(counts.size() + numbers.size());
  made.columns.tokens = static_cast<index_t>(tokens.size());
  if (made.columns.slots() == 0) throw failure(where + ".columns: must have a column of use token or count");
  for (auto* list : {&counts, &numbers, &tokens, &others}) {
    for (csv_column& column : *list) {
      if (list != &others) made.columns.names.push_back(column.name);
      made.format.columns.push_back(std::move(column));
    }
  }
  if (made.format.header == deeprec::csv_header::absent && !has_positions) made.format.field_count = n;
  const auto& columns = made.format.columns;
  if (std::none_of(columns.begin(), columns.end(),
                   [](const csv_column& c) { return c.use == csv_use::label; }))
    throw failure(where + ".columns: must have a column of use label");
  if (const deeprec::status s = made.format.check(); !s) {
    const index_t item = s.place().item;
    throw failure(where + (item < 0 ? "" : ", column " + columns[static_cast<std::size_t>(item)].name) +
                  ": " + deeprec::fault(s).message());
  }
  made.rows = std::move(rows);
  if (std::any_of(bags.begin(), bags.end(), [](token_bag of) { return of != token_bag::one; }))
    made.columns.bags = std::move(bags);
  try {
    made.columns.schema = resolved.dump();
  } catch (const json::exception&) {
    throw failure(where + ": the path of a vocabulary must be text in UTF-8");
  }
  if (made.columns.schema.size() > most_bytes)
    throw failure(where + ": must be at most " + std::to_string(most_bytes) +
                  " bytes. Fix: a file for a long vocabulary");
  return made;
}

data_schema read_schema(const std::string& path) {
  return schema_of(text_of_file(path), path, std::filesystem::absolute(path).parent_path());
}

}  // namespace ctr
