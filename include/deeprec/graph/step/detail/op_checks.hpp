// What the compiler says where a step graph is described wrongly: each assertion names the fault and its fix.
#pragma once

#include <memory_resource>
#include <tuple>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class T>
constexpr void check_variable() {
  static_assert(!std::is_const_v<T>,
                "deeprec::step_graph: a const variable can't be written. Fix: make it from an object that "
                "is not const");
}
template <class T>
constexpr void check_output() {
  static_assert(
      std::is_object_v<T> && !std::is_const_v<T> && (std::is_default_constructible_v<T> || takes_resource<T>),
      "deeprec::step_graph: an output can't be made before the op runs. Fix: give its type a "
      "default constructor, or one from a std::pmr::memory_resource*");
}
template <class Op, class Outs, class... In>
constexpr bool check_op() {
  constexpr bool handles = (input_of<In>::fits && ...);
  static_assert((!is_variable_handle<In>::value && ...),
                "deeprec::step_graph::add: a variable is passed without its access. Fix: pass g.read(v), "
                "g.write(v), g.accumulate(v) or g.stale_read(v, window)");
  static_assert(handles || (is_variable_handle<In>::value || ...),
                "deeprec::step_graph::add: an input is no handle. Fix: pass values, std::vectors of values "
                "and accesses of variables; what is known now belongs into the op itself");
  if constexpr (handles) {
    using call = op_call<Op, std::tuple<In...>, Outs>;
    static_assert(call::fits || !call::if_not_const,
                  "deeprec::step_graph::add: the call operator of the op is not const. Fix: make it const "
                  "(a lambda: not mutable); what changes from step to step is an output or a variable");
    static_assert(call::fits || call::if_not_const,
                  "deeprec::step_graph::add: the op can't be called with these inputs and outputs. Fix: let "
                  "it take ([const step_call&,] inputs..., outputs...) in the order of the handles: const T& "
                  "for a value, g.read and g.stale_read, T& for g.write, g.accumulate and an output, "
                  "op_list<const T> for a std::vector; outputs of a lambda are template arguments of add");
    static_assert(call::returns_status,
                  "deeprec::step_graph::add: the op returns a value. Fix: return nothing or a status, and "
                  "write results to the outputs");
    return call::fits && call::returns_status;
  } else {
    return false;
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
