// A step of training or inference as a graph of typed ops: what is computed from what, and which variables it
// reads and writes.
//
//   step_graph g;
//   auto tables = g.variable("tables", table_set);
//   auto raw    = g.source<lines>("read", [&](lines& out) { return reader.next(out); });
//   auto batch  = g.stage("io", g.add("decode", decode{13, 26}, raw));   what lies before runs ahead
//   auto rows   = g.add("lookup", lookup_rows{}, batch, g.read(tables));
//   auto loss   = g.add("loss", logistic{}, rows, batch);
//   g.add("update", update_rows{}, loss, g.write(tables)).role(op_role::apply).target();
//
//   read ─> decode ─> "io" ─> lookup ─> loss ─> update
//             tables ──────────^─────────────────^          update follows lookup: it writes what that reads
//
// Handles have types, so a wrong edge does not compile. Every other fault is found by check(), flat() and
// what compiles the graph, and names the op. Not here: runs (step_program.hpp, staged_program.hpp), words and
// pictures (describe_graph.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/any_value.hpp>
#include <deeprec/graph/step/detail/op_checks.hpp>
#include <deeprec/graph/step/detail/step_checks.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>
#include <deeprec/graph/step/op_attribute.hpp>
#include <deeprec/graph/step/op_ref.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @threads one thread fills it; then concurrent readers are safe
class step_graph {
 public:
  step_graph() : core_(std::make_unique<detail::step_core>()) {}
  step_graph(step_graph&&) noexcept = default;
  step_graph& operator=(step_graph&&) noexcept = default;

  /// An object of the caller, which outlives the graph and what is compiled from it. It is the bytes of the
  /// object, not what these point to. Variables that share a byte, as a struct and a member of it do, are
  /// ordered and checked as one variable is. T is a complete type.
  template <class T>
  [[nodiscard]] deeprec::variable<T> variable(std::string_view name, T& object) {
    const index_t op =
        core_->add({.name = std::string(name), .kind_name = "variable", .kind = op_kind::variable});
    return detail::handle_access::make<T>({core_->id(), op, 0}, &object);
  }
  /// An object of each step in flight, such as the activations of a stack: made with the state of a step, and
  /// ordered as a variable is. Programs with by_lanes() make one for each part of a batch that is in work.
  ///
  /// @param make  returns a T; called by several threads at once
  template <class Make>
  [[nodiscard]] auto local(std::string_view name, Make make) {
    using type = std::invoke_result_t<const Make&>;
    static_assert(std::is_object_v<type> && !std::is_const_v<type>,
                  "deeprec::step_graph::local: make does not return an object. Fix: return it by value");
    detail::step_op op{.name = std::string(name), .kind_name = "local", .kind = op_kind::variable};
    op.outputs = {&detail::type_of_local<type>};
    op.constant = std::make_shared<const std::function<type()>>(std::move(make));
    // Never read: its address tells the variable from others.
    constexpr std::align_val_t alignment{alignof(type)};
    const std::shared_ptr<type> identity(
        static_cast<type*>(::operator new(sizeof(type), alignment)),
        [](type* p) { ::operator delete(static_cast<void*>(p), std::align_val_t{alignof(type)}); });
    op.identity = identity;
    return detail::handle_access::make<type>({core_->id(), core_->add(std::move(op)), 0}, identity.get());
  }
  /// The access of an op to a variable: the op takes const T&.
  template <class T>
  [[nodiscard]] variable_access<const T> read(const deeprec::variable<T>& v) const {
    return detail::handle_access::access<const T>(v, variable_use::read, 1);
  }
  /// The op takes T&.
  template <class T>
  [[nodiscard]] variable_access<T> write(const deeprec::variable<T>& v) const {
    detail::check_variable<T>();
    return detail::handle_access::access<T>(v, variable_use::write, 1);
  }
  /// The op takes T&, and adds to it.
  template <class T>
  [[nodiscard]] variable_access<T> accumulate(const deeprec::variable<T>& v) const {
    detail::check_variable<T>();
    return detail::handle_access::access<T>(v, variable_use::accumulate, 1);
  }
  /// The op takes const T&, as it was window - 1 steps before. With a window of 1 it is read(). With a larger
  /// one the order of effects leaves it out, and only a staged_program runs it, before a cut: there step t
  /// sees the changes of steps up to t - window and no others. smart_stage moves it as little as any read.
  template <class T>
  [[nodiscard]] variable_access<const T> stale_read(const deeprec::variable<T>& v, index_t window) const {
    return detail::handle_access::access<const T>(v, variable_use::stale_read, window);
  }

