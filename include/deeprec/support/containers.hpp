// Move assignment of objects that hold memory together with its resource; room in lists.
//
//   std::pmr::vector a = std::move(b)    keeps its own resource: where the two differ it copies, and whatever
//                                        pointed into b's memory is left behind
//   detail::replace(a, std::move(b))     ends a and makes it anew from b, resource and memory
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @pre old is a whole object: no base class, nor a member without an address of its own
template <class T>
void replace(T& old, T&& made) noexcept {
  static_assert(std::is_nothrow_move_constructible_v<T>);
  if (&old == &made) return;
  std::destroy_at(&old);
  std::construct_at(&old, std::forward<T>(made));
}

/// Makes room for one more element, so that push_back needs no memory: for objects that change several lists,
/// or none.
template <class List>
void make_room(List& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
