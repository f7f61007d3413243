#!/usr/bin/env bash
# gpu_script_test.sh GPU.SH   scripts/gpu.sh with a compiler, a card and a sanitizer that are a few lines of shell each.

set -uo pipefail
script="$(realpath "$1")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

# A machine with nothing but these.
bin="$work/bin"
mkdir -p "$bin" "$work/toolkit/bin" "$work/toolkit/include" "$work/behave"
for tool in bash env tee timeout date nproc sed grep head cut tr cat basename dirname realpath mkdir rm mktemp touch sleep tail \
  find sort wc chmod cp; do
  ln -s "$(command -v "$tool")" "$bin/$tool"
done
touch "$work/toolkit/include/cublasLt.h"

# What a program does: behave/NAME says hang, fail, wrong or crash.
cat >"$work/program" <<'END'
name="${0##*/}"
behave="$(cat "$STUB/behave/$name" 2>/dev/null)"
for a; do
  [[ "$a" != --benchmark_list_tests ]] || { echo "gpu/${name#bench_}/one/iterations:1/repeats:3"; exit; }
done
case "$behave" in
  hang) sleep 100 ;;
  fail) exit 3 ;;
  crash) kill -SEGV $$ ;;
esac
for a; do
  case "$a" in
    --benchmark_out=*)
      printf '{\n"context": {},\n"benchmarks": [{\n"name": "x",\n' >"${a#*=}"
      [[ "$behave" != wrong ]] || printf '"error_occurred": true,\n"error_message": "wrong answer: row 3",\n' >>"${a#*=}"
      printf '"run_type": "iteration"\n}\n]\n}\n' >>"${a#*=}"
      ;;
    --benchmark_context=*) echo "$name was run with ${a#*=}" ;;
  esac
done
echo "$name says hello $*"
END
# Compiles and links: an object is empty, a program is the one above.
cat >"$work/toolkit/bin/nvcc" <<'END'
#!/usr/bin/env bash
[[ "$1" != --version ]] || { echo "Cuda compilation tools, release 99.1, V99.1"; exit; }
source="" out=""
while (($#)); do
  case "$1" in
    -c) source="$(basename "$2")" && shift ;;
    -o) out="$2" && shift ;;
  esac
  shift
done
[[ ! -e "$STUB/behave/compile_$source" ]] || { echo "$source(7): error: no" >&2; exit 1; }
if [[ -n "$source" ]]; then touch "$out"; else { echo "#!/usr/bin/env bash"; cat "$STUB/program"; } >"$out" && chmod +x "$out"; fi
END
cp "$work/toolkit/bin/nvcc" "$bin/cxx"
cat >"$bin/nvidia-smi" <<'END'
#!/usr/bin/env bash
[[ ! -e "$STUB/behave/no_card" ]] || exit 9
case "$1" in
  *=name) echo "Card 1" ;;
  *compute_cap) echo 9.0 ;;
  *) echo "1, 2" ;;
esac
END
cat >"$work/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo "sanitizer $*"
END
chmod +x "$work/toolkit/bin/nvcc" "$bin/nvidia-smi" "$bin/cxx" "$work/compute-sanitizer"

# A checkout, and what it uses of others.
mkdir -p "$work/repo/scripts" "$work/repo/tests/embedding" "$work/repo/tests/optim" "$work/repo/docs/benchmarks"
cp "$script" "$work/repo/scripts/gpu.sh"
touch "$work"/repo/tests/{embedding/device_test.cu,embedding/two_units_test.cu,optim/optimizers_test.cu}
given="$work/given"
mkdir -p "$given"/{eigen3/Eigen,xsimd,doctest,benchmark/{include/benchmark,src},cuembed,nlohmann,CLI}
touch "$given"/{eigen3/Eigen/Core,xsimd/xsimd.hpp,doctest/doctest.h,benchmark/include/benchmark/benchmark.h,benchmark/src/a.cc} \
  "$given"/{nlohmann/json.hpp,CLI/CLI.hpp}

# gpu CODE [ARGUMENT...]: runs the script, which has to end with CODE.
gpu() {
  local wanted="$1" code=0
  shift
  env -i STUB="$work" PATH="$bin" HOME="$work" NVCC="$work/toolkit/bin/nvcc" CXX=cxx DEEPREC_COMMIT=abc "${settings[@]}" \
    timeout --signal=KILL 60 bash "$work/repo/scripts/gpu.sh" "$@" >"$work/said" 2>&1 || code=$?
  ((code == wanted)) || complain "ends with $code, not $wanted"
}
complain() {
  echo "FAILED: $scenario: $*"
  cat "$work/said"
  failed=1
}
says() {
  local line
  for line; do grep -qE -- "$line" "$work/said" || complain "does not say: $line"; done
}
never_says() { ! grep -qE -- "$1" "$work/said" || complain "says: $1"; }
settings=(DEEPREC_GPU_LIMITS="50 10 1 2 2")
recorded="$work/repo/docs/benchmarks"

