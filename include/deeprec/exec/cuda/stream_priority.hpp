// The priority of a CUDA stream.
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The priority of a stream among those that are ready.
enum class stream_priority : unsigned char { normal, high };

}}  // namespace deeprec::DEEPREC_ABI
