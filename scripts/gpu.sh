#!/usr/bin/env bash
# scripts/gpu.sh FOLDER [OUT]       builds, tests, times and sanitizes what runs on a GPU, in one call, without a network
# scripts/gpu.sh --folder FOLDER    makes FOLDER, on a machine with the packages or with a network
#
# FOLDER holds what is used of others:
#   eigen3/Eigen/  xsimd/         headers; nothing is built without them
#   doctest/                      headers, for the tests
#   benchmark/{include,src}       Google Benchmark's sources; or benchmark/{include,lib}, a library of it
#   cuembed/cuembed/include       optional: cuEmbed's sources, for the claim against it
#   nlohmann/  CLI/               optional: headers of the tool that judges the claims
# OUT gets gpu.txt (all output), gpu/*.json (what was timed, with card, driver, toolkit, clocks, date and commit) and, with
# the tool, claims_gpu.json. It is the second argument, else the folder that the variable OUT names, else docs/benchmarks.
# The commit is that of the checkout, else DEEPREC_COMMIT says it.
#
# Every program is built and run by itself: what fails, hangs or is absent is said and counted, and the rest goes on. Ends
# with 0 only when nothing failed; 77: no GPU here. Seconds for each stage: DEEPREC_GPU_LIMITS="TOTAL COMPILE TEST BENCHMARK
# SANITIZER", by default "530 240 120 150 60".

set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
}
started=$SECONDS
say() { printf '== %4ds  %s\n' $((SECONDS - started)) "$*"; }

# --- FOLDER --------------------------------------------------------------------------------------

# fetched NAME URL COMMIT: a checkout of it in $work/NAME.
fetched() {
  git init -q "$work/$1" && git -C "$work/$1" fetch -q --depth 1 "$2" "$3" && git -C "$work/$1" checkout -q FETCH_HEAD
}
# pinned NAME: "URL COMMIT" as cmake/dependencies.cmake has them.
pinned() { tr '\n' ' ' <"$root/cmake/dependencies.cmake" | grep -oE "https://[^ ]*/$1\.git +[0-9a-f]{40}"; }

# headers TO INSTALLED NAME IN_SOURCES: a folder of headers, of the package or of the pinned sources.
headers() {
  local from="/usr/include/$2"
  if [[ ! -d "$from" ]]; then
    # shellcheck disable=SC2046
    fetched "$3" $(pinned "$3") && from="$work/$3/$4" || { say "no $3"; return 1; }
  fi
  mkdir -p "$given/$1" && cp -RL "$from/." "$given/$1/" && say "$1: $from"
}

make_folder() {
  mkdir -p "$1" || exit 2
  given="$(realpath "$1")"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  local missing=0 file
  headers eigen3/Eigen eigen3/Eigen eigen Eigen || missing=1
  headers xsimd xsimd xsimd include/xsimd || missing=1
  headers doctest doctest doctest doctest || missing=1
  headers nlohmann nlohmann json include/nlohmann || say "without it the claims are not judged on the card's machine"
  headers CLI CLI CLI11 include/CLI || say "without it the claims are not judged on the card's machine"
  mkdir -p "$given/benchmark"
  # shellcheck disable=SC2046
  if fetched benchmark $(pinned benchmark); then
    cp -R "$work/benchmark/include" "$work/benchmark/src" "$given/benchmark/" && say "benchmark: sources"
  elif [[ -f /usr/include/benchmark/benchmark.h ]]; then
    mkdir -p "$given/benchmark/include" "$given/benchmark/lib"
    cp -RL /usr/include/benchmark "$given/benchmark/include/"
    for file in /usr/lib/*/libbenchmark.a /usr/lib/*/libbenchmark.so*; do
      [[ ! -e "$file" ]] || cp -L "$file" "$given/benchmark/lib/"
    done
    say "benchmark: the installed library (its sources could not be fetched)"
  else
    say "no benchmark" && missing=1
  fi
  if fetched cuembed https://github.com/NVIDIA/cuEmbed.git HEAD; then
    mkdir -p "$given/cuembed/cuembed" && cp -R "$work/cuembed/cuembed/include" "$given/cuembed/cuembed/"
    say "cuembed: commit $(git -C "$work/cuembed" rev-parse HEAD)"
  else
    say "no cuEmbed: the claim against it will be ABSENT"
  fi
  exit "$missing"
}

