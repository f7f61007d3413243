#!/usr/bin/env bash
# claims_test.sh CLAIMS TABLE TINY   the tools of benchmarks/claims, on the suite tiny_bench.cpp, whose clock is not the
# machine's, and on programs and reports made up here.

set -euo pipefail
tool="$1" table="$2" tiny="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0
unset DEEPREC_BENCH_PAIRS DEEPREC_BENCH_SECONDS DEEPREC_BENCH_CACHE

# claim ID SUITE FILTER COUNTER DIRECTION TARGET
claim() {
  printf '{"id": "%s", "claim": "c", "suite": "%s", "filter": "%s", "counter": "%s", "direction": "%s", "target": %s, "source": "t"}' "$@"
}
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
# has FILE PATTERN...
has() {
  local file="$1" pattern
  shift
  for pattern in "$@"; do
    grep -qE -- "$pattern" "$file" || {
      echo "FAILED: $file has no $pattern"
      cat "$file"
      failed=1
    }
  done
}

# Benchmarks, one at a time: each has its verdict and its exit code.
mkdir "$work/tiny"
ln -s "$(realpath "$tiny")" "$work/tiny/bench_tiny"
# of_tiny CODE PATTERN NAME [COUNTER] [TARGET] [DIRECTION]
of_tiny() {
  echo "[$(claim tiny.one tiny "tiny/$3" "${4:-speedup}" "${6:->=}" "${5:-1}")]" >"$work/claims.json"
  expect "$1" "$2" -- --programs "$work/tiny" --json "$work/tiny.json" --peer other=7
}
of_tiny 0 '^holds +tiny\.one +>= 1  1\.5 \[1\.5\.\.1\.5\] 21  c$' ahead
of_tiny 0 '^holds .* 1\.5 \[' ahead speedup 1.6 '<='
of_tiny 0 '^SHORT .* 1\.5 \[' ahead speedup 1.4 '<='
of_tiny 0 '^SHORT +tiny\.one +>= 1  0\.9375 \[0\.9375\.\.0\.9375\] 21' behind
of_tiny 0 '^holds +tiny\.one +>= 1  1\.5 \[1\.5\.\.1\.5\] [3-9][0-9]  c$' settles
of_tiny 0 '^UNSURE +tiny\.one +>= 1  [0-9.]+ \[0\.75\.\.1\.5\] 99  c$' noisy
of_tiny 0 '^UNSURE +tiny\.one +>= 1  [0-9.]+ \[0\.75\.\.1\.5\] 21  c$' noisy_slow
of_tiny 0 '^ABSENT +tiny\.one +>= 1  -  c  \(no peer here\)$' missing_peer
of_tiny 0 '^UNFIT +tiny\.one +>= 1  1\.5 \[.*\(one CPU\)$' unfit
of_tiny 0 '^UNFIT +tiny\.one +>= 1  -  c  \(no memory\)$' unfit_without_figures
of_tiny 1 '^FAILED .*\(wrong answer: the baseline sums to other bits\)$' broken_baseline
of_tiny 1 '^FAILED .*\(wrong answer: ours sums to other bits\)$' wrong_answer
of_tiny 0 '^holds +tiny\.one +>= 0\.95  0\.98 ' roofline roofline 0.95
of_tiny 0 '^holds +tiny\.one +>= 0\.95  1\.02 ' passed_roofline roofline 0.95
of_tiny 1 '^FAILED +tiny\.one +>= 0\.95  1\.04 .*\(the roofline is beaten: roofline\)$' beaten_roofline roofline 0.95
of_tiny 1 '^FAILED .* 0\.96 .*\(the roofline is beaten: roofline_most\)$' roofline_beaten_once roofline 0.95
of_tiny 0 '^UNSURE .* 1\.1 \[0\.55\.\.1\.1\] .*\(the roofline may be beaten\)$' doubtful_roofline roofline 0.5
of_tiny 1 '^FAILED .*\(a roofline out of bounds: quick takes 0\.05 s, not 0\.1 to 10\)$' too_fast_roofline roofline
of_tiny 1 '^FAILED .*\(a roofline out of bounds: quick takes 11 s, not 0\.1 to 10\)$' too_slow_roofline roofline
of_tiny 0 '^ABSENT .*\(no counter gone\)$' ahead gone
DEEPREC_BENCH_PAIRS=5 of_tiny 0 '^UNSURE .* 1\.5 \[1\.5\.\.1\.5\] 5  c  \(fewer than 21 pairs\)$' ahead
DEEPREC_BENCH_CACHE=1M of_tiny 0 '^UNFIT .*\(DEEPREC_BENCH_CACHE sets the last-level cache to 1 MB\)$' ahead
of_tiny 0 '^UNFIT ' unfit
has "$work/tiny.json" '"nobody": "1\.2\.3"' '"other": "7"' '"caches"' '"huge"' '"cpu"' '"compiler"' '"dirty"' '"low": 1\.5' \
  '"high": 1\.5' '"pairs": 21' '"reason": "one CPU"'

