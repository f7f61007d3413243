// Type-erased ops of a step graph: they construct their outputs and call their functions.
//
//   cells of an op   | in 0 | in 1, as a list: *, *, * | variable | out 0 | out 1 |      pointers
//
// A node is called with the cells and casts them to the types of its handles. Without RTTI: a virtual
// function and tables of functions. Not here: where values lie (step_layout.hpp).
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/op_attribute.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct attribute_taker {
  attribute_list& to;
  template <class T>
  void operator()(std::string_view name, const T& v) const {
    to.push_back({std::string(name), attribute_value(v)});
  }
};

/// The part of the state of a step that tasks of a plan use.
struct step_cells {
  void** cells = nullptr;
  const step_call* call = nullptr;    // of the run in flight
  bool ended = false;                 // the source has
  std::optional<fault> source_fault;  // with the text that a status can't hold
};

/// While it exists, ops get the call.
class call_in_flight {
 public:
  call_in_flight(step_cells& step, const step_call& call) noexcept : step_(step) { step.call = &call; }
  call_in_flight(const call_in_flight&) = delete;
  call_in_flight& operator=(const call_in_flight&) = delete;
  ~call_in_flight() { step_.call = nullptr; }

 private:
  step_cells& step_;
};

class step_node {
 public:
  step_node() = default;
  step_node(const step_node&) = delete;
  step_node& operator=(const step_node&) = delete;
  virtual ~step_node() = default;

  [[nodiscard]] virtual status run(void* const* cells, const step_call& call) const = 0;
  /// Of a source: false where there is no further step.
  [[nodiscard]] virtual result<bool> draw(void* const* cells, const step_call& call) const {
    const status s = run(cells, call);
    if (!s) return s;
    return true;
  }
  /// Adds the op to a plan of step_cells.
  virtual index_t add_to(task_list& list, std::string_view name, std::size_t first_cell,
                         std::span<const index_t> after, double cost) const = 0;
  virtual void attributes(attribute_list&) const {}
  /// What was given to add() or source().
  [[nodiscard]] virtual type_id type() const noexcept = 0;
  [[nodiscard]] virtual const void* object() const noexcept = 0;
  /// How many inputs each argument has: a list any number, others one.
  [[nodiscard]] virtual std::span<const index_t> arguments() const noexcept { return {}; }
};

/// A task of a plan: tasks of one type of op stand side by side.
template <class Node>
struct node_task {
  const Node* node;
  std::size_t first_cell;
  auto operator()(const task_call& call) const {
    auto& step = call.in<step_cells>();
    return node->call(step.cells + first_cell, *step.call);
  }
};

/// Where the cells of an argument begin, and of lists their number.
template <std::size_t Inputs>
struct input_places {
  std::array<std::size_t, Inputs> first{};
  std::array<index_t, Inputs> count{};
  std::size_t cells = 0;
};

template <class Op, class Ins, class Outs>
struct op_call;
template <class Op, class... In, class... Out>
struct op_call<Op, std::tuple<In...>, op_outputs<Out...>> {
  using arguments = std::tuple<typename input_of<In>::argument...>;
  static constexpr bool with_step =
      std::is_invocable_v<const Op&, const step_call&, typename input_of<In>::argument..., Out&...>;
  static constexpr bool without_step =
      std::is_invocable_v<const Op&, typename input_of<In>::argument..., Out&...>;
  static constexpr bool if_not_const =
      std::is_invocable_v<Op&, const step_call&, typename input_of<In>::argument..., Out&...> ||
      std::is_invocable_v<Op&, typename input_of<In>::argument..., Out&...>;
  static constexpr auto returned() {
    if constexpr (with_step) {
      return std::type_identity<
          std::invoke_result_t<const Op&, const step_call&, typename input_of<In>::argument..., Out&...>>();
    } else if constexpr (without_step) {
      return std::type_identity<
          std::invoke_result_t<const Op&, typename input_of<In>::argument..., Out&...>>();
    } else {
      return std::type_identity<void>();
    }
  }
  using result_type = typename decltype(returned())::type;
  static constexpr bool fits = with_step || without_step;
  static constexpr bool returns_status = std::is_void_v<result_type> || std::same_as<result_type, status>;
};

template <class Op, class Ins, class Outs>
class op_node;

template <class Op, class... In, class... Out>
class op_node<Op, std::tuple<In...>, op_outputs<Out...>> final : public step_node {
  using traits = op_call<Op, std::tuple<In...>, op_outputs<Out...>>;
  static constexpr bool any_list = (input_of<In>::is_list || ...);

 public:
  op_node(Op op, const input_places<sizeof...(In)>& places) : op_(std::move(op)), places_(places) {}

