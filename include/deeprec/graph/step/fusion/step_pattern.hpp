// A small graph of ops, and the one op that may stand in its place: what fuse() looks for.
//
//   step_pattern p("scale, add");
//   const auto x = p.any<matrix>(), y = p.any<matrix>();          values from anywhere
//   const auto scaled = p.op<scale_op>(x);                        ops by their type, as in a step_graph
//   const auto sum = p.op<add_op>(scaled, y);
//   p.becomes(sum, [=](const pattern_match& m) { return scale_add_op{m[scaled].by}; }, x, y);
//
//   x ─> scale ─┐                 x ─┐
//          y ─> add ─> sum   =>   y ─> scale_add ─> sum
//
// The scaled value is interior: where anybody else takes it, the pattern does not match. An op with
// `static constexpr bool commutative = true` gives the same bits with its first two inputs exchanged, and
// matches either way. Not here: where a pattern matches, and what happens there (fuse.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/detail/op_checks.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/fusion/detail/pattern_parts.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

class step_pattern;
class pattern_match;

/// A value of type T: from anywhere (step_pattern::any), or an output of an op of the pattern.
///
/// @threads a value type
template <class T>
class pattern_value {
 public:
  using input = value<T>;

 private:
  friend class step_pattern;
  template <class, class...>
  friend class pattern_op;
  explicit pattern_value(const detail::pattern_cell& cell) noexcept : cell_(cell) {}
  detail::pattern_cell cell_;
};
/// A whole list of values, as long as it is.
template <class T>
class pattern_values {
 public:
  using input = std::vector<value<T>>;

 private:
  friend class step_pattern;
  explicit pattern_values(const detail::pattern_cell& cell) noexcept : cell_(cell) {}
  detail::pattern_cell cell_;
};
/// An access of a variable; T is const where it is read.
template <class T>
class pattern_access {
 public:
  using input = variable_access<T>;

 private:
  friend class step_pattern;
  pattern_access(const detail::pattern_cell& cell, variable_use use) noexcept : cell_(cell), use_(use) {}
  detail::pattern_cell cell_;
  variable_use use_;
};

/// An op of a pattern. With one output it is itself a value.
template <class Op, class... Outs>
class pattern_op {
 public:
  template <std::size_t Port>
  [[nodiscard]] auto get() const noexcept {
    detail::pattern_cell cell = cell_;
    cell.port = static_cast<index_t>(Port);
    return pattern_value<std::tuple_element_t<Port, std::tuple<Outs...>>>(cell);
  }

 private:
  friend class step_pattern;
  friend class pattern_match;
  explicit pattern_op(const detail::pattern_cell& cell) noexcept : cell_(cell) {}
  detail::pattern_cell cell_;
};
template <class Op, class T>
class pattern_op<Op, T> : public pattern_value<T> {
 private:
  friend class step_pattern;
  friend class pattern_match;
  explicit pattern_op(const detail::pattern_cell& cell) noexcept : pattern_value<T>(cell), cell_(cell) {}
  detail::pattern_cell cell_;
};

/// What a pattern found: the ops that were added to the graph.
class pattern_match {
 public:
  /// The op as it was added.
  ///
  /// @pre the op is of the pattern that is matched
  template <class Op, class... Outs>
  [[nodiscard]] const Op& operator[](const pattern_op<Op, Outs...>& op) const {
    return *graph_->as<Op>(number(op));
  }
  /// Its number in the graph.
  template <class Op, class... Outs>
  [[nodiscard]] index_t number(const pattern_op<Op, Outs...>& op) const {
    return found_->ops[static_cast<std::size_t>(op.cell_.op)];
  }
  [[nodiscard]] const step_graph& graph() const noexcept { return *graph_; }

 private:
  friend class step_pattern;
  pattern_match(const detail::pattern_binding& found, const step_graph& graph) noexcept
      : found_(&found), graph_(&graph) {}
  const detail::pattern_binding* found_;
  const step_graph* graph_;
};

