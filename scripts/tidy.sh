#!/usr/bin/env bash
# scripts/tidy.sh [FILE...]    runs clang-tidy on units, by default on the one that instantiates the templates, and on the headers
#                              that they include; exit code 1 where it finds something
# It needs a configured build/release (or DEEPREC_BUILD). Versions of clang-tidy find different things, so one version is used.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "${1:-}" in -*) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;; esac
(($#)) || set -- tests/headers/instantiate.cpp
version=14
for tool in "clang-tidy-$version" clang-tidy none; do
  if command -v "$tool" >/dev/null && [[ "$("$tool" --version)" == *"version $version."* ]]; then break; fi
done
[[ "$tool" != none ]] || { say "no clang-tidy $version here: the source is NOT CHECKED by it" && exit 77; }
build="${DEEPREC_BUILD:-build/release}"
[[ -f "$build/compile_commands.json" ]] || { say "no $build/compile_commands.json here: the source is NOT CHECKED by it" && exit 77; }
# The units' flags are those of another compiler, and their warnings are the compilers' matter. On stderr clang-tidy counts warnings
# that it keeps to itself, for every unit; all else there is an error, of a file, an option or .clang-tidy, whatever it returns.
errors="$(mktemp)"
trap 'rm -f "$errors"' EXIT
failed=0
printf '%s\0' "$@" | xargs -0 -P "$jobs" -n 1 "$tool" -p "$build" --quiet --extra-arg=-w 2>"$errors" || failed=1
if grep -vE '^[0-9]+ warnings?( and [0-9]+ errors?)? generated[.]$' "$errors"; then failed=1; fi
((!failed)) || { say "clang-tidy: FAILED" && exit 1; }
