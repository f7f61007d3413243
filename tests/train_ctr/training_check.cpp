// training_check resumed <whole.json> <resumed.json>: the passes of the second run are the last ones of the
// first.
// training_check grouped <result.json> <rows.tsv> <probabilities> <column>: the figures of the test are those
// that these rows and probabilities have, groups by the text of a column (from 0).
// training_check repeated <result.json> <seeds>: the means and the deviations are those of the runs.
// training_check mostly_near <probabilities> <probabilities>: of as many numbers nine tenths are the same.
#include <algorithm>
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
void require_near(const std::string& what, double is, double was) {
  require(std::abs(is - was) <= 1e-6 * std::max(1.0, std::abs(was)),
          what + " is " + std::to_string(is) + ", must be " + std::to_string(was));
}

void check_resumed(char** words) {
  const json whole = read(words[0]).at("models").at(0).at("passes");
  const json resumed = read(words[1]).at("models").at(0).at("passes");
  require(!resumed.empty() && resumed.size() < whole.size(), "no passes, or as many as the whole run has");
  const auto first = whole.end() - static_cast<std::ptrdiff_t>(resumed.size());
  for (std::size_t i = 0; i < resumed.size(); ++i) {
    json expected = *(first + static_cast<std::ptrdiff_t>(i)), found = resumed.at(i);
    if (i == 0) {  // its interval began in the first run
      expected.erase("train_loss");
      found.erase("train_loss");
    }
    require(found == expected, "a pass is " + found.dump() + ", must be " + expected.dump());
  }
}

double area_of(const std::vector<std::pair<double, bool>>& rows) {
  double ordered = 0, clicks = 0;
  for (const auto& [score, is_click] : rows) {
    if (!is_click) continue;
    ++clicks;
    for (const auto& [other, is_other_click] : rows) {
      if (!is_other_click) ordered += score > other ? 1 : score == other ? 0.5 : 0;
    }
  }
  return ordered / (clicks * (static_cast<double>(rows.size()) - clicks));
}

void check_grouped(char** words) {
  const json model = read(words[0]).at("models").at(0);
  std::ifstream rows(words[1]), probabilities(words[2]);
  const int column = std::stoi(words[3]);
  std::map<std::string, std::vector<std::pair<double, bool>>> groups;
  std::vector<std::pair<double, bool>> all;
  double predicted = 0, clicks = 0, loss = 0, p = 0;
  for (std::string line; std::getline(rows, line);) {
    require(bool(probabilities >> p), "too few probabilities");
    const bool is_click = line.front() == '1';
    std::string_view rest = line;
    for (int c = 0; c < column; ++c) rest.remove_prefix(rest.find('\t') + 1);
    groups[std::string(rest.substr(0, rest.find('\t')))].emplace_back(p, is_click);
    all.emplace_back(p, is_click);
    predicted += p;
    clicks += is_click ? 1 : 0;
    loss -= std::log(is_click ? p : 1 - p);
  }
  require_near("the AUC", model.at("auc"), area_of(all));
  require_near("the log loss", model.at("logloss"), loss / static_cast<double>(all.size()));
  require_near("the calibration", model.at("calibration"), predicted / clicks);
  double sum = 0, weight = 0;
  int with_area = 0, without = 0;
  for (const auto& [name, of] : groups) {
    const double area = area_of(of);
    if (std::isnan(area)) {
      ++without;
      continue;
    }
    ++with_area;
    sum += area * static_cast<double>(of.size());
    weight += static_cast<double>(of.size());
  }
  require(with_area > 5, "too few groups to compare");
  require_near("the AUC by group", model.at("group_auc"), sum / weight);
  require(model.at("groups") == with_area && model.at("groups_left_out") == without,
          "groups: " + std::to_string(with_area) + " and " + std::to_string(without) + " left out");
}

void check_repeated(char** words) {
  const json result = read(words[0]);
  const auto seeds = static_cast<std::size_t>(std::stoi(words[1]));
  require(result.at("models").size() == seeds, "another number of runs");
  std::set<int> different;
  for (const std::string figure : {"auc", "logloss", "calibration"}) {
    double sum = 0, squares = 0;
    for (const json& model : result.at("models")) {
      sum += double{model.at(figure)};
      different.insert(int{model.at("seed")});
    }
    const double mean = sum / static_cast<double>(seeds);
    for (const json& model : result.at("models")) squares += std::pow(double{model.at(figure)} - mean, 2);
    const json& of = result.at("repeat").at("lr").at(figure);
    require_near("the mean of " + figure, of.at("mean"), mean);
    require_near("the deviation of " + figure, of.at("deviation"),
                 std::sqrt(squares / static_cast<double>(seeds - 1)));
    require(double{of.at("deviation")} > 0, "all seeds have the same " + figure);
  }
  require(different.size() == seeds, "a seed is there twice");
}

void check_mostly_near(char** words) {
  std::ifstream one(words[0]), other(words[1]);
  int count = 0, near = 0;
  for (double a = 0, b = 0; one >> a; ++count) {
    require(bool(other >> b), "fewer numbers in the second file");
    near += std::abs(a - b) < 1e-6 ? 1 : 0;
  }
  require(count > 0 && near * 10 > count * 9,
          std::to_string(near) + " of " + std::to_string(count) + " are the same");
}

}  // namespace

int main(int argc, char** argv) {
  struct check {
    std::string_view name;
    int words;
    void (*run)(char**);
  };
  constexpr check all[] = {{"resumed", 2, check_resumed},
                           {"grouped", 4, check_grouped},
                           {"repeated", 2, check_repeated},
                           {"mostly_near", 2, check_mostly_near}};
  try {
    for (const check& one : all) {
      if (argc == 2 + one.words && argv[1] == one.name) {
        one.run(argv + 2);
        return 0;
      }
    }
    throw std::runtime_error("no such check, or another number of words");
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "training_check: %s\n", wrong.what());
    return 1;
  }
}
