#!/usr/bin/env bash
# gpu_benchmarks_test.sh PROGRAM   every benchmark of the GPU suite finds its answers right, and finds each of the first
# answers that are made wrong in one number.

set -uo pipefail
program="$1"
said="$(mktemp)"
trap 'rm -f "$said"' EXIT
failed=0
complain() {
  echo "FAILED: $*"
  cat "$said"
  failed=1
}

"$program" >"$said" 2>&1 || complain "ends with $?"
! grep -q 'ERROR OCCURRED\|SKIPPED' "$said" || complain "an answer is wrong, or was not looked at"
names="$("$program" --benchmark_list_tests)"
(($(wc -l <<<"$names") >= 11)) || complain "benchmarks are missing: $names"
for name in $names; do
  for answer in 1 2; do
    DEEPREC_BENCH_SPOIL="$answer" "$program" "--benchmark_filter=^$name\$" >"$said" 2>&1
    grep -q "ERROR OCCURRED: 'wrong answer" "$said" || complain "$name: answer $answer is wrong, and nobody sees it"
  done
done
# These look three times: at two answers before the timing, and at one after it.
for name in gpu/row_select gpu/update/skewed; do
  DEEPREC_BENCH_SPOIL=3 "$program" "--benchmark_filter=^$name/" >"$said" 2>&1
  grep -q "ERROR OCCURRED: 'wrong answer" "$said" || complain "$name: wrong after timing, and nobody sees it"
done
exit "$failed"
