#!/usr/bin/env bash
# kernels_test.sh KERNELS.SH OBJECT...   the kernels of lookups.cu and training.cu are within limits.txt, those of other objects within
# others.txt, and made_up.cu's that are beyond limits are named, each by what is wrong with it.

set -euo pipefail
kernels="$1"
shift
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

library=() others=() made_up=""
for object; do
  case "$object" in
    */made_up.*) made_up="$object" ;;
    */lookups.* | */training.*) library+=("$object") ;;
    *.cu.o) others+=("$object") ;;
  esac
done
code=0
"$kernels" --limits "$here/limits.txt" "${library[@]}" || code=$?
if [[ "$code" == 3 ]]; then
  echo "SKIPPED: the machine code of kernels is NOT looked at: no cuobjdump, nvdisasm or c++filt (scripts/test.sh fetches them)"
  exit 77
fi
failed="$code"
if ((${#others[@]})); then "$kernels" --limits "$here/others.txt" "${others[@]}" || failed=1; fi

# expect CODE LINES LINE...: with these limits the made-up kernels give that code, and each FAILED line is like one of these.
expect() {
  local wanted="$1" limits="$2" code=0 line
  shift 2
  printf '%s\n' "$limits" >"$work/limits"
  "$kernels" --limits "$work/limits" "$made_up" >"$work/said" || code=$?
  local bad=""
  [[ "$code" == "$wanted" ]] || bad="ends with $code, not $wanted"
  for line; do grep -qE -- "^FAILED: $line" "$work/said" || bad+="; does not say: $line"; done
  [[ "$(grep -c '^FAILED' "$work/said")" == $# ]] || bad+="; says something else"
  if [[ -n "$bad" ]]; then
    echo "FAILED: made-up kernels: $bad"
    cat "$work/said"
    failed=1
  fi
}
expect 0 '.* - - - - -   # anything'
expect 1 'simple 255 0 0 0 -
spills 255 0 0 - -
indexes 255 0 0 - -
gathers_one 255 0 0 4 -
gathers_narrow 255 0 0 4 -
gathers_four 255 0 0 4 8' \
  'stack [1-9][0-9]*, at most 0: spills' 'local [1-9][0-9]*, at most 0: spills' \
  'stack [1-9][0-9]*, at most 0: indexes' 'local [1-9][0-9]*, at most 0: indexes' \
  'wide 1, at least 4: gathers_one' 'wide 0, at least 4: gathers_narrow'
expect 1 'spills - - - - -
gathers_four 16 0 0 4 0
gathers - - - - -
indexes - - - - -
forgotten 255 0 0 - -
?forgotten_too 255 0 0 - -
simple 255 0' \
  '.*limits:7: a line has six fields' 'registers [0-9]+, at most 16: gathers_four' 'apart [1-9][0-9]*, at most 0: gathers_four' \
  'no limits for simple' 'no kernel is like forgotten, line 5'
exit "$failed"
