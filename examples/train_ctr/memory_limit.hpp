// How much memory this process may use, and numbers of bytes as people write them.
//
//   the smallest of   the machine's memory, ulimit -v, memory.max of its control group and those above it
//   parse_bytes       1G, 512MB, 100 KiB, 2T, 4096      the units are powers of 1024
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

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
  std::string unit = text.substr(end);
  for (char& letter : unit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (unit.starts_with(' ')) unit.erase(0, 1);
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    const std::size_t power = std::string_view("KMGT").find(unit.front());
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (!rest.empty() && rest != "B" && rest != "IB")) return 0;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
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
