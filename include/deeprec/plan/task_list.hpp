// The ops of one step as they are written down: tasks, dependencies, effects, costs.
//
//   task_list work;
//   const index_t ids = work.add("ids", [&] { read(batch); });
//   work.add("lookup", [&](const task_call&) { return lookup(pool, table, batch, out); }, {ids});
//
// task_plan.hpp compiles a list; cuda_stream_pool.hpp and stream_plan.hpp read one as well.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/detail/task_store.hpp>
#include <deeprec/plan/effects.hpp>
#include <deeprec/support/containers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a task gets from the run that calls it.
struct task_call {
  void* step;  ///< what the caller of the run passed: the state of the step in flight
  index_t op;  ///< the task's number

  /// The state of the step as a T.
  ///
  /// @pre the run was given a T*
  template <class T>
  [[nodiscard]] T& in() const noexcept {
    return *static_cast<T*>(step);
  }
};

/// A task as a function and a state, which outlives the plan: tasks of one function are one kind.
using task_function = status (*)(void* state, const task_call& call);

namespace detail {

/// Consecutive tasks of one kind.
struct task_row {
  void* const* states;
  const std::int32_t* ops;
  index_t count;
  void* step;
  task_function function;  // of the kind that runs them; else null
};

/// Where a row ended before its end.
struct row_failure {
  status why;
  index_t at = 0;
};

/// Runs a row; false: the task at `failure.at` returned `failure.why`. When one throws, `failure.at` is it.
using row_runner = bool (*)(const task_row& row, row_failure& failure);

template <class F>
inline constexpr bool takes_call = std::invocable<F&, const task_call&>;

template <class F>
decltype(auto) call_task(F& task, [[maybe_unused]] const task_row& row, [[maybe_unused]] index_t i) {
  if constexpr (takes_call<F>) {
    return task(task_call{row.step, row.ops[i]});
  } else {
    return task();
  }
}

struct any_task_result {};
template <class F>
struct plan_task_result {
  using type = any_task_result;
};
template <class F>
  requires takes_call<F>
struct plan_task_result<F> {
  using type = std::invoke_result_t<F&, const task_call&>;
};
template <class F>
  requires(!takes_call<F> && std::invocable<F&>)
struct plan_task_result<F> {
  using type = std::invoke_result_t<F&>;
};

/// The loop over a row: `one(i)` runs a task and returns a status or nothing.
template <class One>
DEEPREC_INLINE bool run_each(const task_row& row, row_failure& failure, const One& one) {
  index_t i = 0;
#if DEEPREC_EXCEPTIONS
  try {
#endif
    for (; i < row.count; ++i) {
      if constexpr (std::is_void_v<decltype(one(i))>) {
        one(i);
      } else {
        if (const status s = one(i); !s) [[unlikely]] {
          failure.why = s;
          failure.at = i;
          return false;
        }
      }
    }
#if DEEPREC_EXCEPTIONS
  } catch (...) {
    failure.at = i;
    throw;
  }
#endif
  return true;
}

/// Rows of tasks of the type F: their bodies are inlined.
template <class F>
bool run_row(const task_row& row, row_failure& failure) {
  return run_each(row, failure,
                  [&](index_t i) { return call_task(*static_cast<F*>(row.states[i]), row, i); });
}

/// Rows of tasks of one function.
inline bool run_functions(const task_row& row, row_failure& failure) {
  return run_each(row, failure,
                  [&](index_t i) { return row.function(row.states[i], {row.step, row.ops[i]}); });
}

struct task_kind {
  row_runner run = nullptr;  // null: ops without a task
  task_function function = nullptr;
};

}  // namespace detail

/// A callable that a task_list accepts: it takes nothing or a task_call, and returns nothing or a status.
template <class F>
concept PlanTask = std::same_as<typename detail::plan_task_result<F>::type, void> ||
                   std::same_as<typename detail::plan_task_result<F>::type, status>;

/// The ops of one step as they are written down: task, dependencies, effects, cost, requested stream.
///
/// An op without a task is run by its number (cuda_stream_pool) or only planned. A copy shares the tasks of
/// the original.
///
/// @threads one thread fills it and its copies; then concurrent readers are safe
class task_list {
 public:
  struct entry {
    std::span<const index_t> after;  ///< as given to add()
    double cost;
    index_t bytes;   ///< of memory that it moves, for traces
    int stream;      ///< -1: any
    index_t leader;  ///< the op whose stream this one shares; -1: none
  };

  /// In force until the end of its block; then the previous one applies again.
  class scope {
   public:
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { work_->now_ = before_; }

   private:
    friend class task_list;
    scope(task_list* work, std::pair<int, index_t> now) : work_(work), before_(work->now_) {
      work->now_ = now;
    }
    task_list* work_;
    std::pair<int, index_t> before_;
  };

  /// Ops added while the scope lives run on that stream.
  [[nodiscard]] scope on_stream(int stream) { return {this, {stream, -1}}; }
  /// Ops added while the scope lives run on the stream of that op.
  [[nodiscard]] scope colocate_with(index_t leader) { return {this, {-1, leader}}; }

