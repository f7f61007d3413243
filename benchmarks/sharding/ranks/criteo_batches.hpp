// Criteo's batches of the ranks of a job, and the tables that they go to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/criteo_trace.hpp"

namespace deeprec_bench {

inline constexpr int criteo_tables = 26;

/// The batches of one rank: one id a bag in each of the tables.
class criteo_batches {
 public:
  /// @param most_rows  of a table: ids beyond are folded onto them
  criteo_batches(int rank, int ranks, index_t batch, index_t batches, index_t width, index_t most_rows)
      : rank_(rank), ranks_(ranks), batch_(batch), batches_(batches), width_(width) {
    for (const index_t rows : criteo_rows) rows_.push_back(std::min(rows, most_rows));
    for (index_t i = 0; i <= batch; ++i) offsets_.push_back(i);
    out.resize(static_cast<std::size_t>(batch * columns()));
    for (std::size_t i = 0; i < out.size(); ++i)
      gradient.push_back(static_cast<float>(static_cast<int>(deeprec::mix64(i) % 2001) - 1000) / 1e5F);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] index_t batch() const { return batch_; }
  [[nodiscard]] index_t width() const { return width_; }
  /// Of the joint output of all tables.
  [[nodiscard]] index_t columns() const { return criteo_tables * width_; }
  [[nodiscard]] const std::vector<index_t>& rows() const { return rows_; }

  /// New batches.
  void next() { ids_ = ids_of(rank_, ++turn_); }
  /// Those of another rank in place of this one's.
  void take_those_of(int rank) { ids_ = ids_of(rank, turn_); }
  [[nodiscard]] const std::int64_t* ids(std::size_t table, index_t b) const {
    return ids_[table].data() + b * batch_;
  }
  [[nodiscard]] std::vector<deeprec::jagged_view<>> bags(index_t b) const {
    std::vector<deeprec::jagged_view<>> of;
    for (std::size_t f = 0; f < ids_.size(); ++f) of.emplace_back(offsets_.data(), batch_, ids(f, b), batch_);
    return of;
  }
  [[nodiscard]] deeprec::matrix_view<float> out_view() { return {out.data(), batch_, columns()}; }
  [[nodiscard]] deeprec::matrix_view<const float> gradient_view() const {
    return {gradient.data(), batch_, columns()};
  }

  std::vector<float> out, gradient;

 private:
  [[nodiscard]] std::vector<std::vector<std::int64_t>> ids_of(int rank, std::uint64_t turn) const {
    auto ids = criteo_trace(batch_ * batches_,
                            turn * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank));
    for (std::size_t f = 0; f < ids.size(); ++f) {
      for (std::int64_t& id : ids[f]) id %= rows_[f];
    }
    return ids;
  }

  int rank_, ranks_;
  index_t batch_, batches_, width_;
  std::vector<index_t> rows_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::vector<std::int64_t>> ids_;
  std::uint64_t turn_ = 0;
};

using criteo_table = deeprec::dense_table<deeprec::f32_rows>;

/// Whole tables, or the parts of this rank: the same values in each row.
inline std::vector<criteo_table> make_criteo_tables(const criteo_batches& of, bool whole) {
  std::vector<criteo_table> tables;
  for (std::size_t f = 0; f < of.rows().size(); ++f) {
    const index_t step = whole ? 1 : of.ranks(), first = whole ? 0 : of.rank();
    tables.emplace_back(whole ? of.rows()[f] : deeprec::part_rows(of.rank(), of.rows()[f], of.ranks()),
                        deeprec::f32_rows(of.width()));
    const auto fill = deeprec::row_init::uniform{.seed = f};
    const auto view = tables.back().view();
    for (index_t k = 0; k < view.rows(); ++k)
      fill(k * step + first, reinterpret_cast<float*>(const_cast<std::byte*>(view.row(k))), of.width());
  }
  return tables;
}

}  // namespace deeprec_bench
