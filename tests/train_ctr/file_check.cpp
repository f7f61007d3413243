// file_check <trace.json> [<result.json>]: a trace of train_ctr is one that Perfetto reads, and the sums of
// its spans are the shares that the run printed.
// file_check --predicted <result.json> <rows.tsv> <probabilities> <logits.npy>: the probabilities have the
// log loss of the test, and are those of the exported logits.
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
  const std::vector<float> logits = read_npy(paths[3], 1);
  double loss = 0, p = 0;
  std::size_t count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    require(bool(probabilities >> p) && p > 0 && p < 1, "no probability for row " + std::to_string(count));
    require(count < logits.size() && std::abs(p - 1 / (1 + std::exp(-double{logits[count]}))) < 1e-6,
            "the logit of row " + std::to_string(count) + " is another");
    loss -= std::log(line.front() == '1' ? p : 1 - p);
  }
  require(!(probabilities >> p) && count == logits.size(), "more probabilities than rows");
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
    if (argc == 6 && std::string_view(argv[1]) == "--predicted") {
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
