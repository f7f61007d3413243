// Checks what benchmarks/claims.json says about speed: runs every suite that a claim names once,
// with just the benchmarks that the claims name, and prints one line per claim,
//
//   holds|SHORT|ABSENT  id  target  median [min..max]  claim
//
// over the repetitions that the benchmark itself asked for. A claim's filter is a regular
// expression for the whole name of a benchmark, less the parts that only say how it is timed
// (repeats:3, real_time, ...). ABSENT: no such suite, benchmark or counter here, or the benchmark
// skipped itself, and then its message follows. Exit code 1: a program crashed, or a benchmark
// skipped itself with a message that begins with "wrong answer".
//
// With --from nothing is run: the claims are judged by what Google Benchmark wrote on another machine
// (--benchmark_out). There, exit code 1 also says that a file could not be read to its end.

#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

struct claim {
  std::string id, text, suite, filter, counter, direction, source;
  double target = 0;
};

struct verdict {
  std::string word = "ABSENT", reason;
  std::vector<double> values;
  double median = 0, low = 0, high = 0;
};

// What one suite's program said.
struct suite_run {
  std::vector<json> entries;  // one per repetition
  std::string problem;        // why there are none
  bool crashed = false;
};

std::vector<claim> read_claims(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot open " + file.string());
  std::vector<claim> claims;
  for (const json& c : json::parse(in)) {
    claims.push_back({c.at("id"), c.at("claim"), c.at("suite"), c.at("filter"), c.at("counter"),
                      c.at("direction"), c.at("source"), c.at("target")});
    const std::string& direction = claims.back().direction;
    if (direction != ">=" && direction != "<=") {
      throw std::runtime_error(claims.back().id + ": direction is neither >= nor <=");
    }
  }
  return claims;
}

std::string plain_name(const std::string& name) {
  static const std::regex timing(
      "/(repeats:[0-9]+|iterations:[0-9]+|min_time:[^/]*|min_warmup_time:[^/]*|real_time|"
      "manual_time|process_time)");
  return std::regex_replace(name, timing, "");
}

std::string escaped(const std::string& name) {
  static const std::regex special(R"([.\[\]()*+?^$|{}\\])");
  return std::regex_replace(name, special, R"(\$&)");
}

std::string quoted(const std::string& word) {  // for the shell
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void keep_repetitions(const json& report, suite_run& run) {
  for (const json& entry : report.at("benchmarks")) {
    if (entry.value("run_type", "iteration") == "iteration") run.entries.push_back(entry);
  }
}

suite_run run_suite(const fs::path& program, const std::vector<claim>& claims) {
  suite_run run;
  if (!fs::exists(program)) {
    run.problem = "no program " + program.filename().string() + " here";
    return run;
  }
  std::string names;
  {
    FILE* pipe = popen((quoted(program.string()) + " --benchmark_list_tests").c_str(), "r");
    char piece[4096];
    while (pipe != nullptr && std::fgets(piece, sizeof piece, pipe) != nullptr) names += piece;
    if (pipe == nullptr || pclose(pipe) != 0) {
      run.problem = "the program does not list its benchmarks";
      run.crashed = true;
      return run;
    }
  }
  std::string filter;
  std::istringstream lines(names);
  for (std::string name; std::getline(lines, name);) {
    if (std::any_of(claims.begin(), claims.end(), [&](const claim& c) {
          return std::regex_match(plain_name(name), std::regex(c.filter));
        })) {
      filter += (filter.empty() ? "" : "|") + escaped(name);
    }
  }
  if (filter.empty()) return run;

  const fs::path out = fs::temp_directory_path() / ("claims." + std::to_string(getpid()) + ".json");
  const std::string command = quoted(program.string()) + " " +
                              quoted("--benchmark_filter=^(" + filter + ")$") + " " +
                              quoted("--benchmark_out=" + out.string()) +
                              " --benchmark_out_format=json --benchmark_format=console >&2";
  run.crashed = std::system(command.c_str()) != 0;
  std::ifstream in(out);
  const json report = json::parse(in, nullptr, false);
  fs::remove(out);
  if (run.crashed || report.is_discarded()) {
    run.crashed = true;
    run.problem = "the program failed";
    return run;
  }
  keep_repetitions(report, run);
  return run;
}

verdict judge(const claim& c, const suite_run& run) {
  verdict v;
  v.reason = run.problem.empty() ? "no such benchmark" : run.problem;
  const std::regex filter(c.filter);
  for (const json& entry : run.entries) {
    if (!std::regex_match(plain_name(entry.at("name")), filter)) continue;
    if (entry.value("error_occurred", false) || entry.value("skipped", false)) {
      v.values.clear();
      v.reason = entry.value("error_message", entry.value("skip_message", "skipped"));
      break;
    }
    v.reason = "no counter " + c.counter;
    if (entry.contains(c.counter) && entry.at(c.counter).is_number()) {
      v.values.push_back(entry.at(c.counter));
    }
  }
  if (v.values.empty()) return v;
  v.reason.clear();
  std::vector<double> sorted = v.values;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  v.low = sorted.front();
  v.high = sorted.back();
  v.median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  v.word = (c.direction == ">=" ? v.median >= c.target : v.median <= c.target) ? "holds" : "SHORT";
  return v;
}

// What was recorded elsewhere; `contexts` gets what Google Benchmark says of each run.
suite_run read_recorded(const std::vector<std::string>& files, json& contexts) {
  suite_run run;
  run.problem = "no such benchmark in these files";
  for (const std::string& file : files) {
    std::ifstream in(file);
    const json report = json::parse(in, nullptr, false);
    if (!report.is_object() || !report.contains("benchmarks")) {
      std::cerr << "claims: " << file << " is not a whole report of Google Benchmark\n";
      run.crashed = true;
      continue;
    }
    keep_repetitions(report, run);
    json context = report.value("context", json::object());
    context.erase("caches");
    context["file"] = fs::path(file).filename().string();
    contexts.push_back(context);
  }
  return run;
}

std::string cpu_field(const std::string& key) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) == 0) {
      const std::size_t at = line.find(": ");
      return at == std::string::npos ? "" : line.substr(at + 2);
    }
  }
  return "";
}

