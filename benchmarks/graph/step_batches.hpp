// Batches of synthetic rows of Criteo's shape, kept as a reader leaves them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>

#include "models/step_ops.hpp"
#include "train_ctr/synthetic.hpp"

namespace graph_bench {

struct step_batches {
  std::vector<ctr::raw_rows> all;
  std::unique_ptr<ctr::ctr_tables> tables;

  step_batches(deeprec::index_t batch, deeprec::index_t batches) : all(static_cast<std::size_t>(batches)) {
    ctr::synthetic_rows source(batch * batches, 2'000'000, 7, ctr::planted_model::mixed);
    tables = std::make_unique<ctr::ctr_tables>(source.table_rows({}));
    deeprec::inline_executor here;
    source.rewind(here);
    for (ctr::raw_rows& rows : all) {
      deeprec::sparse_batch chunk;
      source.next(chunk, batch);
      rows.clear(batch, tables->columns);
      for (deeprec::index_t r = 0; r < chunk.rows(); ++r) {
        rows.append(chunk, r);
        tables->count(chunk, r);
      }
    }
  }
};

/// Yields `steps` batches, and then the end once; again and again.
class batch_source {
 public:
  batch_source(const step_batches& data, deeprec::index_t steps) : data_(data), steps_(steps), left_(steps) {}
  bool operator()(ctr::raw_rows& to) {
    if (left_ == 0) {
      left_ = steps_;
      return false;
    }
    --left_;
    to = data_.all[next_];
    next_ = (next_ + 1) % data_.all.size();
    return true;
  }

 private:
  const step_batches& data_;
  deeprec::index_t steps_, left_;
  std::size_t next_ = 0;
};

}  // namespace graph_bench
