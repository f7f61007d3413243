// Alternates the measured bodies of two commits in this process: the tool behind scripts/bench.sh against.
// For each body
//
//   same|faster|SLOWER|UNSURE|DIFFERS|ABSENT|FAILED  name  ratio [low..high]  pairs  time of ours
//
// ratio: the time of the other commit over the time of ours, so above 1 ours is faster; the median over
// pairs, with the 95 % interval of the median by order statistics. A pair is ours, theirs, theirs, ours, or
// the other way round, on states made for this pair: where malloc puts what a state holds is drawn anew each
// time. Inputs and outputs lie on the same pages for both. Each object is loaded several times, and pairs use
// these copies in turn: a call of 30 ns can take half as long again when its code is at another address.
// There are at least --pairs pairs, and more until the interval is on one side of 1 - tolerance and of 1 +
// tolerance and no wider than both together, or --seconds are over.
//
//   same      the whole interval is within the tolerance
//   UNSURE    time was over before the interval was narrow, or others had the processors
//   DIFFERS   the answers differ, and are timed, or the inputs do
//   ABSENT    one commit lacks the body or its suite, or the machine can't
//
// Exit code 1: a body failed, none has the name, or what --same-answers and --not-slower forbid; 2: the
// command is wrong.

#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "support/bodies.h"
#include "support/paired.hpp"

namespace {

using json = nlohmann::json;
using deeprec_bench::interval;
using deeprec_bench::median_interval;

struct options {
  std::string filter;
  double sample = 0.004;  // seconds, at least, between two looks at the clock
  double seconds = 20;    // for each body
  int pairs = 21;
  int most_pairs = 1001;
  double tolerance = 0.01;
  double busy = 0.1;  // others may have this share of the processors while the wall's clock is read
  bool wall = false, counted = false;
  bool same_answers = false, not_slower = false;
};

// --- what bodies ask for ---------------------------------------------------------------------------

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Blocks by name in one range of addresses on huge pages. Blocks begin three cache lines further into a page
// each.
class shared_memory {
 public:
  shared_memory() : range_(range()) {
    void* const at =
        ::mmap(nullptr, range_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no range of addresses for the inputs");
    mapped_ = at;
    const auto first = reinterpret_cast<std::uintptr_t>(at);
    begin_ = static_cast<char*>(at) + ((first + huge_page - 1) / huge_page * huge_page - first);
    ::madvise(begin_, range_ - huge_page, MADV_HUGEPAGE);
  }
  ~shared_memory() { ::munmap(mapped_, range_); }
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;

  void* get(const char* name, std::size_t bytes, int* fresh) {
    auto [found, added] = blocks_.try_emplace(name);
    block& b = found->second;
    if (added) {
      b.at = (used_ + 4095) / 4096 * 4096 + blocks_.size() * 192;
      b.bytes = bytes;
      if (b.at + bytes > range_ - huge_page) return blocks_.erase(found), nullptr;
      used_ = b.at + bytes;
    } else if (b.bytes != bytes) {
      return nullptr;
    }
    *fresh = b.fresh ? 1 : 0;
    b.fresh = false;
    return begin_ + b.at;
  }
  /// All zeros and fresh again, at the same addresses.
  void renew() {
    ::madvise(begin_, (used_ + huge_page - 1) / huge_page * huge_page, MADV_DONTNEED);
    for (auto& [name, b] : blocks_) b.fresh = true;
  }
  std::uint64_t sum() const {
    std::uint64_t lanes[8] = {};
    for (std::size_t i = 0; i + 64 <= (used_ + 63) / 64 * 64; i += 64) {
      std::uint64_t words[8];
      std::memcpy(words, begin_ + i, 64);
      for (std::size_t l = 0; l < 8; ++l) {
        lanes[l] = (lanes[l] ^ words[l]) * 0x9e3779b97f4a7c15U;
        lanes[l] ^= lanes[l] >> 32;
      }
    }
    return std::accumulate(std::begin(lanes), std::end(lanes), std::uint64_t{0},
                           [](std::uint64_t a, std::uint64_t b) { return (a ^ b) * 0xd1342543de82ef95U; });
  }

 private:
  struct block {
    std::size_t at = 0, bytes = 0;
    bool fresh = true;
  };
  // Four fifths of what is free: beyond that the system would end the process, not refuse.
  static std::size_t range() {
    std::ifstream in("/proc/meminfo");
    for (std::string key, unit; in >> key;) {
      std::size_t kilobytes = 0;
      in >> kilobytes;
      std::getline(in, unit);
      if (key == "MemAvailable:") return (kilobytes / 5 * 4 << 10) / huge_page * huge_page + huge_page;
    }
    return std::size_t{4} << 30;
  }

  std::size_t range_;
  void* mapped_ = nullptr;
  char* begin_ = nullptr;
  std::size_t used_ = 0;
  std::map<std::string, block> blocks_;
};

class driver {
 public:
  driver() = default;
  const deeprec_bodies_host* host() const { return &host_; }
  shared_memory memory;
  std::string absent, fault;
  double spent = 0;

