// Linked into benchmarks that are built along with the tests, only to check that they compile.
#include <cstdio>

namespace {
[[maybe_unused]] const int noted = std::fputs(
    "built with -O1, along with the tests: its figures mean nothing (cmake --preset bench)\n", stderr);
}  // namespace