scenario="all is well"
cp "$work/compute-sanitizer" "$work/toolkit/bin/"
gpu 0 "$given"
says 'ok: test_embedding' 'ok: test_optim' 'ok: thrust_table' 'ok: gpu/gemm/one' 'ok: gpu/cuembed/one' 'ok: claims' \
  'ok: memcheck of test_embedding -sf=\*/two_units_test.cu' 'ok: synccheck of test_optim' 'ok: racecheck of linear_regression_streams' \
  'ok: initcheck of linear_regression_streams' 'sanitizer --tool memcheck.*linear_regression_streams document' \
  'run with card=Card 1,.*toolkit=99.1,.*clocks_before=1;2,run_date=.*commit=abc,dirty=unknown' \
  'claims says hello .*--from .*gpu/cuembed_one.json .*gpu/update_one.json' 'done: green'
never_says FAILED
[[ "$(tail -n 1 "$recorded/gpu.txt")" == *"done: green" ]] || complain "gpu.txt lacks the last line"
[[ "$(ls "$recorded/gpu" | wc -l)" == 8 ]] || complain "reports: $(ls "$recorded/gpu")"

scenario="much is wrong, and the rest goes on"
rm "$work/toolkit/bin/compute-sanitizer"
echo hang >"$work/behave/test_embedding"
echo fail >"$work/behave/thrust_table"
echo wrong >"$work/behave/bench_lookup"
echo crash >"$work/behave/bench_streams"
echo hang >"$work/behave/bench_fused"
touch "$work/behave/compile_update_bench.cu" "$work/behave/compile_two_units_test.cu" "$work/behave/compile_gemm_baseline.cu"
mkdir "$work/elsewhere"
settings+=(OUT="$work/elsewhere")
gpu 1 "$given"
says 'FAILED: update_bench does not compile' 'update_bench.cu\(7\): error: no' 'FAILED: bench_update is not built' \
  'FAILED: embedding_two_units_test does not compile' 'FAILED: test_embedding: cut off' 'ok: test_optim' \
  'FAILED: thrust_table: exit code 3' 'ok: linear_regression_streams' 'FAILED: bench_gemm is not built' \
  'FAILED: gpu/lookup/one: .*wrong answer: row 3' 'FAILED: gpu/streams/one: exit code' 'FAILED: gpu/fused/one: cut off' \
  'ok: gpu/row_select/one' 'ok: claims' 'FAILED: no compute-sanitizer' 'done: 11 FAILED'
never_says 'ok: gpu/lookup/one'
[[ -e "$work/elsewhere/gpu/row_select_one.json" && ! -e "$work/elsewhere/gpu/fused_one.json" ]] || complain "reports"
grep -q 'done: 11 FAILED' "$work/elsewhere/gpu.txt" || complain "gpu.txt is not where OUT says"
rm "$work"/behave/*
cp "$work/compute-sanitizer" "$work/toolkit/bin/"

scenario="no Google Benchmark, no cuBLASLt"
mv "$given/benchmark" "$work/benchmark"
mv "$work/toolkit/include/cublasLt.h" "$work/"
gpu 1 "$given" "$work/named"
says 'FAILED: FOLDER lacks benchmark' 'FAILED: the toolkit has no cublasLt.h' 'ok: test_embedding' 'no claim is judged' \
  'ok: memcheck of test_embedding'
[[ -e "$work/named/gpu.txt" ]] || complain "gpu.txt is not where the argument says"
mv "$work/benchmark" "$given/benchmark"

scenario="no headers for the claims, no doctest"
rm -r "$given/nlohmann" "$given/doctest"
gpu 1 "$given"
says 'FAILED: FOLDER lacks doctest' 'scripts/bench.sh claims gpu --from' 'ok: gpu/lookup/one' 'ok: memcheck of thrust_table'

scenario="too little time"
settings=(DEEPREC_GPU_LIMITS="0 10 1 2 2")
gpu 1 "$given"
says 'no time left|does not compile' 'done: [0-9]+ FAILED'

scenario="nothing to build with, no card, no folder"
settings=()
rm "$given/xsimd/xsimd.hpp"
gpu 2 "$given"
says 'FOLDER lacks xsimd/xsimd.hpp'
touch "$work/behave/no_card"
gpu 77 "$given"
says 'ABSENT: no GPU here'
gpu 2 "$work/nowhere"
says 'scripts/gpu.sh --folder makes one'
gpu 2
says 'scripts/gpu.sh FOLDER'
exit "$failed"