  /// What begins a step: f([const step_call&,] T& out) returns bool or result<bool>; false: there is no
  /// further step, and nothing of this one runs. Called by one thread at a time, so it may have a state.
  template <class T, class F>
  op_ref<T> source(std::string_view name, F f) {
    static_assert(detail::source_call<F, T>::fits,
                  "deeprec::step_graph::source: the source is not called with its item, or does not return "
                  "whether there is one. Fix: take ([const step_call&,] T& out) and return bool or "
                  "result<bool>");
    detail::check_output<T>();
    detail::step_op op{.name = std::string(name), .kind_name = "source", .is_source = true};
    op.outputs = {&detail::type_of_value<T, false>};
    if constexpr (detail::source_call<F, T>::fits)
      op.node = std::make_shared<detail::source_node<F, T>>(std::move(f));
    return {core_.get(), core_->add(std::move(op))};
  }
  /// The same value in every step, copied into each state.
  template <class T>
  deeprec::value<T> constant(std::string_view name, T held) {
    detail::step_op op{.name = std::string(name), .kind_name = "constant", .kind = op_kind::constant};
    op.outputs = {&detail::type_of_value<T, true>};
    op.constant = std::make_shared<const T>(std::move(held));
    return detail::handle_access::make<T>({core_->id(), core_->add(std::move(op)), 0});
  }
  /// A value that the caller of a step feeds (step_state::feed). It keeps what it was fed last.
  template <class T>
  deeprec::value<T> placeholder(std::string_view name) {
    detail::check_output<T>();
    detail::step_op op{.name = std::string(name), .kind_name = "placeholder", .kind = op_kind::placeholder};
    op.outputs = {&detail::type_of_value<T, false>};
    return detail::handle_access::make<T>({core_->id(), core_->add(std::move(op)), 0});
  }

  /// Adds an op. Its outputs are Outs, or else the op's own (`using output = T`, `using outputs =
  /// op_outputs<A, B>`), or none.
  ///
  /// @param op called as op([const step_call&,] inputs..., outputs...), by several steps at once, and returns
  ///           nothing or a status
  /// @param inputs values, std::vectors of values (op_list<const T>), accesses of variables
  /// @post    its outputs keep their memory from step to step: an op overwrites what a step before left. At
  ///          first one is as its default constructor makes it, or, where its class has a constructor from a
  ///          std::pmr::memory_resource*, lies in the resource of the state; an optional, a smart pointer, a
  ///          tuple, a variant and a plain struct have the first only
  /// @cost    amortised O(inputs); allocates
  /// @threads one at a time
  /// @error   throws std::bad_alloc, and what the op's move throws. What is wrong with the graph is reported
  ///          by check()
  /// @example @snippet tests/graph/step_graph_test.cpp step_graph
  template <class... Outs, class Op, class... In>
  auto add(std::string_view name, Op op, const In&... inputs) {
    return add_op(name, std::move(op), detail::outputs_of_op<Op, Outs...>(), inputs...);
  }
  /// The same with the op's kind as name.
  template <class... Outs, class Op, class... In>
    requires(!std::is_convertible_v<const Op&, std::string_view>)
  auto add(Op op, const In&... inputs) {
    return add_op({}, std::move(op), detail::outputs_of_op<Op, Outs...>(), inputs...);
  }

  /// The value is read after a run, by step_state::get or what ends a step. Without it, values that
  /// sample-wise ops make are there only where another op needs them.
  template <class T>
  void keep(const deeprec::value<T>& v) {
    const detail::port_ref& ref = detail::handle_access::ref(v);
    if (core_->owns(ref)) core_->change(ref.op).kept.push_back(ref.port);
  }

