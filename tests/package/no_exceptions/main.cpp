// A lookup, and the status of a bad id, where neither exceptions nor run-time types exist.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <cstdint>
#include <cstdio>

#if defined(__cpp_exceptions) || defined(__cpp_rtti) || DEEPREC_EXCEPTIONS
#  error "exceptions or run-time types are on"
#endif

using namespace deeprec;

int main() {
  const float weights[] = {1, 2, 10, 20, 100, 200};  // (R=3, D=2)
  const std::int64_t offsets[] = {0, 2, 3};
  const std::int64_t ids[] = {0, 2, 1};
  const std::int64_t bad_ids[] = {0, 2, 7};
  float pooled[4] = {};  // (B=2, D=2)

  inline_executor executor;
  const auto table = as_table(matrix_view<const float>(weights, 3, 2));
  const matrix_view<float> out(pooled, 2, 2);
  if (!lookup(executor, table, jagged_view<>(offsets, 2, ids, 3), combiner::sum, out).ok()) return 1;
  if (pooled[0] != 101 || pooled[1] != 202 || pooled[2] != 10 || pooled[3] != 20) return 2;

  const status bad = lookup(executor, table, jagged_view<>(offsets, 2, bad_ids, 3), combiner::sum, out);
  if (bad.code() != errc::id_out_of_range || bad.place().bag != 1 || bad.place().value != 7) return 3;
  std::printf("deeprec %d: %s\n", DEEPREC_VERSION_MAJOR, bad.message().c_str());
}
