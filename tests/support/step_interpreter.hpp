// Runs a step of a graph op by op, in any order that its edges allow: the oracle of every other run.
//
//   step_interpreter it(g);
//   while (it.step(pool, [&](index_t n) { return random() % n; }).or_throw()) { it.get(loss); }
//                                      of n ops whose predecessors ran, which one is next
//
// Deliberately simple: quadratic, one allocation for each value, and nothing shared with task_plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec_test {

/// @pre     the graph has no fault, outlives this and is not changed
/// @threads one step at a time
class step_interpreter {
 public:
  explicit step_interpreter(const deeprec::step_graph& graph) : g_(graph.core()) {
    for (deeprec::index_t v = 0; v < g_.size(); ++v) {
      values_.emplace_back();
      if (g_.op(v).kind == deeprec::op_kind::stage) continue;
      for (const deeprec::detail::value_type* type : g_.op(v).outputs) {
        void* const place = std::pmr::new_delete_resource()->allocate(type->size, type->alignment);
        type->make(place, std::pmr::get_default_resource(), g_.op(v).constant.get());
        values_.back().push_back(place);
      }
    }
  }
  step_interpreter(const step_interpreter&) = delete;
  step_interpreter& operator=(const step_interpreter&) = delete;
  ~step_interpreter() {
    for (deeprec::index_t v = 0; v < g_.size(); ++v) {
      for (std::size_t p = 0; p < values_[at(v)].size(); ++p) {
        const deeprec::detail::value_type& type = *g_.op(v).outputs[p];
        type.destroy(values_[at(v)][p]);
        std::pmr::new_delete_resource()->deallocate(values_[at(v)][p], type.size, type.alignment);
      }
    }
  }

  /// Runs one step; false: the source has ended, and nothing ran.
  ///
  /// @param choose choose(n): a number below n
  /// @cost    O(ops^2 inputs)
  /// @threads one step at a time
  /// @error   the status of an op; stopped, where the token requested it before the step. What an op throws
  ///          passes through
  template <class C, class Choose>
  [[nodiscard]] deeprec::result<bool> step(C&& on, Choose choose) {
    const auto given = deeprec::detail::as_context(on);
    if (given.stop != nullptr && given.stop->stop_requested())
      return deeprec::status(deeprec::errc::stopped, {.operation = "step_interpreter::step"});
    deeprec::environment env = given;
    env.stop = nullptr;
    deeprec::executor_ref executor = *given.executor;
    const deeprec::context<deeprec::executor_ref> ctx(executor, env);
    const deeprec::step_call call{ctx, step_};
    std::vector<bool> ran(at(g_.size()));
    for (deeprec::index_t v = 0; v < g_.size(); ++v) {
      if (g_.op(v).node == nullptr) ran[at(v)] = true;
      if (!g_.op(v).is_source) continue;
      const deeprec::result<bool> more = g_.op(v).node->draw(cells_of(v).data(), call);
      if (!more || !more.value()) return more;
      ran[at(v)] = true;
    }
    while (true) {
      std::vector<deeprec::index_t> ready;
      for (deeprec::index_t v = 0; v < g_.size(); ++v) {
        if (!ran[at(v)] && is_ready(v, ran)) ready.push_back(v);
      }
      if (ready.empty()) break;
      const deeprec::index_t v =
          ready[at(static_cast<deeprec::index_t>(choose(static_cast<deeprec::index_t>(ready.size()))))];
      if (const deeprec::status s = g_.op(v).node->run(cells_of(v).data(), call); !s) return s;
      ran[at(v)] = true;
    }
    ++step_;
    return true;
  }
  template <class T>
  [[nodiscard]] const T& get(const deeprec::value<T>& v) const {
    return *static_cast<const T*>(place(deeprec::detail::handle_access::ref(v)));
  }
  template <class T>
  void feed(const deeprec::value<T>& placeholder, T fed) {
    *static_cast<T*>(place(deeprec::detail::handle_access::ref(placeholder))) = std::move(fed);
  }

 private:
  static std::size_t at(deeprec::index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] void* place(deeprec::detail::port_ref ref) const {
    ref = g_.made_at(ref);
    return values_[at(ref.op)][at(ref.port)];
  }
  [[nodiscard]] std::vector<void*> cells_of(deeprec::index_t v) const {
    std::vector<void*> cells;
    for (const deeprec::detail::step_input& in : g_.op(v).inputs)
      cells.push_back(in.is_variable() ? in.object : place(in.from));
    for (void* const made : values_[at(v)]) cells.push_back(made);
    return cells;
  }
  // Whether everything ran that the op must follow.
  [[nodiscard]] bool is_ready(deeprec::index_t v, const std::vector<bool>& ran) const {
    const deeprec::detail::step_op& op = g_.op(v);
    for (const deeprec::detail::step_input& in : op.inputs) {
      if (!in.is_variable() && !ran[at(g_.made_at(in.from).op)]) return false;
    }
    for (const deeprec::detail::port_ref& u : op.after) {
      if (!ran[at(g_.made_at(u).op)]) return false;
    }
    for (deeprec::index_t u = 0; u < v; ++u) {
      if (!ran[at(u)] && conflict(g_.op(u), op)) return false;
    }
    return true;
  }
  static bool conflict(const deeprec::detail::step_op& a, const deeprec::detail::step_op& b) {
    if (a.external && b.external) return true;
    const auto is_stale = [](const deeprec::detail::step_input& in) {
      return in.use == deeprec::variable_use::stale_read && in.window > 1;
    };
    for (const deeprec::detail::step_input& x : a.inputs) {
      for (const deeprec::detail::step_input& y : b.inputs) {
        if (!x.is_variable() || !y.is_variable() || is_stale(x) || is_stale(y)) continue;
        if (x.overlaps(y) && (x.changes() || y.changes())) return true;
      }
    }
    return false;
  }

  const deeprec::detail::step_core& g_;
  std::vector<std::vector<void*>> values_;
  deeprec::index_t step_ = 0;
};

}  // namespace deeprec_test
