// What the host's kernels decide by: how far ahead they fetch, when they write past the caches, and when the
// work is worth a second thread. No result depends on it by a bit.
//
//   context ctx{pool};                        // host_tuning(): defaults for this machine
//   kernel_tuning mine = host_tuning();
//   mine.lines_ahead = 128;
//   ctx.tuning = &mine;                       // or what calibrate(pool) measured (deeprec/calibrate.hpp)
//
// The environment variable DEEPREC_TUNING=lines_ahead=128,parked_ns=20000 changes host_tuning(). It is read
// once, at the first use. describe() prints the values.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/detail/cache_sizes.hpp>
#include <deeprec/core/detail/cpu_features.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Values, not facts: kernels are correct with any of them, and slow with bad ones. The defaults are safe on
/// every machine that they were measured on (docs/adr/0024-kernel-tuning.md).
struct kernel_tuning {
  // Lookups: the lines of rows that are requested before they are read.
  index_t lines_ahead = 256;
  index_t least_rows_ahead = 8;  ///< for rows of many lines
  index_t most_rows_ahead = 32;  ///< for rows of few: a first-level TLB holds 64 pages
  index_t update_lines_ahead = 256;
  /// The cache that rows of more than a line are fetched into: 1 the first level, 2 the second, where the
  /// first accepts few misses at a time.
  index_t prefetch_level = 2;

  // Caches.
  index_t own_cache_bytes = index_t{1} << 20;  ///< what no other core uses: the second-level cache
  index_t kept_bytes = index_t{8} << 20;       ///< what stays in the caches of a core with busy neighbours

  // Times of work on one thread, within a factor of three.
  index_t row_ns = 25;           ///< a row that no cache keeps, fetched ahead, without its lines
  index_t line_ns = 5;           ///< each line of it
  index_t bytes_per_us = 10000;  ///< read or written in sequence
  index_t flops_per_us = 40000;  ///< of products

  // Threads.
  index_t polling_ns = 1000;  ///< until another thread of an executor begins, where it polls for work
  index_t parked_ns = 50000;  ///< the same, where it sleeps
  index_t piece_ns = 10000;   ///< of work that one thread takes at once
};

/// A member of kernel_tuning by its name.
struct tuning_value {
  std::string_view name;
  index_t kernel_tuning::* value;
  index_t least;
};

inline constexpr tuning_value tuning_values[] = {
    {"lines_ahead", &kernel_tuning::lines_ahead, 1},
    {"least_rows_ahead", &kernel_tuning::least_rows_ahead, 1},
    {"most_rows_ahead", &kernel_tuning::most_rows_ahead, 1},
    {"update_lines_ahead", &kernel_tuning::update_lines_ahead, 1},
    {"prefetch_level", &kernel_tuning::prefetch_level, 1},
    {"own_cache_bytes", &kernel_tuning::own_cache_bytes, 0},
    {"kept_bytes", &kernel_tuning::kept_bytes, 0},
    {"row_ns", &kernel_tuning::row_ns, 0},
    {"line_ns", &kernel_tuning::line_ns, 0},
    {"bytes_per_us", &kernel_tuning::bytes_per_us, 1},
    {"flops_per_us", &kernel_tuning::flops_per_us, 1},
    {"polling_ns", &kernel_tuning::polling_ns, 0},
    {"parked_ns", &kernel_tuning::parked_ns, 0},
    {"piece_ns", &kernel_tuning::piece_ns, 1},
};

namespace detail {

/// The defaults for caches of these sizes; 0: unknown. A third-level cache is shared with cores that belong
/// to others, and some hypervisors report that of a whole package: no more than 4 MB of it are counted on.
constexpr kernel_tuning tuning_for(index_t second_level, index_t third_level) noexcept {
  constexpr index_t mb = index_t{1} << 20;
  kernel_tuning made;
  made.own_cache_bytes = second_level > 0 ? std::clamp(second_level, mb / 4, 4 * mb) : mb;
  made.kept_bytes = made.own_cache_bytes + std::clamp(third_level / 2, index_t{0}, 4 * mb);
  return made;
}

/// Applies name=value,name=value. Returns the first part that names no value, or holds none that is allowed:
/// it changes nothing, the others are applied. Empty: there is none.
inline std::string_view apply_tuning(kernel_tuning& to, std::string_view text) noexcept {
  std::string_view refused;
  while (!text.empty()) {
    const std::size_t comma = (std::min)(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix((std::min)(comma + 1, text.size()));
    const std::size_t equals = (std::min)(part.find('='), part.size());
    const tuning_value* found = nullptr;
    for (const tuning_value& value : tuning_values) {
      if (value.name == part.substr(0, equals)) found = &value;
    }
    index_t number = 0;
    bool valid = found != nullptr && equals + 1 < part.size() && part.size() - equals <= 16;
    for (std::size_t i = equals + 1; valid && i < part.size(); ++i) {
      valid = part[i] >= '0' && part[i] <= '9';
      number = number * 10 + (part[i] - '0');
    }
    if (valid && number >= found->least) {
      to.*found->value = number;
    } else if (refused.empty()) {
      refused = part;
    }
  }
  return refused;
}

}  // namespace detail

/// The tuning of contexts that name no other: the defaults for this machine's caches, changed by
/// DEEPREC_TUNING. Parts of it that name no value change nothing; describe() names the first of them.
///
/// @cost    O(1): reads cpuid and the environment at the first call
/// @threads thread-safe
/// @error   none
inline const kernel_tuning& host_tuning() noexcept {
  static const kernel_tuning chosen = [] {
    kernel_tuning made = detail::tuning_for(detail::cache_bytes(2), detail::cache_bytes(3));
    if (detail::is_zen_5()) {
      made.prefetch_level = 1;
      made.lines_ahead = 192;
      made.most_rows_ahead = 64;
    }
    if (const char* const wanted = std::getenv("DEEPREC_TUNING")) detail::apply_tuning(made, wanted);
    return made;
  }();
  return chosen;
}

}}  // namespace deeprec::DEEPREC_ABI