[[ "${1:-}" == --folder && $# == 2 ]] && make_folder "$2"
(($# == 1 || $# == 2)) && [[ "$1" != -* ]] || usage
[[ -d "$1" ]] || { say "no folder $1; scripts/gpu.sh --folder makes one"; exit 2; }

# --- what is there -------------------------------------------------------------------------------

given="$(realpath "$1")"
if (($# == 2)); then
  out="$2"
elif [[ -n "${OUT:-}" && -d "${OUT:-}" ]]; then
  out="$OUT"
else
  out="$root/docs/benchmarks"
fi
out="$(realpath -m "$out")"
cd "$root" || exit 2
commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo "${DEEPREC_COMMIT:-unknown}")"
dirty=unknown
if changes="$(git status --porcelain 2>/dev/null)"; then dirty="$([[ -z "$changes" ]] && echo false || echo true)"; fi
mkdir -p "$out/gpu" || exit 2
read -r total compile_limit test_limit benchmark_limit sanitizer_limit <<<"${DEEPREC_GPU_LIMITS:-530 240 120 150 60}"

# All output goes to a file as well. Whoever ends this script waits for the last lines.
exec 3>&1 4>&2
exec > >(exec tee "$out/gpu.txt") 2>&1
tee=$!
end() {
  local code=$? i
  exec >&3 2>&4
  for ((i = 0; i < 50; ++i)); do
    kill -0 "$tee" 2>/dev/null || break
    sleep 0.1
  done
  exit "$code"
}
trap end EXIT

failures=()
fail() {
  failures+=("$*")
  say "FAILED: $*"
}
left() { echo $((total - (SECONDS - started))); }
# limited SECONDS COMMAND...: no longer than that, and not beyond the end. 137: cut off.
limited() {
  local seconds="$1" rest
  shift
  rest="$(left)"
  ((rest > 1)) || return 137
  timeout --signal=KILL "$((seconds < rest ? seconds : rest))" "$@"
}
# ended NAME CODE: says how a program ended, and counts it.
ended() {
  case "$2" in
    0) say "ok: $1" ;;
    77) fail "$1: skipped itself" ;;
    137) (($(left) > 1)) && fail "$1: cut off" || fail "$1: no time left" ;;
    *) fail "$1: exit code $2" ;;
  esac
}
# attempt LIMIT NAME COMMAND...: runs one program of a stage.
attempt() {
  local limit="$1" name="$2" code=0
  shift 2
  limited "$limit" "$@" </dev/null || code=$?
  ended "$name" "$code"
}

nvcc="${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"
[[ -x "$nvcc" ]] || { say "no nvcc"; exit 2; }
toolkit="$(dirname "$(dirname "$(realpath "$nvcc")")")"
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1 | sed 's/, */;/g'; }
card="$(query name)"
[[ -n "$card" ]] || { say "ABSENT: no GPU here"; exit 77; }
driver="$(query driver_version)"
arch="$(query compute_cap | tr -d .)"
version="$("$nvcc" --version | grep -oE 'release [0-9.]+' | head -1 | cut -d' ' -f2)"
clocks() { query clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw; }
say "$card, driver $driver, toolkit ${version:-unknown}, sm_$arch, commit $commit, changes of its own: $dirty"

for file in eigen3/Eigen/Core xsimd/xsimd.hpp; do
  [[ -e "$given/$file" ]] || { say "FOLDER lacks $file: nothing can be built"; exit 2; }
done
has_doctest=1 has_benchmark=1
[[ -e "$given/doctest/doctest.h" ]] || { has_doctest=0 && fail "FOLDER lacks doctest/doctest.h: no tests"; }
library="$(find "$given/benchmark" \( -name 'libbenchmark.a' -o -name 'libbenchmark.so*' \) 2>/dev/null | sort | head -1)"
if [[ ! -e "$given/benchmark/include/benchmark/benchmark.h" ]] || [[ -z "$library" && ! -d "$given/benchmark/src" ]]; then
  has_benchmark=0
  fail "FOLDER lacks benchmark/include/benchmark/benchmark.h, or both benchmark/src and a library: no benchmarks"
fi
[[ -e "$toolkit/include/cublasLt.h" ]] || fail "the toolkit has no cublasLt.h: no gemm, no linear regression"

# --- building ------------------------------------------------------------------------------------

build="$root/build/gpu"
rm -rf "$build"
mkdir -p "$build"
jobs="$(nproc 2>/dev/null || echo 2)"
includes=(-Iinclude -Itests "-I$given" "-I$given/eigen3" "-I$given/benchmark/include" "-I$given/cuembed")
gencode="-gencode=arch=compute_$arch,code=sm_$arch"
pids=()

