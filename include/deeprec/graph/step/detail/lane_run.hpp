// Runs the levels of a step that is cut by samples: whole batches on the caller's thread, parts by lanes of a
// micro_batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/lane_plan.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/planned_resource.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What runs of one graph share.
struct lane_levels {
  std::shared_ptr<const step_layout> layout;
  std::vector<lane_level> levels;
  micro_lanes lanes;
  planned_resource* scratch;  // of parts; null: the context's
};

class lane_run final : public step_runner {
 public:
  lane_run(std::shared_ptr<const lane_levels> shared, std::pmr::memory_resource* memory)
      : shared_(std::move(shared)), memory_(memory), step_(shared_->lanes, loss_reduction::sum) {
    // The last level of the whole batch is no barrier: nothing of a part has to outlast it.
    for (std::size_t k = 1; k < levels().size(); ++k) {
      const std::string name = "level " + std::to_string(k);
      if (levels()[k].by_parts) {
        if (first_of_parts_ == nullptr) first_of_parts_ = &levels()[k];
        step_.stage(name, 0, [this, k](const micro_chunk& chunk) { return run_part(levels()[k], chunk); });
        for (const passed_value& v : levels()[k].joined) {
          if (v.parts->gradient == nullptr) continue;
          step_.sum_gradient(
              name,
              [this, &v](const micro_chunk& chunk) { return v.parts->gradient(values(chunk).place(v.slot)); },
              [this, &v] { return v.parts->gradient(whole_->place(v.slot)); });
        }
      } else if (k + 1 < levels().size()) {
        step_.barrier(name, [this, k](const micro_chunk&) { return keep(run_whole(levels()[k])); });
      }
    }
  }

  result<void> run(const context<executor_ref>& on, step_storage& whole) override {
    on_ = &on;
    whole_ = &whole;
    executor_ref executor = *on.executor;
    const awake<executor_ref> scope(executor);
    if (result<void> ran = run_whole(levels()[0]); !ran) return ran;
    samples_ = -1;
    if (!take_samples(levels()[1])) return *std::exchange(failed_, std::nullopt);
    const index_t parts = deeprec::chunk_count(samples_, shared_->lanes);
    if (parts <= 1) {
      for (std::size_t k = 1; k < levels().size(); ++k) {
        if (result<void> ran = run_whole(levels()[k]); !ran) return ran;
      }
      return {};
    }
    parts_.resize(
        (std::max)(parts_.size(), static_cast<std::size_t>((std::max)(parts, shared_->lanes.most))));
    has_room_.assign(levels().size(), false);
    failed_.reset();
    result<void> ran = step_.run(executor, samples_);
    if (!ran && failed_) return *std::exchange(failed_, std::nullopt);
    if (!ran || levels().back().by_parts) return ran;
    return run_whole(levels().back());
  }

 private:
  [[nodiscard]] const std::vector<lane_level>& levels() const noexcept { return shared_->levels; }

  [[nodiscard]] result<void> run_whole(const lane_level& level) {
    return run_inline(*on_, level.plan, static_cast<step_cells*>(whole_));
  }
  // By a thread of a lane.
  [[nodiscard]] status run_part(const lane_level& level, const micro_chunk& chunk) {
    if (const status s = take_samples(level); !s) return s;
    step_storage& mine = values(chunk);
    for (const passed_value& v : level.cut)
      v.parts->refer(whole_->place(v.slot), chunk.first, chunk.count, mine.place(v.slot));
    inline_executor thread;
    executor_ref here(thread);
    context<executor_ref> ctx(here, static_cast<const environment&>(*on_));
    if (planned_resource* const scratch = shared_->scratch; scratch != nullptr)
      ctx.memory = &level == first_of_parts_ ? scratch->begin_part(chunk.lane) : scratch->lane(chunk.lane);
    const float share = chunk_of(samples_, chunk.chunks, chunk.number, loss_reduction::mean).weight;
    const step_call call{ctx, whole_->step, share, chunk.first};
    const call_in_flight guard(mine, call);
    if (const status s = keep(run_inline(ctx, level.plan, static_cast<step_cells*>(&mine))); !s) return s;
    make_room(level, mine);
    for (const passed_value& v : level.joined) {
      if (v.parts->join != nullptr) v.parts->join(mine.place(v.slot), chunk.first, whole_->place(v.slot));
    }
    return {};
  }

