// Checks what benchmarks/claims.json says about speed: runs every suite that a claim names once, with just
// the benchmarks that the claims name, and prints one line per claim,
//
//   holds|SHORT|UNSURE|UNFIT|ABSENT|FAILED  id  target  median [low..high] pairs  claim  (reason)
//
// A claim's filter is a regular expression for the whole name of a benchmark, less the parts that only say
// how it is timed (repeats:3, real_time, ...). low..high is the 95 % interval of the median over the pairs of
// timings: the benchmark's counters COUNTER_low, COUNTER_high and pairs (benchmarks/support/figures.hpp), or
// the order statistics of its repetitions.
//
//   holds   the interval lies on the right side of the target
//   SHORT   on the wrong side
//   UNSURE  on both, or fewer than 21 pairs
//   UNFIT   this machine can't show it: the label or the message has "unfit: " and the property
//   ABSENT  no such suite, benchmark or counter here, or the benchmark skipped itself, and then its message
//           follows
//   FAILED  a crash, a wrong answer, a roofline out of bounds, or one that is beaten by more than 3 %
//
// Exit code 1: something FAILED. With --from nothing is run: the claims are judged by what Google Benchmark
// wrote on another machine (--benchmark_out). There, exit code 1 also says that a file could not be read to
// its end.

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

#include "../support/machine.hpp"
#include "../support/paired.hpp"

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

struct claim {
  std::string id, text, suite, filter, counter, direction, source;
  double target = 0;
};

struct verdict {
  std::string word = "ABSENT", reason, label;
  deeprec_bench::interval figure;
  double pairs = 0;            // 0: nothing was measured
  json also = json::object();  // the benchmark's other counters
};

constexpr double least_pairs = 21;