# The pages.
mkdir "$work/pages"
cat >"$work/pages/README.md" <<'END'
# Title
before
<!-- claims: begin -->
old
<!-- claims: end -->
after
END
words() { printf 'word %.0s' {1..40}; }
# result ID SUITE VERDICT: with a median
result() {
  printf '{"id": "%s", "suite": "%s", "claim": "c", "direction": ">=", "target": 1, "verdict": "%s", "median": 2, "low": 1.5, "high": 3}' "$@"
}
# results FILE DATE CPU RESULT...
results() {
  local IFS=,
  printf '{"provenance": {"date": "%s", "cpu": "%s", "cores": 2, "commit": "0123456789abcdef"}, "results": [%s]}' "$2" "$3" "${*:4}" >"$1"
}
results "$work/a.json" 2026-01-02 Old "$(result m.one many holds)" "$(result m.two many SHORT)" "$(result f.one few holds)"
results "$work/b.json" 2026-01-03 Old "$(result m.two many UNSURE)"
results "$work/c.json" 2026-01-01 New "$(result m.two many SHORT)"
# with_reason ID SUITE REASON
with_reason() { printf '{"id": "%s", "suite": "%s", "reason": %s}' "$@"; }
cat >"$work/reasons.json" <<END
[$(with_reason m.one many "[\"> first $(words)\", \"second one\"]"), $(with_reason m.two many '["m.one#2", "its own"]'),
 $(with_reason f.one few '"m.one"'), $(claim tiny.one tiny one x '>=' 1)]
END
# pages CODE [--check] FILE...
pages() {
  local wanted="$1" code=0
  shift
  "$table" --pages "$work/pages" --claims "$work/reasons.json" "$@" >"$work/said" 2>&1 || code=$?
  [[ "$code" == "$wanted" ]] || {
    echo "FAILED: claims_table $*: code $code, not $wanted"
    cat "$work/said"
    failed=1
  }
}
# lacks FILE PATTERN
lacks() {
  ! grep -qE -- "$2" "$1" || {
    echo "FAILED: $1 has $2"
    failed=1
  }
}
pages 0 "$work/tiny.json"
has "$work/pages/suites/tiny.md" '^\| c \| `tiny\.one` \| ≥ 1 \| 1\.50 \| 1\.50 \.\. 1\.50 \| UNFIT \| A \|$' \
  '^- A, UNFIT, `tiny\.one`: one CPU$' '^- A: commit '
has "$work/pages/README.md" '^before$' '^after$' '^- Machine A: .* CPUs, ' \
  '^\| \[tiny\]\(suites/tiny\.md\) \| A \| 1 \| \| \| \| 1 \| \| \|$'
lacks "$work/pages/README.md" '^old$'
cp -r "$work/pages" "$work/once"
pages 0 "$work/tiny.json"
diff -r "$work/pages" "$work/once" || {
  echo "FAILED: pages twice"
  failed=1
}
pages 0 --check "$work/tiny.json"

# Several machines and suites, reasons that claims share, and a suite that is gone; files come in the order of their names.
three=("$work/c.json" "$work/a.json" "$work/b.json")
pages 1 --check "${three[@]}"
has "$work/said" 'README\.md: not what' 'many\.md: not what' 'tiny\.md: no results'
pages 0 "${three[@]}"
pages 0 --check "${three[@]}"
has "$work/pages/README.md" '^\| \[many\].* \| A \| 2 \| 1 \| \| 1 \| \| \| \|$' '^\| \[many\].* \| B \| 1 \| \| 1 \| \| \| \| \|$' \
  '^\| all \| \| 4 \| 2 \| 1 \| 1 \| \| \| \|$' '^- Machine A: Old, 2 CPUs\.$' '^- Machine B: New, 2 CPUs\.$'
has "$work/pages/suites/many.md" '^- `m\.one`: > first word' '^  word word' '^- `m\.one`, `m\.two`: second one$' '^- `m\.two`: its own$'
has "$work/pages/suites/few.md" '^- `f\.one`: see `m\.one` in \[many\]\(many\.md\)\.$' '^- A: commit 0123456789ab, 2026-01-02, '
lacks "$work/pages/suites/many.md" '^.{121}'
lacks "$work/pages/suites/many.md" 'm\.two.*SHORT \| A'
[[ ! -e "$work/pages/suites/tiny.md" ]] || {
  echo "FAILED: the page of a suite without results stays"
  failed=1
}