 private:
  static driver& of(void* self) { return *static_cast<driver*>(self); }
  deeprec_bodies_host host_ = {
      [](void* self, const char* name, std::uint64_t bytes, int* fresh) {
        return of(self).memory.get(name, bytes, fresh);
      },
      [](void* self, const char* why) { of(self).absent = why; },
      [](void* self, const char* why) { of(self).fault = why; },
      [](void* self, double seconds) { of(self).spent += seconds; },
      this,
  };
};

// --- figures ---------------------------------------------------------------------------------------

struct answer {
  std::string name, word, reason;
  std::string speed;  // the word for the ratio alone
  interval ratio;
  std::size_t pairs = 0;
  double seconds_per_run = 0, items = 0;
  std::string item;
  bool differs = false;
};

std::string verdict_of(const interval& ratio, double tolerance) {
  if (ratio.low > 1 + tolerance) return "faster";
  if (ratio.high < 1 - tolerance) return "SLOWER";
  const bool within = ratio.low >= 1 - tolerance && ratio.high <= 1 + tolerance;
  return within ? "same" : "UNSURE";
}

// --- a body ----------------------------------------------------------------------------------------

/// Since it was made: how much of all processors others had, the hypervisor's other guests too.
class bystanders {
 public:
  double share() const {
    const std::array<double, 3> now = ticks();
    const double all = now[1] - begin_[1], ours = now[2] - begin_[2];
    return all <= 0 ? 0 : (now[0] - begin_[0] - ours) / all;
  }

 private:
  // Busy ticks of all processors, all ticks, and ours.
  static std::array<double, 3> ticks() {
    std::ifstream in("/proc/stat");
    std::string cpu;
    double kinds[8] = {};  // user nice system idle iowait irq softirq steal
    in >> cpu;
    for (double& kind : kinds) in >> kind;
    const double all = std::accumulate(std::begin(kinds), std::end(kinds), 0.0);
    timespec own{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    const double seconds = static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) * 1e-9;
    return {all - kinds[3] - kinds[4], all, seconds * static_cast<double>(::sysconf(_SC_CLK_TCK))};
  }
  std::array<double, 3> begin_ = ticks();
};

struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A state of one commit's body, for as long as this lives.
class running {
 public:
  running(const deeprec_body& body, driver& d, std::uint64_t seed, const char* whose)
      : body_(body), driver_(d), whose_(whose), state_(body.make(d.host(), seed)) {
    if (state_ == nullptr && d.absent.empty()) fail("makes no state");
  }
  ~running() {
    if (state_ != nullptr) body_.end(state_);
  }
  running(const running&) = delete;
  running& operator=(const running&) = delete;

  bool there() const { return state_ != nullptr; }
  std::uint64_t checksum() {
    const std::uint64_t sum = body_.checksum(state_);
    if (!driver_.fault.empty()) fail("");
    return sum;
  }
  void run(std::int64_t times) {
    if (state_ == nullptr) fail("makes no state any more");
    for (std::int64_t i = 0; i < times; ++i) {
      if (body_.run(state_) != 0) fail("a run fails");
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw failure(std::string(whose_) + ": " + (driver_.fault.empty() ? what : driver_.fault));
  }

  const deeprec_body& body_;
  driver& driver_;
  const char* whose_;
  void* state_;
};

class comparison {
 public:
  using copies = std::vector<const deeprec_body*>;  // one body in each copy of its object

  comparison(copies ours, copies theirs, const options& how)
      : copies_{std::move(ours), std::move(theirs)}, bodies_{copies_[0][0], copies_[1][0]}, how_(how) {}

  answer run() {
    answer a;
    a.name = bodies_[0]->name;
    a.items = bodies_[0]->items;
    a.item = bodies_[0]->item;
    try {
      measure(a);
    } catch (const failure& why) {
      a.word = "FAILED";
      a.reason = why.what();
    }
    return a;
  }

