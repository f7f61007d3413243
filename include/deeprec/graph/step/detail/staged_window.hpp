// The window of a staged run in which ops behind a cut change what ops before it read some steps ahead.
//
//   step 5   lookup (stale_read, W = 2) ──┤ cut ├── loss ── update      lookup 5 sees the updates to 3
//   step 4                                          loss ── update      update 4 waits for lookup 5
//
// A step that has begun behind the cut ends, and its update needs lookups of later steps: so a request to
// stop ends the run between two steps. Not here: the order of lookups and updates
// (schedule/stale_window.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/step/detail/stale_reads.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/op_attribute.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>
#include <deeprec/plan/task_list.hpp>
#include <deeprec/schedule/stale_window.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Lookups are the parts of steps that read stale, updates the ops that change what these read.
///
/// @threads read(), end_at(), cancel(), request_stop() and updates: any; else the caller's thread
class staged_window {
 public:
  explicit staged_window(const stale_reads& reads)
      : part_(reads.part), updates_(static_cast<index_t>(reads.updates.size())), window_(reads.window) {}

  [[nodiscard]] index_t part() const noexcept { return part_; }
  [[nodiscard]] index_t window() const noexcept { return window_.window(); }

  // --- a run ----------------------------------------------------------------------------------------------

  /// @param first the number of the step that comes first behind the cuts
  void begin(index_t first) noexcept {
    update_.reset();
    updated_ = 0;
    first_ = first;
    window_.restart();
    is_stopped_ = is_in_step_ = false;
    ending_ = std::stop_source();
  }
  /// The lookup of a step was run by a run before: one of the first W.
  void has_read(index_t step) { static_cast<void>(window_.read(step - first_)); }
  /// The run ends, other than after the last step.
  void cancel() noexcept { window_.cancel(); }

  // --- before the cut -------------------------------------------------------------------------------------

  /// While it lives, the step's lookup reads; not ok(): the run ends.
  [[nodiscard]] stale_window<>::reading read(index_t step) { return window_.read(step - first_); }
  /// There is no step of that number, nor a later one.
  void end_at(index_t step) noexcept { window_.end_at(step - first_); }

  // --- behind it ------------------------------------------------------------------------------------------

  /// False: a stop was requested, and the step does not begin.
  [[nodiscard]] bool begin_step() {
    const std::lock_guard lock(mutex_);
    is_in_step_ = !is_stopped_;
    return is_in_step_;
  }
  void end_step() {
    const std::lock_guard lock(mutex_);
    is_in_step_ = false;
    if (is_stopped_) end_run();
  }
  void request_stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    if (!is_in_step_) end_run();
  }
  /// That of the pipeline.
  [[nodiscard]] std::stop_token token() const noexcept { return ending_.get_token(); }

  /// Around each op of the updates of a step, on any thread: waits before the first one.
  status begin_update(index_t step) {
    const std::lock_guard lock(updating_);
    if (!update_) update_.emplace(window_.apply(step - first_));
    return update_->outcome();
  }
  void end_update() {
    const std::lock_guard lock(updating_);
    if (++updated_ < updates_) return;
    update_.reset();
    updated_ = 0;
  }

 private:
  void end_run() {
    cancel();
    ending_.request_stop();
  }

  index_t part_, updates_;
  index_t first_ = 0;
  stale_window<> window_;
  std::mutex updating_;
  std::optional<stale_window<>::writing> update_;
  index_t updated_ = 0;  // ops of the update that have ended
  std::mutex mutex_;
  bool is_stopped_ = false, is_in_step_ = false;
  std::stop_source ending_;
};

/// An op that changes what is read stale.
class updating_node final : public step_node {
 public:
  updating_node(std::shared_ptr<const step_node> op, staged_window& window) noexcept
      : op_(std::move(op)), window_(&window) {}

  [[nodiscard]] status call(void* const* cells, const step_call& step) const {
    if (status s = window_->begin_update(step.step); !s) return s;
    status done = op_->run(cells, step);
    if (done.ok()) window_->end_update();
    return done;
  }
  [[nodiscard]] status run(void* const* cells, const step_call& step) const override {
    return call(cells, step);
  }
  index_t add_to(task_list& list, std::string_view name, std::size_t first_cell,
                 std::span<const index_t> after, double cost) const override {
    return list.add(name, node_task<updating_node>{this, first_cell}, after, cost);
  }
  void attributes(attribute_list& to) const override { op_->attributes(to); }
  [[nodiscard]] type_id type() const noexcept override { return op_->type(); }
  [[nodiscard]] const void* object() const noexcept override { return op_->object(); }

 private:
  std::shared_ptr<const step_node> op_;
  staged_window* window_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
