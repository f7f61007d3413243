#include "graph/step_by_lanes.hpp"

#include <cstddef>

namespace graph_bench {

using namespace ctr;
using deeprec::micro_chunk;

deeprec::result<void> dlrm_by_lanes::run(const raw_rows& raw) {
  if (!lanes_.shares(raw.rows)) return by_hand_.run(on_, raw);
  raw_ = &raw;
  dense_ = room(dense_memory_, raw.rows, tables_.columns.dense_width());
  labels_ = room(labels_memory_, raw.rows, 1);
  by_slot_.clear();
  for (std::vector<row_id>& of_slot : rows_) {
    of_slot.resize(static_cast<std::size_t>(raw.rows));
    by_slot_.emplace_back(of_slot.data(), raw.rows, 1);
  }
  model_.begin(raw.rows, whole_);
  const ctr_batch batch{labels_, dense_, by_slot_, {}};
  return lanes_.train(batch, whole_);
}

void dlrm_by_lanes::prepare(const micro_chunk& chunk) {
  const ctr_columns& columns = tables_.columns;
  const index_t end = chunk.first + chunk.count;
  for (index_t i = chunk.first; i < end; ++i) {
    decode_numbers(columns, raw_->numbers.data() + i * columns.numbers, dense_.row(i));
    labels_(i, 0) = raw_->labels[static_cast<std::size_t>(i)];
  }
  for (index_t n = 0; n < columns.integers; ++n) {
    row_id* const to = rows_[static_cast<std::size_t>(n)].data();
    for (index_t i = chunk.first; i < end; ++i) {
      to[i] = static_cast<row_id>(
          integer_bucket(raw_->numbers[static_cast<std::size_t>(i * columns.numbers + n)]));
    }
  }
  for (index_t s = 0; s < columns.tokens; ++s) {
    const index_t slot = columns.integers + s, ids = tables_.ids(slot);
    row_id* const to = rows_[static_cast<std::size_t>(slot)].data();
    const std::int64_t* const from = raw_->column(s);
    for (index_t i = chunk.first; i < end; ++i) {
      to[i] = static_cast<row_id>(tables_.row_of(slot, static_cast<row_id>(id_of(from[i], ids))));
    }
  }
}

}  // namespace graph_bench
