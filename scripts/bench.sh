#!/usr/bin/env bash
# scripts/bench.sh SUITE [--json FILE] [ARGUMENT...]   runs benchmarks/SUITE
# scripts/bench.sh claims [SUITE] [--json FILE]        checks what benchmarks/claims.json lists
# scripts/bench.sh claims [SUITE] --from FILE...       judges by reports that were recorded elsewhere
# scripts/bench.sh table [FILE...]                     writes the table of docs/benchmarks/README.md from JSON files

usage() {
  sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
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
[[ "$suite" == claims || "$suite" == table || -d "benchmarks/$suite" ]] || usage

install_packages libabsl-dev libboost-dev libconcurrentqueue-dev libreaderwriterqueue-dev libatomic-queue-dev
configure bench
bin=build/bench/benchmarks
commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
# Earlier results, which one run after another writes, are no change of what is measured.
dirty="$([[ -z "$(git status --porcelain -- . ':!docs/benchmarks' 2>/dev/null)" ]] && echo false || echo true)"

if [[ "$suite" == table ]]; then
  build bench claims_table
  ((${#arguments[@]})) || arguments=(docs/benchmarks/claims_*.json)
  exec "$bin/claims/claims_table" --page docs/benchmarks/README.md "${arguments[@]}"
fi
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
# The versions of packages that suites compare with; FBGEMM's the suites say themselves.
while read -r package version; do
  [[ -z "$version" ]] || tool+=(--peer "$package=$version")
done < <(dpkg-query -W -f '${Package} ${Version}\n' libabsl-dev libboost-dev libconcurrentqueue-dev libreaderwriterqueue-dev \
  libatomic-queue-dev libtbb-dev libdnnl-dev libeigen3-dev 2>/dev/null || true)
suites="$("${tool[@]}" --suites)"
known="$(cmake --build build/bench --target help)"
targets=()
for name in $suites; do
  if grep -qE "(^|\.\.\. )bench_$name(:|\$)" <<<"$known"; then targets+=("bench_$name"); fi
done
((${#targets[@]} == 0)) || build bench "${targets[@]}"
exec "${tool[@]}" --commit "$commit" --dirty "$dirty" ${json:+--json "$json"}
