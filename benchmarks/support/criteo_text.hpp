// Text like that of Criteo's logs, made in memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <deeprec/core/random.hpp>

namespace deeprec_bench {

/// Rows like the real ones: 13 integers of 0 to 4 digits, 26 tokens of 8 hex digits, and each
/// column as often missing as in the real rows.
inline std::string generated_criteo_text(std::uint64_t rows = 24'583) {
  constexpr double missing[40] = {0, .45, 0,   .20, .20, .04, .25, .05, 0, .05, .45, .05, .77, .20,
                                  0, 0,   .04, .04, 0,   .13, 0,   0,   0, 0,   0,   .04, 0,   0,
                                  0, .04, 0,   0,   .44, .44, .04, .81, 0, .04, .44, .44};
  const deeprec::counter_rng rng(7);
  std::string text;
  for (std::uint64_t row = 0; row < rows; ++row) {
    text += rng.uniform(0, row) < 0.231 ? '1' : '0';
    for (std::uint64_t c = 1; c < 40; ++c) {
      text += '\t';
      // C19, C20, C25 and C26 are missing in the same rows.
      if (rng.uniform(100 + (missing[c] == .44 ? 0 : c), row) < missing[c]) continue;
      const std::uint64_t bits = rng.bits(c, row);
      char field[24];
      if (c <= 13) {
        const int shift = 1 + static_cast<int>(bits >> 60) % 11;
        std::snprintf(field, sizeof(field), "%llu",
                      static_cast<unsigned long long>((bits >> 8) & ((1U << shift) - 1)));
      } else {
        std::snprintf(field, sizeof(field), "%08llx", static_cast<unsigned long long>(bits % 4096 * 1048583));
      }
      text += field;
    }
    text += '\n';
  }
  return text;
}

}  // namespace deeprec_bench
