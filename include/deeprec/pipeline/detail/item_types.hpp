// The types of a pipeline's items, from what its callables take and return; and what the compiler says where
// they don't fit.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class node_role : unsigned char { source, stage, sink };

struct bytes_of_object {
  template <class T>
  std::size_t operator()(const T&) const noexcept {
    return sizeof(T);
  }
};

// What a callable's return means for the item. `in_place`: nothing new, the item itself goes on.
template <class R>
struct returned {
  using item = R;
  static constexpr bool in_place = false;
  static constexpr bool may_fail = false;
  static constexpr bool may_be_none = false;
};
template <class T>
struct returned<std::optional<T>> {
  using item = T;
  static constexpr bool in_place = false;
  static constexpr bool may_fail = false;
  static constexpr bool may_be_none = true;
};
template <class T>
struct returned<result<T>> : returned<T> {
  static constexpr bool may_fail = true;
};
template <>
struct returned<void> {
  using item = void;
  static constexpr bool in_place = true;
  static constexpr bool may_fail = false;
  static constexpr bool may_be_none = false;
};
template <>
struct returned<status> : returned<void> {
  static constexpr bool may_fail = true;
};

template <class F>
struct source_types {
  using type = void;
  static constexpr bool fits = false;
};
template <class F>
  requires std::invocable<F&>
struct source_types<F> {
  using meaning = returned<std::remove_cvref_t<std::invoke_result_t<F&>>>;
  using type = typename meaning::item;
  static constexpr bool fits = meaning::may_be_none && std::is_object_v<type>;
};

// How a callable takes a T: as T&& where it can, but a stage whose item goes on after the call takes a T&.
template <class F, class T>
struct taken_as_lvalue {
  using type = std::invoke_result_t<F&, T&>;
  static constexpr bool as_lvalue = true;
};
template <class F, class T>
struct taken_as_rvalue {
  using type = std::invoke_result_t<F&, T>;
  static constexpr bool as_lvalue = false;
};
template <class F, class T, node_role Role>
constexpr auto way_to_take() {
  if constexpr (std::invocable<F&, T>) {
    using plain = std::remove_cvref_t<std::invoke_result_t<F&, T>>;
    if constexpr (Role == node_role::stage && returned<plain>::in_place && std::invocable<F&, T&>) {
      return std::type_identity<taken_as_lvalue<F, T>>{};
    } else {
      return std::type_identity<taken_as_rvalue<F, T>>{};
    }
  } else if constexpr (std::invocable<F&, T&>) {
    return std::type_identity<taken_as_lvalue<F, T>>{};
  } else {
    return std::type_identity<void>{};
  }
}

template <class F, class T, node_role Role = node_role::stage>
struct stage_types {
  using way = typename decltype(way_to_take<F, T, Role>())::type;
  static constexpr bool takes = !std::is_void_v<way>;
  template <class Way>
  struct found {
    using result_type = std::remove_cvref_t<typename Way::type>;
    static constexpr bool as_lvalue = Way::as_lvalue;
  };
  template <class Way>
    requires std::is_void_v<Way>
  struct found<Way> {
    using result_type = void;
    static constexpr bool as_lvalue = false;
  };
  using result_type = typename found<way>::result_type;
  static constexpr bool as_lvalue = found<way>::as_lvalue;
  using meaning = returned<result_type>;
  using type = std::conditional_t<meaning::in_place, T, typename meaning::item>;
};

template <class T>
concept pipeline_item =
    std::is_object_v<T> && std::move_constructible<T> && std::is_nothrow_destructible_v<T>;

template <class F>
constexpr void check_source() {
  static_assert(source_types<F>::fits,
                "deeprec::pipeline: a source is called without arguments and returns its next item, or that "
                "there is none. Fix: return std::optional<T> or result<std::optional<T>>");
  if constexpr (source_types<F>::fits) {
    static_assert(pipeline_item<typename source_types<F>::type>,
                  "deeprec::pipeline: an item can't be moved, or its destructor may throw. Fix: yield a "
                  "std::unique_ptr to it or a lease of a staging_pool");
  }
}

template <class F, class T>
constexpr void check_stage() {
  using types = stage_types<F, T>;
  static_assert(
      types::takes,
      "deeprec::pipeline: a stage can't take what the stage before it returns. Fix: let it take T&& "
      "or T&, where that one returns T, std::optional<T> or a result<> of them");
  if constexpr (types::takes) {
    static_assert(
        !types::meaning::in_place || types::as_lvalue,
        "deeprec::pipeline: a stage returns no item and takes its own away. Fix: let it take T&, so "
        "that the item goes on, or return what goes on");
    static_assert(pipeline_item<typename types::type>,
                  "deeprec::pipeline: an item can't be moved, or its destructor may throw. Fix: return a "
                  "std::unique_ptr to it or a lease of a staging_pool");
  }
}

template <class F, class T>
constexpr void check_sink() {
  using types = stage_types<F, T, node_role::sink>;
  static_assert(types::takes,
                "deeprec::pipeline: a sink can't take what the stage before it returns. Fix: let it take T&& "
                "or T&, where that one returns T, std::optional<T> or a result<> of them");
  static_assert(!types::takes || types::meaning::in_place,
                "deeprec::pipeline: nothing takes what a sink returns. Fix: return nothing, a status or "
                "result<void>, or make it a stage");
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
