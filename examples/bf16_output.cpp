// Float rows pooled into a bfloat16 matrix: summed in float, rounded once, to nearest even.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> weights{256, 1, 0.5F, 0.0625F};         // (R, D) = (4, 1)
  std::vector<std::int64_t> ids{0, 1, 2, 3}, offsets{0, 4};  // one bag of all
  std::vector<deeprec::bf16> out(1);
  const auto table = deeprec::as_table(deeprec::matrix_view<const float>(weights.data(), 4, 1));
  deeprec::lookup(deeprec::inline_executor{}, table, deeprec::jagged_view(offsets.data(), 1, ids.data(), 4),
                  deeprec::combiner::sum, deeprec::matrix_view(out.data(), 1, 1))
      .or_throw();
  std::printf("257.5625 as bf16 is %g, its bits 0x%04x\n", static_cast<float>(out[0]), out[0].bits);
}
