// The same lookup by two units of different flags, on every instruction set of this machine; and what has no
// kernels for instruction sets, on small whole numbers, whose sums and products are exact with and without
// fused multiplication.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

using namespace deeprec;

using pool_bags = status(isa, matrix_view<const float>, jagged_view<>, matrix_view<float>);
pool_bags plain;
pool_bags native;
using plain_loops = status(matrix_view<const float>, std::vector<double>&);
plain_loops plain;
plain_loops native;

int main() {
  constexpr index_t rows = 50, width = 37, bags = 20, per_bag = 9;
  std::vector<float> weights(rows * width);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0F / static_cast<float>(i + 3);
  std::vector<std::int64_t> offsets, ids;
  for (index_t b = 0; b <= bags; ++b) offsets.push_back(b * per_bag);
  for (index_t k = 0; k < bags * per_bag; ++k) ids.push_back(k * 17 % rows);

  const jagged_view<> batch(offsets.data(), bags, ids.data(), bags * per_bag);
  std::vector<float> first(bags * width);
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    for (pool_bags* unit : {static_cast<pool_bags*>(&plain), static_cast<pool_bags*>(&native)}) {
      std::vector<float> out(bags * width);
      const matrix_view<const float> table(weights.data(), rows, width);
      if (!unit(which, table, batch, {out.data(), bags, width}).ok()) return 1;
      if (first[0] == 0) first = out;
      if (std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) != 0) {
        std::printf("another answer on %s\n", to_string(which));
        return 2;
      }
    }
  }
  std::vector<float> whole(23 * 38);
  for (std::size_t i = 0; i < whole.size(); ++i)
    whole[i] = static_cast<float>(static_cast<int>(i * 7 % 31) - 15);
  std::vector<double> of_plain, of_native;
  if (!plain({whole.data(), 23, 38}, of_plain).ok() || !native({whole.data(), 23, 38}, of_native).ok())
    return 3;
  if (of_plain != of_native) {
    std::printf("other numbers\n");
    return 4;
  }
  std::printf("deeprec %d\n", DEEPREC_VERSION_MAJOR);
}
