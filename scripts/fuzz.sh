#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [NAME...]: runs the fuzz targets of tests/fuzz at the same time, for ten minutes
# by default. The corpus is kept in build/release/fuzz/NAME and used again by the next run.

seconds="${1:-600}"
(($# == 0)) || shift
[[ "$seconds" =~ ^[0-9]+$ ]] || { sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 2; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

names=("$@")
((${#names[@]})) || for file in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$file" _fuzz.cpp)"); done

install_packages clang
configure release
build release "${names[@]/#/fuzz_}"

programs="$root/build/release/tests/fuzz"
declare -A running
for name in "${names[@]}"; do
  place="$root/build/release/fuzz/$name"
  mkdir -p "$place/corpus"
  say "$name: $seconds seconds, log in $place/log"
  (cd "$place" && exec "$programs/${name}_fuzz" -max_total_time="$seconds" corpus >log 2>&1) &
  running[$name]=$!
done
failed=()
for name in "${names[@]}"; do
  if wait "${running[$name]}"; then
    say "$name: $(tail -n 1 "$root/build/release/fuzz/$name/log")"
  else
    tail -n 40 "$root/build/release/fuzz/$name/log"
    failed+=("$name")
  fi
done
((${#failed[@]} == 0)) || say "FAILED: ${failed[*]} (the input lies beside the log)"
exit "${#failed[@]}"
