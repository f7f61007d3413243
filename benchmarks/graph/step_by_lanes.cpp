#include "graph/step_by_lanes.hpp"

#include <cstddef>

#include <deeprec/exec/inline_executor.hpp>

namespace graph_bench {

using namespace ctr;
using deeprec::micro_chunk;

dlrm_by_lanes::dlrm_by_lanes(dlrm& model, const ctr_tables& tables, deeprec::executor_ref on)
    : model_(model),
      tables_(tables),
      on_(on),
      by_hand_(model, tables),
      step_(by_, deeprec::loss_reduction::sum),
      rows_(static_cast<std::size_t>(slots)) {
  for (index_t k = 0; k < by_.most; ++k) lanes_.push_back({model.make_pass(), {}, {}});
  step_.stage("sample by sample", 0, [this](const micro_chunk& chunk) { return of_part(chunk); });
  model.for_each_stack([this](const char* name, stack_type& stack) { step_.layer(name, stack); });
  model.for_each_gradient([this](const char*, auto of, auto sum) {
    step_.sum_gradient(
        "sample by sample",
        [this, of](const micro_chunk& chunk) {
          return of(lanes_[static_cast<std::size_t>(chunk.lane)].pass);
        },
        sum);
  });
  step_.update("stacks", model.stack_optimizer(), [this] { return model_.step_stacks(on_); });
  step_.update("rows", model.row_optimizer(), [this] {
    const ctr_batch batch{labels_, dense_, by_slot_, {}};
    return model_.update_rows(on_, batch, whole_);
  });
}

deeprec::result<void> dlrm_by_lanes::run(const raw_rows& raw) {
  if (deeprec::chunk_count(raw.rows, by_) <= 1) return by_hand_.run(on_, raw);  // the same bits
  raw_ = &raw;
  dense_ = room(dense_memory_, raw.rows, dense_width);
  labels_ = room(labels_memory_, raw.rows, 1);
  by_slot_.clear();
  for (std::vector<row_id>& of_slot : rows_) {
    of_slot.resize(static_cast<std::size_t>(raw.rows));
    by_slot_.emplace_back(of_slot.data(), raw.rows, 1);
  }
  model_.begin(raw.rows, whole_);
  model_.settle();
  return step_.run(on_, raw.rows);
}

void dlrm_by_lanes::prepare(const micro_chunk& chunk) {
  const index_t end = chunk.first + chunk.count;
  for (index_t i = chunk.first; i < end; ++i) {
    decode_integers(raw_->numbers.data() + i * integers, dense_.row(i));
    labels_(i, 0) = raw_->labels[static_cast<std::size_t>(i)];
  }
  for (index_t n = 0; n < integers; ++n) {
    row_id* const to = rows_[static_cast<std::size_t>(n)].data();
    for (index_t i = chunk.first; i < end; ++i) {
      to[i] = static_cast<row_id>(integer_bucket(raw_->numbers[static_cast<std::size_t>(i * integers + n)]));
    }
  }
  for (index_t s = 0; s < tokens; ++s) {
    const index_t slot = integers + s, ids = tables_.ids(slot);
    row_id* const to = rows_[static_cast<std::size_t>(slot)].data();
    const std::int64_t* const from = raw_->column(s);
    for (index_t i = chunk.first; i < end; ++i) {
      to[i] = static_cast<row_id>(tables_.row_of(slot, static_cast<row_id>(id_of(from[i], ids))));
    }
  }
}

deeprec::status dlrm_by_lanes::of_part(const micro_chunk& chunk) {
  deeprec::inline_executor here;
  deeprec::executor_ref on(here);
  lane& mine = lanes_[static_cast<std::size_t>(chunk.lane)];
  prepare(chunk);
  const ctr_batch whole{labels_, dense_, by_slot_, {}};
  const ctr_batch batch = whole.part(chunk, mine.by_slot);
  mine.step = whole_.part(chunk);
  if (const deeprec::status s = model_.look_up_part(on, batch, mine.step); !s) return s;
  if (const deeprec::status s = model_.forward(on, mine.pass, batch, mine.step); !s) return s;
  return model_.backward(
      on, mine.pass, batch, mine.step,
      static_cast<float>(static_cast<double>(chunk.count) / static_cast<double>(raw_->rows)));
}

}  // namespace graph_bench
