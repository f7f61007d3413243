// A table and ids in memory of your own: nothing is copied.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> weights{0, 0, 1, 10, 2, 20, 3, 30};        // (R, D) = (4, 2)
  std::vector<std::int32_t> ids{3, 1, 2}, offsets{0, 2, 2, 3};  // bags {3, 1} {} {2}
  std::vector<float> out(3 * 2);                                // (B, D)
  const auto table = deeprec::as_table(deeprec::matrix_view<const float>(weights.data(), 4, 2));
  const deeprec::jagged_view bags(offsets.data(), 3, ids.data(), 3);
  deeprec::lookup(deeprec::inline_executor{}, table, bags, deeprec::combiner::sum,
                  deeprec::matrix_view(out.data(), 3, 2))
      .or_throw();
  for (int b = 0; b < 3; ++b) std::printf("%g %g\n", out[b * 2], out[b * 2 + 1]);
}
