#!/usr/bin/env bash
# scripts/test.sh                           the release lane: unit tests on the host, examples, checks of the source text
# scripts/test.sh all [--within MINUTES]    everything: the parts that tests/parts.txt lists
# scripts/test.sh PART... [--within MINUTES]   the named parts, or those of a lane: asan, tsan, extended (release and all that it omits)
#
# --within: a part after the first begins only where it will end in time, by its recorded seconds and the pace of this machine so far;
# what was left out is printed at the end. The parts after the first begin at another one with each commit. MINUTES may be SECONDSs.

start=$SECONDS
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2; }

# --- which parts ---------------------------------------------------------------------------------------------------

declare -A lane_of seconds_of about
parts=()
while read -r part lane seconds what; do
  [[ "$part" =~ ^[a-z] ]] || continue
  parts+=("$part") lane_of[$part]=$lane seconds_of[$part]=$seconds about[$part]=$what
done <tests/parts.txt
probe_recorded="$(sed -n 's/.*probe of scripts\/test.sh takes \([0-9.]*\) s.*/\1/p' tests/parts.txt)"

[[ "$probe_recorded" =~ [1-9] ]] || { say "tests/parts.txt must have the seconds of the probe (has '$probe_recorded')" && exit 2; }

within=0 wanted=()
while (($#)); do
  case "$1" in
    --within) [[ "${2:-}" =~ ^[0-9]+s?$ ]] || usage
      if [[ "$2" == *s ]]; then within=${2%s}; else within=$(($2 * 60)); fi
      shift ;;
    all) wanted+=("${parts[@]}") ;;
    asan | tsan) for part in "${parts[@]}"; do [[ "${lane_of[$part]}" != "$1" ]] || wanted+=("$part"); done ;;
    extended) for part in "${parts[@]}"; do [[ "${lane_of[$part]}" != release ]] || wanted+=("$part"); done ;;
    *) [[ -n "${lane_of[$1]:-}" ]] || usage
      wanted+=("$1") ;;
  esac
  shift
