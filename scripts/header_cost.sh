#!/usr/bin/env bash
# scripts/header_cost.sh [COMPILER...]: a table of the cost of including deeprec in a translation unit:
# seconds of processor time to compile at -O2 (median of 3, or of RUNS) and the size of the object. Default:
# g++. See docs/header-cost.md.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compilers=("$@")
((${#compilers[@]})) || compilers=(g++)
runs="${RUNS:-3}"
TIMEFORMAT='%U %S'
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
flags=(-std=c++20 -O2 -Iinclude)
while read -r flag; do [[ -n "$flag" ]] && flags+=("$flag"); done < <(
  { pkg-config --cflags eigen3 2>/dev/null || echo -I/usr/include/eigen3; } | tr ' ' '\n')

# The standard headers that embedding/lookup/lookup.hpp pulls in, found by asking the compiler.
standard_includes() {
  echo '#include <deeprec/embedding/lookup/lookup.hpp>' >"$work/ask.cpp"
  "${compilers[0]}" "${flags[@]}" -H -fsyntax-only "$work/ask.cpp" 2>&1 |
    sed -nE 's#^\.+ .*/include/c\+\+/[0-9.]+/([a-z_]+)$#\#include <\1>#p' | sort -u
}

call='
deeprec::status canonical(deeprec::thread_pool& pool, deeprec::const_table_view<deeprec::f32_rows> table,
                          deeprec::jagged_view<> bags, deeprec::matrix_view<float> out) {
  return deeprec::lookup(pool, table, bags, deeprec::combiner::sum, out);
}'
small='#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/thread_pool.hpp>'
echo 'int nothing;' >"$work/1.cpp"
{ standard_includes && echo 'int nothing;'; } >"$work/2.cpp"
printf '%s\nint nothing;\n' "$small" >"$work/3.cpp"
printf '%s\n%s\n' "$small" "$call" >"$work/4.cpp"
printf '#include <deeprec/deeprec.hpp>\nint nothing;\n' >"$work/5.cpp"
printf '#include <deeprec/deeprec.hpp>\n%s\n' "$call" >"$work/6.cpp"
names=('' 'an empty unit' 'the standard headers that lookup.hpp includes' 'lookup.hpp and thread_pool.hpp, included'
  'the same, and one call of lookup' 'deeprec.hpp, included' 'the same, and one call of lookup')

for compiler in "${compilers[@]}"; do
  printf '%s, -O2, median of %s, on %s, %s\n\n' "$("$compiler" --version | head -1)" "$runs" \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(date +%F)"
  printf '| unit | seconds | object, kB | code and data, kB |\n|---|---|---|---|\n'
  for unit in 1 2 3 4 5 6; do
    for ((run = 0; run < runs; ++run)); do
      { time "$compiler" "${flags[@]}" -c "$work/$unit.cpp" -o "$work/$unit.o"; } 2>&1 |
        awk '/^[0-9.]+ [0-9.]+$/ { printf "%.2f\n", $1 + $2; next } { print >"/dev/stderr" }'
    done | sort -n >"$work/times"
    median="$(sed -n "$((runs / 2 + 1))p" "$work/times")"
    printf '| %s | %s | %d | %d |\n' "${names[unit]}" "$median" \
      $((($(stat -c %s "$work/$unit.o") + 1023) / 1024)) \
      $((($(size "$work/$unit.o" | awk 'NR == 2 { print $1 + $2 }') + 1023) / 1024))
  done
  echo
done
