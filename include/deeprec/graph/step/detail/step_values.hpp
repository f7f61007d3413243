// What a step has to know of the types of its values, without RTTI: a table of functions for each type.
//
//   make      in the state's memory where the type takes a resource, or a copy of a constant
//   parts     views of some samples, and how parts are joined, from batch_traits
//   place     memory that the step chose for its content, from batch_traits
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <new>
#include <ranges>
#include <span>
#include <tuple>
#include <type_traits>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct unrelated;

/// An optional, a smart pointer, a tuple, a variant or a plain struct: a pointer would be what it holds, or
/// make that, and not where it allocates.
template <class T>
inline constexpr bool holds_value = std::is_aggregate_v<T> || requires(T& v) { *v; } || requires(T& v) {
  v.valueless_by_exception();
} || requires { std::tuple_size<T>::value; };
/// A class that takes a memory resource, and not just any pointer.
template <class T>
inline constexpr bool takes_resource =
    std::is_class_v<T> && !holds_value<T> && std::is_constructible_v<T, std::pmr::memory_resource*> &&
    !std::is_constructible_v<T, unrelated*>;

/// What a step that is cut by samples needs of the type of a value; null: batch_traits has no such member.
struct value_parts {
  index_t (*samples)(const void* value) = nullptr;
  void (*refer)(const void* whole, index_t first, index_t count, void* part) = nullptr;
  void (*make_room)(void* whole, index_t samples, const void* part) = nullptr;
  void (*join)(const void* part, index_t first, void* whole) = nullptr;
  matrix_view<float> (*gradient)(void* value) = nullptr;
};

/// What a state of a step needs of the type of a value.
struct value_type {
  type_id type;
  std::size_t size;
  std::size_t alignment;
  void (*make)(void* place, std::pmr::memory_resource* memory, const void* constant);
  void (*destroy)(void* place);
  std::int64_t (*bytes)(const void* value);
  value_parts parts{};
  /// Null: batch_traits has no place().
  std::int64_t (*own_bytes)(const void* value) = nullptr;
  std::span<const std::byte> (*memory)(const void* value) = nullptr;  // null: no memory()
  void (*place)(void* value, std::span<std::byte> memory) = nullptr;
};

template <class T>
std::int64_t bytes_of_value([[maybe_unused]] const T& v) {
  if constexpr (requires { batch_traits<T>::bytes(v); }) {
    return static_cast<std::int64_t>(batch_traits<T>::bytes(v));
  } else if constexpr (std::ranges::contiguous_range<const T> && std::ranges::sized_range<const T>) {
    return static_cast<std::int64_t>(sizeof(T) + std::ranges::size(v) * sizeof(*std::ranges::data(v)));
  } else {
    return static_cast<std::int64_t>(sizeof(T));
  }
}

template <class T>
constexpr value_parts parts_of_value() {
  using traits = batch_traits<T>;
  value_parts parts;
  if constexpr (requires(const T& v, T& to) { traits::refer(v, index_t{}, index_t{}, to); }) {
    parts.samples = [](const void* v) -> index_t { return traits::samples(*static_cast<const T*>(v)); };
    parts.refer = [](const void* whole, index_t first, index_t count, void* part) {
      traits::refer(*static_cast<const T*>(whole), first, count, *static_cast<T*>(part));
    };
  } else if constexpr (requires(const T& v, T& to) { to = traits::split(v, index_t{}, index_t{}); }) {
    parts.samples = [](const void* v) -> index_t { return traits::samples(*static_cast<const T*>(v)); };
    parts.refer = [](const void* whole, index_t first, index_t count, void* part) {
      *static_cast<T*>(part) = traits::split(*static_cast<const T*>(whole), first, count);
    };
  }
  if constexpr (requires(const T& part, T& whole) { traits::make_room(whole, index_t{}, part); }) {
    parts.make_room = [](void* whole, index_t samples, const void* part) {
      traits::make_room(*static_cast<T*>(whole), samples, *static_cast<const T*>(part));
    };
    if constexpr (requires(const T& part, T& whole) { traits::join(part, index_t{}, whole); }) {
      parts.join = [](const void* part, index_t first, void* whole) {
        traits::join(*static_cast<const T*>(part), first, *static_cast<T*>(whole));
      };
    } else if constexpr (requires(T& v) { traits::gradient(v); }) {
      parts.gradient = [](void* v) -> matrix_view<float> { return traits::gradient(*static_cast<T*>(v)); };
    }
  }
  return parts;
}

template <class T>
inline constexpr bool is_placed = requires(const T& v, T& to, std::span<std::byte> memory) {
  batch_traits<T>::own_bytes(v);
  batch_traits<T>::place(to, memory);
};
template <class T>
constexpr auto own_bytes_of() -> std::int64_t (*)(const void*) {
  if constexpr (is_placed<T>) {
    return [](const void* v) { return std::int64_t{batch_traits<T>::own_bytes(*static_cast<const T*>(v))}; };
  } else {
    return nullptr;
  }
}
template <class T>
constexpr auto memory_of() -> std::span<const std::byte> (*)(const void*) {
  if constexpr (requires(const T& v) { batch_traits<T>::memory(v); }) {
    return [](const void* v) -> std::span<const std::byte> {
      return batch_traits<T>::memory(*static_cast<const T*>(v));
    };
  } else {
    return nullptr;
  }
}
template <class T>
constexpr auto place_of() -> void (*)(void*, std::span<std::byte>) {
  if constexpr (is_placed<T>) {
    return [](void* v, std::span<std::byte> memory) { batch_traits<T>::place(*static_cast<T*>(v), memory); };
  } else {
    return nullptr;
  }
}

/// Of a local: made by a function, which stands in the place of a constant.
template <class T>
inline constexpr value_type type_of_local{type_id_of<T>(),
                                          sizeof(T),
                                          alignof(T),
                                          [](void* place, std::pmr::memory_resource*, const void* make) {
                                            ::new (place)
                                                T((*static_cast<const std::function<T()>*>(make))());
                                          },
                                          [](void* place) { static_cast<T*>(place)->~T(); },
                                          [](const void*) { return std::int64_t{sizeof(T)}; }};

template <class T, bool Constant>
inline constexpr value_type type_of_value{
    type_id_of<T>(),
    sizeof(T),
    alignof(T),
    [](void* place, [[maybe_unused]] std::pmr::memory_resource* memory,
       [[maybe_unused]] const void* constant) {
      if constexpr (Constant) {
        ::new (place) T(*static_cast<const T*>(constant));
      } else if constexpr (takes_resource<T>) {
        ::new (place) T(memory);
      } else {
        ::new (place) T();
      }
    },
    [](void* place) { static_cast<T*>(place)->~T(); },
    [](const void* v) { return bytes_of_value(*static_cast<const T*>(v)); },
    parts_of_value<T>(),
    own_bytes_of<T>(),
    memory_of<T>(),
    place_of<T>()};

}}}  // namespace deeprec::DEEPREC_ABI::detail
