// Texts of describe() that are made of facts of the process.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/kernel_tuning.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline std::string why_this_isa(isa best, isa active, const char* wanted) {
  if (wanted == nullptr) {
    return active == best ? "the best that this machine runs"
                          : "DEEPREC_ISA was set when the choice was made";
  }
  std::string setting = std::string("DEEPREC_ISA=") + wanted;
  for (const isa candidate : every_isa) {
    if (std::strcmp(wanted, to_string(candidate)) != 0) continue;
    if (candidate > best) return setting + " asks for more than this machine has";
    if (candidate == active) return setting;
    return setting + " was set after the choice was made";
  }
  return setting + " names no instruction set, and changes nothing";
}

inline std::string why_this_tuning(const char* wanted) {
  if (wanted == nullptr) return "for the caches of this machine";
  kernel_tuning ignored;
  const std::string_view refused = apply_tuning(ignored, wanted);
  const std::string setting = std::string("DEEPREC_TUNING=") + wanted;
  return refused.empty() ? setting : setting + ", of which " + std::string(refused) + " changes nothing";
}

// "always [madvise] never" -> madvise
inline std::string transparent_huge_page_setting() {
  char line[128] = "";
  if (std::FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re")) {
    if (std::fgets(line, sizeof(line), file) == nullptr) line[0] = '\0';
    std::fclose(file);
  }
  const char* open = std::strchr(line, '[');
  const char* close = open == nullptr ? nullptr : std::strchr(open, ']');
  return close == nullptr ? "unknown" : std::string(open + 1, close);
}

// "0-3 8-11"
inline std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ' ';
    text += std::to_string(numbers[i]);
    if (last > i) text += '-' + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
