// What a test needs of the processor. Where it is absent the test prints the profile that has it, and ends.
#pragma once

#include <doctest/doctest.h>

#include <string>

namespace deeprec_test {

/// True where this process lacks what a test needs; `profile` is the environment or the processor that has
/// it.
inline bool lacks(bool present, const std::string& profile) {
  if (!present) MESSAGE("SKIPPED here: it needs " << profile);
  return !present;
}

}  // namespace deeprec_test
