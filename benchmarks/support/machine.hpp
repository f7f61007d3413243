// What of the machine decides what a benchmark can show: caches, memory, pages. No header of deeprec here.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace deeprec_bench {

inline std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// "480K", "32M", "1G" or plain bytes; 0: nothing of the kind.
inline std::size_t bytes_in(const std::string& text) {
  std::istringstream in(text);
  std::size_t value = 0;
  char unit = 0;
  in >> value >> unit;
  const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
  return value << shift;
}

/// DEEPREC_BENCH_CACHE: sizes for a look at the suites. What is measured then is no evidence.
inline bool cache_is_pretended() {
  const char* const said = std::getenv("DEEPREC_BENCH_CACHE");
  return said != nullptr && *said != '\0';
}

/// Bytes of the last-level cache that the machine reports; 32 MB where it reports none.
inline std::size_t last_level_cache() {
  static const std::size_t bytes = [] {
    if (cache_is_pretended()) return bytes_in(std::getenv("DEEPREC_BENCH_CACHE"));
    std::size_t largest = 0;
    for (int i = 0; i < 10; ++i) {
      largest = std::max(largest, bytes_in(first_line("/sys/devices/system/cpu/cpu0/cache/index" +
                                                      std::to_string(i) + "/size")));
    }
#if defined(_SC_LEVEL3_CACHE_SIZE)
    if (largest == 0) largest = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
#endif
    return largest == 0 ? std::size_t{32} << 20 : largest;
  }();
  return bytes;
}

/// Bytes that a program may still take.
inline std::size_t memory_available() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return bytes_in(line.substr(13)) << 10;
  }
  return std::size_t{1} << 30;
}

inline std::string in_megabytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MB"; }

/// What different rows have to fill together, so that no cache holds them from one turn to the next.
inline std::size_t cold_bytes() { return 2 * last_level_cache() + (std::size_t{8} << 20); }

/// "Large": inputs that no cache holds.
inline std::size_t large_bytes() { return std::max(std::size_t{256} << 20, last_level_cache() / 2 * 5); }

/// Memory of a benchmark: what it wants, or the most that is there.
struct memory_plan {
  std::size_t bytes = 0;
  std::string unfit;  // why it is less than wanted; else empty

  /// At most three quarters of what is available.
  static memory_plan of(std::size_t wanted, std::size_t available = memory_available()) {
    const std::size_t most = available / 4 * 3;
    if (wanted <= most) return {wanted, {}};
    return {most, in_megabytes(wanted) + " of memory are needed for a last-level cache of " +
                      in_megabytes(last_level_cache()) + ", " + in_megabytes(most) + " are there"};
  }
};

/// always, madvise or never; empty: a kernel without transparent huge pages.
inline std::string huge_page_setting(const std::string& file = "enabled") {
  const std::string line = first_line("/sys/kernel/mm/transparent_hugepage/" + file);
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? line
                                                                 : line.substr(open + 1, close - open - 1);
}

/// The share of the mapping around `address` that lies on huge pages.
inline double share_on_huge_pages(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream in("/proc/self/smaps");
  bool here = false;
  double present = 0;
  for (std::string line; std::getline(in, line);) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      here = begin <= wanted && wanted < end;
    } else if (here && line.rfind("Rss:", 0) == 0) {
      present = static_cast<double>(bytes_in(line.substr(4)));
    } else if (here && line.rfind("AnonHugePages:", 0) == 0) {
      return present > 0 ? static_cast<double>(bytes_in(line.substr(14))) / present : 0;
    }
  }
  return 0;
}

}  // namespace deeprec_bench
