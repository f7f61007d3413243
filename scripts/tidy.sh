#!/usr/bin/env bash
# scripts/tidy.sh [FILE...]    runs clang-tidy on units, by default on the one that instantiates the templates, and on the headers
#                              that they include; exit code 1 where it finds something
# It needs a configured build/release (or DEEPREC_BUILD). Versions of clang-tidy find different things, so one version is used.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "${1:-}" in -*) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;; esac
(($#)) || set -- tests/headers/instantiate.cpp
version=14
for tool in "clang-tidy-$version" clang-tidy none; do
  if command -v "$tool" >/dev/null && "$tool" --version | grep -q "version $version[.]"; then break; fi
done
[[ "$tool" != none ]] || { say "no clang-tidy $version here: the source is NOT CHECKED by it" && exit 77; }
build="${DEEPREC_BUILD:-build/release}"
[[ -f "$build/compile_commands.json" ]] || { say "no $build/compile_commands.json here: the source is NOT CHECKED by it" && exit 77; }
# The units' flags are those of another compiler, and their warnings are the compilers' matter.
printf '%s\0' "$@" | xargs -0 -P "$jobs" -n 1 "$tool" -p "$build" --quiet --extra-arg=-w 2>/dev/null || exit 1
