// A step of DLRM as nobody would describe it to a graph: the calls, one after the other.
#pragma once

#include <vector>

#include <deeprec/core/status.hpp>

#include "train_ctr/models.hpp"
#include "train_ctr/step_ops.hpp"

namespace graph_bench {

class dlrm_by_hand {
 public:
  /// @param model, tables  outlive it
  dlrm_by_hand(train_ctr::dlrm& model, const train_ctr::ctr_tables& tables)
      : model_(model),
        tables_(tables),
        ids_(static_cast<std::size_t>(train_ctr::tokens)),
        rows_(static_cast<std::size_t>(train_ctr::slots)) {}

  deeprec::status run(const train_ctr::step_context& on, const train_ctr::raw_rows& raw);

 private:
  void prepare(const train_ctr::raw_rows& raw);

  train_ctr::dlrm& model_;
  const train_ctr::ctr_tables& tables_;
  std::vector<train_ctr::token_ids> ids_;
  std::vector<train_ctr::slot_rows> rows_;
  std::vector<train_ctr::slot_bags> by_slot_;
  train_ctr::slot_features::found_rows found_;
  train_ctr::matrix dense_, labels_, pooled_, crossed_, slope_, of_bottom_, of_rows_;
};

}  // namespace graph_bench
