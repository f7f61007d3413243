#!/usr/bin/env bash
# scripts/gpu.sh FOLDER [OUT]   builds, tests and times everything that runs on a GPU, in one call, without a network.
#
# FOLDER holds what is used of others, as folders of headers or installed packages:
#   FOLDER/eigen3/Eigen/Core   FOLDER/xsimd/xsimd.hpp   FOLDER/doctest/doctest.h
#   FOLDER/benchmark           Google Benchmark's sources, or an installed package
#   FOLDER/cuembed             optional: cuEmbed's sources, for the claim against it
# OUT (docs/benchmarks by default) gets gpu.json (what was timed, the card, driver, date, commit) and gpu.txt (all output).
# Stops itself before nine minutes are over.

set -uo pipefail
(($#)) && [[ -d "$1" ]] || { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
given="$(realpath "$1")"
out="$(realpath -m "${2:-$root/docs/benchmarks}")"
cd "$root"
mkdir -p "$out"
started=$SECONDS
left() { echo $((530 - (SECONDS - started))); }
say() { printf '== %4ds  %s\n' $((SECONDS - started)) "$*"; }
run() { timeout --signal=KILL "$(($(left) > 1 ? $(left) : 1))" "$@"; }
exec > >(tee "$out/gpu.txt") 2>&1

nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"
[[ -x "$nvcc" ]] || { say "no nvcc"; exit 2; }
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1; }
card="$(query name)"
[[ -n "$card" ]] || { say "ABSENT: no GPU here"; exit 77; }
arch="$(query compute_cap | tr -d .)"
say "$card, driver $(query driver_version), sm_$arch"

build="$root/build/gpu"
mkdir -p "$build"
flags=(-std=c++20 -O3 "-gencode=arch=compute_$arch,code=sm_$arch" -Iinclude -Itests "-I$given" "-I$given/eigen3" "-I$given/xsimd"
  "-I$given/doctest" "-I$given/benchmark/include" --extended-lambda)
[[ -d "$given/cuembed" ]] && flags+=("-I$given/cuembed" -DDEEPREC_BENCH_CUEMBED=1)

compile() { run "$nvcc" "${flags[@]}" "${@:3}" -c "$1" -o "$build/$2.o" || touch "$build/failed.$2"; }
rm -f "$build"/failed.*
compile tests/support/main.cpp main -DDEEPREC_TEST_NEEDS_GPU=1 &
compile tests/embedding/device_test.cu device_test &
compile tests/embedding/two_units_test.cu two_units_test &
compile tests/optim/optimizers_test.cu optimizers_test &
compile tests/dense/cublaslt_device_test.cu cublaslt_device_test &
compile examples/thrust_table.cu thrust_table &
compile examples/linear_regression_streams.cu linear_regression_streams &
compile benchmarks/gpu/gpu_bench.cu gpu_bench &
compile benchmarks/gpu/gemm_bench.cpp gemm_bench &
compile benchmarks/gpu/gemm_baseline.cu gemm_baseline &
compile benchmarks/gpu/linear_regression_bench.cu linear_regression_bench &
# Google Benchmark: a library that is there, or its sources.
library="$(find "$given/benchmark" -name 'libbenchmark.a' 2>/dev/null | head -1)"
if [[ -z "$library" && -d "$given/benchmark/src" ]]; then
  for source in "$given"/benchmark/src/*.cc; do
    name="$(basename "$source" .cc)"
    run g++ -std=c++17 -O2 -DHAVE_POSIX_REGEX -DHAVE_STEADY_CLOCK -DBENCHMARK_STATIC_DEFINE "-I$given/benchmark/include" \
      -c "$source" -o "$build/benchmark_$name.o" &
  done
fi
wait
for f in "$build"/failed.*; do [[ -e "$f" ]] && { say "does NOT COMPILE: ${f##*.}"; exit 1; }; done
cublas=(-lcublasLt -Xlinker "-rpath=$(dirname "$(dirname "$(realpath "$nvcc")")")/lib64")
tests=("$build"/{main,device_test,two_units_test,optimizers_test,cublaslt_device_test}.o)
run "$nvcc" -o "$build/device_tests" "${tests[@]}" "${cublas[@]}" || exit 1
run "$nvcc" -o "$build/thrust_table" "$build/thrust_table.o" || exit 1
suite=("$build"/{gpu_bench,gemm_bench,gemm_baseline,linear_regression_bench}.o)
run "$nvcc" -o "$build/linear_regression_streams" "$build/linear_regression_streams.o" "${cublas[@]}" || exit 1
if [[ -n "$library" ]]; then
  run "$nvcc" -o "$build/gpu_bench" "${suite[@]}" "$library" "$(dirname "$library")/libbenchmark_main.a" "${cublas[@]}" -lpthread || exit 1
else
  run "$nvcc" -o "$build/gpu_bench" "${suite[@]}" "$build"/benchmark_*.o "${cublas[@]}" -lpthread || exit 1
fi

failed=0
say "tests"
run "$build/device_tests" || failed=1
run "$build/thrust_table" || failed=1
run "$build/linear_regression_streams" || failed=1
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    say "$tool, small cases"
    run compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/device_tests" \
      -tc="*bad bag*,*group of tables*,*stages*,*row_select*,*whose row is outside*" || failed=1
  done
else
  say "no compute-sanitizer here"
fi
say "benchmarks"
commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
run "$build/gpu_bench" "--benchmark_out=$out/gpu.json" --benchmark_out_format=json \
  "--benchmark_context=card=$card,driver=$(query driver_version),date=$(date -u +%Y-%m-%dT%H:%M:%SZ),commit=$commit" || failed=1
say "done, $( ((failed)) && echo FAILED || echo green)"
exit "$failed"