/// @threads one thread fills it; then concurrent readers are safe
class step_pattern {
 public:
  /// @param name for explanations
  explicit step_pattern(std::string_view name)
      : parts_(std::make_shared<detail::pattern_parts>(name, detail::pattern_parts::new_id())) {}

  /// A wildcard: a value that no op of the pattern makes. Two of them may be the same value.
  template <class T>
  [[nodiscard]] pattern_value<T> any() {
    return pattern_value<T>(wildcard({detail::pattern_wildcard::sort::value, type_id_of<T>()}));
  }
  /// A list of such values, of any length, for an op that takes op_list<const T>.
  template <class T>
  [[nodiscard]] pattern_values<T> any_list() {
    return pattern_values<T>(wildcard({detail::pattern_wildcard::sort::list, type_id_of<T>()}));
  }
  /// A variable that the op reads; where several ops take one handle, they read the same.
  template <class T>
  [[nodiscard]] pattern_access<const T> reads() {
    return access<const T>(variable_use::read);
  }
  template <class T>
  [[nodiscard]] pattern_access<T> writes() {
    return access<T>(variable_use::write);
  }
  template <class T>
  [[nodiscard]] pattern_access<T> accumulates() {
    return access<T>(variable_use::accumulate);
  }

  /// An op of type Op whose inputs are these: values, std::vectors of values, lists, accesses. Its outputs
  /// are as in step_graph::add().
  template <class Op, class... Outs, class... In>
  auto op(const In&... inputs) {
    return add<Op>(detail::outputs_of_op<Op, Outs...>(), inputs...);
  }

  /// What stands in the place of it: the op that make(const pattern_match&) returns, or an optional of
  /// it, which is empty where the match is none. It takes `inputs`, wildcards of the pattern or std::vectors
  /// of them, and its outputs are in the place of `outputs`: a value, a std::tuple of values, or
  /// std::tuple<>() where the pattern ends in an op without outputs. All other values are interior.
  template <class Outputs, class Make, class... In>
  void becomes(const Outputs& outputs, Make make, const In&... inputs) {
    using made = std::invoke_result_t<const Make&, const pattern_match&>;
    using macro = typename unwrapped<made>::type;
    const auto replaced = as_tuple(outputs);
    static_assert(
        std::is_same_v<decltype(outputs_of(replaced)), decltype(detail::outputs_of_op<macro>())>,
        "deeprec::step_pattern::becomes: the macro op has other outputs than those that it stands for. "
        "Fix: pass one value of the pattern for each of its outputs, in their order");
    parts_->outputs.clear();
    std::apply([&](const auto&... out) { (parts_->outputs.push_back(out.cell_), ...); }, replaced);
    parts_->passed.clear();
    (pass(argument(inputs)), ...);
    parts_->macro = type_id_of<macro>();
    parts_->macro_kind = detail::kind_of_op<macro>();
    parts_->make = [make = std::move(make), inputs...](const detail::pattern_binding& found,
                                                       const step_graph& from, step_graph& to,
                                                       std::string_view name) {
      const auto add = [&](auto op) {
        static_cast<void>(to.add(name, std::move(op), handle(inputs, found)...));
        return true;
      };
      if constexpr (unwrapped<made>::is_optional) {
        std::optional<macro> op = make(pattern_match(found, from));
        return op.has_value() && add(*std::move(op));
      } else {
        return add(make(pattern_match(found, from)));
      }
    };
  }

  [[nodiscard]] std::string_view name() const noexcept { return parts_->name; }
  /// For the matcher.
  [[nodiscard]] const detail::pattern_parts& parts() const noexcept { return *parts_; }

 private:
  template <class T>
  struct unwrapped {
    using type = T;
    static constexpr bool is_optional = false;
  };
  template <class T>
  struct unwrapped<std::optional<T>> {
    using type = T;
    static constexpr bool is_optional = true;
  };
  template <class... T>
  static const std::tuple<T...>& as_tuple(const std::tuple<T...>& t) {
    return t;
  }
  template <class T>
  static std::tuple<pattern_value<T>> as_tuple(const pattern_value<T>& v) {
    return {v};
  }
  // A value, or an op with one.
  template <class T>
  static std::type_identity<T> type_of(const pattern_value<T>&);
  template <class... V>
  static auto outputs_of(const std::tuple<V...>&)
      -> op_outputs<typename decltype(type_of(std::declval<const V&>()))::type...>;