done
((${#wanted[@]})) || wanted=(release)

failed=() report=() left_out=()
if ((within)); then
  # The recorded seconds must let each part end in time after the first one.
  for part in "${wanted[@]:1}"; do
    if ((seconds_of[${wanted[0]}] + seconds_of[$part] > within)); then
      say "$part can't end within $within s, wherever the order begins: it is recorded with ${seconds_of[$part]} s, ${wanted[0]} with ${seconds_of[${wanted[0]}]} s"
      failed+=("$part")
    fi
  done
  if ((${#wanted[@]} > 2)); then
    rest=("${wanted[@]:1}")
    turn=$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % ${#rest[@]}))
    wanted=("${wanted[0]}" "${rest[@]:turn}" "${rest[@]:0:turn}")
  fi
fi

# --- packages ------------------------------------------------------------------------------------------------------

install_packages
for part in "${wanted[@]}"; do
  case "$part" in
    release) fetch_clang_format ;;
    headers) install_packages clang && install_packages universal-ctags && install_packages clang-tidy ;;
    fuzz) install_packages clang ;;
    device) fetch_cuobjdump ;;
    units) install_packages python3-matplotlib && install_packages doxygen && fetch_pyarrow ;;
    aarch64) if [[ "$(uname -m)" == x86_64 ]]; then install_packages g++-aarch64-linux-gnu qemu-user; fi ;;
  esac
done
if [[ " ${wanted[*]} " == *" headers "* ]]; then
  for compiler in g++ clang++ nvcc; do
    command -v "$compiler" >/dev/null || [[ "$compiler" == nvcc && -x /usr/local/cuda/bin/nvcc ]] ||
      say "NO $compiler HERE: the headers are not tested with it"
  done
fi

# --- how long parts take -------------------------------------------------------------------------------------------

# Prints the seconds in which this machine compiles a unit of the standard library, as often at once as it has processors (two at
# least), without a cache.
probe() {
  local unit="$root/build/probe" from=$EPOCHREALTIME to i
  mkdir -p "$unit"
  printf '#include <%s>\n' regex map iostream random thread >"$unit/probe.cpp"
  echo 'int main() { return std::regex_match("a", std::regex("[a-z]*")) ? 0 : 1; }' >>"$unit/probe.cpp"
  for ((i = 0; i < (jobs > 2 ? jobs : 2); ++i)); do
    "${CXX:-c++}" -std=c++20 -O2 -c "$unit/probe.cpp" -o "$unit/$i.o" &
  done
  wait
  to=$EPOCHREALTIME
  awk -v a="$from" -v b="$to" 'BEGIN { printf "%.2f", b - a }'
}
took=0 recorded=0 slower=1
if ((within && ${#wanted[@]} > 1)); then
  slower="$(awk -v now="${DEEPREC_PROBE_SECONDS:-$(probe)}" -v then="$probe_recorded" 'BEGIN { printf "%.2f", now / then }')"
  say "a unit compiles here in $slower times the recorded time"
fi

# Seconds that a part will take: as recorded, by the slower of the probe and of the parts so far, and a tenth more.
prediction() {
  awk -v part="${seconds_of[$1]}" -v took="$took" -v recorded="$recorded" -v slower="$slower" 'BEGIN {
    pace = recorded > 0 && took / recorded > slower ? took / recorded : slower
    printf "%d", part * pace * 1.1 + 1 }'
}

# --- running them --------------------------------------------------------------------------------------------------

# Runs a command, and ends it (124) where the minutes are over: the first part is never cut off. The run time of the thread sanitizer
# needs the address space in its old place.
in_time() {
  local words=()
  if ((within && begun > 1)); then
    words=(timeout --kill-after=20 "$((within - (SECONDS - start) > 1 ? within - (SECONDS - start) : 1))")
  fi
  if setarch "$(uname -m)" -R true 2>/dev/null; then words+=(setarch "$(uname -m)" -R); fi
  "${words[@]}" "$@"
}

# Sums of what doctest printed in the last run of ctest in build/$1.
counts() {
  awk '/^\[doctest\] test cases:/ { cases += $4 } /^\[doctest\] assertions:/ { checks += $3 }
       END { printf "%d test cases, %d assertions", cases, checks }' "build/$1/Testing/Temporary/LastTest.log" 2>/dev/null
}

# Builds and tests a part: 0, 1 where it failed, 2 where it was cut off.
run_part() {
  local part="$1" preset="${lane_of[$1]}" began=$SECONDS built code targets=("part_$1") tests=(-L "^$1\$")
  if [[ "$part" == release ]]; then targets=(release_tests) tests=(-LE extended); fi
  say "$part: ${about[$part]}"
  configure "$preset" || return 1
  code=0 && in_time cmake --build "build/$preset" --parallel "$jobs" --target "${targets[@]}" || code=$?
  if ((code == 124)); then return 2; fi
  if ((code)); then say "$part: does NOT BUILD" && return 1; fi
  built=$SECONDS
  say "$part: built in $((built - began)) s, testing"
  # One more than there are processors: some tests wait for most of their time.
  code=0 && in_time ctest --test-dir "build/$preset" --output-on-failure --no-tests=ignore --parallel "$((jobs + 1))" "${tests[@]}" \
    2>&1 | tee "build/$part.log" || code=$?
  if ((code == 124)) && ! grep -q '\*\*\*' "build/$part.log"; then return 2; fi
  report+=("$part: $(counts "$preset"); built in $((built - began)) s, tested in $((SECONDS - built)) s")
  took=$((took + SECONDS - began)) recorded=$((recorded + seconds_of[$part]))
  ((code == 0)) || return 1
}

closing="" begun=0
for part in "${wanted[@]}"; do
  left=$((within - (SECONDS - start)))
  if ((within && begun)) && ((expected = $(prediction "$part"), expected > left)); then
    left_out+=("$part: ${about[$part]} (it would take $expected s of $left)")
    continue
  fi
  begun=$((begun + 1)) code=0 && run_part "$part" || code=$?
  case "$code" in
    0) closing="${closing:-$part}" ;;
    2) left_out+=("$part: ${about[$part]} (cut off: it was expected to take $expected s of $left)") ;;
    *) failed+=("$part") && say "FAILED so far: ${failed[*]}" ;;
  esac
done

# Each test belongs to a part, or it would never run.
if [[ " ${wanted[*]} " == *" release "* && -f build/release/build.ninja ]]; then
  names="$(IFS='|' && echo "${parts[*]}")"
  lost="$(ctest --test-dir build/release -N -L extended -LE "^($names)\$" | sed -n 's/^ *Test *#[0-9]*: //p')"
  if [[ -n "$lost" ]]; then say "these tests belong to no part:" $lost && failed+=(parts); fi
fi

for line in "${report[@]}"; do say "$line"; done
for line in "${left_out[@]}"; do say "LEFT OUT: $line"; done
say "$((SECONDS - start)) s in all"
if ((${#failed[@]})); then say "FAILED: ${failed[*]}"; fi
# The closing lines of a part that failed, or else of the first one, once more.
closing="build/${failed[0]:-$closing}.log"
if [[ -f "$closing" ]]; then sed -n '/^[0-9]*% tests passed/,$p' "$closing"; fi
exit "$((${#failed[@]} > 0))"
