// The same step cut by samples: each part of a batch on one thread, from its tokens to the gradient of its
// rows.
#pragma once

#include <memory>
#include <vector>

#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/pipeline/micro_batch.hpp>

#include "graph/step_by_hand.hpp"
#include "models/dlrm.hpp"
#include "models/step_ops.hpp"

namespace graph_bench {

class dlrm_by_lanes {
 public:
  /// @param model, tables, on  outlive it
  dlrm_by_lanes(ctr::dlrm& model, const ctr::ctr_tables& tables, deeprec::executor_ref on);
  dlrm_by_lanes(const dlrm_by_lanes&) = delete;
  dlrm_by_lanes& operator=(const dlrm_by_lanes&) = delete;

  deeprec::result<void> run(const ctr::raw_rows& raw);

 private:
  struct lane {
    ctr::dlrm::pass pass;
    ctr::dlrm::step step;
    std::vector<ctr::slot_bags> by_slot;
  };
  deeprec::status of_part(const deeprec::micro_chunk& chunk);
  void prepare(const deeprec::micro_chunk& chunk);

  ctr::dlrm& model_;
  const ctr::ctr_tables& tables_;
  deeprec::executor_ref on_;
  dlrm_by_hand by_hand_;  // of a batch of one part
  deeprec::micro_lanes by_;
  deeprec::micro_batch<> step_;
  std::vector<lane> lanes_;
  const ctr::raw_rows* raw_ = nullptr;
  std::vector<float> dense_memory_, labels_memory_;
  deeprec::matrix_view<float> dense_, labels_;
  std::vector<std::vector<ctr::row_id>> rows_;  // of each slot
  std::vector<ctr::slot_bags> by_slot_;
  ctr::dlrm::step whole_;
};

}  // namespace graph_bench