  /// Adds an op that starts when those in `after` have ended; returns its number. The task is moved into the
  /// list; std::ref(task) refers to it instead.
  ///
  /// @cost    amortised O(1) and a copy of the name
  /// @threads one at a time
  /// @error   throws std::bad_alloc, and what the task's move throws. What is wrong with the graph is
  ///          reported by task_plan::compile
  template <class F>
    requires PlanTask<std::decay_t<F>>
  index_t add(std::string_view name, F&& task, std::span<const index_t> after = {}, double cost = 1) {
    using type = std::decay_t<F>;
    const std::int32_t kind = kind_of({detail::run_row<type>, nullptr});
    return append(name, kind, store_->keep(std::forward<F>(task)), after, cost);
  }
  template <class F>
    requires PlanTask<std::decay_t<F>>
  index_t add(std::string_view name, F&& task, std::initializer_list<index_t> after, double cost = 1) {
    return add(name, std::forward<F>(task), span_of(after), cost);
  }
  /// The same with a function and its state, which outlives every plan of this list.
  index_t add(std::string_view name, task_function function, void* state, std::span<const index_t> after = {},
              double cost = 1) {
    return append(name, kind_of({detail::run_functions, function}), state, after, cost);
  }
  index_t add(std::string_view name, task_function function, void* state,
              std::initializer_list<index_t> after, double cost = 1) {
    return add(name, function, state, span_of(after), cost);
  }
  /// An op without a task.
  index_t add(std::string_view name, std::span<const index_t> after, double cost = 1) {
    return append(name, kind_of({}), nullptr, after, cost);
  }
  index_t add(std::string_view name, std::initializer_list<index_t> after, double cost = 1) {
    return add(name, span_of(after), cost);
  }
  index_t add(std::span<const index_t> after, double cost = 1) {
    return add(std::string_view(), after, cost);
  }
  index_t add(std::initializer_list<index_t> after, double cost = 1) {
    return add(std::string_view(), span_of(after), cost);
  }

  /// Op `second` starts when op `first` has ended. Either may be added later.
  void edge(index_t first, index_t second) { edges_.emplace_back(first, second); }

  /// The op accesses memory: affects(op, reads(ids), updates(table.view())). Ops whose effects overlap keep
  /// the order in which they were added: a write comes after the reads and the write before it, a read after
  /// the write before it.
  ///
  /// @cost    amortised O(1) an effect
  /// @threads one at a time
  /// @error   throws std::bad_alloc: then nothing was added. An op that the list does not have is reported by
  ///          task_plan::compile
  template <std::convertible_to<effects>... Effects>
  void affects(index_t op, const Effects&... operands) {
    const std::array<effects, sizeof...(Effects)> all{operands...};
    std::size_t more = 0;
    for (const effects& operand : all) more += operand.size();
    if (effects_.capacity() - effects_.size() < more) effects_.reserve(2 * effects_.size() + more);
    for (const effects& operand : all) {
      for (const effect& one : operand) effects_.emplace_back(op, one);
    }
  }

  /// @pre 0 <= op < size()
  void set_cost(index_t op, double cost) { rows_[place(op)].cost = cost; }
  /// @pre 0 <= op < size()
  void set_bytes(index_t op, index_t bytes) { rows_[place(op)].bytes = bytes; }

  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(rows_.size()); }
  /// @pre 0 <= i < size()
  [[nodiscard]] entry at(index_t i) const {
    const row& r = rows_[place(i)];
    const std::size_t end = place(i) + 1 < rows_.size() ? rows_[place(i) + 1].after : after_.size();
    return {{after_.data() + r.after, end - r.after}, r.cost, r.bytes, r.stream, r.leader};
  }
  /// The name given to add(), or "op 17".
  ///
  /// @pre 0 <= i < size()
  [[nodiscard]] std::string name(index_t i) const {
    const row& r = rows_[place(i)];
    return r.name_length > 0 ? names_.substr(r.name, r.name_length) : "op " + std::to_string(i);
  }

 private:
  friend class task_plan;

  struct row {
    std::size_t after;  // first of its in after_
    std::size_t name;
    std::size_t name_length;
    double cost;
    void* state;
    index_t bytes;
    index_t leader;
    int stream;
    std::int32_t kind;
  };

  static std::size_t place(index_t op) noexcept { return static_cast<std::size_t>(op); }
  static std::span<const index_t> span_of(std::initializer_list<index_t> list) {
    return {list.begin(), list.size()};
  }

  std::int32_t kind_of(const detail::task_kind& kind) {
    const std::pair key(reinterpret_cast<std::uintptr_t>(kind.run),
                        reinterpret_cast<std::uintptr_t>(kind.function));
    detail::make_room(kinds_);
    const auto [found, made] = kind_numbers_.try_emplace(key, static_cast<std::int32_t>(kinds_.size()));
    if (made) kinds_.push_back(kind);  // can't be refused
    return found->second;
  }
  index_t append(std::string_view name, std::int32_t kind, void* state, std::span<const index_t> after,
                 double cost) {
    // What throws comes before the row; `after` may be of this list.
    detail::make_room(rows_);
    const std::size_t name_at = names_.size(), first = after_.size();
    names_.append(name);
    const std::less<> below;
    const bool own = !below(after.data(), after_.data()) && below(after.data(), after_.data() + first);
    const std::size_t offset = own ? static_cast<std::size_t>(after.data() - after_.data()) : 0;
    after_.resize(first + after.size());
    std::copy_n(own ? after_.data() + offset : after.data(), after.size(), after_.data() + first);
    rows_.push_back({first, name_at, name.size(), cost, state, 0, now_.second, now_.first, kind});
    return size() - 1;
  }

  std::vector<row> rows_;
  std::vector<index_t> after_;
  std::string names_;
  std::vector<std::pair<index_t, index_t>> edges_;
  std::vector<std::pair<index_t, effect>> effects_;
  std::vector<detail::task_kind> kinds_;
  std::map<std::pair<std::uintptr_t, std::uintptr_t>, std::int32_t> kind_numbers_;
  std::shared_ptr<detail::task_store> store_ = std::make_shared<detail::task_store>();
  std::pair<int, index_t> now_{-1, -1};
};

}}  // namespace deeprec::DEEPREC_ABI
