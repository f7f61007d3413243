#!/usr/bin/env bash
# shared_loops.sh PLAIN.o WIDE.o   the same unit, compiled for the base instruction set and for AVX-512. The linker keeps one of
# two functions of the same name. So a function of the library that both units define may hold no vector arithmetic in the wide
# one, and may call nothing that is named after the wide unit's flags, or a program would crash on a machine without AVX-512 in
# code that nobody compiled for it. Moves of 16 bytes and more are not counted: compilers copy small structures by them, in
# every header's inline functions.
set -euo pipefail
plain="$1" wide="$2"
command -v objdump >/dev/null || { echo "SKIPPED: no objdump"; exit 77; }
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
for object in plain wide; do nm --defined-only "${!object}" | awk '$2 ~ /[WVu]/ && $3 ~ /7deeprec/ { print $3 }' | sort -u >"$place/$object"; done
comm -12 "$place/plain" "$place/wide" >"$place/shared"
flags="$(sed -nE '/unit_[0-9a-z]{12}/{s/.*(unit_[0-9a-z]{12}).*/\1/p;q}' "$place/wide")"
[[ -s "$place/shared" && -n "$flags" ]] || { echo "FAILED: nothing is shared, or nothing is not: this check looks at nothing"; exit 1; }
objdump --disassemble --reloc --no-show-raw-insn "$wide" | awk -v shared="$place/shared" -v flags="${flags#unit}" '
  BEGIN { while ((getline name < shared) > 0) is_shared[name] = 1 }
  /^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3); next }
  $2 ~ /^R_/ {
    calls += index($3, flags) > 0
    if (name in is_shared && index($3, flags) > 0) bad[name] = "uses " $3
  }
  $2 ~ /^v/ {
    all += /%[yz]mm/
    # a register filled with ones, for a member that begins at -1
    if ($2 ~ /^vpcmpeq/ && split($3, operand, ",") == 3 && operand[1] == operand[2] && operand[2] == operand[3]) next
    if (name in is_shared && /%[yz]mm/ &&
        $2 !~ /^v(mov|broadcast|pxor|xor|zero|insert|extract|perm|align|palign|pbroadcast|pinsr|punpck|unpck)/) bad[name] = "holds " $0
  }
  END {
    if (all < 1000 || calls < 100) { print "FAILED: only " all " vector instructions and " calls " uses of own names in the wide unit"; exit 1 }
    for (name in bad) print "FAILED: " name " is shared and " bad[name]
    for (name in bad) exit 1
    print all " vector instructions and " calls " uses of the unit'\''s own names, none in what the units share"
  }' | { if command -v c++filt >/dev/null; then c++filt; else cat; fi; }
