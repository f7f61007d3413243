// Options and statistics of growing tables.
#pragma once

#include <functional>
#include <limits>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// initialise(key, values, width) writes the first values of a key's row; the functors of row_init fit.
/// Called by several threads at once; must not throw.
using initial_row = std::function<void(index_t key, float* values, index_t width)>;

/// What a growing table does with keys for which it has no room.
enum class when_full : unsigned char {
  refuse,                ///< they get no row
  evict_least_recent,    ///< the rows whose last update is the oldest make room
  evict_least_frequent,  ///< those that the fewest positions trained
};

struct growing_options {
  index_t most_rows = (std::numeric_limits<index_t>::max)();
  when_full full = when_full::refuse;
  /// Of the memory that rows are in: a power of two from 4096 to 64 MB.
  index_t granule_bytes = index_t{2} << 20;
  /// Of everything; outlives the table. One thread at a time uses it, on any thread of an executor.
  std::pmr::memory_resource* memory = huge_page_resource::shared();
};

/// What a growing table holds now. Bytes are what its resource gave.
struct growing_statistics {
  index_t rows = 0;
  index_t candidates = 0;  ///< keys that filters::counter counts
  index_t index_bytes = 0;
  index_t row_bytes = 0;  ///< with facts, rows that wait, and the default row
  index_t filter_bytes = 0;
  index_t waiting_rows = 0;  ///< erased, and kept for readers
  index_t pins = 0;          ///< of readers
  index_t refused = 0;       ///< keys for which the table was full, each time that they came
  index_t evicted = 0;       ///< rows, for being full and by evict_rows
  index_t splits = 0;        ///< of segments of the index
};

}}  // namespace deeprec::DEEPREC_ABI
