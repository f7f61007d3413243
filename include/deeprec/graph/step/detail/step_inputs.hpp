// Inputs of ops: how a handle becomes the cells and the argument of a call.
//
//   value<T>                 const T&             a cell
//   std::vector<value<T>>    op_list<const T>     a cell for each
//   variable_access<T>       T&                   a cell: the object of the variable
//   std::vector<variable_access<const T>>   op_list<const T>   a cell for each
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// An input of an op: a cell.
struct step_input {
  port_ref from;                          // of a variable: its op
  void* object = nullptr;                 // the variable's; null: a value
  std::size_t bytes = 0;                  // of the object
  variable_use use = variable_use::read;  // of a variable
  index_t window = 1;                     // of a stale read
  type_id type{};                         // of the object
  [[nodiscard]] bool is_variable() const noexcept { return object != nullptr; }
  [[nodiscard]] std::uintptr_t begin() const noexcept { return reinterpret_cast<std::uintptr_t>(object); }
  [[nodiscard]] std::uintptr_t end() const noexcept { return begin() + bytes; }
  [[nodiscard]] bool is_object(const step_input& other) const noexcept {
    return begin() == other.begin() && bytes == other.bytes;
  }
  /// Of two variables: whether they share a byte, as an object and a member of it do.
  [[nodiscard]] bool overlaps(const step_input& other) const noexcept {
    return begin() < other.end() && other.begin() < end();
  }
  [[nodiscard]] bool changes() const noexcept {
    return use == variable_use::write || use == variable_use::accumulate;
  }
  /// Whether it reads a variable as it was before an earlier step.
  [[nodiscard]] bool is_stale() const noexcept {
    return is_variable() && use == variable_use::stale_read && window > 1;
  }
};

/// How a handle becomes an argument: its type, and its cells.
template <class H>
struct input_of {
  static constexpr bool fits = false;
  static constexpr bool is_list = false;
  using argument = H;
};
template <class T>
std::type_identity<T> type_of_handle(const value<T>&);  // of an op with one output as well
template <class H>
  requires requires(const H& h) { type_of_handle(h); }
struct input_of<H> {
  static constexpr bool fits = true;
  static constexpr bool is_list = false;
  using type = typename decltype(type_of_handle(std::declval<const H&>()))::type;
  using argument = const type&;
  static void cells(const H& h, std::vector<step_input>& to) {
    to.push_back({handle_access::ref(static_cast<const value<type>&>(h))});
  }
};
template <class T>
struct input_of<std::vector<value<T>>> {
  static constexpr bool fits = true;
  static constexpr bool is_list = true;
  using type = T;
  using argument = op_list<const T>;
  static void cells(const std::vector<value<T>>& list, std::vector<step_input>& to) {
    for (const value<T>& v : list) to.push_back({handle_access::ref(v)});
  }
};
template <class T>
struct input_of<variable_access<T>> {
  static constexpr bool fits = true;
  static constexpr bool is_list = false;
  using argument = T&;
  static void cells(const variable_access<T>& v, std::vector<step_input>& to) {
    to.push_back({handle_access::ref(v), handle_access::object(v), sizeof(T), handle_access::use(v),
                  handle_access::window(v), type_id_of<std::remove_const_t<T>>()});
  }
};

template <class T>
struct input_of<std::vector<variable_access<T>>> {
  static_assert(std::is_const_v<T>,
                "deeprec::step_graph::add: an op changes the variables of a list. Fix: pass accesses by "
                "g.read(v); a variable that the op changes is an input of its own");
  static constexpr bool fits = true;
  static constexpr bool is_list = true;
  using argument = op_list<const T>;
  static void cells(const std::vector<variable_access<T>>& list, std::vector<step_input>& to) {
    for (const variable_access<T>& v : list) input_of<variable_access<T>>::cells(v, to);
  }
};

template <class T>
struct is_variable_handle : std::false_type {};
template <class T>
struct is_variable_handle<variable<T>> : std::true_type {};

}}}  // namespace deeprec::DEEPREC_ABI::detail