# What --check finds.
sed -i 's/| 2\.00 | 1\.50/| 2.50 | 1.50/' "$work/pages/suites/few.md"
pages 1 --check "${three[@]}"
has "$work/said" 'few\.md: not what'
pages 0 "${three[@]}"
sed -i 's/its own/another one/' "$work/reasons.json"
pages 1 --check "${three[@]}"
has "$work/said" 'many\.md: not what'
pages 0 "${three[@]}"
touch "$work/pages/suites/stray.md"
pages 1 --check "${three[@]}"
rm "$work/pages/suites/few.md" "$work/pages/suites/stray.md"
pages 1 --check "${three[@]}"
for wrong in m.one#3 m.none; do
  sed "s/m\.one#2/$wrong/" "$work/reasons.json" >"$work/wrong.json"
  code=0
  "$table" --pages "$work/pages" --claims "$work/wrong.json" "${three[@]}" >"$work/said" 2>&1 || code=$?
  [[ "$code" == 2 ]] || {
    echo "FAILED: a reason that is nowhere: code $code"
    failed=1
  }
  has "$work/said" 'the reason of m\.two is that of m\.'
done

# Reports from elsewhere; repetitions are pairs.
cat >"$work/claims.json" <<END
[$(claim s.fast s fast x '>=' 2), $(claim s.slow s slow x '<=' 2), $(claim s.lame s lame x '>=' 2),
 $(claim s.gone s gone x '>=' 2), $(claim s.few s few x '>=' 2), $(claim other.one other fast y '>=' 2)]
END
many() {
  local value
  for value in "${@:2}"; do
    printf '{"name": "%s/iterations:1/repeats:21", "run_type": "iteration", "x": %s},\n' "$1" "$value"
  done
}
{
  echo '{"context": {"card": "none", "caches": []}, "benchmarks": ['
  many fast 1 1 1 1 1 2 2 2 2 2 2.5 3 3 3 3 3 9 9 9 9 9
  echo '{"name": "few", "run_type": "iteration", "x": 3}, {"name": "few", "run_type": "iteration", "x": 4},'
  # as Google Benchmark writes a standard deviation over a mean of 0
  printf '%s\n' '{"name": "fast/iterations:1/repeats:21_cv", "run_type": "aggregate", "late": NaN,' '"x": -Infinity' '},'
  echo '{"name": "fast/iterations:1/repeats:21_mean", "run_type": "aggregate", "x": 0.0}]}'
} >"$work/one.json"
{
  echo '{"context": {}, "benchmarks": ['
  many slow 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5 2.5
  echo '{"name": "lame/iterations:1", "run_type": "iteration", "error_occurred": true, "error_message": "no CUDA device"}]}'
} >"$work/two.json"
seq 1 20000 | awk 'BEGIN { print "{\"context\": {}, \"benchmarks\": [" }
  { printf "%s{\"name\": \"fast\", \"x\": %.4f}\n", (NR > 1 ? "," : ""), $1 / 2000 } END { print "]}" }' >"$work/long.json"
sed 's/no CUDA device/wrong answer: row 3/' "$work/two.json" >"$work/wrong.json"
head -c 100 "$work/one.json" >"$work/cut.json"

expect 0 '^holds +s\.fast +>= 2  2\.5 \[2\.\.3\] 21' '^SHORT +s\.slow +<= 2  2\.5' '^ABSENT +s\.lame .*\(no CUDA device\)' \
  '^ABSENT +s\.gone .*\(no such benchmark in these files\)' '^ABSENT +other\.one .*\(no counter y\)' \
  '^UNSURE +s\.few .*\(fewer than 21 pairs\)' -- --from "$work/one.json" "$work/two.json"
expect 0 '^holds +s\.fast +>= 2  5 \[4\.931\.\.5\.07\] 20000' -- --select s --from "$work/long.json"
expect 1 '^FAILED +s\.lame .*\(wrong answer: row 3\)' '^holds +s\.fast' \
  -- --select s --from "$work/one.json" "$work/wrong.json"
! grep -q other.one "$work/said" || {
  echo "FAILED: --select"
  failed=1
}
expect 1 'cut\.json is not a whole report' '^SHORT +s\.slow' -- --from "$work/cut.json" "$work/two.json"
expect 1 'nowhere\.json is not a whole report' '^SHORT +s\.slow' -- --from "$work/nowhere.json" "$work/two.json"
expect 0 '^holds +s\.fast' -- --select s --json "$work/out.json" --from "$work/one.json"
has "$work/out.json" '"card": "none"' '"verdict": "holds"'
expect 2 'neither --programs nor --from' --
expect 2 'no claim of nothing' -- --select nothing --from "$work/one.json"

# Programs: one that answers, and one that is not there.
mkdir "$work/programs"
cat >"$work/programs/bench_s" <<'END'
#!/usr/bin/env bash
[[ "$1" != --benchmark_list_tests ]] || { printf 'fast/iterations:1/repeats:21\nslow\n'; exit; }
for a; do case "$a" in --benchmark_out=*) cp "${0%/*}/../one.json" "${a#*=}" ;; esac; done
END
chmod +x "$work/programs/bench_s"
expect 0 '^holds +s\.fast' '^ABSENT +s\.slow .*\(no such benchmark\)' '^ABSENT +other\.one .*no program bench_other' \
  -- --programs "$work/programs"
echo 'exit 3' >>"$work/programs/bench_s"
expect 1 '^FAILED +s\.fast .*the program failed' -- --programs "$work/programs"
exit "$failed"