  DEEPREC_INLINE auto call(void* const* cells, const step_call& step) const {
    return call(cells, step, std::index_sequence_for<In...>(), std::index_sequence_for<Out...>());
  }
  [[nodiscard]] status run(void* const* cells, const step_call& step) const override {
    if constexpr (std::is_void_v<typename traits::result_type>) {
      call(cells, step);
      return {};
    } else {
      return call(cells, step);
    }
  }
  index_t add_to(task_list& list, std::string_view name, std::size_t first_cell,
                 std::span<const index_t> after, double cost) const override {
    return list.add(name, node_task<op_node>{this, first_cell}, after, cost);
  }
  void attributes(attribute_list& to) const override {
    const attribute_taker take{to};
    if constexpr (requires { op_.for_each_attribute(take); }) op_.for_each_attribute(take);
  }
  [[nodiscard]] type_id type() const noexcept override { return type_id_of<Op>(); }
  [[nodiscard]] const void* object() const noexcept override { return std::addressof(op_); }
  [[nodiscard]] std::span<const index_t> arguments() const noexcept override { return places_.count; }

 private:
  template <std::size_t... Input, std::size_t... Output>
  DEEPREC_INLINE auto call(void* const* cells, const step_call& step, std::index_sequence<Input...>,
                           std::index_sequence<Output...>) const {
    void* const* const outs = cells + (any_list ? places_.cells : sizeof...(In));
    if constexpr (traits::with_step) {
      return op_(step, input<In, Input>(cells)..., *static_cast<Out*>(outs[Output])...);
    } else {
      return op_(input<In, Input>(cells)..., *static_cast<Out*>(outs[Output])...);
    }
  }
  template <class H, std::size_t Place>
  DEEPREC_INLINE typename input_of<H>::argument input(void* const* cells) const {
    if constexpr (input_of<H>::is_list) {
      return {cells + places_.first[Place], places_.count[Place]};
    } else {
      return *static_cast<std::remove_reference_t<typename input_of<H>::argument>*>(
          cells[any_list ? places_.first[Place] : Place]);
    }
  }

  const Op op_;
  const input_places<sizeof...(In)> places_;
};

/// How a source is called: with its output; before it with the step, where it takes one.
template <class F, class T>
struct source_call {
  static constexpr bool with_step = std::is_invocable_v<F&, const step_call&, T&>;
  static constexpr auto returned() {
    if constexpr (with_step) {
      return std::type_identity<std::invoke_result_t<F&, const step_call&, T&>>();
    } else if constexpr (std::is_invocable_v<F&, T&>) {
      return std::type_identity<std::invoke_result_t<F&, T&>>();
    } else {
      return std::type_identity<void>();
    }
  }
  using result_type = typename decltype(returned())::type;
  static constexpr bool fits = std::same_as<result_type, bool> || std::same_as<result_type, result<bool>>;
};

/// A source may have a state: one thread at a time calls it.
template <class F, class T>
class source_node final : public step_node {
 public:
  explicit source_node(F f) : f_(std::move(f)) {}

  [[nodiscard]] result<bool> draw(void* const* cells, const step_call& step) const override {
    T& out = *static_cast<T*>(cells[0]);
    if constexpr (source_call<F, T>::with_step) {
      return f_(step, out);
    } else {
      return f_(out);
    }
  }
  [[nodiscard]] status run(void* const* cells, const step_call& step) const override {
    const result<bool> more = draw(cells, step);
    if (!more) return more.fault();
    if (!more.value()) return ended();
    return {};
  }
  index_t add_to(task_list& list, std::string_view name, std::size_t first_cell,
                 std::span<const index_t> after, double cost) const override {
    return list.add(
        name,
        [this, first_cell](const task_call& call) -> status {
          auto& step = call.in<step_cells>();
          result<bool> more = draw(step.cells + first_cell, *step.call);
          if (!more) {
            const status why = more.fault();
            step.source_fault = more.fault();
            return why;
          }
          step.ended = !more.value();
          return step.ended ? ended() : status();
        },
        after, cost);
  }
  [[nodiscard]] type_id type() const noexcept override { return type_id_of<F>(); }
  [[nodiscard]] const void* object() const noexcept override { return std::addressof(f_); }

 private:
  static status ended() {
    return {errc::closed, "step_graph: a step must have an item of the source (it has ended)"};
  }

  mutable F f_;
};

/// What an op is beside its call: from its members, where it has them.
template <class Op>
constexpr const char* kind_of_op() noexcept {
  if constexpr (requires { std::string_view(Op::kind); }) {
    return Op::kind;
  } else {
    return "opaque";
  }
}
template <class Op>
constexpr bool is_id_lookup_op() noexcept {
  if constexpr (requires { Op::id_lookup; }) {
    return Op::id_lookup;
  } else {
    return false;
  }
}

/// The outputs: those given to add(), or the op's own.
template <class Op, class... Given>
constexpr auto outputs_of_op() noexcept {
  if constexpr (sizeof...(Given) > 0) {
    return op_outputs<Given...>();
  } else if constexpr (requires { typename Op::outputs; }) {
    return typename Op::outputs();
  } else if constexpr (requires { typename Op::output; }) {
    return op_outputs<typename Op::output>();
  } else {
    return op_outputs<>();
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
