// A step of a click model cut by samples: each part of a batch on one thread, from its lookup to the gradient
// of its rows; then one update for the batch.
//
//   step_by_lanes<dlrm> lanes(on, model);
//   if (lanes.shares(batch.rows())) lanes.train(batch, whole).or_throw();
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <deeprec/core/result.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/planned_resource.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/support/bulk.hpp>

#include "ctr_data.hpp"
#include "kernels.hpp"
#include "model.hpp"

namespace ctr {

/// @threads one thread at a time
template <class Model>
class step_by_lanes {
 public:
  /// What a part needs before its lookup: what the batch refers to may be made here.
  using part_maker = std::function<void(const deeprec::micro_chunk&)>;

  /// @param model    outlives it
  /// @param prepare  called for each part before it is used, on the part's thread; may be empty
  /// @param scratch  memory of the step, that of parts from its lanes; null: the default
  step_by_lanes(deeprec::executor_ref on, Model& model, part_maker prepare = {},
                deeprec::planned_resource* scratch = nullptr)
      : pool_(on), on_(pool_), model_(&model), prepare_(std::move(prepare)), scratch_(scratch) {
    if (scratch != nullptr) on_.memory = scratch;
    const index_t lanes = std::clamp<index_t>(on.processors(), 1, by_.most);
    lanes_.reserve(static_cast<std::size_t>(lanes));
    for (index_t k = 0; k < lanes; ++k) lanes_.push_back({model.make_pass(), {}, {}, {}});
    step_.stage("sample by sample", 0, [this](const deeprec::micro_chunk& chunk) { return of_part(chunk); });
    model_->for_each_stack([this](const char* name, stack_type& stack) { step_.layer(name, stack); });
    model_->for_each_gradient([this](const char*, auto of, auto sum) {
      step_.sum_gradient(
          "sample by sample",
          [this, of](const deeprec::micro_chunk& chunk) { return of(lane_of(chunk).pass); }, sum);
    });
    step_.update("stacks", model_->stack_optimizer(), [this] {
      if (parts_ended_) parts_ended_();
      return model_->step_stacks(on_);
    });
    step_.update("rows", model_->row_optimizer(),
                 [this] { return model_->update_rows(on_, *batch_, *whole_); });
  }
  step_by_lanes(const step_by_lanes&) = delete;
  step_by_lanes& operator=(const step_by_lanes&) = delete;

  /// False for a batch of one part: the step of the whole batch has the same bits and no parts to manage.
  [[nodiscard]] bool shares(index_t rows) const { return deeprec::chunk_count(rows, by_) > 1; }

  /// @param parts_ended  called before the updates; may be empty
  /// @pre   model.begin(batch.rows(), whole), and model.settle() after the last write to its weights
  [[nodiscard]] deeprec::result<void> train(const ctr_batch& batch, typename Model::step& whole,
                                            std::function<void()> parts_ended = {}) {
    batch_ = &batch;
    whole_ = &whole;
    parts_ended_ = std::move(parts_ended);
    return step_.run(pool_, batch.rows());
  }

 private:
  struct lane {
    typename Model::pass pass;
    ctr_batch batch;
    typename Model::step step;
    slot_lists by_slot;
  };
  lane& lane_of(const deeprec::micro_chunk& chunk) { return lanes_[static_cast<std::size_t>(chunk.lane)]; }
  status of_part(const deeprec::micro_chunk& chunk) {
    deeprec::inline_executor here;
    deeprec::executor_ref this_thread(here);
    step_context on(this_thread);
    if (scratch_ != nullptr) on.memory = scratch_->begin_part(chunk.lane);
    lane& some = lane_of(chunk);
    if (prepare_) prepare_(chunk);
    some.batch = batch_->part(chunk, some.by_slot);
    some.step = whole_->part(chunk);
    if (const status s = model_->look_up_part(on, some.batch, some.step); !s) return s;
    if (const status s = train_forward(on, *model_, some.pass, some.batch, some.step); !s) return s;
    const double share = static_cast<double>(chunk.count) / static_cast<double>(batch_->rows());
    return model_->backward(on, some.pass, some.batch, some.step, static_cast<float>(share));
  }

  deeprec::executor_ref pool_;
  step_context on_;
  Model* model_;
  part_maker prepare_;
  deeprec::planned_resource* scratch_;
  std::function<void()> parts_ended_;
  deeprec::micro_lanes by_;
  deeprec::micro_batch<> step_{by_, deeprec::loss_reduction::sum};  // the share of a part is in its gradient
  std::vector<lane> lanes_;
  const ctr_batch* batch_ = nullptr;
  typename Model::step* whole_ = nullptr;
};

}  // namespace ctr
