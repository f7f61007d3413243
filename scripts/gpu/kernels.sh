#!/usr/bin/env bash
# scripts/gpu/kernels.sh FILE...                   resources of the kernels in objects and programs, for sm_90
# scripts/gpu/kernels.sh --limits TABLE FILE...    compares them with TABLE (format: tests/kernels/limits.txt)
#
# Prints a line for each kernel: registers, bytes of stack, loads and stores of local memory ("local"),
# 16-byte loads in flight at once ("wide"), the most instructions between two of them ("apart"), bytes of
# static shared memory, threads of a block, blocks and warps resident on an SM, the share of its 64 warps,
# name. The number of threads is that of the launch bounds; without launch bounds ("?") 256 is assumed.
# cuobjdump, nvdisasm and c++filt are searched for in PATH, next to nvcc and in build/tools. The exit code is
# 1 when a kernel exceeds its limits or has none, 3 when a tool is missing.
#
# "local" excludes the functions that a kernel calls (write_fault, slow paths of division), since they are not
# hot paths. "wide" and "apart" are those of the longest sequence of wide loads from global memory before the
# first use of a loaded value.

set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
limits=""
if [[ "${1:-}" == --limits && $# -gt 2 ]]; then
  limits="$2"
  shift 2
fi
(($#)) && [[ "$1" != -* ]] || { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2; }

nvcc="${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"
PATH="$PATH:$(dirname "$(realpath "$nvcc")")$(printf ':%s' "${DEEPREC_TOOLS:-$root/build/tools}"/cuobjdump/nvidia/*/bin)"
for tool in cuobjdump nvdisasm c++filt; do
  command -v "$tool" >/dev/null || { echo "no $tool here" && exit 3; }
done
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

for file; do
  {
    cuobjdump -arch sm_90 -res-usage "$file"
    cuobjdump -arch sm_90 -elf "$file" |
      awk '/^\.nv\.info\./ { print } /EIATTR_MAX_THREADS/ { getline; getline; print "THREADS", $2, $3, $4 }'
    cuobjdump -arch sm_90 -sass "$file"
  } 2>"$work/said" || { cat "$work/said" && exit 3; }
done | awk '
  # Of hexadecimal digits, 0x before them or not.
  function number_of(text,    i, x) {
    sub(/^0x/, "", text)
    for (i = 1; i <= length(text); ++i) x = x * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
    return x + 0
  }
  # What is called lies behind the kernel: the kernel ends where the first of it begins.
  function end_of_code(    i, j, at, text) {
    if (code == "") return
    for (i = 1; i <= count; ++i) if (line[i] ~ /(LDL|STL)/ && address[i] < first_called) ++local[code]
    run = apart = gap = 0
    for (i = 1; i <= count && address[i] < first_called; ++i) {
      text = line[i]
      if (text ~ /LDG\.E(\.[A-Z0-9_]+)*\.128/) {
        at = text
        sub(/^.*LDG[^ ]* R/, "", at)
        # an address that one of them brings ends the row as well
        if (uses(text, 1)) { close_run() }
        if (run > 0 && gap > apart) apart = gap
        ++run
        for (j = 0; j < 4; ++j) pending[at + j] = 1
        gap = 0
      } else if (run > 0) {
        if (uses(text, 0)) close_run(); else ++gap
      }
    }
    close_run()
  }
  # Whether an instruction names a register that a load brings; of a load itself only the address counts.
  function uses(text, is_load,    rest, r) {
    rest = text
    if (is_load) sub(/^[^,]*,/, "", rest)
    while (match(rest, /(^|[^A-Z])R[0-9]+/)) {
      r = substr(rest, RSTART, RLENGTH)
      sub(/^.*R/, "", r)
      if (r in pending) return 1
      rest = substr(rest, RSTART + RLENGTH)
    }
    return 0
  }
  function close_run() {
    if (run > wide[code] || (run == wide[code] && apart < space[code])) { wide[code] = run; space[code] = apart }
    run = apart = gap = 0
    delete pending
  }
  / Function / && !/Function :/ { name = $2; sub(/:$/, "", name); next }
  /REG:[0-9]+ STACK:/ {
    for (i = 1; i <= NF; ++i) { split($i, part, ":"); usage[name, part[1]] = part[2] }
    if (!(name in seen)) { seen[name] = 1; names[++kernels] = name }
    next
  }
  /^\.nv\.info\./ { name = substr($1, 10); next }
  /^THREADS/ { threads[name] = number_of($2) * number_of($3) * number_of($4); next }
  /Function : / {
    end_of_code()
    code = $3 in done ? "" : $3 # a kernel that several objects have
    done[$3] = 1
    count = 0
    first_called = 1e18
    next
  }
  code != "" && match($0, /\/\*[0-9a-f]+\*\/ +/) && /;/ {
    at = substr($0, RSTART + 2)
    sub(/\*.*/, "", at)
    text = substr($0, RSTART + RLENGTH)
    sub(/;.*/, "", text)
    if (text !~ /[A-Z]/) next
    address[++count] = number_of(at)
    line[count] = text
    if (match(text, /CALL\.REL[^ ]* +0x[0-9a-f]+/)) {
      target = substr(text, RSTART, RLENGTH)
      sub(/^.*0x/, "", target)
      if (number_of(target) < first_called) first_called = number_of(target)
    }
  }
  END {
    end_of_code()
    for (k = 1; k <= kernels; ++k) {
      name = names[k]
      t = (name in threads) ? threads[name] : 256
      registers = usage[name, "REG"]
      per_warp = int((registers * 32 + 255) / 256) * 256
      warps_of_block = int((t + 31) / 32)
      warps = per_warp > 0 ? 4 * int(16384 / per_warp) : 64
      if (warps > 64) warps = 64
      blocks = int(warps / warps_of_block)
      by_shared = int(233472 / (usage[name, "SHARED"] + 1024))
      if (blocks > by_shared) blocks = by_shared
      if (blocks > 32) blocks = 32
      printf "%d %d %d %d %d %d %s %d %d %d%% %s\n", registers, usage[name, "STACK"] + usage[name, "LOCAL"], local[name], wide[name],
        space[name], usage[name, "SHARED"], (name in threads) ? t : "?", blocks, blocks * warps_of_block, blocks * warps_of_block * 100 / 64, name
    }
  }' | c++filt |
  sed -E 's/^(([^ ]+ ){10})void /\1/; s/deeprec::v[0-9a-z_]+::sm_[0-9_]+::/deeprec::/; s/deeprec::v[0-9a-z_]+:://g' |
  sort -k11 | uniq >"$work/kernels"

{
  echo "registers stack local wide apart shared threads blocks warps occupancy kernel"
  cut -c -220 "$work/kernels"
} | awk '{
    printf "%9s %5s %5s %4s %5s %6s %7s %6s %5s %9s ", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
    for (i = 11; i <= NF; ++i) printf " %s", $i
    print ""
  }'
[[ -s "$work/kernels" ]] || { echo "FAILED: no kernel for sm_90 in $*" && exit 1; }
[[ -n "$limits" ]] || exit 0

awk '
  BEGIN { lines = 0 }
  NR == FNR {
    sub(/#.*/, "")
    if (NF == 0) next
    if (NF != 6) { print "FAILED: " FILENAME ":" FNR ": a line has six fields"; bad = 1; next }
    optional[lines] = sub(/^\?/, "", $1)
    for (i = 1; i <= 6; ++i) limit[lines, i] = $i
    number[lines++] = FNR
    next
  }
  {
    name = $11
    for (i = 12; i <= NF; ++i) name = name " " $i
    split("registers stack local wide apart", what, " ")
    for (l = 0; l < lines && name !~ ("^" limit[l, 1]); ++l) continue
    if (l == lines) { print "FAILED: no limits for " substr(name, 1, 160); bad = 1; next }
    ++matched[l]
    for (i = 1; i <= 5; ++i) {
      most = limit[l, i + 1]
      if (most == "-") continue
      if (i == 4 ? $i + 0 < most + 0 : $i + 0 > most + 0) {
        printf "FAILED: %s %d, %s %d: %s\n", what[i], $i, i == 4 ? "at least" : "at most", most, substr(name, 1, 160)
        bad = 1
      }
    }
  }
  END {
    for (l = 0; l < lines; ++l) {
      if (!matched[l] && !optional[l]) { printf "FAILED: no kernel is like %s, line %d\n", limit[l, 1], number[l]; bad = 1 }
    }
    exit bad
  }' "$limits" "$work/kernels"
echo "within their limits: $(wc -l <"$work/kernels") kernels"