  /// The user's stage: ops before it may run steps ahead. Hands the values on, each as it was given: one, a
  /// std::vector of values, or a std::tuple of several arguments.
  template <class... In>
  auto stage(std::string_view name, const In&... inputs) {
    constexpr bool fits =
        ((detail::input_of<In>::fits && requires { typename detail::input_of<In>::type; }) && ...);
    static_assert(fits,
                  "deeprec::step_graph::stage: what is staged is no value. Fix: pass values or a std::vector "
                  "of values; a variable is not staged");
    detail::step_op op{.name = std::string(name), .kind_name = "stage", .kind = op_kind::stage};
    if constexpr (fits) (detail::input_of<In>::cells(inputs, op.inputs), ...);
    op.outputs.resize(op.inputs.size());
    // The handles before the op: nothing is added where their memory is refused.
    [[maybe_unused]] const index_t added = core_->size();
    [[maybe_unused]] index_t port = 0;
    if constexpr (!fits) {
      return std::tuple<>();
    } else if constexpr (sizeof...(In) == 1) {
      auto handles = staged(inputs..., added, port);
      core_->add(std::move(op));
      return handles;
    } else {
      std::tuple handles{staged(inputs, added, port)...};  // in order: braces
      core_->add(std::move(op));
      return handles;
    }
  }

  [[nodiscard]] index_t size() const noexcept { return core_->size(); }
  [[nodiscard]] std::string_view name(index_t op) const { return core_->op(op).name; }
  /// "hash", "opaque", "source", "variable", "constant", "placeholder", "stage".
  [[nodiscard]] std::string_view kind_name(index_t op) const { return core_->op(op).kind_name; }
  [[nodiscard]] op_kind kind(index_t op) const { return core_->op(op).kind; }
  [[nodiscard]] op_role role(index_t op) const { return core_->op(op).role; }
  /// The object that was given to add() or source(), where its type is Op; else null. It lives as long as a
  /// graph or a program that has it.
  ///
  /// @pre 0 <= op < size()
  template <class Op>
  [[nodiscard]] const Op* as(index_t op) const noexcept {
    return type(op) == type_id_of<Op>() ? static_cast<const Op*>(core_->op(op).node->object()) : nullptr;
  }
  /// The type of that object; none where a step runs nothing.
  [[nodiscard]] type_id type(index_t op) const noexcept {
    const auto& node = core_->op(op).node;
    return node == nullptr ? type_id() : node->type();
  }
  /// What the op's for_each_attribute() visits.
  [[nodiscard]] attribute_list attributes(index_t op) const { return core_->op(op).attributes(); }
  /// Values and accesses, one for each element of a list.
  [[nodiscard]] index_t inputs(index_t op) const { return static_cast<index_t>(core_->op(op).inputs.size()); }
  /// A value that an op takes. Of an access of a variable: no type, and the number of the variable.
  ///
  /// @pre 0 <= op < size(), 0 <= i < inputs(op)
  [[nodiscard]] any_value input(index_t op, index_t i) const {
    const detail::step_input& in = core_->op(op).inputs[static_cast<std::size_t>(i)];
    return {in.from, in.is_variable() ? type_id() : core_->type_of(in.from)};
  }
  /// @pre 0 <= op < size(), 0 <= port < outputs(op)
  [[nodiscard]] any_value output(index_t op, index_t port) const {
    const detail::port_ref ref{core_->id(), op, port};
    return {ref, core_->type_of(ref)};
  }
  /// Whether a step runs it: not a variable, a constant, a placeholder or a stage.
  [[nodiscard]] bool is_run(index_t op) const { return core_->op(op).node != nullptr; }
  [[nodiscard]] double cost(index_t op) const { return core_->op(op).cost; }
  /// @pre 0 <= op < size()
  void set_cost(index_t op, double seconds) { core_->change(op).cost = seconds; }
  [[nodiscard]] index_t outputs(index_t op) const {
    return static_cast<index_t>(core_->op(op).outputs.size());
  }
  [[nodiscard]] std::int64_t bytes(index_t op, index_t port) const {
    return core_->op(op).bytes[static_cast<std::size_t>(port)];
  }
  /// The size of an output, for the choice of a cut.
  ///
  /// @pre 0 <= op < size(), 0 <= port < outputs(op)
  void set_bytes(index_t op, index_t port, std::int64_t bytes) {
    core_->change(op).bytes[static_cast<std::size_t>(port)] = bytes;
  }

