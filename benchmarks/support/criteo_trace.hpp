// Criteo's 26 tables at their true sizes, and traces through them: ids drawn by the rank distribution of each
// column of the full data set ($DEEPREC_DATA_DIR/skew), so that there are as many different ones as a
// benchmark wants. Ids are ranks, the most frequent 0, as in the set that they come from.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/exec/thread_pool.hpp>

namespace deeprec_bench {

using deeprec::index_t;

inline constexpr index_t criteo_rows[26] = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                                            93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                                            2173,  4,    7046547,  18,      15,  286181, 105,     142572};

/// P(id < k) of a column at k = 0, 1, 10, 100, ... and its table's end; in between, linear in log k.
struct rank_distribution {
  std::vector<double> ranks, below;

  [[nodiscard]] std::int64_t id(double u) const {
    const std::size_t next =
        std::min(static_cast<std::size_t>(std::upper_bound(below.begin(), below.end(), u) - below.begin()),
                 below.size() - 1);
    if (next <= 1) return 0;
    const double part = (u - below[next - 1]) / std::max(below[next] - below[next - 1], 1e-12);
    const double rank = ranks[next - 1] * std::pow(ranks[next] / ranks[next - 1], std::clamp(part, 0.0, 1.0));
    return static_cast<std::int64_t>(std::min(rank, ranks.back() - 1));
  }
};

/// Of each column, or none where the data folder is absent.
inline const std::vector<rank_distribution>& criteo_ranks() {
  static const std::vector<rank_distribution> columns = [] {
    std::vector<rank_distribution> found;
    const char* folder = std::getenv("DEEPREC_DATA_DIR");
    std::ifstream in(std::string(folder == nullptr ? "" : folder) +
                     "/skew/criteo_kaggle_fullvocab_rank_cdf.tsv");
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line) && found.size() < 26) {
      std::istringstream words(line);
      std::string column;
      double vocabulary = 0, skipped = 0, p = 0;
      words >> column >> vocabulary >> skipped >> skipped >> skipped;
      const auto rows = static_cast<double>(criteo_rows[found.size()]);
      rank_distribution d{{0}, {0}};
      double k = 1;
      for (int i = 0; i < 7 && words >> p; ++i, k *= 10) {
        if (k >= rows) break;
        d.ranks.push_back(k);
        d.below.push_back(p);
      }
      d.ranks.push_back(rows);
      d.below.push_back(1);
      if (vocabulary == rows) found.push_back(d);
    }
    if (found.size() != 26) found.clear();
    return found;
  }();
  return columns;
}

/// Trace number `turn`: so many ids for each table. Nothing where the data folder is absent.
inline std::vector<std::vector<std::int64_t>> criteo_trace(index_t rows, std::uint64_t turn = 0) {
  const std::vector<rank_distribution>& columns = criteo_ranks();
  if (columns.empty()) return {};
  std::vector<std::vector<std::int64_t>> tables(26,
                                                std::vector<std::int64_t>(static_cast<std::size_t>(rows)));
  deeprec::thread_pool two_threads(2);
  const deeprec::counter_rng rng(2000 + turn);
  two_threads.parallel_for(26, 1, [&](index_t begin, index_t end, int) {
    for (index_t t = begin; t < end; ++t) {
      auto& ids = tables[static_cast<std::size_t>(t)];
      for (std::size_t k = 0; k < ids.size(); ++k) {
        ids[k] = columns[static_cast<std::size_t>(t)].id(rng.uniform(static_cast<std::uint64_t>(t), k));
      }
    }
  });
  return tables;
}

/// Batches that are never used again: each call of next() has other ids. As many ids a turn as keep a clock
/// busy.
class criteo_stream {
 public:
  explicit criteo_stream(index_t batch_rows)
      : rows_(std::max<index_t>((1 << 17) / batch_rows, 1) * batch_rows) {}
  [[nodiscard]] index_t rows() const { return rows_; }
  std::vector<std::vector<std::int64_t>> next() { return criteo_trace(rows_, ++turn_); }

 private:
  index_t rows_;
  std::uint64_t turn_ = 0;
};

}  // namespace deeprec_bench
