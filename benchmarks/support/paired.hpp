// How suites compare two ways of doing one thing on a noisy machine: in turn, A B A B ..., and the median
// of the ratios pair by pair.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace deeprec_bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Seconds that a call takes.
template <class Call>
double seconds_of(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct pairs {
  double first = 0;   // median seconds of the first call
  double second = 0;  // of the second
  double ratio = 0;   // median of second / first: how many times faster the first is
};

/// Runs both in turn, `count` times after one uncounted pair.
template <class First, class Second>
pairs in_turn(int count, First&& first, Second&& second) {
  std::vector<double> a, b, ratios;
  for (int i = -1; i < count; ++i) {
    const double one = seconds_of(first);
    const double two = seconds_of(second);
    if (i < 0) continue;
    a.push_back(one);
    b.push_back(two);
    ratios.push_back(two / one);
  }
  return {median(a), median(b), median(ratios)};
}

}  // namespace deeprec_bench
