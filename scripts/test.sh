#!/usr/bin/env bash
# scripts/test.sh               the release lane: unit tests on the host, examples, checks of the source text
# scripts/test.sh all           every lane, and what release omits: headers with both compilers and nvcc,
#                               device code on the host, another architecture, packages, fuzzing, benchmarks
# scripts/test.sh LANE...       the named lanes: release, extended (release and all that it omits), asan, tsan

start=$SECONDS
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

lanes=("$@")
((${#lanes[@]})) || lanes=(release)
[[ "${lanes[*]}" != all ]] || lanes=(asan tsan extended)
for lane in "${lanes[@]}"; do
  case "$lane" in asan | tsan | release | extended) ;; *) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}" && exit 2 ;; esac
done

install_packages
if [[ " ${lanes[*]} " == *" extended "* ]]; then
  # Calls of their own, since not every system has these.
  install_packages clang
  install_packages doxygen
  install_packages universal-ctags
  install_packages python3-matplotlib
  if [[ "$(uname -m)" == x86_64 ]]; then install_packages g++-aarch64-linux-gnu qemu-user; fi
  fetch_cuobjdump
  fetch_clang_format
  for compiler in g++ clang++ nvcc; do
    command -v "$compiler" >/dev/null || [[ "$compiler" == nvcc && -x /usr/local/cuda/bin/nvcc ]] ||
      say "NO $compiler HERE: the headers are not tested with it"
  done
fi

# The run time of the thread sanitizer needs the address space in its old place.
plainly() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}

# Sums of what doctest printed in the last run of ctest in build/$1.
counts() {
  awk '/^\[doctest\] test cases:/ { cases += $4 } /^\[doctest\] assertions:/ { checks += $3 }
       END { printf "%d test cases, %d assertions", cases, checks }' "build/$1/Testing/Temporary/LastTest.log" 2>/dev/null
}

failed=() report=()
for lane in "${lanes[@]}"; do
  began=$SECONDS preset="$lane" targets=() tests=()
  case "$lane" in
    release) targets=(release_tests) tests=(-LE extended) ;;
    extended) preset=release ;;
  esac
  if configure "$preset" && build "$preset" "${targets[@]}"; then
    built=$SECONDS
    if ((${#failed[@]})); then say "these lanes have FAILED already: ${failed[*]}"; fi
    for line in "${report[@]}"; do say "$line"; done
    say "$lane: built in $((built - began)) s, testing"
    # One more than there are processors: some tests wait for most of their time.
    plainly ctest --test-dir "build/$preset" --output-on-failure --parallel "$((jobs + 1))" "${tests[@]}" |
      tee "build/$preset/ctest.log" || failed+=("$lane")
    report+=("$lane: $(counts "$preset"); built in $((built - began)) s, tested in $((SECONDS - built)) s")
  else
    say "$lane: does NOT BUILD"
    failed+=("$lane")
  fi
done
for line in "${report[@]}"; do say "$line"; done
say "$((SECONDS - start)) s in all"
if ((${#failed[@]})); then say "FAILED: ${failed[*]}"; fi
# The closing lines of the last lane once more, at the end.
if [[ -f "build/$preset/ctest.log" ]]; then sed -n '/^[0-9]*% tests passed/,$p' "build/$preset/ctest.log"; fi
exit "${#failed[@]}"
