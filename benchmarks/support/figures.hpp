// How a suite turns pairs of timings into figures that a claim can be judged by. No header of deeprec here.
//
//   figures f("lookup/cold/d:64");                    the benchmark's whole name
//   f.sample([&] {                                    one round
//     f.pair("roofline", "h20", ours, limit);         ours and the other side, in turn; each round the other
//     f.pair("roofline", "h100", ours, limit);        way round. The ratio is theirs / ours
//   });
//   f.report(state);                                  roofline, roofline_low, roofline_high, ..., pairs
//
// A counter with several cases is its least one, so claims on it are lower bounds; of a roofline the greatest
// is reported as well, as roofline_most, since none of the cases may beat it. sample() calls the round once
// uncounted, at least 21 times, and goes on until the 95 % interval of the median of each counter that a
// claim names lies on one side of the claim's target, or five minutes are over. The claims come from the file
// that DEEPREC_BENCH_TARGETS names: lines of name, counter, target.
//
// DEEPREC_BENCH_PAIRS and DEEPREC_BENCH_SECONDS change both numbers for a look at a suite: fewer than 21
// pairs are no evidence to the tool.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/machine.hpp"
#include "support/paired.hpp"

namespace deeprec_bench {

/// A number from the environment.
inline double number_of(const char* name, double otherwise) {
  const char* const said = std::getenv(name);
  return said == nullptr || *said == '\0' ? otherwise : std::atof(said);
}

class figures {
 public:
  explicit figures(std::string name)
      : least_pairs_(static_cast<std::size_t>(std::max(1.0, number_of("DEEPREC_BENCH_PAIRS", 21)))),
        most_seconds_(number_of("DEEPREC_BENCH_SECONDS", 300)) {
    const char* const file = std::getenv("DEEPREC_BENCH_TARGETS");
    if (file != nullptr) {
      std::ifstream in(file);
      for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        std::string of, counter;
        double target = 0;
        if (words >> of >> counter >> target && of == name) targets_.emplace_back(counter, target);
      }
    }
    if (cache_is_pretended())
      unfit("DEEPREC_BENCH_CACHE sets the last-level cache to " + in_megabytes(last_level_cache()));
  }

  /// Runs both, each after `prepare()`, which is not timed, and adds how many times faster the first is.
  /// Seconds of the first and of the second.
  template <class First, class Second, class Prepare>
  std::pair<double, double> pair(const std::string& counter, const std::string& which, First&& first,
                                 Second&& second, Prepare&& prepare) {
    double seconds[2];
    for (const int i : {swapped() ? 1 : 0, swapped() ? 0 : 1}) {
      prepare();
      seconds[i] = i == 0 ? seconds_of(first) : seconds_of(second);
    }
    add(counter, seconds[1] / seconds[0], which);
    if (counted_) ours_.push_back(seconds[0]);
    return {seconds[0], seconds[1]};
  }
  template <class First, class Second>
  std::pair<double, double> pair(const std::string& counter, const std::string& which, First&& first,
                                 Second&& second) {
    return pair(counter, which, first, second, [] {});
  }
  /// A value of a counter in this round.
  void add(const std::string& counter, double value, const std::string& which = "") {
    if (counted_) series_[counter][which].push_back(value);
  }
  /// All values of a counter, one for each round so far.
  void set(const std::string& counter, std::vector<double> values) {
    series_[counter][""] = std::move(values);
  }
  /// A value of which only the median is reported.
  void note(const std::string& counter, double value) {
    if (counted_) notes_[counter].push_back(value);
  }
  /// For the order of what a round does itself: true every second time.
  [[nodiscard]] bool swapped() const { return round_ % 2 != 0; }
  /// False in the first round.
  [[nodiscard]] bool counts() const { return counted_; }

  /// `round()`, again and again.
  template <class Round>
  void sample(Round&& round) {
    const double start = clock_now();
    if (round_ == 0) {
      counted_ = false;
      round();
      counted_ = true;
    }
    // Each look is one more chance to be wrong, so looks become rarer.
    std::size_t look = std::max(least_pairs_, round_);
    while (true) {
      while (round_ < look) {
        round();
        ++round_;
        if (round_ >= least_pairs_ && clock_now() - start >= most_seconds_) return;
      }
      if (decided()) return;
      look += std::max<std::size_t>(10, look / 2);
    }
  }

  /// A counter over the rounds so far: the least median of its cases, and the least ends of their intervals.
  [[nodiscard]] interval of(const std::string& counter) const {
    return over_cases(counter, [](double a, double b) { return std::min(a, b); });
  }
  /// The greatest of them.
  [[nodiscard]] interval most_of(const std::string& counter) const {
    return over_cases(counter, [](double a, double b) { return std::max(a, b); });
  }
  [[nodiscard]] std::size_t rounds() const { return round_; }

  /// This machine can't show what the claim says, and why.
  void unfit(const std::string& property) {
    if (!property.empty()) say("unfit: " + property);
  }
  /// More about this run. No semicolons.
  void say(const std::string& words) {
    if (!label_.empty()) label_ += "; ";
    label_ += words;
  }

  void report(benchmark::State& state) const {
    state.SetIterationTime(ours_.empty() ? 1 : median(ours_));
    for (const auto& [counter, cases] : series_) {
      const interval all = of(counter);
      state.counters[counter] = all.median;
      state.counters[counter + "_low"] = all.low;
      state.counters[counter + "_high"] = all.high;
      if (is_roofline(counter)) {
        const interval most = most_of(counter);
        state.counters[counter + "_most"] = most.median;
        state.counters[counter + "_most_low"] = most.low;
        state.counters[counter + "_most_high"] = most.high;
      }
      for (const auto& [which, values] : cases) {
        if (!which.empty()) state.counters[counter + "_" + which] = median(values);
      }
    }
    for (const auto& [counter, values] : notes_) state.counters[counter] = median(values);
    state.counters["pairs"] = static_cast<double>(round_);
    state.SetLabel(label_);
  }

 private:
  static bool is_roofline(const std::string& counter) { return counter.rfind("roofline", 0) == 0; }
  template <class Choose>
  [[nodiscard]] interval over_cases(const std::string& counter, Choose choose) const {
    const auto found = series_.find(counter);
    if (found == series_.end() || found->second.empty()) return {};
    interval all = median_interval(found->second.begin()->second);
    for (const auto& [which, values] : found->second) {
      const interval one = median_interval(values);
      all = {choose(all.median, one.median), choose(all.low, one.low), choose(all.high, one.high)};
    }
    return all;
  }
  [[nodiscard]] bool decided() const {
    for (const auto& [counter, target] : targets_) {
      const interval now = of(counter);
      if (now.low < target && target <= now.high) return false;
    }
    for (const auto& [counter, cases] : series_) {
      const interval now = most_of(counter);
      if (is_roofline(counter) && now.low <= most_of_a_roofline && most_of_a_roofline < now.median)
        return false;
    }
    return true;
  }

  std::size_t least_pairs_;
  double most_seconds_;
  std::vector<std::pair<std::string, double>> targets_;
  std::map<std::string, std::map<std::string, std::vector<double>>> series_;
  std::map<std::string, std::vector<double>> notes_;
  std::vector<double> ours_;  // seconds
  std::string label_;
  std::size_t round_ = 0;
  bool counted_ = true;
};

}  // namespace deeprec_bench