  // Of the first cut, by the caller; then all others must have as many.
  [[nodiscard]] status take_samples(const lane_level& level) {
    for (const passed_value& v : level.cut) {
      const index_t samples = v.parts->samples(whole_->place(v.slot));
      if (samples_ < 0) samples_ = samples;
      if (samples == samples_) continue;
      return keep(fault(status(errc::shape_mismatch, fault_place{.item = v.user}), {},
                        std::string("step_graph: the values of sample-wise ops must have as many samples (") +
                            level.plan.name(v.user) + ": " + std::to_string(samples) + " of " +
                            level.plan.name(v.maker) + ", not " + std::to_string(samples_) + ")"));
    }
    return {};
  }

  [[nodiscard]] step_storage& values(const micro_chunk& chunk) {
    std::unique_ptr<step_storage>& mine = parts_[static_cast<std::size_t>(chunk.lane)];
    if (mine == nullptr) mine = std::make_unique<step_storage>(shared_->layout, memory_);
    return *mine;
  }
  // In the values of the whole batch, by the shapes of the part that is first.
  void make_room(const lane_level& level, const step_storage& part) {
    if (level.joined.empty()) return;
    const std::lock_guard lock(mutex_);
    const auto k = static_cast<std::size_t>(&level - levels().data());
    if (has_room_[k]) return;
    for (const passed_value& v : level.joined)
      v.parts->make_room(whole_->place(v.slot), samples_, part.place(v.slot));
    has_room_[k] = true;
  }
  // The first fault, which has the op's name in its text.
  status keep(const result<void>& ran) {
    if (ran) return {};
    const status s = ran.fault();
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = ran.fault();
    return s;
  }

  std::shared_ptr<const lane_levels> shared_;
  std::pmr::memory_resource* memory_;
  std::vector<std::unique_ptr<step_storage>> parts_;  // by lane; with barriers by part
  micro_batch<> step_;

  // Of the step in flight.
  const lane_level* first_of_parts_ = nullptr;
  const context<executor_ref>* on_ = nullptr;
  step_storage* whole_ = nullptr;
  index_t samples_ = 0;
  std::mutex mutex_;
  std::vector<bool> has_room_;  // by level
  std::optional<fault> failed_;
};

class lane_cutter final : public step_cutter {
 public:
  explicit lane_cutter(lane_levels levels)
      : shared_(std::make_shared<const lane_levels>(std::move(levels))) {}
  /// sample_cut::make.
  static result<std::unique_ptr<step_cutter>> make(const step_core& g, const flat_graph& flat,
                                                   std::shared_ptr<const step_layout> layout,
                                                   const std::vector<bool>& here, task_order order,
                                                   const sample_cut& cut) {
    const micro_lanes& lanes = cut.lanes;
    for (const index_t of : {lanes.most, lanes.fewest, lanes.samples}) {
      if (of < 1) {
        return status(errc::invalid_value, "by_lanes: members of micro_lanes must be at least 1", {.is = of});
      }
    }
    if (lanes.parts < (cut.must_cut ? 1 : 0))
      return status(errc::invalid_value, "by_parts: parts must be at least 1", {.is = lanes.parts});
    result<std::vector<lane_level>> levels = lane_plan(g, flat, *layout, here).make(order);
    if (!levels) return levels.fault();
    if (levels.value().empty() && cut.must_cut)
      return status(errc::unsupported, "by_parts: an op of the step must be sample-wise");
    std::unique_ptr<step_cutter> cutter;
    if (!levels.value().empty()) {
      cutter = std::make_unique<lane_cutter>(
          lane_levels{std::move(layout), std::move(levels).value(), lanes, cut.scratch});
    }
    return {std::move(cutter)};
  }
  [[nodiscard]] std::unique_ptr<step_runner> make_runner(std::pmr::memory_resource* memory) const override {
    return std::make_unique<lane_run>(shared_, memory);
  }

 private:
  std::shared_ptr<const lane_levels> shared_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
