#pragma once

namespace deeprec { inline namespace DEEPREC_ABI {

struct widely_used {};

}}  // namespace deeprec::DEEPREC_ABI