  /// The ops as arrays, by the same numbers: a variable is an op of its own, an input of an op a port,
  /// effects and the order of external ops are control edges. smart_stage moves no external op.
  ///
  /// @cost    O(ops + inputs), and for each variable that ops on two sides of a stage access the square of
  ///          its accesses
  /// @threads reentrant
  /// @error   invalid_value, with the op's name in the text and its number as item: an input that is missing
  ///          or of another graph; two sources; a cycle; an op that accesses one variable, or two that
  ///          overlap, twice and writes it; a forward op that needs what a gradient or an apply op makes, a
  ///          gradient op that needs what an apply op makes; an apply op that writes no variable; a stale
  ///          read with a window below 1; a stage of nothing, or of a name that another one has; an op
  ///          upstream of a stage and one downstream of it that access one variable, or two that overlap, and
  ///          one of them writes (a stale read is an access), unless the upstream one is an id lookup; an op
  ///          before a stage that needs a placeholder; external ops (not the source) on both sides of a
  ///          stage; a negative cost or size. Throws std::bad_alloc
  [[nodiscard]] result<flat_graph> flat() const { return detail::step_checks(*core_).run(); }
  /// Whether flat() would refuse it.
  ///
  /// @cost    as flat()
  /// @threads reentrant
  /// @error   as flat()
  [[nodiscard]] result<void> check() const {
    const result<flat_graph> made = flat();
    if (!made) return made.fault();
    return {};
  }

  /// For what compiles or describes a graph.
  [[nodiscard]] const detail::step_core& core() const noexcept { return *core_; }

 private:
  friend class step_editor;
  explicit step_graph(detail::step_core core) : core_(std::make_unique<detail::step_core>(std::move(core))) {}
  template <class Op, class... Outs, class... In>
  op_ref<Outs...> add_op(std::string_view name, Op op, op_outputs<Outs...>, const In&... inputs) {
    (detail::check_output<Outs>(), ...);
    constexpr bool fits = detail::check_op<Op, op_outputs<Outs...>, In...>();
    detail::step_op made{.name = std::string(name),
                         .kind_name = detail::kind_of_op<Op>(),
                         .kind = detail::is_id_lookup_op<Op>() ? op_kind::id_lookup : op_kind::plain,
                         .sample_wise = is_sample_wise<Op>};
    made.outputs = std::vector<const detail::value_type*>{&detail::type_of_value<Outs, false>...};
    if constexpr (fits) {
      detail::input_places<sizeof...(In)> places;
      [[maybe_unused]] std::size_t i = 0;
      [[maybe_unused]] const auto place = [&](const auto& input) {
        places.first[i] = made.inputs.size();
        detail::input_of<std::remove_cvref_t<decltype(input)>>::cells(input, made.inputs);
        places.count[i] = static_cast<index_t>(made.inputs.size() - places.first[i]);
        ++i;
      };
      (place(inputs), ...);
      places.cells = made.inputs.size();
      made.node = std::make_shared<detail::op_node<Op, std::tuple<In...>, op_outputs<Outs...>>>(std::move(op),
                                                                                                places);
    }
    return {core_.get(), core_->add(std::move(made))};
  }
  template <class H>
  auto staged(const H& handle, index_t op, index_t& port) const {
    using type = typename detail::input_of<H>::type;
    if constexpr (detail::input_of<H>::is_list) {
      std::vector<deeprec::value<type>> made;
      for (std::size_t i = 0; i < handle.size(); ++i)
        made.push_back(detail::handle_access::make<type>({core_->id(), op, port++}));
      return made;
    } else {
      return detail::handle_access::make<type>({core_->id(), op, port++});
    }
  }

  std::unique_ptr<detail::step_core> core_;
};

}}  // namespace deeprec::DEEPREC_ABI
