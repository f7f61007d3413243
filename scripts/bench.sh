#!/usr/bin/env bash
# scripts/bench.sh SUITE [--json FILE] [ARGUMENT...]   runs benchmarks/SUITE
# scripts/bench.sh claims [SUITE] [--json FILE]        checks what benchmarks/claims.json lists
# scripts/bench.sh claims [SUITE] --from FILE...       judges by reports that were recorded elsewhere

usage() {
  sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
  echo "suites: $(cd "$(dirname "${BASH_SOURCE[0]}")/../benchmarks" && ls -d -- */ |
    grep -v -x -e support/ -e claims/ | tr -d / | xargs)"
  exit 2
}

(($#)) && [[ "$1" != -* ]] || usage
suite="$1"
shift
only="" json="" arguments=() recorded=()
if [[ "$suite" == claims && $# -gt 0 && "$1" != -* ]]; then
  only="$1"
  shift
fi
while (($#)); do
  case "$1" in
    --json)
      (($# > 1)) || usage
      json="$(realpath -m -- "$2")"
      shift 2
      ;;
    --from)
      [[ "$suite" == claims ]] && (($# > 1)) || usage
      while (($# > 1)) && [[ "$2" != -* ]]; do
        recorded+=("$(realpath -m -- "$2")")
        shift
      done
      shift
      ;;
    *)
      arguments+=("$1")
      shift
      ;;
  esac
done

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ "$suite" == claims || -d "benchmarks/$suite" ]] || usage

install_packages libabsl-dev libboost-dev libconcurrentqueue-dev libreaderwriterqueue-dev libatomic-queue-dev
configure bench
bin=build/bench/benchmarks
commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
dirty="$([[ -z "$(git status --porcelain 2>/dev/null)" ]] && echo false || echo true)"

if [[ "$suite" != claims ]]; then
  build bench "bench_$suite"
  ((${#json} == 0)) || arguments+=("--benchmark_out=$json" --benchmark_out_format=json)
  exec "$bin/bench_$suite" "--benchmark_context=commit=$commit,dirty=$dirty" "${arguments[@]}"
fi

build bench claims
tool=("$bin/claims/claims" --claims benchmarks/claims.json --programs "$bin" --select "$only")
if ((${#recorded[@]})); then
  exec "${tool[@]}" ${json:+--json "$json"} --from "${recorded[@]}"
fi
suites="$("${tool[@]}" --suites)"
known="$(cmake --build build/bench --target help)"
targets=()
for name in $suites; do
  if grep -qE "(^|\.\.\. )bench_$name(:|\$)" <<<"$known"; then targets+=("bench_$name"); fi
done
((${#targets[@]} == 0)) || build bench "${targets[@]}"
exec "${tool[@]}" --commit "$commit" --dirty "$dirty" ${json:+--json "$json"}
