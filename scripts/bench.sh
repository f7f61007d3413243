#!/usr/bin/env bash
# scripts/bench.sh SUITE [--json FILE] [ARGUMENT...]   runs benchmarks/SUITE
# scripts/bench.sh claims [SUITE] [--json FILE]        checks the claims in benchmarks/claims.json
# scripts/bench.sh claims [SUITE] --from FILE...       judges them by reports recorded on another machine
# scripts/bench.sh table [FILE...]                     writes docs/benchmarks/README.md and suites/ from their JSON
# scripts/bench.sh reproduce [ROW]                     runs the published comparisons in benchmarks/reproduce.json
# scripts/bench.sh report [FILE...]                    writes docs/benchmarks/report.md from what reproduce recorded
# scripts/bench.sh against COMMIT [SUITE] [--json FILE] [ARGUMENT...]
#                                                      times the bodies of this tree and of COMMIT alternately

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  echo "suites: $(cd "$(dirname "${BASH_SOURCE[0]}")/../benchmarks" && ls -d -- */ |
    grep -v -x -e support/ -e claims/ -e against/ | tr -d / | xargs)"
  exit 2
}

(($#)) && [[ "$1" != -* ]] || usage
suite="$1"
shift
only="" json="" arguments=() recorded=() against=""
if [[ "$suite" == against ]]; then
  (($#)) && [[ "$1" != -* ]] || usage
  against="$1"
  shift
fi
if [[ ("$suite" == claims || "$suite" == against || "$suite" == reproduce) && $# -gt 0 && "$1" != -* ]]; then
  only="$1"
  shift
fi
while (($#)); do
  case "$1" in
    -h | --help)
      case "$suite" in claims | table | against | reproduce | report) usage ;; esac
      arguments+=("$1")
      shift
      ;;
    --json)
      (($# > 1)) && [[ "$suite" != reproduce && "$suite" != report ]] || usage
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
case "$suite" in claims | table | reproduce | report) ;; *) [[ -d "benchmarks/$suite" ]] || usage ;; esac
[[ "$suite" != reproduce || ${#arguments[@]} -eq 0 ]] || usage
[[ -z "$against" || -z "$only" || -f "benchmarks/$only/${only}_bodies.cpp" ]] || {
  say "no benchmarks/$only/${only}_bodies.cpp"
  exit 2
}

# python_with MODULE: prints the first python3 that finds the module; 1 where none does.
python_with() {
  local python
  for python in "${DEEPREC_PYTHON:-python3}" /usr/bin/python3; do
    if "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null; then
      echo "$python"
      return 0
    fi
  done
  return 1
}

# Nothing is built for the page. --no-plots is one of report.py's arguments.
if [[ "$suite" == report ]]; then
  python_with matplotlib >/dev/null || install_packages python3-matplotlib
  python="$(python_with matplotlib || echo python3)"
  exec "$python" scripts/report/report.py page "${arguments[@]}"
fi
if [[ "$suite" == reproduce ]]; then # a row that does not exist is found before minutes of building
  command -v python3 >/dev/null || install_packages python3
  wanted="$(python3 scripts/report/report.py suites ${only:+"$only"})"
fi

install_packages libabsl-dev libboost-dev libconcurrentqueue-dev libreaderwriterqueue-dev libatomic-queue-dev libcuckoo-dev
install_packages libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4
configure bench
bin=build/bench/benchmarks
commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
# Earlier results, which one run after another writes, are no change of what is measured.
dirty="$([[ -z "$(git status --porcelain -- . ':!docs/benchmarks' ':!README.md' 2>/dev/null)" ]] && echo false || echo true)"

# This tree's objects are built in build/bench, COMMIT's in build/against/COMMIT, by COMMIT's own CMake files with
# benchmarks/against/other_commit.cmake read in. Suites for which COMMIT has no bodies take this tree's, on its headers.
if [[ "$suite" == against ]]; then
  other="$(git rev-parse --verify --quiet "$against^{commit}")" || {
    say "no commit $against"
    exit 2
  }
  there="build/against/${other:0:12}"
  if [[ ! -f "$there/tree/CMakeLists.txt" ]]; then
    rm -rf "$there"
    mkdir -p "$there/unpacked"
    git archive "$other" | tar -x -C "$there/unpacked"
    mv "$there/unpacked" "$there/tree"
  fi
  say "${other:0:12}: configuring in build/against/${other:0:12}/build"
  generator=()
  if [[ ! -f "$there/build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S "$there/tree" -B "$there/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDEEPREC_BUILD_TESTS=OFF \
    -DDEEPREC_BUILD_EXAMPLES=OFF -DDEEPREC_CUDA=OFF -DCMAKE_PROJECT_deeprec_INCLUDE="$root/benchmarks/against/other_commit.cmake" \
    >"$there/configure.log" 2>&1 || {
    cat "$there/configure.log"
    exit 1
  }
  names=()
  for source in benchmarks/${only:-*}/*_bodies.cpp; do names+=("$(basename "$source" _bodies.cpp)"); done
  build bench against "${names[@]/#/bodies_}"
  tool=("$bin/against/against" --ours "$commit$([[ "$dirty" == false ]] || echo ' and changes')" --theirs "$other")
  for name in "${names[@]}"; do
    whose=""
    [[ -f "$there/tree/benchmarks/$name/${name}_bodies.cpp" ]] || whose=", with this tree's bodies on its headers"
    say "${other:0:12}: building $name$whose"
    if cmake --build "$there/build" --parallel "$jobs" --target "other_$name" >"$there/$name.log" 2>&1; then
      tool+=(--suite "$name" "build/bench/bodies/bodies_$name.so" "$there/build/bodies/other_$name.so")
    elif [[ -n "$whose" ]]; then
      tool+=(--suite "$name" "build/bench/bodies/bodies_$name.so"
        "-${other:0:12} has no bodies, and this tree's don't compile on its headers, see $there/$name.log")
    else
      cat "$there/$name.log"
      exit 1
    fi
  done
  exec "${tool[@]}" ${json:+--json "$json"} "${arguments[@]}"
fi

if [[ "$suite" == table ]]; then
  build bench claims_table
  ((${#arguments[@]})) || arguments=(docs/benchmarks/claims_*.json)
  exec "$bin/claims/claims_table" --pages docs/benchmarks --claims benchmarks/claims.json "${arguments[@]}"
fi

# build_known TARGET...: builds those that there are.
build_known() {
  local known name targets=()
  known="$(cmake --build build/bench --target help)"
  for name in "$@"; do
    if grep -qE "(^|\.\.\. )$name(:|\$)" <<<"$known"; then targets+=("$name"); fi
  done
  ((${#targets[@]} == 0)) || build bench "${targets[@]}"
}

# A suite in Python is a program like the others, which reports what is missing itself.
# write_program NAME PYTHON SCRIPT ARGUMENT...
write_program() {
  mkdir -p "$bin"
  printf '#!/usr/bin/env bash\nexec%s "$@"\n' "$(printf ' %q' "${@:2}")" >"$bin/bench_$1"
  chmod +x "$bin/bench_$1"
}

make_tensorflow_suite() {
  local library
  build_known deeprec_ops_peer
  library="$(find "$bin" -name libdeeprec_ops_peer.so -print -quit)"
  write_program tensorflow "$(python_with tensorflow || echo python3)" "$root/benchmarks/ops/tensorflow_peer.py" \
    --library "${library:+$root/$library}"
}

# That of whole models trains by the example train_ctr as well.
make_peers_suite() {
  configure release
  build release train_ctr
  write_program peers "$(python_with torch || echo python3)" "$root/benchmarks/peers/peers.py" \
    --train-ctr "$root/build/release/examples/train_ctr"
}

make_train_suite() {
  configure release
  build release train_ctr
  write_program train python3 "$root/benchmarks/train/train_suite.py" --train-ctr "$root/build/release/examples/train_ctr"
}

make_frameworks_suite() {
  write_program frameworks "$(python_with torch || echo python3)" "$root/benchmarks/frameworks/torch_suite.py"
}

make_header_cost_suite() {
  write_program header_cost python3 "$root/benchmarks/header_cost/header_cost_suite.py"
}

make_frameworks_tf_suite() {
  write_program frameworks_tf "$(python_with tensorflow || echo python3)" "$root/benchmarks/frameworks_tf/tensorflow_suite.py"
}

# make_suites NAME...: builds their programs.
make_suites() {
  build_known "${@/#/bench_}"
  local name
  for name in tensorflow peers train frameworks frameworks_tf header_cost; do
    [[ " $* " != *" $name "* ]] || "make_${name}_suite"
  done
}

if [[ "$suite" != claims && "$suite" != reproduce ]]; then
  case "$suite" in peers | train | frameworks | frameworks_tf | header_cost) make_suites "$suite" ;; *) build bench "bench_$suite" ;; esac
  ((${#json} == 0)) || arguments+=("--benchmark_out=$json" --benchmark_out_format=json)
  exec "$bin/bench_$suite" "--benchmark_context=commit=$commit,dirty=$dirty" "${arguments[@]}"
fi

build bench claims
# The versions of packages that suites compare with; FBGEMM's the suites say themselves.
facts=(--commit "$commit" --dirty "$dirty")
while read -r package version; do
  [[ -z "$version" ]] || facts+=(--peer "$package=$version")
done < <(dpkg-query -W -f '${Package} ${Version}\n' libabsl-dev libboost-dev libconcurrentqueue-dev libreaderwriterqueue-dev \
  libatomic-queue-dev libcuckoo-dev libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 libtbb-dev libdnnl-dev libeigen3-dev 2>/dev/null || true)

if [[ "$suite" == reproduce ]]; then
  mapfile -t names <<<"$wanted"
  make_suites "${names[@]}"
  exec python3 scripts/report/report.py reproduce ${only:+"$only"} --claims "$bin/claims/claims" --programs "$bin" -- "${facts[@]}"
fi

tool=("$bin/claims/claims" --claims benchmarks/claims.json --programs "$bin" --select "$only")
if ((${#recorded[@]})); then
  exec "${tool[@]}" ${json:+--json "$json"} --from "${recorded[@]}"
fi
suites="$("${tool[@]}" --suites)"
mapfile -t names <<<"$suites"
make_suites "${names[@]}"
exec "${tool[@]}" "${facts[@]}" ${json:+--json "$json"}
