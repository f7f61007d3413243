// The filters of the library that keep memory of their own, or none.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/growing/admission.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Counters of 8 or 16 bits, those of a key in one cache line. Conservative: an occurrence raises only the
/// least of them. Saturating.
///
/// @source F. Putze, P. Sanders, J. Singler: Cache-, hash- and space-efficient Bloom filters (2007); C.
///         Estan, G. Varghese: New directions in traffic measurement (2002), conservative update
template <class Counter>
class bloom_filter final : public admission_filter {
 public:
  static constexpr int line_counters = 64 / static_cast<int>(sizeof(Counter));

  bloom_filter(const filters::counting_bloom& options, std::pmr::memory_resource* memory)
      : occurrences_(options.occurrences), seed_(options.seed), lines_(memory) {
    index_t lines = 1;
    for (probes_ = 1; probes_ <= most_probes; ++probes_) {
      const index_t needed = lines_for(options, shares(probes_));
      if (probes_ > 1 && needed >= lines) break;
      lines = needed;
    }
    --probes_;
    lines_.resize(static_cast<std::size_t>(lines));
  }

  void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> occurrences, std::uint64_t,
             std::span<unsigned char> admitted) noexcept override {
    for (std::size_t k = 0; k < keys.size(); ++k) admitted[k] = add(keys[k], occurrences[k]) ? 1 : 0;
  }
  [[nodiscard]] std::span<std::byte> state() noexcept override {
    return std::as_writable_bytes(std::span<line>(lines_));
  }
  [[nodiscard]] index_t bytes() const noexcept override {
    return static_cast<index_t>(lines_.capacity() * sizeof(line));
  }
  [[nodiscard]] int probes() const noexcept { return probes_; }

  /// The share of keys that never came whose counters are all high, for n keys in some lines.
  static double false_share(index_t keys, index_t lines, int probes) noexcept {
    return shares(probes).of(keys, lines);
  }

 private:
  static constexpr int most_probes = 16;
  struct alignas(64) line {
    Counter counters[static_cast<std::size_t>(line_counters)] = {};
  };

  // The false shares of lines with so many keys, exactly: the power of the mean share of high counters is
  // less than the mean of the powers, by a twentieth to a sixth for usual options.
  class shares {
   public:
    explicit shares(int probes) noexcept {
      std::array<double, line_counters + 1> high{1.0};  // how likely so many counters are high
      for (int keys = 0; keys <= most_keys; ++keys) {
        for (int h = 0; h <= line_counters; ++h)
          of_line_[at(keys)] += high[at(h)] * std::pow(static_cast<double>(h) / line_counters, probes);
        for (int p = 0; p < probes; ++p) {
          for (int h = line_counters; h >= 0; --h)
            high[at(h)] =
                (high[at(h)] * h + (h == 0 ? 0 : high[at(h - 1)] * (line_counters - h + 1))) / line_counters;
        }
      }
    }
    /// The keys of a line are distributed after Poisson.
    [[nodiscard]] double of(index_t keys, index_t lines) const noexcept {
      const double mean = static_cast<double>(keys) / static_cast<double>(lines);
      const double spread = 10 * std::sqrt(mean) + 10;
      if (mean - spread > most_keys) return 1;
      double share = 0;
      for (int i = static_cast<int>((std::max)(0.0, mean - spread)); i <= mean + spread; ++i) {
        const double probability = std::exp(i * std::log(mean) - mean - std::lgamma(i + 1.0));
        share += probability * (i <= most_keys ? of_line_[at(i)] : 1);
      }
      return share;
    }

   private:
    static constexpr int most_keys = 20 * line_counters;  // then all counters are high
    static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
    std::array<double, most_keys + 1> of_line_{};
  };
  static index_t lines_for(const filters::counting_bloom& options, const shares& all) noexcept {
    index_t low = 1, high = 1;
    const index_t most = (std::min)(options.keys, (std::numeric_limits<index_t>::max)() / 128) * 64;
    while (all.of(options.keys, high) > options.false_share && high < most) high *= 2;
    while (low < high) {
      const index_t middle = low + (high - low) / 2;
      if (all.of(options.keys, middle) <= options.false_share) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }
  bool add(std::uint64_t key, std::uint32_t occurrences) noexcept {
    const std::uint64_t hash = mix64(key ^ mix64(seed_));
    line& here = lines_[static_cast<std::size_t>(hash_bucket(hash, static_cast<index_t>(lines_.size())))];
    std::uint64_t bits = mix64(hash);
    std::uint32_t least = ~std::uint32_t{0};
    int places[most_probes];
    for (int p = 0; p < probes_; ++p) {
      if (p == 10) bits = mix64(bits);  // 6 bits each
      places[p] = static_cast<int>((bits >> (p % 10 * 6)) & (line_counters - 1));
      least = (std::min)(least, std::uint32_t{here.counters[places[p]]});
    }
    constexpr std::uint32_t most = static_cast<Counter>(-1);
    const std::uint32_t raised = occurrences > most - least ? most : least + occurrences;
    for (int p = 0; p < probes_; ++p) {
      Counter& counter = here.counters[places[p]];
      counter = (std::max)(counter, static_cast<Counter>(raised));
    }
    return raised >= occurrences_;
  }

  std::uint32_t occurrences_;
  std::uint64_t seed_;
  int probes_ = 1;
  std::pmr::vector<line> lines_;
};

class probabilistic_filter final : public admission_filter {
 public:
  explicit probabilistic_filter(const filters::probabilistic& options) noexcept
      : share_(options.share), random_(options.seed) {}
  void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> occurrences,
             std::uint64_t step, std::span<unsigned char> admitted) noexcept override {
    for (std::size_t k = 0; k < keys.size(); ++k) {
      admitted[k] = 0;
      const std::uint64_t stream = mix64(step) ^ keys[k];
      for (std::uint32_t i = 0; i < occurrences[k] && admitted[k] == 0; ++i) {
        const double at = static_cast<double>(random_.bits(stream, i) >> 11) * 0x1p-53;
        admitted[k] = at < share_ ? 1 : 0;
      }
    }
  }

 private:
  double share_;
  counter_rng random_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