 private:
  static constexpr const char* whose[] = {"ours", "theirs"};

  void measure(answer& a) {
    // Both make their inputs from nothing, so that they can be compared.
    std::uint64_t inputs[2] = {}, sums[2] = {};
    for (const std::size_t side : {0U, 1U}) {
      driver_.memory.renew();
      running it(*bodies_[side], driver_, 0, whose[side]);
      if (!it.there()) {
        a.word = "ABSENT";
        a.reason = driver_.absent;
        return;
      }
      inputs[side] = driver_.memory.sum();
      sums[side] = it.checksum();
    }
    if (inputs[0] != inputs[1]) {
      a.word = "DIFFERS";
      a.reason = "the inputs differ";
      a.differs = true;
      return;
    }
    a.differs = sums[0] != sums[1];

    const bystanders others;
    const double begin = now(false);
    const std::int64_t times = length_of_a_sample();
    std::vector<double> ratios, seconds;
    while (ratios.size() < static_cast<std::size_t>(how_.most_pairs)) {
      const std::array<double, 2> pair = one_pair(ratios.size(), times);
      ratios.push_back(pair[1] / pair[0]);
      seconds.push_back(pair[0] / 2 / static_cast<double>(times));
      if (ratios.size() < static_cast<std::size_t>(how_.pairs)) continue;
      const bool late = now(false) - begin > how_.seconds;
      if (!late && (ratios.size() - static_cast<std::size_t>(how_.pairs)) % 10 != 0) continue;
      a.ratio = median_interval(ratios);
      const bool decided = verdict_of(a.ratio, how_.tolerance) != "UNSURE";
      if (late || disturbed(others) ||
          (decided && a.ratio.high - a.ratio.low <= 2 * how_.tolerance * a.ratio.median))
        break;
    }
    a.ratio = median_interval(ratios);
    a.speed = verdict_of(a.ratio, how_.tolerance);
    if (disturbed(others)) {
      a.speed = "UNSURE";
      a.reason =
          "other processes had " + std::to_string(std::lround(100 * others.share())) + " % of the processors";
    }
    a.word = a.differs ? "DIFFERS" : a.speed;
    if (a.differs) a.reason = "the answers differ";
    a.pairs = ratios.size();
    a.seconds_per_run = median_interval(seconds).median;
  }

  // Runs in one sample, the same number for both.
  std::int64_t length_of_a_sample() {
    running ours(*bodies_[0], driver_, 0, whose[0]), theirs(*bodies_[1], driver_, 0, whose[1]);
    for (std::int64_t times = 1;; times *= 2) {
      double shortest = 1e9;
      for (running* const it : {&ours, &theirs}) {
        const double begin = now(true);
        it->run(times);
        shortest = std::min(shortest, now(true) - begin);
      }
      if (shortest >= how_.sample || times >= (std::int64_t{1} << 24)) return times;
      if (shortest > how_.sample / 16) {
        return static_cast<std::int64_t>(static_cast<double>(times) * how_.sample / shortest) + 1;
      }
    }
  }

  // Seconds of both; which of them is made first, and begins, changes from pair to pair.
  std::array<double, 2> one_pair(std::size_t number, std::int64_t times) {
    const std::size_t first = number % 2, second = 1 - first;
    const auto body = [&](std::size_t side) -> const deeprec_body& {
      return *copies_[side][number % copies_[side].size()];
    };
    running a(body(first), driver_, number, whose[first]);
    running b(body(second), driver_, number, whose[second]);
    b.run(1);
    a.run(1);  // so that in what follows each comes once after itself and once after the other one
    std::array<double, 2> seconds = {};
    for (const auto& [it, side] : {std::pair{&a, first}, {&b, second}, {&b, second}, {&a, first}}) {
      if (bodies_[side]->threads > 1) ::usleep(1000);  // the other one's threads have gone to sleep then
      const double begin = now(true);
      it->run(times);
      seconds[side] += now(true) - begin;
    }
    return seconds;
  }

