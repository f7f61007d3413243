// A type that encodes the flags of the translation unit.
//
// The last template parameter of class templates whose members vectorise or call what does: a unit compiled
// with -mavx512f then has symbols of its own, and the linker never merges them with those of a unit for older
// machines. Functions begin with DEEPREC_PER_UNIT instead. See docs/adr/0003.
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

struct unit {};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
