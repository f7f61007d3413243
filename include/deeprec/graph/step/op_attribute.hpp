// An attribute of an op: a name and a value that keeps its type.
//
//   for (const op_attribute& a : g.attributes(op)) use(a.name, a.value.text());
//   template <class Visit> void for_each_attribute(Visit&& visit) const { visit("eps", eps); }    of an op
//
// Values are equal where their types and their bits are: 0.0 and -0.0 differ, a NaN equals itself. An enum is
// shown by its name, which to_string(value), found by argument-dependent lookup, returns.
#pragma once

#include <bit>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A number, a truth value, an enum or a text, with its type.
///
/// @threads a value type
class attribute_value {
 public:
  attribute_value() = default;
  template <class T>
  explicit attribute_value(const T& v) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      type_ = type_id_of<std::string_view>();
      text_ = std::string_view(v);
    } else if constexpr (std::is_enum_v<T>) {
      static_assert(
          requires { std::string_view(to_string(v)); },
          "deeprec::step_graph: an attribute of an op is an enum without names. Fix: declare "
          "to_string(value), which returns a text, beside the enum");
      keep(v, static_cast<std::uint64_t>(static_cast<std::underlying_type_t<T>>(v)));
      text_ = std::string_view(to_string(v));
    } else {
      static_assert(
          std::is_arithmetic_v<T> && sizeof(T) <= 8,
          "deeprec::step_graph: an attribute of an op is no number and no text. Fix: visit(name, "
          "value) with an integer, a float or double, a bool, an enum with to_string() or a string");
      if constexpr (std::same_as<T, bool>) {
        keep(v, v ? 1 : 0);
        text_ = v ? "true" : "false";
      } else if constexpr (std::is_floating_point_v<T>) {
        using bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
        keep(v, std::bit_cast<bits>(v));
        char text[64];
        text_.assign(text, std::to_chars(text, text + sizeof text, v).ptr);
      } else {
        keep(v, static_cast<std::uint64_t>(v));
        text_ = std::to_string(v);
      }
    }
  }

  /// Of a text std::string_view, else as it was visited.
  [[nodiscard]] type_id type() const noexcept { return type_; }
  /// What it reads as: of a number the shortest text that reads as the same number, of an enum the name.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// Types and bits.
  [[nodiscard]] friend bool operator==(const attribute_value& a, const attribute_value& b) noexcept {
    return a.type_ == b.type_ && a.bits_ == b.bits_ && a.text_ == b.text_;
  }

 private:
  template <class T>
  void keep(const T&, std::uint64_t bits) {
    type_ = type_id_of<T>();
    bits_ = bits;
  }
  type_id type_;
  std::uint64_t bits_ = 0;
  std::string text_;
};

struct op_attribute {
  std::string name;
  attribute_value value;
  [[nodiscard]] friend bool operator==(const op_attribute&, const op_attribute&) = default;
};
using attribute_list = std::vector<op_attribute>;

}}  // namespace deeprec::DEEPREC_ABI
