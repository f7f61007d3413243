// Writes the table of claims into a page, between two lines that say where:
//
//   claims_table --page docs/benchmarks/README.md docs/benchmarks/claims_*.json
//
//   <!-- claims: begin -->
//   | claim | id | target | measured | 95 % of the median | verdict | machine |
//   <!-- claims: end -->
//
// Rows come in the order of the files and of their claims; below the table, the machines, and why some claims
// were not judged. With --check nothing is written: exit code 1 says that the page has another table.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using json = nlohmann::json;

constexpr const char* begin_line = "<!-- claims: begin -->\n";
constexpr const char* end_line = "<!-- claims: end -->\n";

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot open " + file);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Three digits, or all of a target's, and a unit where they are many.
std::string number(double value, bool all_digits = false) {
  static const std::pair<double, const char*> units[] = {{1e9, " G"}, {1e6, " M"}};
  for (const auto& [size, unit] : units) {
    if (std::fabs(value) >= size) return number(value / size, all_digits) + unit;
  }
  const double size = std::fabs(value);
  const char* const format = all_digits    ? "%.4g"
                             : size >= 100 ? "%.0f"
                             : size >= 10  ? "%.1f"
                             : size >= 0.1 ? "%.2f"
                                           : "%.2g";
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

/// What was measured on: a report of another machine names its card.
std::string machine_of(const json& provenance) {
  const json recorded = provenance.value("recorded", json::array());
  if (!recorded.empty()) {
    const json& first = recorded.front();
    return first.value("card", first.value("host_name", std::string("recorded elsewhere")));
  }
  std::ostringstream words;
  words << provenance.value("cpu", "?") << ", " << provenance.value("cores", 0) << " CPUs";
  std::uint64_t largest = 0;
  const json caches = provenance.value("caches", json::object());
  for (const auto& [level, bytes] : caches.items()) largest = std::max(largest, bytes.get<std::uint64_t>());
  if (largest != 0) words << ", last-level cache " << (largest >> 20) << " MB";
  const json pages = provenance.value("pages", json::object());
  if (pages.contains("huge")) words << ", huge pages: " << pages.at("huge").get<std::string>();
  return words.str();
}

std::string run_of(const json& provenance) {
  if (const json recorded = provenance.value("recorded", json::array()); !recorded.empty()) {
    std::string words;
    for (const json& run : recorded) {
      words +=
          (words.empty() ? "commit " : "; commit ") + run.value("commit", std::string("?")).substr(0, 12);
      if (run.value("dirty", "false") == "true") words += " with changes";
      words += ", " + run.value("date", std::string("?")).substr(0, 10);
      for (const auto& [field, name] :
           {std::pair{"toolkit", ", toolkit "}, {"driver", ", driver "}, {"sm", ", sm_"}})
        if (run.contains(field)) words += name + run.value(field, std::string());
    }
    return words;
  }
  std::string words = "commit " + provenance.value("commit", std::string("?")).substr(0, 12);
  if (provenance.value("dirty", false)) words += " with changes";
  words += ", " + provenance.value("date", std::string("?")).substr(0, 10) + ", " +
           provenance.value("compiler", "?");
  const json peers = provenance.value("peers", json::object());
  for (const auto& [name, version] : peers.items()) words += ", " + name + " " + version.get<std::string>();
  return words;
}

std::string table(const std::vector<std::string>& files) {
  std::vector<std::pair<std::string, std::vector<std::string>>> machines;  // and their runs
  std::ostringstream rows, reasons;
  for (const std::string& file : files) {
    const json report = json::parse(text_of(file));
    const json& results = report.at("results");
    const json& provenance = report.at("provenance");
    if (results.empty()) continue;
    const std::string name = machine_of(provenance);
    const auto machine =
        std::find_if(machines.begin(), machines.end(), [&](const auto& m) { return m.first == name; });
    const std::string letter(1, static_cast<char>('A' + (machine - machines.begin())));
    const std::string run = results.front().at("suite").get<std::string>() + ": " + run_of(provenance);
    if (machine == machines.end()) {
      machines.push_back({name, {run}});
    } else {
      machine->second.push_back(run);
    }
    for (const json& r : results) {
      const std::string id = r.at("id"), verdict = r.at("verdict");
      const bool measured = r.contains("median"), judged = r.contains("low");
      rows << "| " << cell(r.at("claim")) << " | `" << id << "` | "
           << (r.at("direction") == ">=" ? "≥ " : "≤ ") << number(r.at("target"), true) << " | "
           << (measured ? number(r.at("median")) : "–") << " | "
           << (judged ? number(r.at("low")) + " .. " + number(r.at("high")) : "–") << " | " << verdict
           << " | " << letter << " |\n";
      if (r.contains("reason")) {
        reasons << "- " << letter << ", " << verdict << ", `" << id
                << "`: " << r.at("reason").get<std::string>() << '\n';
      }
    }
  }
  std::ostringstream all;
  all << "\n| claim | id | target | measured | 95 % of the median | verdict | machine "
         "|\n|---|---|---|---|---|---|---|\n"
      << rows.str() << '\n';
  for (std::size_t i = 0; i < machines.size(); ++i) {
    all << "Machine " << static_cast<char>('A' + i) << ": " << machines[i].first << ".\n\n";
    for (const std::string& run : machines[i].second) all << "- " << run << '\n';
    all << '\n';
  }
  if (!reasons.str().empty()) all << "Reasons:\n\n" << reasons.str() << '\n';
  return all.str();
}

}  // namespace

int main(int argc, char** argv) {
  std::string page;
  std::vector<std::string> files;
  bool check = false;
  CLI::App app("The table of claims");
  app.add_option("--page", page, "The page that has the table")->required();
  app.add_flag("--check", check, "Only say whether the page has this table");
  app.add_option("files", files, "What claims --json wrote")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const std::string text = text_of(page);
    const std::size_t begin = text.find(begin_line), end = text.find(end_line);
    if (begin == std::string::npos || end == std::string::npos || end < begin) {
      throw std::runtime_error(page + " has no lines " + begin_line + "and " + end_line);
    }
    const std::string made = text.substr(0, begin) + begin_line + table(files) + text.substr(end);
    if (check) {
      if (made == text) return 0;
      std::cerr << page << ": the table is not that of these files\n";
      return 1;
    }
    std::ofstream out(page);
    out << made;
    if (!out) throw std::runtime_error("cannot write " + page);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "claims_table: " << problem.what() << '\n';
    return 2;
  }
}
