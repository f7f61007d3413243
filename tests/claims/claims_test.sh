#!/usr/bin/env bash
# claims_test.sh CLAIMS   the tool of benchmarks/claims, on programs and reports made up here.

set -euo pipefail
tool="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

cat >"$work/claims.json" <<'END'
[
  {"id": "s.fast", "claim": "c", "suite": "s", "filter": "fast", "counter": "x", "direction": ">=", "target": 2, "source": "t"},
  {"id": "s.slow", "claim": "c", "suite": "s", "filter": "slow", "counter": "x", "direction": "<=", "target": 2, "source": "t"},
  {"id": "s.lame", "claim": "c", "suite": "s", "filter": "lame", "counter": "x", "direction": ">=", "target": 2, "source": "t"},
  {"id": "s.gone", "claim": "c", "suite": "s", "filter": "gone", "counter": "x", "direction": ">=", "target": 2, "source": "t"},
  {"id": "other.one", "claim": "c", "suite": "other", "filter": "fast", "counter": "y", "direction": ">=", "target": 2, "source": "t"}
]
END
cat >"$work/one.json" <<'END'
{"context": {"card": "none", "caches": []}, "benchmarks": [
  {"name": "fast/iterations:1/repeats:3", "run_type": "iteration", "x": 1.0},
  {"name": "fast/iterations:1/repeats:3", "run_type": "iteration", "x": 2.5},
  {"name": "fast/iterations:1/repeats:3", "run_type": "iteration", "x": 3.0},
  {"name": "fast/iterations:1/repeats:3_mean", "run_type": "aggregate", "x": 0.0}]}
END
cat >"$work/two.json" <<'END'
{"context": {}, "benchmarks": [
  {"name": "slow/iterations:1", "run_type": "iteration", "x": 2.5},
  {"name": "lame/iterations:1", "run_type": "iteration", "error_occurred": true, "error_message": "no CUDA device"}]}
END
sed 's/no CUDA device/wrong answer: row 3/' "$work/two.json" >"$work/wrong.json"
head -c 100 "$work/one.json" >"$work/cut.json"

# expect CODE PATTERN... -- ARGUMENT...: the tool ends with CODE and prints a line like each PATTERN
expect() {
  local wanted="$1" code=0 patterns=()
  shift
  while [[ "$1" != -- ]]; do
    patterns+=("$1")
    shift
  done
  shift
  "$tool" --claims "$work/claims.json" "$@" >"$work/said" 2>&1 || code=$?
  local pattern bad=""
  [[ "$code" == "$wanted" ]] || bad="code $code, not $wanted"
  for pattern in "${patterns[@]}"; do
    grep -qE -- "$pattern" "$work/said" || bad+="; no line like: $pattern"
  done
  if [[ -n "$bad" ]]; then
    echo "FAILED: $* ($bad)"
    cat "$work/said"
    failed=1
  fi
}

expect 0 '^holds +s\.fast +>= 2  2\.5 \[1\.\.3\]' '^SHORT +s\.slow +<= 2  2\.5' '^ABSENT +s\.lame .*\(no CUDA device\)' \
  '^ABSENT +s\.gone .*\(no such benchmark in these files\)' '^ABSENT +other\.one .*\(no counter y\)' \
  -- --from "$work/one.json" "$work/two.json"
expect 1 '^ABSENT +s\.lame .*\(wrong answer: row 3\)' '^holds +s\.fast' \
  -- --select s --from "$work/one.json" "$work/wrong.json"
! grep -q other.one "$work/said" || { echo "FAILED: --select"; failed=1; }
expect 1 'cut\.json is not a whole report' '^SHORT +s\.slow' -- --from "$work/cut.json" "$work/two.json"
expect 1 'nowhere\.json is not a whole report' '^SHORT +s\.slow' -- --from "$work/nowhere.json" "$work/two.json"
expect 0 '^holds +s\.fast' -- --select s --json "$work/out.json" --from "$work/one.json"
grep -q '"card": "none"' "$work/out.json" && grep -q '"verdict": "holds"' "$work/out.json" ||
  { echo "FAILED: --json"; failed=1; }
expect 2 'neither --programs nor --from' --
expect 2 'no claim of nothing' -- --select nothing --from "$work/one.json"

# Programs: one that answers, and one that is not there.
mkdir "$work/programs"
cat >"$work/programs/bench_s" <<'END'
#!/usr/bin/env bash
[[ "$1" != --benchmark_list_tests ]] || { printf 'fast/iterations:1/repeats:3\nslow\n'; exit; }
for a; do case "$a" in --benchmark_out=*) cp "${0%/*}/../one.json" "${a#*=}" ;; esac; done
END
chmod +x "$work/programs/bench_s"
expect 0 '^holds +s\.fast' '^ABSENT +s\.slow .*\(no such benchmark\)' '^ABSENT +other\.one .*no program bench_other' \
  -- --programs "$work/programs"
echo 'exit 3' >>"$work/programs/bench_s"
expect 1 '^ABSENT +s\.fast .*the program failed' -- --programs "$work/programs"
exit "$failed"
