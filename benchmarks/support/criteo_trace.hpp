// Criteo's 26 tables at their true sizes, and the ids of a real trace through them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/exec/thread_pool.hpp>

namespace deeprec_bench {

using deeprec::index_t;

inline constexpr index_t criteo_rows[26] = {1460,  583,  10131227, 2202608, 305,  24,      12517,   633,   3,
                                     93145, 5683, 8351593,  3194,    27,   14992,   5461306, 10,    5652,
                                     2173,  4,    7046547,  18,      15,   286181,  105,     142572};

/// The ids of the real trace by table, or nothing where the data folder is absent.
inline std::vector<std::vector<std::int64_t>> criteo_trace() {
  const char* folder = std::getenv("DEEPREC_DATA_DIR");
  if (folder == nullptr || *folder == '\0') return {};
  deeprec::criteo_format format;
  std::copy(std::begin(criteo_rows), std::end(criteo_rows), format.rows.begin());
  format.tokens = deeprec::token_use::as_is;
  deeprec::thread_pool pool(1);
  auto reader = deeprec::read_files(
      pool, format, {std::string(folder) + "/criteo/criteo_kaggle_fullvocab_ids_rows90000.csv"});
  if (!reader) return {};
  deeprec::sparse_batch rows;
  const auto got = reader.value().next(rows, 1 << 20);
  if (!got) return {};
  std::vector<std::vector<std::int64_t>> tables(26);
  for (index_t t = 0; t < 26; ++t) {
    tables[static_cast<std::size_t>(t)].assign(rows.slot(t).ids(), rows.slot(t).ids() + rows.rows());
  }
  return tables;
}

}  // namespace deeprec_bench
