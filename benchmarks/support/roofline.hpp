// Limits: the fastest of a sweep, and what no sweep may pass. No header of deeprec here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/paired.hpp"

namespace deeprec_bench {

struct candidate {
  std::string name;
  std::function<void()> run;
  double seconds = 0;
};

/// The one that takes the least time: each once, then the first eight three times more in turn, their
/// medians. Before each, `prepare()`, which is not timed.
inline candidate fastest(std::vector<candidate> all, const std::function<void()>& prepare = [] {}) {
  prepare();
  if (!all.empty()) all.front().run();  // pages and caches
  const auto time = [&](const candidate& c) {
    prepare();
    return seconds_of(c.run);
  };
  for (candidate& c : all) c.seconds = time(c);
  const auto faster = [](const candidate& a, const candidate& b) { return a.seconds < b.seconds; };
  const std::size_t few = std::min<std::size_t>(8, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(few), all.end(), faster);
  all.resize(few);
  std::vector<std::vector<double>> seconds(few);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < few; ++i) seconds[i].push_back(time(all[i]));
  }
  for (std::size_t i = 0; i < few; ++i) all[i].seconds = median(seconds[i]);
  return all.empty() ? candidate{} : *std::min_element(all.begin(), all.end(), faster);
}

/// Why so many seconds can't be a limit; empty: they can.
inline std::string out_of_bounds(const std::string& name, double seconds, double least, double most) {
  if (seconds >= least && seconds <= most) return {};
  char text[200];
  std::snprintf(text, sizeof text, "a roofline out of bounds: %s takes %.3g s, not %.3g to %.3g",
                name.c_str(), seconds, least, most);
  return text;
}

/// What the memory under a table gives on one thread.
struct memory_pace {
  double in_order = 0;   // bytes per second of reading it from one end to the other, the best of a sweep
  double in_cache = 0;   // bytes per second of reading 16 KB again and again
  double dependent = 0;  // seconds of a read whose address depends on the one before

  static memory_pace of(const void* table, std::size_t bytes) {
    const auto* const lines = static_cast<const char*>(table);
    memory_pace pace;
    const std::size_t some = std::min(bytes, std::size_t{1} << 30) / 64 * 64;
    const auto read = [&](std::size_t count, std::size_t ahead) {
      std::uint64_t sum[8] = {};
      for (std::size_t at = 0; at < count; at += 64) {
        if (ahead != 0 && at + ahead * 64 < count) __builtin_prefetch(lines + at + ahead * 64, 0, 2);
        std::uint64_t words[8];
        std::memcpy(words, lines + at, 64);
        for (std::size_t l = 0; l < 8; ++l) sum[l] += words[l];
      }
      keep(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
    };
    for (const std::size_t ahead : {0, 8, 16, 32, 64}) {
      for (int i = 0; i < 2; ++i) {
        const double seconds = seconds_of([&] { read(some, ahead); });
        pace.in_order = std::max(pace.in_order, static_cast<double>(some) / seconds);
      }
    }
    const std::size_t few = std::min(some, std::size_t{16} << 10);
    for (int i = 0; i < 5; ++i) {
      const double seconds = seconds_of([&] {
        for (int again = 0; again < 2000; ++again) read(few, 0);
      });
      pace.in_cache = std::max(pace.in_cache, 2000.0 * static_cast<double>(few) / seconds);
    }
    constexpr int steps = 200'000;
    std::uint64_t at = 1;
    pace.dependent = seconds_of([&] {
                       for (int i = 0; i < steps; ++i) {
                         std::uint64_t word = 0;
                         std::memcpy(&word, lines + at % (bytes / 64) * 64, 8);
                         at = (at + static_cast<std::uint64_t>(i) + (word & 1)) * 0x9e3779b97f4a7c15ULL;
                         at ^= at >> 29;
                       }
                     }) /
                     steps;
    keep(at);
    return pace;
  }

  /// A gather of so many cold rows: no faster than reading their lines in order, and no slower than one
  /// dependent read for each row.
  [[nodiscard]] std::string check_cold(const candidate& limit, double rows, double bytes_of_row) const {
    return out_of_bounds(limit.name, limit.seconds, rows * bytes_of_row / (1.25 * in_order),
                         rows * dependent * 1.25);
  }
  /// The same of rows of which many are in some cache: no faster than reading the first one.
  [[nodiscard]] std::string check(const candidate& limit, double rows, double bytes_of_row) const {
    return out_of_bounds(limit.name, limit.seconds, rows * bytes_of_row / (2 * in_cache),
                         rows * dependent * 1.25);
  }

 private:
  static void keep(std::uint64_t value) { asm volatile("" : : "r"(value)); }
};

}  // namespace deeprec_bench
