// Writes the pages of claims: a summary into docs/benchmarks/README.md, between two lines that say where, and
// one page for each suite:
//
//   claims_table --pages docs/benchmarks --claims benchmarks/claims.json docs/benchmarks/claims_*.json
//
//   README.md         between <!-- claims: begin --> and <!-- claims: end -->: how many claims of each suite
//                     hold, and the machines
//   suites/SUITE.md   the table of its claims, the reasons that claims.json has for them, and the runs
//
// Rows come in the order of the files' names and of their claims. Of several results of a claim on one
// machine the newest counts. A claim's member "reason" is a text, or the id of another claim that has the
// same reason (ID#2: that claim's second text), or an array of these. Pages of suites without results are
// removed. With --check nothing is written: exit code 1 says which page differs.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr std::size_t columns = 120;
const std::vector<std::string> verdicts{"holds", "SHORT", "UNSURE", "UNFIT", "ABSENT", "FAILED"};

constexpr const char* begin_line = "<!-- claims: begin -->\n";
constexpr const char* end_line = "<!-- claims: end -->\n";

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot open " + file.string());
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

/// A word that begins a list, a quotation or a heading where it begins a line.
bool begins_a_block(const std::string& word) {
  return word == "-" || word == "+" || word == "*" || word.front() == '>' || word.front() == '#' ||
         (word.back() == '.' && word.find_first_not_of("0123456789") == word.size() - 1);
}

/// An item of a list, in lines of at most 120 columns where words allow it.
std::string item(const std::string& text) {
  std::istringstream words(text);
  std::string all, line = "-";
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > columns && !begins_a_block(word)) {
      all += line + '\n';
      line = " ";
    }
    line += ' ' + word;
  }
  return all + line + '\n';
}

struct machine {
  std::string name;
  std::string letter;
};

struct suite {
  std::string rows, unjudged;
  std::vector<std::string> ids;                          // in the order of the rows, each once
  std::map<std::string, std::map<std::string, int>> of;  // verdicts by the letter of a machine
  std::vector<std::string> runs;
};

struct report {
  json results;
  json provenance;
  std::string machine;
};

struct book {
  std::vector<machine> machines;
  std::vector<std::pair<std::string, suite>> suites;

  suite& operator[](const std::string& name) {
    const auto at =
        std::find_if(suites.begin(), suites.end(), [&](const auto& s) { return s.first == name; });
    return at != suites.end() ? at->second : suites.emplace_back(name, suite{}).second;
  }
};

std::string letter_of(book& b, const std::string& name) {
  for (const machine& m : b.machines)
    if (m.name == name) return m.letter;
  b.machines.push_back({name, std::string(1, static_cast<char>('A' + b.machines.size()))});
  return b.machines.back().letter;
}

void add_row(suite& s, const json& r, const std::string& letter) {
  const std::string id = r.at("id"), verdict = r.at("verdict");
  const bool measured = r.contains("median"), judged = r.contains("low");
  std::ostringstream row;
  row << "| " << cell(r.at("claim")) << " | `" << id << "` | " << (r.at("direction") == ">=" ? "≥ " : "≤ ")
      << number(r.at("target"), true) << " | " << (measured ? number(r.at("median")) : "–") << " | "
      << (judged ? number(r.at("low")) + " .. " + number(r.at("high")) : "–") << " | " << verdict << " | "
      << letter << " |\n";
  s.rows += row.str();
  if (r.contains("reason")) {
    s.unjudged += item(letter + ", " + verdict + ", `" + id + "`: " + r.at("reason").get<std::string>());
  }
  if (std::find(s.ids.begin(), s.ids.end(), id) == s.ids.end()) s.ids.push_back(id);
  ++s.of[letter][verdict];
}