  detail::pattern_cell wildcard(const detail::pattern_wildcard& w) {
    parts_->wild.push_back(w);
    return {parts_->id, -1, static_cast<index_t>(parts_->wild.size()) - 1};
  }
  template <class T>
  pattern_access<T> access(variable_use use) {
    return {wildcard({detail::pattern_wildcard::sort::access, type_id_of<std::remove_const_t<T>>(), use}),
            use};
  }

  template <class T>
  static detail::pattern_argument argument(const pattern_value<T>& v) {
    return {false, {v.cell_}};
  }
  template <class T>
  static detail::pattern_argument argument(const pattern_values<T>& v) {
    return {true, {v.cell_}};
  }
  template <class T>
  static detail::pattern_argument argument(const pattern_access<T>& v) {
    return {false, {v.cell_}};
  }
  template <class T>
  static detail::pattern_argument argument(const std::vector<pattern_value<T>>& list) {
    detail::pattern_argument made;
    for (const pattern_value<T>& v : list) made.cells.push_back(v.cell_);
    return made;
  }
  // The handles of a step graph in the place of those of the pattern.
  template <class T>
  static value<T> stands_for(const pattern_value<T>&);
  template <class T>
  static std::vector<value<T>> stands_for(const pattern_values<T>&);
  template <class T>
  static std::vector<value<T>> stands_for(const std::vector<pattern_value<T>>&);
  template <class T>
  static variable_access<T> stands_for(const pattern_access<T>&);

  template <class Op, class... Outs, class... In>
  auto add(op_outputs<Outs...>, const In&... inputs) {
    static_cast<void>(detail::check_op<Op, op_outputs<Outs...>, decltype(stands_for(inputs))...>());
    detail::pattern_op_parts op{type_id_of<Op>(),
                                detail::kind_of_op<Op>(),
                                detail::is_commutative_op<Op>(),
                                {argument(inputs)...},
                                {type_id_of<Outs>()...}};
    parts_->ops.push_back(std::move(op));
    return pattern_op<Op, Outs...>({parts_->id, static_cast<index_t>(parts_->ops.size()) - 1, 0});
  }

  void pass(const detail::pattern_argument& to_macro) {
    parts_->passed.insert(parts_->passed.end(), to_macro.cells.begin(), to_macro.cells.end());
  }
  static const std::vector<detail::step_input>& bound(const detail::pattern_cell& cell,
                                                      const detail::pattern_binding& found) {
    return found.wild[static_cast<std::size_t>(cell.port)];
  }
  template <class T>
  static value<T> handle(const pattern_value<T>& v, const detail::pattern_binding& found) {
    return detail::handle_access::make<T>(bound(v.cell_, found)[0].from);
  }
  template <class T>
  static std::vector<value<T>> handle(const pattern_values<T>& v, const detail::pattern_binding& found) {
    std::vector<value<T>> list;
    for (const detail::step_input& in : bound(v.cell_, found))
      list.push_back(detail::handle_access::make<T>(in.from));
    return list;
  }
  template <class T>
  static std::vector<value<T>> handle(const std::vector<pattern_value<T>>& list,
                                      const detail::pattern_binding& found) {
    std::vector<value<T>> made;
    for (const pattern_value<T>& v : list) made.push_back(handle(v, found));
    return made;
  }
  template <class T>
  static variable_access<T> handle(const pattern_access<T>& v, const detail::pattern_binding& found) {
    const detail::step_input& in = bound(v.cell_, found)[0];
    using object = std::remove_const_t<T>;
    const auto it = detail::handle_access::make<object>(in.from, static_cast<object*>(in.object));
    return detail::handle_access::access<T>(it, v.use_, 1);
  }

  std::shared_ptr<detail::pattern_parts> parts_;
};

}}  // namespace deeprec::DEEPREC_ABI
