// Of the programs that scripts/gpu.sh makes: some packages of Google Benchmark have no main to link with.
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
