// Private, and in its place.
#pragma once

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
inline int four() { return 4; }
}}}  // namespace deeprec::DEEPREC_ABI::detail
