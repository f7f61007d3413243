#!/usr/bin/env bash
# scripts/test.sh [asan] [tsan] [release]: builds and tests these lanes, all three by default.
# The release lane comes last: it also tests the headers, the examples and the package.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

lanes=("$@")
((${#lanes[@]})) || lanes=(asan tsan release)
for lane in "${lanes[@]}"; do
  case "$lane" in asan | tsan | release) ;; *) say "no such lane: $lane" && exit 2 ;; esac
done

install_packages
# For the unit tests on another architecture; a call of its own, since not every system has these.
if [[ " ${lanes[*]} " == *" release "* && "$(uname -m)" == x86_64 ]]; then
  install_packages g++-aarch64-linux-gnu qemu-user
fi
[[ " ${lanes[*]} " != *" release "* ]] || fetch_cuobjdump
for compiler in g++ clang++ nvcc; do
  command -v "$compiler" >/dev/null || [[ "$compiler" == nvcc && -x /usr/local/cuda/bin/nvcc ]] ||
    say "NO $compiler HERE: the headers are not tested with it"
done

# The run time of the thread sanitizer needs the address space in its old place.
plainly() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}

failed=()
for lane in "${lanes[@]}"; do
  if configure "$lane" && build "$lane"; then
    ((${#failed[@]})) && say "these lanes have FAILED already: ${failed[*]}"
    say "$lane: testing"
    plainly ctest --test-dir "build/$lane" --output-on-failure --parallel "$jobs" || failed+=("$lane")
  else
    say "$lane: does NOT BUILD"
    failed+=("$lane")
  fi
done
exit "${#failed[@]}"
