// Which keys that a growing table does not hold get rows.
//
//   filters::counter          a key that has come N times; counted exactly, in the index
//   filters::counting_bloom   the same, counted in little memory, some keys too early
//   filters::probabilistic    each occurrence with a share
//   admission_filter          a filter of the user
//
// The occurrences of a batch are counted first: a key is admitted in the batch of its N-th occurrence, and
// then every position of the batch reads its row.
//
// Source of the filters: DeepRec's CounterFilter and BloomFilter, and its embedding variables' filter_freq;
// without their off-by-one and their wrapping counters (docs/hazards.md, H8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A filter of the user.
///
/// @threads called by the one thread that inserts
class admission_filter {
 public:
  virtual ~admission_filter() = default;
  /// Writes 1 for the keys that get rows, 0 for the others. The keys differ, in the order of their first
  /// position in the batch; occurrences[k] positions have keys[k]. Must not throw.
  virtual void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> occurrences,
                     std::uint64_t step, std::span<unsigned char> admitted) noexcept = 0;
  /// The filter's memory, to save and to load as it is.
  [[nodiscard]] virtual std::span<std::byte> state() noexcept { return {}; }
  /// The bytes that it has from the table's resource.
  [[nodiscard]] virtual index_t bytes() const noexcept { return 0; }
};

namespace filters {

/// Admits a key that has come `occurrences` times, counted exactly. A key that waits takes an entry of the
/// index, about 22 bytes. 0 and 1 admit every key.
struct counter {
  static constexpr std::uint32_t most = (std::uint32_t{1} << 24) - 2;
  std::uint32_t occurrences = 1;
};

/// The same by a counting Bloom filter: `false_share` of the keys that never came is admitted when `keys`
/// others have come `occurrences` times each.
struct counting_bloom {
  static constexpr std::uint32_t most = 65535;
  std::uint32_t occurrences = 1;
  index_t keys = 1'000'000;
  double false_share = 0.01;
  std::uint64_t seed = 0;
};

/// Admits each occurrence with a probability, by (seed, key, step, occurrence in the batch): the same in
/// every run. A key that comes again in the same step has the same draws: begin_step() makes new ones.
struct probabilistic {
  double share = 1;
  std::uint64_t seed = 0;
};

}  // namespace filters

}}  // namespace deeprec::DEEPREC_ABI
