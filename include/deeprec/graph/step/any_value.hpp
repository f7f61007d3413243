// A value of a step graph whose type is known at run time only: what passes move around.
//
//   const any_value x = g.input(op, 0);
//   if (const std::optional<value<matrix>> m = x.as<matrix>()) editor.graph().add("double", twice{}, *m);
#pragma once

#include <optional>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// An output of an op, or what a stage hands on.
///
/// @threads a value type
class any_value {
 public:
  any_value() = default;
  template <class T>
  explicit(false) any_value(const value<T>& v) : any_value(detail::handle_access::ref(v), type_id_of<T>()) {}

  [[nodiscard]] index_t op() const noexcept { return ref_.op; }
  [[nodiscard]] index_t port() const noexcept { return ref_.port; }
  /// None: there is no such value.
  [[nodiscard]] type_id type() const noexcept { return type_; }
  /// As a handle of its type; none where its type is another.
  template <class T>
  [[nodiscard]] std::optional<value<T>> as() const noexcept {
    if (type_ != type_id_of<T>()) return std::nullopt;
    return detail::handle_access::make<T>(ref_);
  }

 private:
  friend class step_graph;
  friend struct detail::handle_access;
  any_value(const detail::port_ref& ref, type_id type) noexcept : ref_(ref), type_(type) {}
  detail::port_ref ref_;
  type_id type_;
};

}}  // namespace deeprec::DEEPREC_ABI
