// A public name, and more that is private.
#pragma once

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
inline int one() { return 1; }
inline int two() { return 2; }
inline int three() { return 3; }
}  // namespace detail

inline int six() { return detail::one() + detail::two() + detail::three(); }

}}  // namespace deeprec::DEEPREC_ABI
