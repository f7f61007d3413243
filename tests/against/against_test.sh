#!/usr/bin/env bash
# against_test.sh AGAINST CMAKE NM OURS THEIRS ANOTHER_VERSION LEAKY
# The tool of benchmarks/against, on made-up bodies and by the time that they say they spend.

set -euo pipefail
tool="$1" cmake="$2" nm="$3" ours="$4" theirs="$5" another="$6" leaky="$7"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

# expect CODE PATTERN... -- COMMAND...: it ends with CODE and prints a line like each PATTERN
expect() {
  local wanted="$1" code=0 patterns=()
  shift
  while [[ "$1" != -- ]]; do
    patterns+=("$1")
    shift
  done
  shift
  "$@" >"$work/said" 2>&1 || code=$?
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
pair=("$tool" --counted --suite made_up "$ours" "$theirs" --filter)

# Each verdict.
expect 0 '^same +made_up/equal +(1\.00|0\.99)[0-9] \[' '^== 1 same$' -- "${pair[@]}" equal
expect 0 '^faster +made_up/faster +1\.250 \[1\.250\.\.1\.250\] +21 pairs  1e\+05 ns/step$' -- "${pair[@]}" faster
expect 0 '^SLOWER +made_up/slower +0\.800 \[0\.800\.\.0\.800\] +21 pairs' -- "${pair[@]}" slower
expect 1 '^SLOWER +made_up/slower' -- "${pair[@]}" slower --not-slower
expect 0 '^faster +made_up/faster' -- "${pair[@]}" faster --not-slower
expect 0 '^UNSURE +made_up/noisy .* 31 pairs' -- "${pair[@]}" noisy --most-pairs 31
expect 0 '^UNSURE +made_up/noisy .* (2[1-9]|3[0-9]) pairs' -- "${pair[@]}" noisy --seconds 0.5
expect 0 '^DIFFERS +made_up/answer +1\.000 .*\(the answers differ\)$' -- "${pair[@]}" answer
expect 1 '^DIFFERS +made_up/answer +1\.000' -- "${pair[@]}" answer --same-answers
expect 0 '^DIFFERS +made_up/input +- +\(the inputs differ\)$' -- "${pair[@]}" input
expect 1 '^FAILED +made_up/breaks +- +\(theirs: it broke\)$' -- "${pair[@]}" breaks
expect 1 '^FAILED +made_up/no_state +- +\(theirs: no room for a state\)$' -- "${pair[@]}" no_state
expect 0 '^ABSENT +made_up/unfit +- +\(this machine has no abacus\)$' -- "${pair[@]}" unfit
expect 0 '^ABSENT +made_up/only_ours +- +\(no such body in theirs\)$' \
  '^ABSENT +made_up/only_theirs +- +\(no such body in ours\)$' -- "${pair[@]}" only
expect 1 '^== no such body$' -- "${pair[@]}" nothing

# Of 21 ratios 1.00, 1.01 ... 1.20 the interval goes from the 6th to the 16th.
expect 0 '^faster +made_up/ladder +1\.100 \[1\.050\.\.1\.150\] +21 pairs' -- "${pair[@]}" ladder --most-pairs 21
# A run after the other one's takes three times as long, for both equally often.
expect 0 '^same +made_up/turns +1\.000 \[1\.000\.\.1\.000\]' -- "${pair[@]}" turns

# All in one go: a failure does not end the rest. What is printed is in the file as well.
expect 1 '^FAILED +made_up/breaks' '^ABSENT +made_up/only_theirs' '^== 3 ABSENT, 2 DIFFERS, 2 FAILED, 1 SLOWER' \
  -- "${pair[@]}" made_up --json "$work/out.json" --most-pairs 21 --ours abc --theirs def
expect 0 '"theirs": "def"' '"verdict": "SLOWER"' '"low": 1\.0(5|49)' '"reason": "theirs: it broke"' -- cat "$work/out.json"

# Objects.
expect 0 '^ABSENT +made_up/equal +- +\(bodies of version 2, not 1\)$' \
  -- "$tool" --counted --suite made_up "$ours" "$another" --filter equal
expect 0 '^ABSENT +made_up/equal +- +\(abc has none\)$' -- "$tool" --counted --suite made_up "$ours" '-abc has none' --filter equal
cp "$ours" "$work/copy.so"
expect 0 '^== made_up: both objects have the same bytes$' '^same +made_up/turns' \
  -- "$tool" --counted --suite made_up "$ours" "$work/copy.so" --filter turns
expect 2 'is the very file of ours' -- "$tool" --counted --suite made_up "$ours" "$ours"
expect 2 'cannot open' -- "$tool" --counted --suite made_up "$ours" "$work/nowhere.so"
exports="$(dirname "${BASH_SOURCE[0]}")/../../benchmarks/against/exports.cmake"
expect 0 -- "$cmake" "-DNM=$nm" "-DOBJECT=$ours" -P "$exports"
expect 1 'has to be all that is exported' -- "$cmake" "-DNM=$nm" "-DOBJECT=$leaky" -P "$exports"
exit "$failed"
