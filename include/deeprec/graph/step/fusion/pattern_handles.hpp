// The words in which a pattern is written down, and what it found: values, lists and ops that stand for those
// of a graph (step_pattern.hpp).
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/fusion/detail/pattern_parts.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

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
/// An access of a variable; T is const where it is read.
template <class T>
class pattern_access {
 public:
  using input = variable_access<T>;

 private:
  friend class step_pattern;
  explicit pattern_access(const detail::pattern_cell& cell) noexcept : cell_(cell) {}
  detail::pattern_cell cell_;
};
/// A list of them: any number from anywhere (step_pattern::any_list), and what step_pattern::list() puts side
/// by side.
template <class Element>
class pattern_list {
 public:
  using input = std::vector<typename Element::input>;
  /// The same list, of which an op gets equal elements once, where the first of them is.
  [[nodiscard]] pattern_list once() const {
    pattern_list made = *this;
    made.once_ = true;
    return made;
  }

 private:
  friend class step_pattern;
  friend class pattern_match;
  detail::pattern_argument cells_;
  bool once_ = false;
};
template <class T>
using pattern_values = pattern_list<pattern_value<T>>;
/// Of accesses that read.
template <class T>
using pattern_reads = pattern_list<pattern_access<const T>>;

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
  /// Where each element of a list is among those that an op gets of it: 0, 1, 2; of once() those of equal
  /// elements are equal.
  ///
  /// @pre the list is of wildcards of the pattern that is matched
  template <class Element>
  [[nodiscard]] std::vector<index_t> places(const pattern_list<Element>& list) const {
    return elements(list).second;
  }

 private:
  friend class step_pattern;
  // The inputs that a list stands for, and their places.
  template <class Element>
  [[nodiscard]] std::pair<std::vector<detail::step_input>, std::vector<index_t>> elements(
      const pattern_list<Element>& list) const {
    std::pair<std::vector<detail::step_input>, std::vector<index_t>> made;
    auto& [inputs, places] = made;
    std::map<std::pair<index_t, index_t>, index_t> known;
    for (const detail::pattern_cell& cell : list.cells_) {
      for (const detail::step_input& in : found_->wild[static_cast<std::size_t>(cell.port)]) {
        const auto next = static_cast<index_t>(inputs.size());
        const auto [at, is_new] = known.try_emplace({in.from.op, in.from.port}, next);
        places.push_back(list.once_ ? at->second : next);
        if (is_new || !list.once_) inputs.push_back(in);
      }
    }
    return made;
  }
  pattern_match(const detail::pattern_binding& found, const step_graph& graph) noexcept
      : found_(&found), graph_(&graph) {}
  const detail::pattern_binding* found_;
  const step_graph* graph_;
};

}}  // namespace deeprec::DEEPREC_ABI
