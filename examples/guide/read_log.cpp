// A log in Criteo's format, read in parallel: labels, 13 numbers and 26 lists of row numbers for each batch.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <fstream>
using namespace deeprec;

int main() {
  std::ofstream file("log.tsv");
  for (int row = 0; row < 1000; ++row) {
    file << row % 4 / 3;
    for (int c = 0; c < 13; ++c) file << '\t' << row % (c + 2);
    for (int c = 0; c < 26; ++c) file << "\ttoken" << row % (c + 2);
    file << '\n';
  }
  file.close();
  thread_pool pool;  // its threads parse
  auto reader =
      read_files(pool, criteo_format{.rows = criteo_format::same_size(1 << 16)}, {"log.tsv"}).or_throw();
  sparse_batch batch;
  while (reader.next(batch, 400).or_throw() > 0) {
    float clicks = 0;
    for (const float label : batch.labels()) clicks += label;
    std::printf("%ld rows, %g clicks, first row of feature 25: %ld\n", batch.rows(), clicks,
                batch.feature(25).ids()[0]);
  }
  std::remove("log.tsv");
}
