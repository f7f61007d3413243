#!/usr/bin/env bash
# scripts/stress_queues.sh [ITEMS]   every mix of 1 to 8 producers and consumers, ITEMS (10^9) items in all, and
#                                    the interleavings that take minutes; prints what was run and how it ended

items="${1:-1000000000}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_packages
configure release
build release test_staging
echo "commit $(git rev-parse --short HEAD), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
echo "$items items in 64 mixes, $((items / 64)) each"
start=$SECONDS
DEEPREC_TEST_ITEMS=$((items / 64)) nice -n 19 build/release/tests/staging/test_staging -tc="stress*"
echo "stress: $((SECONDS - start)) s"
[[ -n "${SKIP_MODEL:-}" ]] && exit 0
start=$SECONDS
DEEPREC_TEST_LONG=1 nice -n 19 build/release/tests/staging/test_staging -tc="model*"
echo "model: $((SECONDS - start)) s"
