// Defines nothing for users.
#pragma once

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
inline int one() { return 1; }
}}}  // namespace deeprec::DEEPREC_ABI::detail
