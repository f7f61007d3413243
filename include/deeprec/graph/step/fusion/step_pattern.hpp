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
// matches either way. Repeated parts are joined one by one: a list with one op among others becomes a list,
//
//   const auto before = p.any_list<matrix>(), after = p.any_list<matrix>();
//   const auto sum = p.op<sum_op>(p.list(before, p.op<sum_op>(inner), after));
//   p.becomes(sum, [](const pattern_match&) { return sum_op{}; }, p.list(before, inner, after));
//
// until none is left. Not here: where a pattern matches, and what happens there (fuse.hpp).
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
#include <deeprec/graph/step/fusion/pattern_handles.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @threads one thread fills it; then concurrent readers are safe
class step_pattern {
 public:
  /// @param name for explanations
  explicit step_pattern(std::string_view name)
      : parts_(std::make_shared<detail::pattern_parts>(name, detail::pattern_parts::new_id())) {}

  /// A wildcard: a value that no op of the pattern makes. Two of them may be the same value.
  template <class T>
  [[nodiscard]] pattern_value<T> any() {
    return pattern_value<T>(wildcard({false, false, type_id_of<T>()}));
  }
  /// Any number of such values, side by side in the list of an op that takes op_list<const T>: all of it, or
  /// what is beside others (list).
  template <class T>
  [[nodiscard]] pattern_values<T> any_list() {
    pattern_values<T> made;
    made.cells_ = {wildcard({false, true, type_id_of<T>()})};
    return made;
  }
  /// A variable that the op reads; where several ops take one handle, they read the same.
  template <class T>
  [[nodiscard]] pattern_access<const T> reads() {
    return access<const T>(variable_use::read);
  }
  /// Any number of variables that the op reads, in a list.
  template <class T>
  [[nodiscard]] pattern_reads<T> reads_list() {
    pattern_reads<T> made;
    made.cells_ = {wildcard({true, true, type_id_of<T>()})};
    return made;
  }
  /// Values, lists and std::vectors of them, side by side in one list; or accesses that read.
  template <class First, class... Part>
  [[nodiscard]] static auto list(const First& first, const Part&... parts) {
    using element = decltype(element_of(first));
    static_assert((std::is_same_v<element, decltype(element_of(parts))> && ...),
                  "deeprec::step_pattern::list: elements of different types. Fix: values of one type, or "
                  "reads of one type");
    pattern_list<element> made;
    append(argument(first), made.cells_);
    (append(argument(parts), made.cells_), ...);
    return made;
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
    (append(argument(inputs), parts_->passed), ...);
    parts_->macro = type_id_of<macro>();
    parts_->macro_kind = detail::kind_of_op<macro>();
    parts_->make = [make = std::move(make), inputs...](const detail::pattern_binding& found,
                                                       const step_graph& from, step_graph& to,
                                                       std::string_view name) {
      const pattern_match match(found, from);
      const auto add = [&](auto op) {
        static_cast<void>(to.add(name, std::move(op), handle(inputs, match)...));
        return true;
      };
      if constexpr (unwrapped<made>::is_optional) {
        std::optional<macro> op = make(match);
        return op.has_value() && add(*std::move(op));
      } else {
        return add(make(match));
      }
    };
  }

  /// It matches also where some of its ops are sample-wise and others are not; the macro op is not, then.
  void take_whole_batch() { parts_->takes_whole_batch = true; }

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
    return pattern_access<T>(wildcard({true, false, type_id_of<std::remove_const_t<T>>(), use}));
  }

  template <class T>
  static detail::pattern_argument argument(const pattern_value<T>& v) {
    return {v.cell_};
  }
  template <class Element>
  static detail::pattern_argument argument(const pattern_list<Element>& v) {
    return v.cells_;
  }
  template <class T>
  static detail::pattern_argument argument(const pattern_access<T>& v) {
    return {v.cell_};
  }
  template <class Element>
  static detail::pattern_argument argument(const std::vector<Element>& list) {
    detail::pattern_argument made;
    for (const Element& v : list) made.push_back(v.cell_);
    return made;
  }
  static void append(const detail::pattern_argument& cells, detail::pattern_argument& to) {
    to.insert(to.end(), cells.begin(), cells.end());
  }
  template <class T>
  static pattern_value<T> element_of(const pattern_value<T>&);
  template <class Element>
  static Element element_of(const std::vector<Element>&);
  template <class T>
  static pattern_access<const T> element_of(const pattern_access<const T>&);
  template <class Element>
  static Element element_of(const pattern_list<Element>&);
  // The handles of a step graph in the place of those of the pattern.
  template <class T>
  static value<T> stands_for(const pattern_value<T>&);
  template <class Element>
  static std::vector<typename Element::input> stands_for(const pattern_list<Element>&);
  template <class Element>
  static std::vector<typename Element::input> stands_for(const std::vector<Element>&);
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

  static const detail::step_input& bound(const detail::pattern_cell& cell, const pattern_match& match) {
    return match.found_->wild[static_cast<std::size_t>(cell.port)][0];
  }
  template <class T>
  static value<T> handle_of(std::type_identity<value<T>>, const detail::step_input& in) {
    return detail::handle_access::make<T>(in.from);
  }
  template <class T>
  static variable_access<T> handle_of(std::type_identity<variable_access<T>>, const detail::step_input& in) {
    using object = std::remove_const_t<T>;
    const auto it = detail::handle_access::make<object>(in.from, static_cast<object*>(in.object));
    return detail::handle_access::access<T>(it, in.use, 1);
  }
  template <class T>
  static value<T> handle(const pattern_value<T>& v, const pattern_match& match) {
    return handle_of(std::type_identity<value<T>>(), bound(v.cell_, match));
  }
  template <class Element>
  static std::vector<typename Element::input> handle(const pattern_list<Element>& v,
                                                     const pattern_match& match) {
    std::vector<typename Element::input> list;
    for (const detail::step_input& in : match.elements(v).first)
      list.push_back(handle_of(std::type_identity<typename Element::input>(), in));
    return list;
  }
  template <class Element>
  static std::vector<typename Element::input> handle(const std::vector<Element>& list,
                                                     const pattern_match& match) {
    std::vector<typename Element::input> made;
    for (const Element& v : list) made.push_back(handle(v, match));
    return made;
  }
  template <class T>
  static variable_access<T> handle(const pattern_access<T>& v, const pattern_match& match) {
    return handle_of(std::type_identity<variable_access<T>>(), bound(v.cell_, match));
  }

  std::shared_ptr<detail::pattern_parts> parts_;
};

}}  // namespace deeprec::DEEPREC_ABI