book read_results(std::vector<std::string> files) {
  std::sort(files.begin(), files.end());
  std::vector<report> reports;
  std::map<std::pair<std::string, std::string>, std::string> newest;  // dates by machine and claim
  for (const std::string& file : files) {
    const json all = json::parse(text_of(file));
    report one{all.at("results"), all.at("provenance"), machine_of(all.at("provenance"))};
    const std::string date = one.provenance.value("date", "");
    for (const json& r : one.results) {
      std::string& last = newest[{one.machine, r.at("id")}];
      last = std::max(last, date);
    }
    if (!one.results.empty()) reports.push_back(std::move(one));
  }
  book b;
  for (const report& one : reports) {
    const std::string letter = letter_of(b, one.machine), date = one.provenance.value("date", "");
    std::set<std::string> run;  // suites that have the line of this run
    for (const json& r : one.results) {
      if (newest.at({one.machine, r.at("id")}) != date) continue;
      const std::string name = r.at("suite");
      suite& s = b[name];
      add_row(s, r, letter);
      if (run.insert(name).second) s.runs.push_back(item(letter + ": " + run_of(one.provenance)));
    }
  }
  std::sort(b.suites.begin(), b.suites.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  return b;
}

struct reason {
  std::string suite;
  std::vector<std::string> texts;
  std::vector<std::pair<std::string, std::size_t>> as;  // of these claims, the text of this number
};

using reasons_by_id = std::map<std::string, reason>;

reasons_by_id read_reasons(const std::string& file) {
  const json claims = json::parse(text_of(file));
  reasons_by_id all;
  for (const json& c : claims) all[c.at("id")].suite = c.at("suite");
  for (const json& c : claims) {
    if (!c.contains("reason")) continue;
    const json& given = c.at("reason");
    reason& r = all.at(c.at("id"));
    for (const json& one : given.is_array() ? given : json::array({given})) {
      const std::string text = one;
      const std::size_t mark = text.find('#');
      if (text.find(' ') != std::string::npos) {
        r.texts.push_back(text);
      } else {
        r.as.emplace_back(text.substr(0, mark),
                          mark == std::string::npos ? 0 : std::stoul(text.substr(mark + 1)) - 1);
      }
    }
  }
  for (const auto& [id, r] : all) {
    for (const auto& [other, n] : r.as) {
      const auto at = all.find(other);
      if (at == all.end() || n >= at->second.texts.size())
        throw std::runtime_error(file + ": the reason of " + id + " is that of " + other +
                                 ", which has no such text");
    }
  }
  return all;
}

/// A reason stands once, with all claims of the suite that share it.
std::string reasons_of(const std::string& name, const suite& s, const reasons_by_id& reasons) {
  const auto find = [&](const std::string& id) {
    const auto at = reasons.find(id);
    return at == reasons.end() ? reason{} : at->second;
  };
  const auto is_here = [&](const std::string& id) {
    return std::find(s.ids.begin(), s.ids.end(), id) != s.ids.end();
  };
  std::string all;
  for (const std::string& id : s.ids) {
    const reason r = find(id);
    for (std::size_t n = 0; n < r.texts.size(); ++n) {
      std::string ids = '`' + id + '`';
      for (const std::string& other : s.ids) {
        const reason o = find(other);
        if (std::find(o.as.begin(), o.as.end(), std::pair{id, n}) != o.as.end()) ids += ", `" + other + '`';
      }
      all += item(ids + ": " + r.texts[n]);
    }
    for (const auto& [other, n] : r.as) {
      if (is_here(other)) continue;
      const std::string of = find(other).suite;
      all += of == name ? item('`' + id + "`: " + find(other).texts[n])
                        : item('`' + id + "`: see `" + other + "` in [" + of + "](" + of + ".md).");
    }
  }
  return all;
}

std::string page_of(const std::string& name, const suite& s, const reasons_by_id& reasons) {
  std::string page = "# Claims of the suite " + name +
                     "\n\nWritten by `scripts/bench.sh table`. [README.md](../README.md) has the rules, the "
                     "machines and the "
                     "other suites.\n\n"
                     "| claim | id | target | measured | 95 % of the median | verdict | machine |\n"
                     "|---|---|---|---|---|---|---|\n" +
                     s.rows;
  if (const std::string text = reasons_of(name, s, reasons); !text.empty()) page += "\n## Reasons\n\n" + text;
  if (!s.unjudged.empty()) page += "\n## Not judged\n\n" + s.unjudged;
  page += "\n## Runs\n\n";
  for (const std::string& run : s.runs) page += run;
  return page;
}

std::string summary(const book& b) {
  std::ostringstream all;
  all << "\n| suite | machine | claims |";
  for (const std::string& verdict : verdicts) all << ' ' << verdict << " |";
  all << "\n|---|---|---|---|---|---|---|---|---|\n";
  std::map<std::string, int> total;
  const auto row = [&](const std::string& first, const std::map<std::string, int>& counts) {
    int claims = 0;
    for (const auto& [verdict, n] : counts) claims += n;
    all << first << claims << " |";
    for (const std::string& verdict : verdicts) {
      const auto at = counts.find(verdict);
      all << (at == counts.end() ? " |" : ' ' + std::to_string(at->second) + " |");
    }
    all << '\n';
  };
  for (const auto& [name, s] : b.suites) {
    for (const auto& [letter, counts] : s.of) {
      row("| [" + name + "](suites/" + name + ".md) | " + letter + " | ", counts);
      for (const auto& [verdict, n] : counts) total[verdict] += n;
    }
  }
  row("| all | | ", total);
  all << '\n';
  for (const machine& m : b.machines) all << "- Machine " << m.letter << ": " << m.name << ".\n";
  all << '\n';
  return all.str();
}

/// The pages by their files.
std::map<fs::path, std::string> pages(const fs::path& folder, const book& b, const reasons_by_id& reasons) {
  const fs::path readme = folder / "README.md";
  const std::string text = text_of(readme);
  const std::size_t begin = text.find(begin_line), end = text.find(end_line);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw std::runtime_error(readme.string() + " has no lines " + begin_line + "and " + end_line);
  }
  std::map<fs::path, std::string> all;
  all[readme] = text.substr(0, begin) + begin_line + summary(b) + text.substr(end);
  for (const auto& [name, s] : b.suites) all[folder / "suites" / (name + ".md")] = page_of(name, s, reasons);
  return all;
}

