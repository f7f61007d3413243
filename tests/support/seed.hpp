#pragma once

#include <cstdint>

// The seed of this run: DEEPREC_TEST_SEED in the environment, --seed=N on the command line, or a
// fixed number. The runner prints it when a test fails.
namespace deeprec_test {
std::uint64_t seed();
}
