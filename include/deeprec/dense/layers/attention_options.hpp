// Options of DIN's attention unit: attention_features.hpp and attention_pool.hpp.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What happens to the values that a gradient has before the call. The keys of an attention unit get a
/// gradient from attention_pool_backward, which comes first, and one from attention_features_backward: the
/// second with `add` needs no pass of its own.
enum class gradient_write : std::uint8_t { overwrite, add };

/// The weights of attention_pool: the scores as they are (DIN), or their softmax over the sample.
enum class attention_weights : std::uint8_t { scores, softmax };

/// Options of attention_pool_backward.
struct attention_pool_options {
  attention_weights weights = attention_weights::scores;
  gradient_write key_gradient = gradient_write::overwrite;
};

}}  // namespace deeprec::DEEPREC_ABI
