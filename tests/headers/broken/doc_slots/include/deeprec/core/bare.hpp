#pragma once

/// A class needs no slots.
template <class T>
class value {};

/// A function does.
template <class T>
  requires(sizeof(T) == 4)
[[nodiscard]] T bare(T x);

namespace detail {
/// A private function does not.
int inner(int x);
}  // namespace detail
