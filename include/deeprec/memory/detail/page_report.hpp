// Which kinds of pages a process has in some of its mappings now: /proc/self/smaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Bytes; 0 where /proc is missing.
struct page_report {
  std::size_t resident = 0;          ///< touched, on pages of any kind
  std::size_t transparent_huge = 0;  ///< of these, on transparent huge pages: anonymous, shared or of a file
  std::size_t explicit_huge = 0;     ///< of these, from the reserved pool
};

/// The pages of the mappings for which is_ours(begin, end) is true.
template <class IsOurs>
page_report pages_of(const IsOurs& is_ours) {
  page_report answer;
  std::FILE* const smaps = std::fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return answer;
  char line[512];
  bool ours = false;
  while (std::fgets(line, sizeof(line), smaps) != nullptr) {
    unsigned long begin = 0, end = 0, kilobytes = 0;
    const auto is = [&](const char* pattern) { return std::sscanf(line, pattern, &kilobytes) == 1; };
    if (std::sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
      ours = is_ours(std::uintptr_t{begin}, std::uintptr_t{end});
    } else if (!ours) {
      continue;
    } else if (is("Rss: %lu kB")) {
      answer.resident += kilobytes << 10;
    } else if (is("AnonHugePages: %lu kB") || is("ShmemPmdMapped: %lu kB") || is("FilePmdMapped: %lu kB")) {
      answer.transparent_huge += kilobytes << 10;
    } else if (is("Private_Hugetlb: %lu kB") || is("Shared_Hugetlb: %lu kB")) {
      answer.resident += kilobytes << 10;  // Rss excludes them
      answer.explicit_huge += kilobytes << 10;
    }
  }
  std::fclose(smaps);
  return answer;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
