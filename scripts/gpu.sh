#!/usr/bin/env bash
# scripts/gpu.sh build [FOLDER] [--arch 90]    builds everything that runs on a GPU into FOLDER; needs no GPU
# scripts/gpu.sh run [OPTION...] STAGE...      runs it on a machine with a GPU; needs no compiler, no network
#
# FOLDER (default build/card) is copied to the machine with the GPU, next to a checkout. It has stripped
# programs, libraries that may be missing there, build.txt, and kernels.txt with the registers and the
# occupancy of each kernel. build rebuilds only what has changed, and fails when FOLDER and checkout are 64
# MiB or more. DEEPREC_CUEMBED is a folder of cuEmbed's sources, for the claims that compare with it.
#
# Stages, run in the order given:
#   smoke             starts each program, runs the memory tests and a copy; lists the tools that are present
#   test              all tests, several processes at once
#   bench[:FAMILY]    the benchmarks of the claims, one process at a time; the claims are judged at the end
#   tune              sweeps of the tunable constants
#   ncu               profiles of the important kernels, four reports
#   sanitize[:UNIT]   memcheck, synccheck and initcheck of each test unit, several at once; racecheck where
#                     memory is shared
# Options:
#   --from FOLDER     the result of build
#   --out OUT         receives summary.txt (all that is printed), results.tar.gz (reports of Google Benchmark,
#                     logs, clocks, claims) and *.ncu-rep; default: the variable OUT, else build/card_results
#   --seconds N       limit of the whole run (530); stages that have not finished are stopped
#   --each N          limit of a process (test 150, bench 150, tune 200, ncu 120, sanitize 240)
#   --once            benchmarks run once: for a first look, not for claims
#
# Failures, hangs, wrong results and missing parts are listed and counted, and the run continues. The exit
# code is 0 only when nothing failed; that of run is 77 without a GPU.

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