json provenance(const std::string& commit, const std::string& dirty) {
  utsname system{};
  uname(&system);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  json isa = json::array();
  std::istringstream flags(cpu_field("flags"));
  for (std::string flag; flags >> flag;) {
    if (flag.rfind("avx", 0) == 0 || flag.rfind("amx", 0) == 0 || flag == "fma" || flag == "f16c") {
      isa.push_back(flag);
    }
  }
  return {{"commit", commit},
          {"dirty", dirty == "true"},
          {"date", date},
          {"cpu", cpu_field("model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", std::string(system.sysname) + " " + system.release},
          {"compiler", BUILD_COMPILER},
          {"flags", BUILD_FLAGS},
          {"isa", isa}};
}

std::map<std::string, suite_run> run_suites(const std::vector<claim>& claims, const fs::path& programs) {
  std::map<std::string, std::vector<claim>> by_suite;
  for (const claim& c : claims) by_suite[c.suite].push_back(c);
  std::map<std::string, suite_run> runs;
  for (const auto& [suite, its_claims] : by_suite) {
    runs[suite] = run_suite(programs / ("bench_" + suite), its_claims);
  }
  return runs;
}

int check(const std::vector<claim>& claims, const std::map<std::string, suite_run>& runs,
          const std::string& output, const json& where) {

  bool failed = false;
  json results = json::array();
  for (const claim& c : claims) {
    const suite_run& run = runs.at(c.suite);
    const verdict v = judge(c, run);
    failed = failed || run.crashed || v.reason.rfind("wrong answer", 0) == 0;
    std::printf("%-6s  %-32s  %s %.4g  ", v.word.c_str(), c.id.c_str(), c.direction.c_str(),
                c.target);
    if (v.values.empty()) {
      std::printf("-  %s  (%s)\n", c.text.c_str(), v.reason.c_str());
    } else {
      std::printf("%.4g [%.4g..%.4g]  %s\n", v.median, v.low, v.high, c.text.c_str());
    }
    json result = {{"id", c.id},         {"claim", c.text},      {"suite", c.suite},
                   {"filter", c.filter}, {"counter", c.counter}, {"direction", c.direction},
                   {"target", c.target}, {"source", c.source},   {"verdict", v.word},
                   {"values", v.values}};
    if (v.values.empty()) {
      result["reason"] = v.reason;
    } else {
      result.update({{"median", v.median}, {"min", v.low}, {"max", v.high}});
    }
    results.push_back(result);
  }
  if (!output.empty()) {
    std::ofstream out(output);
    out << json{{"provenance", where}, {"results", results}}.dump(2) << '\n';
    if (!out) throw std::runtime_error("cannot write " + output);
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file, programs, select, output, commit = "unknown", dirty = "false";
  std::vector<std::string> recorded;
  bool only_suites = false;
  CLI::App app("Checks the claims about speed");
  app.add_option("--claims", file, "The list of claims")->required();
  app.add_option("--programs", programs, "The folder of the programs bench_<suite>");
  app.add_option("--from", recorded, "Judge these reports of Google Benchmark instead of running programs");
  app.add_option("--select", select, "Only claims of this suite, or whose id begins with it");
  app.add_option("--json", output, "Write the results there as well");
  app.add_option("--commit", commit, "What is being measured");
  app.add_option("--dirty", dirty, "true if the checkout has changes of its own");
  app.add_flag("--suites", only_suites, "Print the suites that the selected claims need");
  CLI11_PARSE(app, argc, argv);

  try {
    std::vector<claim> claims = read_claims(file);
    if (!select.empty()) {
      std::erase_if(claims, [&](const claim& c) {
        return c.suite != select && c.id.rfind(select + ".", 0) != 0;
      });
      if (claims.empty()) throw std::runtime_error("no claim of " + select);
    }
    if (only_suites) {
      std::set<std::string> suites;
      for (const claim& c : claims) suites.insert(c.suite);
      for (const std::string& suite : suites) std::cout << suite << '\n';
      return 0;
    }
    if (!recorded.empty()) {
      json contexts = json::array();
      const suite_run run = read_recorded(recorded, contexts);
      std::map<std::string, suite_run> runs;
      for (const claim& c : claims) runs[c.suite] = run;
      return check(claims, runs, output, {{"recorded", contexts}});
    }
    if (programs.empty()) throw std::runtime_error("neither --programs nor --from");
    return check(claims, run_suites(claims, programs), output, provenance(commit, dirty));
  } catch (const std::exception& problem) {
    std::cerr << "claims: " << problem.what() << '\n';
    return 2;
  }
}
