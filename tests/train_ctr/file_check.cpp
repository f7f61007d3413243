// file_check <trace.json> [<result.json>]: a trace of train_ctr is one that Perfetto reads, and the sums of
// its spans are the shares that the run printed.
// file_check --predicted <result.json> <rows.tsv> <probabilities> [<logits.npy>]: the probabilities have the
// log loss of the test, and are those of the exported logits.
// file_check --counted <result.json> <rows.tsv> <batch> <admit> <ttl> <capacity>: the keys of a run that had
// these rows in their order and these rules (0: no limit) are those that the tokens of the rows make.
// file_check --scored <result.json> <rows.tsv> <scores>: the scores have the AUC of the test and, where it
// has one, its log loss. The label of a row is its last character.
// file_check --near <scores> <scores>: as many numbers, each within a millionth of the other.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;

json read(const char* path) {
  std::ifstream file(path);
  return json::parse(file);
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// The part of a step that an op is of, by its name.
std::string part_of(std::string_view op) {
  const auto has = [&](std::string_view word) { return op.find(word) != std::string_view::npos; };
  if (op == "read" || op == "decode" || op.starts_with("hash ") || op.starts_with("bucket ")) return "read";
  if (has("resolve") || has("lookup") || op == "concat") return "lookup";
  if (has("step") || has("update")) return "update";
  if (has("backward") || has("gradient") || op == "spread" || op == "slice") return "backward";
  if (has("forward") || op == "interaction" || op == "add") return "forward";
  throw std::runtime_error("an op of no part: " + std::string(op));
}

/// The Trace Event format, as far as a trace uses it. Returns the seconds of the ops by their parts.
std::map<std::string, double> check_trace(const json& trace) {
  require(trace.at("otherData").at("dropped") == 0, "spans were dropped");
  std::map<std::string, double> seconds;
  std::set<std::string> ops;
  struct span {
    double begin, end;
  };
  std::map<std::pair<int, int>, std::vector<span>> by_thread;
  for (const json& event : trace.at("traceEvents")) {
    const std::string kind = event.at("ph");
    require(event.at("name").is_string() && event.at("pid").is_number_integer() &&
                event.at("tid").is_number_integer(),
            "an event without name, pid or tid: " + event.dump());
    if (kind == "M") {
      require(event.at("args").at("name").is_string(), "a name that is no string: " + event.dump());
      continue;
    }
    require(kind == "X", "an event of the kind " + kind);
    const double begin = event.at("ts"), took = event.at("dur");
    require(begin >= 0 && took >= 0, "a span before the trace, or of negative length: " + event.dump());
    by_thread[{event.at("pid"), event.at("tid")}].push_back({begin, begin + took});
    if (event.at("cat") != "op") continue;
    const std::string op = event.at("name");
    ops.insert(op);
    seconds[part_of(op)] += took * 1e-6;
  }
  require(ops.size() >= 60, "fewer than 60 ops: " + std::to_string(ops.size()));
  // Spans of one thread lie in each other or apart; times are rounded to nanoseconds.
  for (auto& [thread, spans] : by_thread) {
    std::sort(spans.begin(), spans.end(), [](const span& a, const span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<double> open;
    for (const span& s : spans) {
      while (!open.empty() && open.back() <= s.begin + 0.0015) open.pop_back();
      require(open.empty() || s.end <= open.back() + 0.0025, "two spans of a thread overlap");
      open.push_back(s.end);
    }
  }
  return seconds;
}

std::vector<float> read_npy(const char* path, long long columns) {
  std::ifstream file(path, std::ios::binary);
  std::string head(128, ' ');
  require(bool(file.read(head.data(), 128)) && head.starts_with("\x93NUMPY"), "no .npy file");
  long long rows = -1, width = -1;
  const std::size_t shape = head.find("'shape': (");
  require(shape != std::string::npos &&
              std::sscanf(head.c_str() + shape, "'shape': (%lld, %lld)", &rows, &width) == 2 &&
              width == columns && head.find("'descr': '<f4'") != std::string::npos && head.back() == '\n',
          "the header of the .npy file: " + head);
  std::vector<float> all(static_cast<std::size_t>(rows * width));
  const auto bytes = static_cast<std::streamsize>(all.size() * sizeof(float));
  require(bool(file.read(reinterpret_cast<char*>(all.data()), bytes)) && file.peek() == EOF,
          "the .npy file has another number of rows");
  return all;
}

void check_predictions(char** paths) {
  const double expected = read(paths[0]).at("models").at(0).at("logloss");
  std::ifstream rows(paths[1]), probabilities(paths[2]);
  const bool has_logits = paths[3] != nullptr;
  const std::vector<float> logits = has_logits ? read_npy(paths[3], 1) : std::vector<float>();
  double loss = 0, p = 0;
  std::size_t count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    require(bool(probabilities >> p) && p > 0 && p < 1, "no probability for row " + std::to_string(count));
    require(!has_logits ||
                (count < logits.size() && std::abs(p - 1 / (1 + std::exp(-double{logits[count]}))) < 1e-6),
            "the logit of row " + std::to_string(count) + " is another");
    loss -= std::log(line.front() == '1' ? p : 1 - p);
  }
  require(!(probabilities >> p) && (!has_logits || count == logits.size()), "more probabilities than rows");
  loss /= static_cast<double>(count);
  require(std::abs(loss - expected) < 1e-5,
          "the log loss is " + std::to_string(loss) + ", was " + std::to_string(expected));
}

void check_scores(char** paths) {
  const json model = read(paths[0]).at("models").at(0);
  std::ifstream rows(paths[1]), scores(paths[2]);
  struct scored {
    double score;
    bool is_positive;
  };
  std::vector<scored> all;
  std::string line;
  std::getline(rows, line);  // the names of the columns
  for (double score = 0; std::getline(rows, line); all.push_back({score, line.back() == '1'})) {
    require(bool(scores >> score), "no score for row " + std::to_string(all.size()));
  }
  double score = 0;
  require(!(scores >> score) && !all.empty(), "more scores than rows");
  double ordered = 0, positives = 0, loss = 0;
  for (const scored& a : all) {
    positives += a.is_positive ? 1 : 0;
    loss -= std::log(a.is_positive ? a.score : 1 - a.score);
    for (const scored& b : all) {
      if (!a.is_positive || b.is_positive) continue;
      ordered += a.score > b.score ? 1 : a.score == b.score ? 0.5 : 0;
    }
  }
  const auto count = static_cast<double>(all.size());
  const auto require_near = [](const char* what, double is, double was) {
    require(std::abs(is - was) < 1e-5,
            std::string(what) + " is " + std::to_string(is) + ", was " + std::to_string(was));
  };
  require_near("the AUC", ordered / (positives * (count - positives)), model.at("auc"));
  if (model.contains("logloss")) require_near("the log loss", loss / count, model.at("logloss"));
}

/// The keys of a column, by the rules in the words of train_ctr --help.
class counted_column {
 public:
  counted_column(long long admit, long long ttl) : admit_(admit), ttl_(ttl) {}

  void begin_step() {
    ++step_;
    if (ttl_ == 0 || step_ % std::max(ttl_ / 4, 1LL) != 0) return;
    std::erase_if(keys_, [&](const auto& one) {
      const bool goes = one.second.has_row && step_ - one.second.last > ttl_;
      evicted += goes ? 1 : 0;
      return goes;
    });
  }
  void see(const std::string& token) {
    tokens_.insert(token);
    key& one = keys_[token];
    one.last = step_;
    if (one.has_row) return;
    one.has_row = ++one.came >= admit_;
    admitted += one.has_row ? 1 : 0;
  }
  [[nodiscard]] long long distinct() const { return static_cast<long long>(tokens_.size()); }
  [[nodiscard]] long long held() const {
    return std::count_if(keys_.begin(), keys_.end(), [](const auto& one) { return one.second.has_row; });
  }
  [[nodiscard]] long long candidates() const { return static_cast<long long>(keys_.size()) - held(); }
  long long admitted = 0, evicted = 0;

 private:
  struct key {
    long long came = 0, last = 0;
    bool has_row = false;
  };
  long long admit_, ttl_, step_ = 0;
  std::map<std::string, key> keys_;
  std::set<std::string> tokens_;
};

void check_counts(char** words) {
  const json keys = read(words[0]).at("models").at(0).at("keys");
  std::ifstream rows(words[1]);
  const long long batch = std::stoll(words[2]), admit = std::stoll(words[3]), ttl = std::stoll(words[4]),
                  capacity = std::stoll(words[5]);
  constexpr std::size_t first = 14;  // a label and 13 integers before
  std::vector<counted_column> columns(26, counted_column(admit, ttl));
  long long row = 0;
  for (std::string line; std::getline(rows, line); ++row) {
    std::size_t at = 0;
    for (std::size_t f = 0; f < first + columns.size(); ++f) {
      const std::size_t stop = std::min(line.find('\t', at), line.size());
      if (f >= first) {
        counted_column& column = columns[f - first];
        if (row % batch == 0) column.begin_step();
        column.see(line.substr(at, stop - at));
      }
      at = stop + 1;
    }
  }
  const auto require_count = [&](const char* name, long long least, long long most) {
    const long long is = keys.at(name);
    std::printf("%-10s %8lld, from %lld to %lld\n", name, is, least, most);
    require(is >= least && is <= most, std::string("the number of keys: ") + name);
  };
  if (capacity == 0) {
    long long held = 0, candidates = 0, admitted = 0, evicted = 0;
    for (const counted_column& column : columns) {
      held += column.held();
      candidates += column.candidates();
      admitted += column.admitted;
      evicted += column.evicted;
    }
    require_count("held", held, held);
    require_count("candidates", candidates, candidates);
    require_count("admitted", admitted, admitted);
    require_count("evicted", evicted, evicted);
    require_count("refused", 0, 0);
    return;
  }
  // Which rows go depends on hashes, where several are of one step: bounds.
  long long least = 0, most = 0, distinct = 0;
  for (const counted_column& column : columns) {
    most += std::min(column.distinct(), capacity);
    least += std::min(column.distinct(), capacity - capacity / 32);
    distinct += column.distinct();
  }
  const long long held = keys.at("held");
  require_count("held", least, most);
  require_count("evicted", distinct - most, row * 26);
  require_count("admitted", distinct, row * 26);
  require(keys.at("admitted") == held + keys.at("evicted").get<long long>(), "rows that nobody has");
  require_count("refused", 0, 0);
}

void check_near(char** paths) {
  std::ifstream one(paths[0]), other(paths[1]);
  std::size_t count = 0;
  for (double a = 0, b = 0; one >> a; ++count) {
    require(bool(other >> b) && std::abs(a - b) < 1e-6, "number " + std::to_string(count) + " is another");
  }
  double more = 0;
  require(!(other >> more), "more numbers in the second file");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 8 && std::string_view(argv[1]) == "--counted") {
      check_counts(argv + 2);
      return 0;
    }
    if ((argc == 5 || argc == 6) && std::string_view(argv[1]) == "--predicted") {
      check_predictions(argv + 2);
      return 0;
    }
    if (argc == 5 && std::string_view(argv[1]) == "--scored") {
      check_scores(argv + 2);
      return 0;
    }
    if (argc == 4 && std::string_view(argv[1]) == "--near") {
      check_near(argv + 2);
      return 0;
    }
    require(argc == 2 || argc == 3, "usage: file_check <trace.json> [<result.json>]");
    const auto seconds = check_trace(read(argv[1]));
    if (argc == 2) return 0;
    const json result = read(argv[2]);
    double all = 0;
    for (const auto& [part, sum] : seconds) all += sum;
    const json& share = result.at("models").at(0).at("share");
    require(share.size() == seconds.size(), "the shares are of other parts than the spans");
    for (const auto& [part, sum] : seconds) {
      const double printed = share.at(part);
      std::printf("%-8s %6.2f %% printed, %6.2f %% by spans\n", part.c_str(), 100 * printed, 100 * sum / all);
      const double apart = std::abs(printed - sum / all);
      require(apart < 0.05 * std::max(printed, sum / all) + 0.005,
              "the share of " + part + " is not that of its spans");
    }
    return 0;
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "file_check: %s\n", wrong.what());
    return 1;
  }
}
