// How much memory this process may use, and numbers of bytes as people write them.
//
//   the smallest of   the machine's memory, ulimit -v, memory.max of its control group and those above it
//   parse_bytes       1G, 512M, 100K, 4096
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <deeprec/core/dtypes.hpp>

namespace ctr {

using deeprec::index_t;

/// Of this group and those above it; the files hold a number, or "max".
inline index_t limit_of_groups(const std::string& mount, std::string group, const std::string& file) {
  index_t smallest = std::numeric_limits<index_t>::max();
  for (;;) {
    index_t limit = 0;
    if (std::ifstream(mount + group + "/" + file) >> limit && limit > 0) smallest = std::min(smallest, limit);
    const std::size_t last = group.rfind('/');
    if (group.empty() || last == std::string::npos) return smallest;
    group.erase(last);
  }
}

inline index_t usable_memory() {
  index_t bytes =
      static_cast<index_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<index_t>(sysconf(_SC_PAGE_SIZE));
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(bytes, static_cast<index_t>(space.rlim_cur));
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:group
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") bytes = std::min(bytes, limit_of_groups("/sys/fs/cgroup", group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos) {
      bytes = std::min(bytes, limit_of_groups("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return bytes;
}

/// 0 where the text is no positive number of bytes.
inline index_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    return 0;
  }
  const std::string unit = text.substr(end);
  const double factor = unit.empty()                 ? 1
                        : unit == "K" || unit == "k" ? 1 << 10
                        : unit == "M" || unit == "m" ? 1 << 20
                        : unit == "G" || unit == "g" ? 1 << 30
                                                     : 0;
  const double bytes = number * factor;
  return bytes >= 1 && bytes < 9e18 ? static_cast<index_t>(bytes) : 0;
}

/// The most memory that this process has used so far, in MB.
inline index_t peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<index_t>(usage.ru_maxrss) >> 10;
}

}  // namespace ctr
