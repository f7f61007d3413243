// What was declared to a micro_batch: stages, barriers, sums of gradients, updates, and the first declaration
// that is refused. Not here: when they run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/schedule/detail/as_status.hpp>
#include <deeprec/schedule/detail/chunk_schedule.hpp>
#include <deeprec/schedule/detail/chunk_sum.hpp>
#include <deeprec/schedule/micro_chunk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A stage, or a barrier between stages.
struct micro_stage {
  static constexpr index_t barrier = -1;

  micro_stage(std::string n, index_t r, index_t p, std::function<status(const micro_chunk&)> w)
      : name(std::move(n)), resource(r), place(p), work(std::move(w)) {}
  [[nodiscard]] bool is_barrier() const noexcept { return resource == barrier; }
  std::string name;
  index_t resource;
  index_t place;  // among all stages
  std::function<status(const micro_chunk&)> work;
  alignas(64) std::atomic<index_t> done{0};  // chunks that have ended
};
struct micro_sum {
  const micro_stage* stage;
  std::unique_ptr<chunk_sum> sum;
};
struct micro_update {
  std::string name;
  std::function<status()> step;
};

class micro_stages {
 public:
  template <class Work>
  void stage(std::string name, index_t resource, Work&& work) {
    if (find(name) != nullptr) refuse("micro_batch::stage: a name must be of one stage", name);
    if (resource < 0) {
      refuse(
          status(errc::invalid_value, "micro_batch::stage: resource must not be negative", {.is = resource}));
      resource = 0;
    }
    resources_ = (std::max)(resources_, resource + 1);
    add(std::move(name), resource, std::forward<Work>(work));
  }
  template <class Work>
  void barrier(std::string name, Work&& work) {
    if (find(name) != nullptr) refuse("micro_batch::barrier: a name must be of one stage", name);
    has_barrier_ = true;
    add(std::move(name), micro_stage::barrier, std::forward<Work>(work));
  }
  template <class Sum, class... Gradient>
  void add_sum(std::string_view of_stage, Gradient&&... gradient) {
    const micro_stage* const found = find(of_stage);
    if (found == nullptr) {
      refuse("micro_batch::sum_gradient: the stage must have been added", of_stage);
      return;
    }
    if (found->is_barrier()) {
      refuse("micro_batch::sum_gradient: the stage must run for each part", of_stage);
      return;
    }
    sums_.push_back({found, std::make_unique<Sum>(std::forward<Gradient>(gradient)...)});
  }
  template <class Step>
  void update(std::string name, Step&& step) {
    for (const auto& other : updates_) {
      if (other.name == name) refuse("micro_batch::update: a variable must have one update", name);
    }
    updates_.push_back({std::move(name), as_status<>(std::forward<Step>(step))});
  }

  void refuse(fault why) {
    if (!refused_) refused_ = std::move(why);
  }
  void refuse(const status& why) {
    if (!refused_) refused_.emplace(why);
  }
  void expect_from_1(const char* rule, index_t given) {
    if (given < 1) refuse(status(errc::invalid_value, rule, {.is = given}));
  }
  /// Refuses what has a name.
  void refuse(const char* rule, std::string_view name, errc code = errc::invalid_value) {
    refuse(fault{code, std::string(rule) + " (was \"" + std::string(name) + "\")"});
  }
  static fault untreatable(const char* what, std::string_view name, std::string_view type,
                           const char* declaration) {
    return {errc::unsupported, "micro_batch: the " + std::string(what) + " \"" + std::string(name) +
                                   "\" must declare " + declaration + " (was " + std::string(type) +
                                   ", which does not)"};
  }

  [[nodiscard]] const std::optional<fault>& refused() const noexcept { return refused_; }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(stages_.size()); }
  [[nodiscard]] micro_stage& operator[](index_t s) { return stages_[static_cast<std::size_t>(s)]; }
  [[nodiscard]] std::deque<micro_stage>& stages() noexcept { return stages_; }
  [[nodiscard]] const std::vector<micro_update>& updates() const noexcept { return updates_; }
  [[nodiscard]] index_t resources() const noexcept { return resources_; }
  [[nodiscard]] bool has_barrier() const noexcept { return has_barrier_; }

  /// Chooses among the stages [first, end) as next_task(); `task` numbers them from `first`.
  chunk_choice next(index_t first, index_t end, index_t chunks, index_t resource, chunk_task& task) {
    return next_task(
        end - first, chunks, resource, [&](index_t s) { return (*this)[first + s].resource; },
        // acquire: what the stage before wrote
        [&](index_t s) { return (*this)[first + s].done.load(std::memory_order_acquire); }, task);
  }

  status begin_sums(index_t chunks) {
    return or_out_of_memory("micro_batch::run", [&]() -> status {
      for (const micro_sum& s : sums_) s.sum->begin(chunks);
      return {};
    });
  }
  void add_to_sums(const micro_stage& stage, const micro_chunk& chunk) {
    for (const micro_sum& s : sums_) {
      if (s.stage == &stage) s.sum->add(chunk);
    }
  }
  /// The sums of the stages [first, end).
  void put_sums_back(index_t first, index_t end, executor_ref on) {
    for (const micro_sum& s : sums_) {
      if (first <= s.stage->place && s.stage->place < end) s.sum->put_back(on);
    }
  }

 private:
  template <class Work>
  void add(std::string name, index_t resource, Work&& work) {
    stages_.emplace_back(std::move(name), resource, size(),
                         as_status<const micro_chunk&>(std::forward<Work>(work)));
  }
  [[nodiscard]] const micro_stage* find(std::string_view name) const {
    for (const micro_stage& s : stages_) {
      if (s.name == name) return &s;
    }
    return nullptr;
  }

  std::deque<micro_stage> stages_;  // stay in place
  std::vector<micro_sum> sums_;
  std::vector<micro_update> updates_;
  std::optional<fault> refused_;
  index_t resources_ = 1;
  bool has_barrier_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
