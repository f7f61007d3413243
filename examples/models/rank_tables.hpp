// The rows of all slots where each rank of a run has a part of them.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "ctr_data.hpp"
#include "kernels.hpp"

namespace ctr {

/// What slot_tables calls then. Every rank calls it, in one order; a fault of one rank is that of all.
class rank_tables {
 public:
  rank_tables() = default;
  rank_tables(const rank_tables&) = delete;
  rank_tables& operator=(const rank_tables&) = delete;
  virtual ~rank_tables() = default;

  [[nodiscard]] virtual status resolve(const step_context& on, std::span<const slot_bags> by_slot) = 0;
  /// Of the batch that was resolved last.
  [[nodiscard]] virtual status look_up(const step_context& on, matrix_view<float> out) = 0;
  [[nodiscard]] virtual status update(const step_context& on, matrix_view<const float> gradient,
                                      const deeprec::rowwise_adagrad& optimizer) = 0;
};

/// The rows of a slot that this rank has, of so many.
struct rank_part {
  deeprec::table_view<deeprec::f32_rows> rows;
  index_t count;
};
using rank_tables_maker = std::function<std::unique_ptr<rank_tables>(std::span<const rank_part>)>;

}  // namespace ctr
