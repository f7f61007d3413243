// Two tables pooled into one matrix (B, D1 + D2): each lookup writes its own columns.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <cstdio>
#include <vector>

using namespace deeprec;

int main() {
  std::vector<float> users{1, 1, 1, 2, 2, 2}, items{10, 20, 30};            // (2, 3) and (3, 1)
  std::vector<std::int64_t> offsets{0, 1, 3, 5, 6}, ids{1, 0, 1, 0, 2, 1};  // table, bag: T * B + 1
  std::vector<float> memory(2 * 4);
  const matrix_view out(memory.data(), 2, 4);
  const auto table_of = [](const std::vector<float>& rows, index_t width) {
    return as_table(matrix_view(rows.data(), static_cast<index_t>(rows.size()) / width, width));
  };
  const inline_executor here;
  lookup(here, table_of(users, 3), jagged_view(offsets.data(), 2, ids.data(), 6), combiner::sum,
         out.columns(0, 3))
      .or_throw();
  lookup(here, table_of(items, 1), jagged_view(offsets.data() + 2, 2, ids.data(), 6), combiner::sum,
         out.columns(3, 1))
      .or_throw();
  for (int b = 0; b < 2; ++b) std::printf("%g %g %g %g\n", out(b, 0), out(b, 1), out(b, 2), out(b, 3));
}
