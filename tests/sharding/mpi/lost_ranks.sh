#!/usr/bin/env bash
# lost_ranks.sh PROGRAM HOSTS_SCRIPT TIMES MPIRUN...
#
# A job of three ranks loses one at each message of a step of tables or of dense parameters: killed, stopped, or cut off
# from the others (in network namespaces, with root). Every other rank must end by itself, with a status that names it:
# timed out and the lost rank, or closed and a rank that found out before; none may have written a row or a parameter of the
# broken step. TIMES: 0 a short choice; else how often each, and how long the slowest rank waited. Limits are bounds: of a
# right run none decides anything.
set -euo pipefail
program="$1" hosts="$2" times="$3"
shift 3
mpirun=("$@")
work="$(mktemp -d)"
launcher=""
# shellcheck disable=SC2317 # called at the end
cleanup() {
  # The ranks end with their launcher, stopped ones as well.
  [[ -z "$launcher" ]] || kill -KILL -- "-$launcher" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
set -m # a process group for each launcher
failures=0 runs=0 longest=0

# lose VICTIM KIND MOMENT HOW
lose() {
  local victim="$1" how="$4" folder="$work/$runs" expected=2 over=() r line ms bad="" named=0
  runs=$((runs + 1))
  mkdir "$folder"
  if [[ "$how" == cut ]]; then
    over=("$hosts" 3 0)
    expected=3 # the one that is cut off ends as well
  fi
  timeout -k 1 40 "${over[@]}" "${mpirun[@]}" --enable-recovery -n 3 "$program" "$folder" "$@" >"$folder/said" 2>&1 </dev/null &
  launcher=$!
  while (($(find "$folder" -name 'rank_?' | wc -l) < expected)) && kill -0 "$launcher" 2>/dev/null; do sleep 0.02; done
  if [[ "$how" != cut && -f "$folder/victim" ]]; then kill -KILL "$(cat "$folder/victim")" 2>/dev/null || true; fi
  # Whether the launcher ends by itself is its own affair.
  kill -KILL -- "-$launcher" 2>/dev/null || true
  wait "$launcher" 2>/dev/null || true
  launcher=""
  [[ -f "$folder/victim" ]] || bad="the victim was not lost"
  for r in 0 1 2; do
    line="$(cat "$folder/rank_$r" 2>/dev/null || echo "nothing 0")"
    ms="${line##* }" line="${line% *}"
    if ((ms > longest)); then longest="$ms"; fi
    if [[ "$r" == "$victim" && "$how" != cut ]]; then
      [[ "$line" == nothing ]] || bad+="; the victim went on: $line"
    elif [[ "$r" == "$victim" ]]; then
      [[ "$line" =~ \ timed\ out\ [0-2]\ unchanged$ ]] || bad+="; rank $r, cut off: $line"
    elif [[ "$line" =~ \ timed\ out\ $victim\ unchanged$ ]]; then
      named=1
    elif [[ ! "$line" =~ \ closed\ [0-2]\ unchanged$ || "$line" =~ \ closed\ ($victim|$r)\  ]]; then
      bad+="; rank $r: $line"
    fi
  done
  ((named)) || bad+="; no rank names it"
  if [[ -n "$bad" ]]; then
    echo "FAILED: rank $*: ${bad#; }"
    tail -n 5 "$folder/said"
    failures=$((failures + 1))
  fi
  rm -rf "$folder"
}

ways=(kill stop)
if "$hosts" 1 0 true 2>/dev/null; then
  ways+=(cut)
else
  echo "NOT TESTED: a rank that is cut off, which needs root and network namespaces"
fi
if ((times == 0)); then
  # Rank 0: the smallest of the silent ranks, however late the others are.
  for how in "${ways[@]}"; do
    for phase in ids rows gradients sum; do
      lose 0 "$phase" "$([[ "$how" == stop ]] && echo within || echo before)" "$how"
    done
  done
  lose 0 slices before kill
  lose 0 parameters within stop
else
  for phase in ids rows gradients slices parameters agreement sum; do
    for how in "${ways[@]}"; do
      before="$failures" longest=0
      for ((i = 0; i < times; ++i)); do
        for moment in before within; do lose $((i % 3)) "$phase" "$moment" "$how"; done
      done
      echo "$phase, $how: $((2 * times)) jobs, $((failures - before)) wrong; the longest last step took $longest ms"
    done
  done
fi
echo "$runs jobs lost a rank, $failures of them wrong"
((failures == 0))
