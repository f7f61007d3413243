#!/usr/bin/env bash
# scripts/gpu.sh build [FOLDER] [--arch 90]      everything that runs on a card, into FOLDER; no card is needed
# scripts/gpu.sh run [OPTION...] STAGE...        runs it where a card is; needs no compiler and no network, and compiles nothing
#
# FOLDER (build/card) is what is carried to the card's machine, beside a checkout: stripped programs, libraries that may be missing
# there, build.txt, kernels.txt with the registers and the occupancy of each kernel. build keeps what is up to date, and fails
# when FOLDER and checkout are 64 MiB or more. DEEPREC_CUEMBED names a folder of cuEmbed's sources, for the claims against it.
#
# Stages, in the order in which they are named:
#   smoke             each program starts, the memory tests, a copy; which tools are there
#   test              all tests, several processes at once
#   bench[:FAMILY]    what the claims are about, one process after the other; the claims are judged at the end
#   tune              sweeps of what can be chosen
#   ncu               profiles of the kernels that matter, four reports
#   sanitize[:UNIT]   memcheck, synccheck and initcheck of each test unit, several at once; racecheck where memory is shared
# Options:
#   --from FOLDER     what build has made
#   --out OUT         gets summary.txt (all that is printed), results.tar.gz (reports of Google Benchmark, logs, clocks, claims) and
#                     *.ncu-rep; else the folder that the variable OUT names, else build/card_results
#   --seconds N       in all (530); what is not through by then is cut off
#   --each N          for a process (test 150, bench 150, tune 200, ncu 120, sanitize 240)
#   --once            benchmarks repeat nothing: for a look, not for claims
#
# What fails, hangs, answers wrongly or is absent is named and counted, and the rest goes on. Ends with 0 only when nothing
# failed; run ends with 77 where there is no GPU.

set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$root/scripts/gpu.sh"
  exit 2
}
started=$SECONDS
say() { printf '== %4ds  %s\n' $((SECONDS - started)) "$*"; }
failures=()
fail() {
  failures+=("$*")
  say "FAILED: $*"
}
# judged: the last line, and the exit code.
judged() {
  ((${#failures[@]})) || { say "done: green" && return 0; }
  say "done: ${#failures[@]} FAILED"
  printf '  %s\n' "${failures[@]}"
  return 1
}

(($#)) || usage
stage="$1"
shift
case "$stage" in build | run) source "$root/scripts/gpu/$stage.sh" ;; *) usage ;; esac