  bool by_the_wall() const { return how_.wall || bodies_[0]->threads > 1 || bodies_[1]->threads > 1; }
  bool disturbed(const bystanders& others) const {
    return by_the_wall() && !how_.counted && others.share() > how_.busy;
  }
  double now(bool of_the_body) const {
    if (how_.counted) return driver_.spent;
    timespec t{};
    ::clock_gettime(of_the_body && !by_the_wall() ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }

  const copies copies_[2];
  const deeprec_body* const bodies_[2];  // the first of them
  const options& how_;
  driver driver_;
};

// --- a suite ---------------------------------------------------------------------------------------

// The bodies in a shared object, by name in its order; why not, where there are none.
struct object {
  std::vector<const deeprec_body*> bodies;
  std::string problem;
  void* base = nullptr;

  const deeprec_body* find(const std::string& name) const {
    for (const deeprec_body* const b : bodies) {
      if (b->name == name) return b;
    }
    return nullptr;
  }
};

object load(const std::string& path) {
  object loaded;
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(::dlerror());
  const auto entry = reinterpret_cast<decltype(&deeprec_bodies)>(::dlsym(handle, "deeprec_bodies"));
  if (entry == nullptr) throw std::runtime_error(path + ": no deeprec_bodies");
  const deeprec_bodies_table* const table = entry();
  if (table->version != DEEPREC_BODIES_VERSION) {
    loaded.problem = "bodies of version " + std::to_string(table->version) + ", not " +
                     std::to_string(DEEPREC_BODIES_VERSION);
    return loaded;
  }
  Dl_info entry_in{}, body_in{};
  ::dladdr(reinterpret_cast<void*>(entry), &entry_in);
  loaded.base = entry_in.dli_fbase;
  for (std::uint32_t i = 0; i < table->count; ++i) {
    const deeprec_body* const b = &table->bodies[i];
    ::dladdr(reinterpret_cast<void*>(b->run), &body_in);
    if (body_in.dli_fbase != loaded.base)
      throw std::runtime_error(path + ": " + b->name + " is another object's code");
    loaded.bodies.push_back(b);
  }
  return loaded;
}

// Copies of each object. The two numbers have no common divisor with each other or with 2, so over the pairs
// each copy of ours meets each copy of theirs, made first and made second.
constexpr int our_copies = 7, their_copies = 5;

// The object, loaded `count` times at different addresses: from files in its folder, where code may be
// executed.
std::vector<object> load_copies(const std::string& path, int count) {
  std::vector<object> loaded{load(path)};
  for (int i = 1; i < count && loaded[0].problem.empty(); ++i) {
    const std::string copy = path + ".copy" + std::to_string(i);
    std::filesystem::remove(copy);
    std::filesystem::copy_file(path, copy);
    loaded.push_back(load(copy));
    std::filesystem::remove(copy);
    for (std::size_t k = 0; k + 1 < loaded.size(); ++k) {
      if (loaded[k].base == loaded.back().base)
        throw std::runtime_error(copy + " was not loaded a second time");
    }
  }
  return loaded;
}

comparison::copies find(const std::vector<object>& loaded, const std::string& name) {
  comparison::copies found;
  for (const object& copy : loaded) {
    if (const deeprec_body* const body = copy.find(name)) found.push_back(body);
  }
  return found;
}

bool same_bytes(const std::string& a, const std::string& b) {
  std::ifstream x(a, std::ios::binary), y(b, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(x), {}, std::istreambuf_iterator<char>(y), {});
}

void print(const answer& a, std::size_t width) {
  std::printf("%-7s  %-*s  ", a.word.c_str(), static_cast<int>(width), a.name.c_str());
  if (a.pairs == 0) {
    std::printf("-  (%s)\n", a.reason.c_str());
  } else {
    std::printf("%.3f [%.3f..%.3f]  %3zu pairs  %.4g ns/%s%s\n", a.ratio.median, a.ratio.low, a.ratio.high,
                a.pairs, a.seconds_per_run / a.items * 1e9, a.item.c_str(),
                a.reason.empty() ? "" : ("  (" + a.reason + ")").c_str());
  }
  std::fflush(stdout);
}

// `theirs` may be the reason why there is no object, after a '-'.
std::vector<answer> compare(const std::string& suite, const std::string& ours, const std::string& theirs,
                            const options& how) {
  const std::vector<object> a = load_copies(ours, our_copies);
  const bool none = !theirs.empty() && theirs[0] == '-';
  const std::vector<object> b =
      none ? std::vector{object{{}, theirs.substr(1), nullptr}} : load_copies(theirs, their_copies);
  if (!none) {
    if (a[0].base != nullptr && a[0].base == b[0].base)
      throw std::runtime_error(theirs + " is the very file of ours");
    if (same_bytes(ours, theirs)) std::printf("== %s: both objects have the same bytes\n", suite.c_str());
  }
  std::vector<std::string> names;
  for (const object* const side : {&a[0], &b[0]}) {
    for (const deeprec_body* const body : side->bodies) {
      const std::string name = body->name;
      if (name.find(how.filter) == std::string::npos) continue;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::vector<answer> answers;
  for (const std::string& name : names) {
    const comparison::copies in_ours = find(a, name), in_theirs = find(b, name);
    if (!in_ours.empty() && !in_theirs.empty()) {
      answers.push_back(comparison(in_ours, in_theirs, how).run());
    } else {
      const object& lacking = in_ours.empty() ? a[0] : b[0];
      answers.push_back({});
      answers.back().name = name;
      answers.back().word = "ABSENT";
      answers.back().reason = lacking.problem.empty()
                                  ? std::string("no such body in ") + (in_ours.empty() ? "ours" : "theirs")
                                  : lacking.problem;
    }
    print(answers.back(), width);
  }
  return answers;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::tuple<std::string, std::string, std::string>> suites;
  std::string output, ours = "unknown", theirs = "unknown";
  options how;
  CLI::App app("Times the bodies of two commits in turn");
  app.add_option("--suite", suites,
                 "NAME, our object, and theirs (or '-' and why there is none); again for more")
      ->required();
  app.add_option("--filter", how.filter, "Only bodies with this in their name");
  app.add_option("--pairs", how.pairs, "At least so many pairs of each body")->check(CLI::Range(1, 100000));
  app.add_option("--most-pairs", how.most_pairs, "And at most so many")->check(CLI::Range(1, 100000));
  app.add_option("--seconds", how.seconds, "How long to go on with a body, after that");
  app.add_option("--sample", how.sample, "Seconds that are timed at once, at least");
  app.add_option("--tolerance", how.tolerance, "What counts as no difference");
  app.add_option("--busy", how.busy, "By the wall's clock: UNSURE where others had more of the processors");
  app.add_flag("--wall", how.wall, "The wall's clock for bodies of one thread too, not its processor time");
  app.add_flag("--counted", how.counted, "Time is what bodies say that they spend");
  app.add_flag("--same-answers", how.same_answers, "Different answers are a failure");
  app.add_flag("--not-slower", how.not_slower, "A body that is slower is a failure");
  app.add_option("--json", output, "Write the results there as well");
  app.add_option("--ours", ours, "What is on our side, for --json");
  app.add_option("--theirs", theirs, "What is on the other side, for --json");
  CLI11_PARSE(app, argc, argv);

  ::setenv("OMP_NUM_THREADS", "1", 1);  // before an object brings OpenMP: its runtime reads it once
  // What is freed stays with the process, as in one that has run for a while: no run pays for pages.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  try {
    bool failed = false;
    json results = json::array();
    std::map<std::string, int> words;
    for (const auto& [name, our_object, their_object] : suites) {
      for (const answer& a : compare(name, our_object, their_object, how)) {
        ++words[a.word];
        failed = failed || a.word == "FAILED" || (how.same_answers && a.differs) ||
                 (how.not_slower && a.speed == "SLOWER");
        json r = {{"suite", name}, {"body", a.name}, {"verdict", a.word}, {"differs", a.differs}};
        if (!a.reason.empty()) r["reason"] = a.reason;
        if (a.pairs > 0) {
          r.update({{"ratio", a.ratio.median},
                    {"low", a.ratio.low},
                    {"high", a.ratio.high},
                    {"pairs", a.pairs},
                    {"our_ns_per_item", a.seconds_per_run / a.items * 1e9},
                    {"item", a.item}});
        }
        results.push_back(r);
      }
    }
    std::string summary;
    for (const auto& [word, count] : words)
      summary += (summary.empty() ? "" : ", ") + std::to_string(count) + " " + word;
    std::printf("== %s\n", summary.empty() ? "no such body" : summary.c_str());
    if (!output.empty()) {
      std::ofstream out(output);
      out << json{{"ours", ours}, {"theirs", theirs}, {"results", results}}.dump(2) << '\n';
      if (!out) throw std::runtime_error("cannot write " + output);
    }
    return failed || words.empty() ? 1 : 0;
  } catch (const std::exception& problem) {
    std::cerr << "against: " << problem.what() << '\n';
    return 2;
  }
}
