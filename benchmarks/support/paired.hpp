// How suites time a call, and the median with its interval. No header of deeprec here.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

namespace deeprec_bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// A roofline that is passed by more than this is none.
inline constexpr double most_of_a_roofline = 1.03;

struct interval {
  double median = 0;
  double low = 0;
  double high = 0;
};

/// The 95 % interval of the median by order statistics: of n values the k-th smallest and the k-th largest, k
/// the largest with P(Binomial(n, 1/2) < k) <= 0.025. Fewer than six values have none: the smallest and the
/// largest.
inline interval median_interval(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const auto log_factorial = [](std::size_t m) { return std::lgamma(static_cast<double>(m) + 1); };
  double below = 0;  // P(Binomial(n, 1/2) <= k)
  std::size_t k = 0;
  for (; k < n / 2; ++k) {
    below += std::exp(log_factorial(n) - log_factorial(k) - log_factorial(n - k) -
                      static_cast<double>(n) * std::log(2.0));
    if (below > 0.025) break;
  }
  const std::size_t first = k == 0 ? 0 : k - 1;
  return {median(values), values[first], values[n - 1 - first]};
}

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds since some moment. A test of the measuring puts a clock of its own here.
inline double (*clock_now)() = &steady_seconds;

/// Seconds that a call takes.
template <class Call>
double seconds_of(Call&& call) {
  const double start = clock_now();
  call();
  return clock_now() - start;
}

struct pairs {
  double first = 0;   // median seconds of the first call
  double second = 0;  // of the second
  double ratio = 0;   // median of second / first: how many times faster the first is
};

/// Runs both in turn, `count` times after one uncounted pair, each time the other way round. `swapped`: the
/// whole series the other way round. With an odd count the two orders are not equally frequent, so change it
/// from call to call.
template <class First, class Second>
pairs in_turn(int count, bool swapped, First&& first, Second&& second) {
  std::vector<double> a, b, ratios;
  for (int i = -1; i < count; ++i) {
    double one = 0, two = 0;
    if ((i % 2 == 0) != swapped) {
      one = seconds_of(first);
      two = seconds_of(second);
    } else {
      two = seconds_of(second);
      one = seconds_of(first);
    }
    if (i < 0) continue;
    a.push_back(one);
    b.push_back(two);
    ratios.push_back(two / one);
  }
  return {median(a), median(b), median(ratios)};
}

}  // namespace deeprec_bench
