// The same step cut by samples, tokens included; a batch of one part is stepped as a whole.
#pragma once

#include <vector>

#include <deeprec/core/result.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

#include "graph/step_by_hand.hpp"
#include "models/dlrm.hpp"
#include "models/step_by_lanes.hpp"
#include "models/step_ops.hpp"

namespace graph_bench {

class dlrm_by_lanes {
 public:
  /// @param model, tables  outlive it
  dlrm_by_lanes(ctr::dlrm& model, const ctr::ctr_tables& tables, deeprec::executor_ref on)
      : model_(model),
        tables_(tables),
        on_(on),
        by_hand_(model, tables),
        lanes_(on, model, [this](const deeprec::micro_chunk& chunk) { prepare(chunk); }),
        rows_(static_cast<std::size_t>(tables.columns.slots())) {
    model_.settle();
  }
  dlrm_by_lanes(const dlrm_by_lanes&) = delete;
  dlrm_by_lanes& operator=(const dlrm_by_lanes&) = delete;

  deeprec::result<void> run(const ctr::raw_rows& raw);

 private:
  void prepare(const deeprec::micro_chunk& chunk);

  ctr::dlrm& model_;
  const ctr::ctr_tables& tables_;
  deeprec::executor_ref on_;
  dlrm_by_hand by_hand_;
  ctr::step_by_lanes<ctr::dlrm> lanes_;
  const ctr::raw_rows* raw_ = nullptr;
  std::vector<float> dense_memory_, labels_memory_;
  deeprec::matrix_view<float> dense_, labels_;
  std::vector<std::vector<ctr::row_id>> rows_;  // of each slot
  std::vector<ctr::slot_bags> by_slot_;
  ctr::dlrm::step whole_;
};

}  // namespace graph_bench