std::vector<fs::path> other_pages(const fs::path& folder, const std::map<fs::path, std::string>& made) {
  std::vector<fs::path> others;
  if (!fs::exists(folder / "suites")) return others;
  for (const fs::directory_entry& file : fs::directory_iterator(folder / "suites")) {
    if (made.count(file.path()) == 0) others.push_back(file.path());
  }
  return others;
}

bool check_pages(const std::map<fs::path, std::string>& made, const std::vector<fs::path>& others) {
  bool same = true;
  for (const auto& [file, text] : made) {
    if (fs::exists(file) && text_of(file) == text) continue;
    std::cerr << file.string() << ": not what these files give. Fix: scripts/bench.sh table\n";
    same = false;
  }
  for (const fs::path& file : others) {
    std::cerr << file.string() << ": no results of such a suite. Fix: scripts/bench.sh table\n";
    same = false;
  }
  return same;
}

void write_pages(const std::map<fs::path, std::string>& made, const std::vector<fs::path>& others) {
  for (const fs::path& file : others) fs::remove(file);
  for (const auto& [file, text] : made) {
    fs::create_directories(file.parent_path());
    std::ofstream out(file);
    out << text;
    if (!out) throw std::runtime_error("cannot write " + file.string());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, claims;
  std::vector<std::string> files;
  bool check = false;
  CLI::App app("The pages of claims");
  app.add_option("--pages", folder, "The folder of README.md and suites/")->required();
  app.add_option("--claims", claims, "The claims, with their reasons")->required();
  app.add_flag("--check", check, "Only say whether the pages are these");
  app.add_option("files", files, "What claims --json wrote")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const auto made = pages(folder, read_results(files), read_reasons(claims));
    const auto others = other_pages(folder, made);
    if (check) return check_pages(made, others) ? 0 : 1;
    write_pages(made, others);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "claims_table: " << problem.what() << '\n';
    return 2;
  }
}
