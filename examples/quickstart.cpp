#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>

int main() {
  deeprec::thread_pool pool;                                     // or your framework's own pool
  deeprec::dense_table<deeprec::f32_rows> table(1'000'000, 64);  // (R, D), on huge pages
  table.initialize(pool, deeprec::row_init::uniform{.seed = 42});
  std::vector<std::int64_t> offsets{0, 2, 2, 3}, ids{7, 999'999, 123};  // bags {7, 999999} {} {123}
  std::vector<float> out(3 * 64);                                       // (B, D): memory of your own
  // The second attempt has an id out of range.
  for (int attempt = 0; attempt < 2; ++attempt, ids[1] = 1'000'000) {
    const deeprec::status s =
        deeprec::lookup(pool, table.view(), deeprec::jagged_view(offsets.data(), 3, ids.data(), 3),
                        deeprec::combiner::mean, deeprec::matrix_view(out.data(), 3, 64));
    std::printf("%s, out[0][0] = %.5f\n", s.message().c_str(), out[0]);
  }
}
