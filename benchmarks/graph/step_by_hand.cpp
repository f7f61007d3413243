#include "graph/step_by_hand.hpp"

namespace graph_bench {

using namespace ctr;

void dlrm_by_hand::prepare(const raw_rows& raw) {
  const index_t integers = tables_.columns.integers, tokens = tables_.columns.tokens;
  decode_op{}(raw, dense_, labels_);
  for (index_t n = 0; n < integers; ++n) bucket_integer_op<>{n}(raw, rows_[static_cast<std::size_t>(n)]);
  for (index_t s = 0; s < tokens; ++s) {
    hash_op{s, tables_.ids(integers + s)}(raw, ids_[static_cast<std::size_t>(s)]);
  }
  for (index_t s = 0; s < tokens; ++s) {
    bucket_token_op{integers + s, &tables_}(ids_[static_cast<std::size_t>(s)],
                                            rows_[static_cast<std::size_t>(integers + s)]);
  }
  by_slot_.clear();
  for (const slot_rows& of_slot : rows_) by_slot_.emplace_back(of_slot.ids.data(), raw.rows, 1);
}

deeprec::status dlrm_by_hand::run(const step_context& on, const raw_rows& raw) {
  using deeprec::compute_input_gradient;
  prepare(raw);
  slot_tables& tables = model_.tables();
  stack_type &bottom = model_.bottom(), &top = model_.top();
  const index_t batch = raw.rows, width = model_.width(), slots = tables_.columns.slots();
  found_.reset();
  if (const status s = tables.resolve(on, by_slot_, found_); !s) return s;
  if (const status s = tables.look_up(on, found_, pooled_.make(batch, slots * width)); !s) return s;
  if (const status s = stack_forward(on, bottom, bottom.own_pass(), dense_.view()); !s) return s;
  if (const status s = interact(on, bottom.output(), pooled_.view(), crossed_.make(batch, top.size(0))); !s)
    return s;
  if (const status s = stack_forward(on, top, top.own_pass(), crossed_.view()); !s) return s;
  if (const status s = loss_gradient(on, top.output(), labels_.view(), {}, slope_.make(batch, 1)); !s)
    return s;
  if (const status s = stack_backward(on, top, top.own_pass(), slope_.view(), compute_input_gradient::yes);
      !s) {
    return s;
  }
  if (const status s = interact_backward(on, bottom.output(), pooled_.view(), top.input_gradient(),
                                         of_bottom_.make(batch, width), of_rows_.make(batch, slots * width));
      !s) {
    return s;
  }
  if (const status s =
          stack_backward(on, bottom, bottom.own_pass(), of_bottom_.view(), compute_input_gradient::no);
      !s) {
    return s;
  }
  if (const status s = stack_step(on, bottom, model_.stack_optimizer()); !s) return s;
  if (const status s = stack_step(on, top, model_.stack_optimizer()); !s) return s;
  return tables.update(on, by_slot_, found_, of_rows_.view(), model_.row_optimizer());
}

}  // namespace graph_bench
