// What this process really uses: the first lines of a log, or of a bug report.
#include <deeprec/deeprec.hpp>

#include <iostream>

int main() {
  deeprec::thread_pool pool;
  deeprec::dense_table<deeprec::f32_rows> table(1'000'000, 16);
  table.initialize(pool, deeprec::row_init::uniform{});
  std::cout << deeprec::describe();
}