# unit NAME SECONDS COMMAND...: makes $build/NAME.o in the background; what it says goes to NAME.log.
unit() {
  local name="$1"
  shift
  while (($(jobs -rp | wc -l) >= jobs)); do sleep 0.05; done
  { limited "$compile_limit" "$@" -o "$build/$name.o" >"$build/$name.log" 2>&1 || rm -f "$build/$name.o"; } &
  pids+=($!)
}
# Contracts are checked in tests, not in what is timed.
test_unit() { unit "$1" "$nvcc" -std=c++20 -O3 "$gencode" --extended-lambda "${includes[@]}" "${@:3}" -c "$2"; }
bench_unit() { test_unit "$1" "$2" -DNDEBUG "${@:3}"; }

# program NAME UNIT... [-- LIBRARY...]: links what compiled; units that did not are counted.
program() {
  local name="$1" objects=() libraries=() u bad=0
  shift
  while (($#)) && [[ "$1" != -- ]]; do
    u="$1"
    shift
    if [[ -e "$build/$u.o" ]]; then
      objects+=("$build/$u.o")
    else
      bad=1
      [[ -e "$build/$u.said" ]] || { fail "$u does not compile"; grep -m 8 -iE 'error|fatal' "$build/$u.log"; touch "$build/$u.said"; }
    fi
  done
  shift
  libraries=("$@")
  # A test of several units goes without the one that is missing; a benchmark does not.
  if ((bad)) && [[ "$name" != test_* || ${#objects[@]} -lt 2 ]]; then
    fail "$name is not built"
    return 1
  fi
  limited "$compile_limit" "$nvcc" -o "$build/$name" "${objects[@]}" "${libraries[@]}" >"$build/$name.log" 2>&1 ||
    { fail "$name does not link"; tail -n 8 "$build/$name.log"; rm -f "$build/$name"; return 1; }
}
cublas=(-lcublasLt "-L$toolkit/lib64" -Xlinker "-rpath=$toolkit/lib64")

say "compiling, $jobs at once"
declare -A tests_of=()
if ((has_doctest)); then
  test_unit main tests/support/main.cpp -DDEEPREC_TEST_NEEDS_GPU=1
  for source in tests/*/*_test.cu; do
    folder="$(basename "$(dirname "$source")")"
    name="${folder}_$(basename "$source" .cu)"
    tests_of[$folder]+=" $name"
    test_unit "$name" "$source"
  done
fi
test_unit thrust_table examples/thrust_table.cu
test_unit linear_regression_streams examples/linear_regression_streams.cu
families=()
if ((has_benchmark)); then
  families=(lookup update fused streams row_select gemm linear_regression)
  for name in spin lookup_bench update_bench fused_bench op_by_op streams_bench row_select_bench linear_regression_bench \
    gemm_baseline; do
    bench_unit "$name" "benchmarks/gpu/$name.cu"
  done
  bench_unit gemm_bench benchmarks/gpu/gemm_bench.cpp
  bench_unit bench_main benchmarks/gpu/main.cpp
  if [[ -d "$given/cuembed" ]]; then
    families+=(cuembed)
    bench_unit cuembed_bench benchmarks/gpu/cuembed_bench.cu
    bench_unit cuembed_baseline benchmarks/gpu/cuembed_baseline.cu
  else
    say "no cuEmbed in FOLDER: the claim against it will be ABSENT"
  fi
  framework=()
  if [[ -z "$library" ]]; then
    for source in "$given"/benchmark/src/*.cc; do
      name="benchmark_$(basename "$source" .cc)"
      [[ "$name" != benchmark_benchmark_main ]] || continue
      framework+=("$name")
      unit "$name" "${CXX:-g++}" -std=c++17 -O2 -DNDEBUG -DHAVE_POSIX_REGEX -DHAVE_STEADY_CLOCK -DBENCHMARK_STATIC_DEFINE \
        "-I$given/benchmark/include" "-I$given/benchmark/src" -c "$source"
    done
  fi
fi
has_claims=0
if [[ -e "$given/nlohmann/json.hpp" && -e "$given/CLI/CLI.hpp" ]]; then
  has_claims=1
  unit claims "${CXX:-g++}" -std=c++20 -O1 '-DBUILD_COMPILER="g++"' '-DBUILD_FLAGS="-O1"' "-I$given" -c \
    benchmarks/claims/claims.cpp
fi
for pid in "${pids[@]}"; do wait "$pid"; done

say "linking"
tests=()
for folder in "${!tests_of[@]}"; do
  # shellcheck disable=SC2086
  program "test_$folder" main ${tests_of[$folder]} -- "${cublas[@]}" && tests+=("test_$folder")
done
program thrust_table thrust_table -- && tests+=(thrust_table)
program linear_regression_streams linear_regression_streams -- "${cublas[@]}" && tests+=(linear_regression_streams)
benchmarks=()
for family in "${families[@]}"; do
  needs=("${family}_bench" spin bench_main "${framework[@]}")
  uses=(-lpthread)
  [[ -z "$library" ]] || uses=("$library" -Xlinker "-rpath=$(dirname "$library")" -lpthread)
  case "$family" in
    fused) needs+=(op_by_op) ;;
    cuembed) needs+=(cuembed_baseline) ;;
    gemm) needs+=(gemm_baseline) uses+=("${cublas[@]}") ;;
    linear_regression) uses+=("${cublas[@]}") ;;
  esac
  program "bench_$family" "${needs[@]}" -- "${uses[@]}" && benchmarks+=("bench_$family")
done
if ((has_claims)); then
  limited "$compile_limit" "${CXX:-g++}" -o "$build/claims" "$build/claims.o" >>"$build/claims.log" 2>&1 ||
    { has_claims=0 && fail "the claims' tool is not built" && tail -n 8 "$build/claims.log"; }
fi

# --- running -------------------------------------------------------------------------------------

say "tests"
for name in "${tests[@]}"; do attempt "$test_limit" "$name" "$build/$name"; done

say "benchmarks, a process for each"
rm -f "$out"/gpu/*.json
for family in "${benchmarks[@]}"; do
  names="$(limited 20 "$build/$family" --benchmark_list_tests)" || fail "$family does not list its benchmarks"
  for name in $names; do
    plain="${name%%/iterations:*}"
    file="$out/gpu/$(tr / _ <<<"${plain#gpu/}").json"
    code=0
    limited "$benchmark_limit" "$build/$family" "--benchmark_filter=^$name\$" \
      "--benchmark_out=$file" --benchmark_out_format=json \
      "--benchmark_context=card=$card,driver=$driver,toolkit=${version:-unknown},sm=$arch,clocks_before=$(clocks),run_date=$(date -u +%Y-%m-%dT%H:%M:%SZ),commit=$commit,dirty=$dirty" \
      </dev/null || code=$?
    whole=1
    [[ "$(tail -n 1 "$file" 2>/dev/null)" == "}" ]] || whole=0
    if ((code != 0)); then
      ended "$plain" "$code"
    elif ((!whole)); then
      fail "$plain: nothing was recorded"
    elif grep -q '"error_occurred": true' "$file"; then
      fail "$plain: $(grep -m 1 '"error_message"' "$file" | sed 's/^ *//')"
    else
      ended "$plain" 0
    fi
    ((whole)) || rm -f "$file"
    say "clocks (sm;memory;most sm;temperature;power): $(clocks)"
  done
done

recorded=("$out"/gpu/*.json)
if [[ ! -e "${recorded[0]}" ]]; then
  say "nothing was recorded, so no claim is judged"
elif ((has_claims)); then
  say "claims"
  attempt 60 claims "$build/claims" --claims benchmarks/claims.json --select gpu --json "$out/claims_gpu.json" \
    --from "${recorded[@]}"
else
  say "to judge the claims: scripts/bench.sh claims gpu --from $out/gpu/*.json"
fi

sanitizer=""
for place in "$(command -v compute-sanitizer)" "$toolkit"/{bin,compute-sanitizer,extras/compute-sanitizer}/compute-sanitizer; do
  if [[ -n "$place" && -x "$place" ]]; then sanitizer="$place" && break; fi
done
# sanitize TOOL PROGRAM ARGUMENT...
sanitize() {
  local tool="$1" name="$2"
  shift 2
  [[ ! -x "$build/$name" ]] || attempt "$sanitizer_limit" "$tool of $name $*" "$sanitizer" --tool "$tool" --error-exitcode 9 \
    "$build/$name" "$@"
}
if [[ -n "$sanitizer" ]]; then
  say "sanitizers"
  # Shared memory is in the linear regression, and in CUB, which updates and stages call.
  sanitize racecheck linear_regression_streams document
  sanitize racecheck test_embedding "-tc=*update*,*stages*"
  for tool in memcheck synccheck initcheck; do
    for name in "${tests[@]}"; do
      case "$name" in
        test_*) # one unit at a time: a limit for each
          folder="${name#test_}"
          for u in ${tests_of[$folder]}; do sanitize "$tool" "$name" "-sf=*/${u#"${folder}"_}.cu"; done
          ;;
        linear_regression_streams) sanitize "$tool" "$name" document ;;
        *) sanitize "$tool" "$name" ;;
      esac
    done
  done
else
  fail "no compute-sanitizer, neither in PATH nor beside nvcc: nothing was sanitized"
fi

((${#failures[@]})) || { say "done: green" && exit 0; }
say "done: ${#failures[@]} FAILED"
printf '  %s\n' "${failures[@]}"
exit 1
