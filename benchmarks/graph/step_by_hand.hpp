// A step of DLRM as nobody would describe it to a graph: the calls, one after the other.
#pragma once

#include <vector>

#include <deeprec/core/status.hpp>

#include "models/dlrm.hpp"
#include "models/step_ops.hpp"

namespace graph_bench {

class dlrm_by_hand {
 public:
  /// @param model, tables  outlive it
  dlrm_by_hand(ctr::dlrm& model, const ctr::ctr_tables& tables)
      : model_(model),
        tables_(tables),
        ids_(static_cast<std::size_t>(tables.columns.tokens)),
        rows_(static_cast<std::size_t>(tables.columns.slots())) {}

  deeprec::status run(const ctr::step_context& on, const ctr::raw_rows& raw);

 private:
  void prepare(const ctr::raw_rows& raw);

  ctr::dlrm& model_;
  const ctr::ctr_tables& tables_;
  std::vector<ctr::token_ids> ids_;
  std::vector<ctr::slot_rows> rows_;
  std::vector<ctr::slot_bags> by_slot_;
  ctr::slot_tables::found_rows found_;
  ctr::matrix dense_, labels_, pooled_, crossed_, slope_, of_bottom_, of_rows_;
};

}  // namespace graph_bench