// What one suite's program said.
struct suite_run {
  std::vector<json> entries;  // one per repetition
  std::string problem;        // why there are none
  bool crashed = false;
  json peers = json::object();  // and their versions
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

// A report of Google Benchmark, which writes NaN and Infinity as they are; discarded when it is no JSON
// otherwise.
json parse_report(std::istream& in) {
  static const std::regex no_number("(: *)-?(NaN|Infinity)(,?\\s*[\\n}])");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const json as_is = json::parse(text, nullptr, false);
  return as_is.is_discarded() ? json::parse(std::regex_replace(text, no_number, "$1null$3"), nullptr, false)
                              : as_is;
}

void keep_repetitions(const json& report, suite_run& run) {
  const json context = report.value("context", json::object());
  for (const auto& [key, value] : context.items()) {
    if (key.rfind("peer.", 0) == 0) run.peers[key.substr(5)] = value;
  }
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
  const std::string file = (fs::temp_directory_path() / ("claims." + std::to_string(getpid()))).string();
  const fs::path out = file + ".json", targets = file + ".targets";
  std::string filter;
  std::istringstream lines(names);
  std::ofstream goals(targets);  // what decides how many pairs a benchmark needs
  for (std::string name; std::getline(lines, name);) {
    bool wanted = false;
    for (const claim& c : claims) {
      if (!std::regex_match(plain_name(name), std::regex(c.filter))) continue;
      wanted = true;
      goals << plain_name(name) << ' ' << c.counter << ' ' << c.target << '\n';
    }
    if (wanted) filter += (filter.empty() ? "" : "|") + escaped(name);
  }
  goals.close();
  if (filter.empty()) {
    fs::remove(targets);
    return run;
  }

  const std::string command =
      "DEEPREC_BENCH_TARGETS=" + quoted(targets.string()) + " " + quoted(program.string()) + " " +
      quoted("--benchmark_filter=^(" + filter + ")$") + " " + quoted("--benchmark_out=" + out.string()) +
      " --benchmark_out_format=json --benchmark_format=console >&2";
  run.crashed = std::system(command.c_str()) != 0;
  std::ifstream in(out);
  const json report = parse_report(in);
  fs::remove(out);
  fs::remove(targets);
  if (run.crashed || report.is_discarded()) {
    run.crashed = true;
    run.problem = "the program failed";
    return run;
  }
  keep_repetitions(report, run);
  return run;
}

bool begins_with(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

/// The property after "unfit: ", to the next semicolon.
std::string unfit_property(const std::string& text) {
  const std::size_t at = text.find("unfit: ");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + 7;
  return text.substr(begin, text.find(';', begin) - begin);
}

/// The figure that an entry has for a counter, with its interval.
bool figure_of(const json& entry, const std::string& counter, deeprec_bench::interval& figure) {
  const auto number = [&](const std::string& key) {
    return entry.contains(key) && entry.at(key).is_number();
  };
  if (!number(counter) || !number(counter + "_low") || !number(counter + "_high")) return false;
  figure = {entry.at(counter), entry.at(counter + "_low"), entry.at(counter + "_high")};
  return true;
}

verdict judge(const claim& c, const suite_run& run) {
  verdict v;
  v.reason = run.problem.empty() ? "no such benchmark" : run.problem;
  if (run.crashed && run.entries.empty()) v.word = "FAILED";
  const std::regex filter(c.filter);
  std::vector<double> repetitions;
  std::string beaten, may_be_beaten;
  for (const json& entry : run.entries) {
    if (!std::regex_match(plain_name(entry.at("name")), filter)) continue;
    if (entry.value("error_occurred", false) || entry.value("skipped", false)) {
      v = {};
      v.reason = entry.value("error_message", entry.value("skip_message", "skipped"));
      const std::string property = unfit_property(v.reason);
      if (begins_with(v.reason, "wrong answer") || begins_with(v.reason, "a roofline out of bounds") ||
          begins_with(v.reason, "failed")) {
        v.word = "FAILED";
      } else if (!property.empty()) {
        v.word = "UNFIT";
        v.reason = property;
      }
      return v;
    }
    v.reason = "no counter " + c.counter;
    v.label = entry.value("label", "");
    for (const auto& [key, value] : entry.items()) {
      static const std::set<std::string> its_own = {"repetitions",  "repetition_index",
                                                    "threads",      "iterations",
                                                    "family_index", "per_family_instance_index"};
      if (!value.is_number() || its_own.count(key) != 0) continue;
      v.also[key] = value;
      deeprec_bench::interval limit;
      if (!begins_with(key, "roofline") || !figure_of(entry, key, limit)) continue;
      if (limit.low > deeprec_bench::most_of_a_roofline && beaten.empty()) beaten = key;
      if (limit.median > deeprec_bench::most_of_a_roofline && begins_with(key, c.counter))
        may_be_beaten = key;
    }
    if (figure_of(entry, c.counter, v.figure)) {
      v.pairs =
          entry.contains("pairs") && entry.at("pairs").is_number() ? entry.at("pairs").get<double>() : 0;
    } else if (entry.contains(c.counter) && entry.at(c.counter).is_number()) {
      repetitions.push_back(entry.at(c.counter));
    }
  }
  if (v.pairs == 0 && !repetitions.empty()) {
    v.figure = deeprec_bench::median_interval(repetitions);
    v.pairs = static_cast<double>(repetitions.size());
  }
  if (v.pairs == 0) return v;
  v.reason.clear();
  const bool roofline = begins_with(c.counter, "roofline");
  const auto [median, low, high] = v.figure;
  if (roofline && median > deeprec_bench::most_of_a_roofline)
    may_be_beaten = c.counter;  // also of repetitions
  if (!beaten.empty() || (roofline && low > deeprec_bench::most_of_a_roofline)) {
    v.word = "FAILED";
    v.reason = "the roofline is beaten: " + (beaten.empty() ? c.counter : beaten);
  } else if (v.reason = unfit_property(v.label); !v.reason.empty()) {
    v.word = "UNFIT";
  } else if (v.pairs < least_pairs) {
    v.word = "UNSURE";
    v.reason = "fewer than 21 pairs";
  } else if (!may_be_beaten.empty()) {
    v.word = "UNSURE";
    v.reason = "the roofline may be beaten";
  } else if (c.direction == ">=") {
    v.word = low >= c.target ? "holds" : high < c.target ? "SHORT" : "UNSURE";
  } else {
    v.word = high <= c.target ? "holds" : low > c.target ? "SHORT" : "UNSURE";
  }
  return v;
}

// What was recorded elsewhere; `contexts` gets what Google Benchmark says of each run.
suite_run read_recorded(const std::vector<std::string>& files, json& contexts) {
  suite_run run;
  run.problem = "no such benchmark in these files";
  for (const std::string& file : files) {
    std::ifstream in(file);
    const json report = parse_report(in);
    if (!report.is_object() || !report.contains("benchmarks")) {
      std::cerr << "claims: " << file << " is not a whole report of Google Benchmark\n";
      run.crashed = true;
      continue;
    }
    keep_repetitions(report, run);
    json context = report.value("context", json::object());
    const std::string date = context.value("date", "?");
    for (const char* of_one_run : {"caches", "executable", "host_name", "load_avg", "date", "run_date"})
      context.erase(of_one_run);
    const std::string name = fs::path(file).filename().string();
    const auto same = std::find_if(contexts.begin(), contexts.end(), [&](const json& c) {
      json others = c;
      others.erase("files");
      others.erase("date");
      return others == context;
    });
    if (same != contexts.end()) {
      (*same)["files"].push_back(name);
    } else {
      context["files"] = json::array({name});
      context["date"] = date;
      contexts.push_back(context);
    }
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

json caches() {
  json sizes = json::object();
  for (int i = 0; i < 10; ++i) {
    const std::string at = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = deeprec_bench::first_line(at + "level"),
                      type = deeprec_bench::first_line(at + "type");
    if (level.empty() || type == "Instruction") continue;
    sizes["L" + level] = deeprec_bench::bytes_in(deeprec_bench::first_line(at + "size"));
  }
  if (sizes.empty()) sizes["last"] = deeprec_bench::last_level_cache();
  return sizes;
}

std::uint64_t memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

json provenance(const std::string& commit, const std::string& dirty, const std::vector<std::string>& peers) {
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
  json versions = json::object();
  for (const std::string& peer : peers) {
    const std::size_t at = peer.find('=');
    versions[peer.substr(0, at)] = at == std::string::npos ? "" : peer.substr(at + 1);
  }
  return {{"commit", commit},
          {"peers", versions},
          {"caches", caches()},
          {"memory", memory()},
          {"pages",
           {{"size", ::sysconf(_SC_PAGESIZE)},
            {"huge", deeprec_bench::huge_page_setting()},
            {"defrag", deeprec_bench::huge_page_setting("defrag")}}},
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
          const std::string& output, json where) {
  bool failed = false;
  json results = json::array();
  for (const auto& [suite, run] : runs) {
    failed = failed || run.crashed;
    if (!run.peers.empty()) where["peers"].update(run.peers);
  }
  for (const claim& c : claims) {
    const verdict v = judge(c, runs.at(c.suite));
    failed = failed || v.word == "FAILED";
    std::printf("%-6s  %-32s  %s %.4g  ", v.word.c_str(), c.id.c_str(), c.direction.c_str(), c.target);
    if (v.pairs == 0) {
      std::printf("-  %s", c.text.c_str());
    } else {
      std::printf("%.4g [%.4g..%.4g] %.0f  %s", v.figure.median, v.figure.low, v.figure.high, v.pairs,
                  c.text.c_str());
    }
    if (!v.reason.empty()) std::printf("  (%s)", v.reason.c_str());
    std::printf("\n");
    json result = {{"id", c.id},         {"claim", c.text},      {"suite", c.suite},
                   {"filter", c.filter}, {"counter", c.counter}, {"direction", c.direction},
                   {"target", c.target}, {"source", c.source},   {"verdict", v.word}};
    if (!v.reason.empty()) result["reason"] = v.reason;
    if (!v.label.empty()) result["label"] = v.label;
    if (v.pairs != 0) {
      result.update({{"median", v.figure.median},
                     {"low", v.figure.low},
                     {"high", v.figure.high},
                     {"pairs", v.pairs},
                     {"counters", v.also}});
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
  std::vector<std::string> recorded, peers;
  bool only_suites = false;
  CLI::App app("Checks the claims about speed");
  app.add_option("--claims", file, "The list of claims")->required();
  app.add_option("--programs", programs, "The folder of the programs bench_<suite>");
  app.add_option("--from", recorded, "Judge these reports of Google Benchmark instead of running programs");
  app.add_option("--select", select, "Only claims of this suite, or whose id begins with it");
  app.add_option("--json", output, "Write the results there as well");
  app.add_option("--commit", commit, "What is being measured");
  app.add_option("--dirty", dirty, "true if the checkout has changes of its own");
  app.add_option("--peer", peers, "NAME=VERSION of what is measured against");
  app.add_flag("--suites", only_suites, "Print the suites that the selected claims need");
  CLI11_PARSE(app, argc, argv);

  try {
    std::vector<claim> claims = read_claims(file);
    if (!select.empty()) {
      std::erase_if(claims,
                    [&](const claim& c) { return c.suite != select && c.id.rfind(select + ".", 0) != 0; });
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
    return check(claims, run_suites(claims, programs), output, provenance(commit, dirty, peers));
  } catch (const std::exception& problem) {
    std::cerr << "claims: " << problem.what() << '\n';
    return 2;
  }
}
