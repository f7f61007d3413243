// A table whose rows are a file: there again after a restart, without being read.
#include <deeprec/deeprec.hpp>

#include <cstdio>
using namespace deeprec;

int main() {
  std::remove("items.map");
  inline_executor here;
  for (int run = 1; run <= 2; ++run) {  // two runs of a process
    auto items = mapped_table<f32_rows>::open("items.map", 1000, 16, state_of<adagrad>).or_throw();
    if (!items.found()) items.table().initialize(here, row_init::uniform{.seed = 42});
    const auto* const row = reinterpret_cast<const float*>(items.table().view().row(7));
    std::printf("run %d: the file was %s; row 7 begins with %.4f\n", run, items.found() ? "found" : "made",
                row[0]);
    items.close().or_throw();
  }
  std::remove("items.map");
}
