// Where the time of a run went, stage by stage, and which stage the others waited for.
//
//   std::puts(p.statistics().text().c_str());
//     read      1000 items   busy  12 %   waited for input   0 %, for output  88 %
//     parse     1000 items   busy  99 %   ...                                         <- bottleneck
//
// Measured by sampling: a clock read costs 25 ns, so a segment times every 64th item, and every item once one
// has taken 10 us from end to end. A timed item counts for those since the last timed one, and the sums are
// scaled to the segment's elapsed time, which is exact. At 1 us an item this costs 2 ns. Not here:
// histograms.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// One stage in one run. Times are sums over its threads.
struct stage_statistics {
  const char* name = "";
  std::size_t segment = 0;  ///< stages of one segment share their threads
  int threads = 1;
  std::uint64_t items = 0;                 ///< calls that got an item; of a source: items yielded
  std::uint64_t left_out = 0;              ///< items for which it returned nullopt
  std::uint64_t bad = 0;                   ///< bad items that the policy skipped
  std::chrono::nanoseconds busy{};         ///< in the callable
  std::chrono::nanoseconds input_wait{};   ///< until an item came; of the first stage of a segment
  std::chrono::nanoseconds output_wait{};  ///< until an item was put; of the last stage of a segment
  double occupancy = 0;                    ///< busy over the time of its threads, 0 to 1
};

struct pipeline_statistics {
  std::chrono::nanoseconds elapsed{};
  std::vector<stage_statistics> stages;

  /// The stage that the others wait for: the busiest one of the segment whose threads are busiest. Empty
  /// where no item was timed.
  ///
  /// @cost    O(stages^2)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] const char* bottleneck() const noexcept {
    const stage_statistics* found = nullptr;
    double most = 0;
    for (const stage_statistics& s : stages) {
      double segment = 0;
      for (const stage_statistics& t : stages) segment += t.segment == s.segment ? t.occupancy : 0.0;
      if (s.occupancy <= 0) continue;
      if (segment > most || (segment == most && found != nullptr && s.occupancy > found->occupancy)) {
        most = segment;
        found = &s;
      }
    }
    return found == nullptr ? "" : found->name;
  }

  /// A line for each stage, which end with '\n'.
  ///
  /// @cost    allocates
  /// @threads reentrant
  /// @error   throws std::bad_alloc
  [[nodiscard]] std::string text() const {
    std::string all;
    const char* const slowest = bottleneck();
    for (const stage_statistics& s : stages) {
      const double whole = s.threads * static_cast<double>(elapsed.count());
      const auto percent = [&](std::chrono::nanoseconds part) {
        return whole > 0 ? 100 * static_cast<double>(part.count()) / whole : 0.0;
      };
      char line[256];
      std::snprintf(line, sizeof line,
                    "%-16s %3d threads %12llu items   busy %3.0f %%   waited for input %3.0f %%, for output "
                    "%3.0f %%",
                    s.name, s.threads, static_cast<unsigned long long>(s.items), percent(s.busy),
                    percent(s.input_wait), percent(s.output_wait));
      all += line;
      if (s.left_out != 0) all += "   left out " + std::to_string(s.left_out);
      if (s.bad != 0) all += "   bad " + std::to_string(s.bad);
      if (s.name == slowest) all += "   <- bottleneck";
      all += '\n';
    }
    return all;
  }
};

}}  // namespace deeprec::DEEPREC_ABI
