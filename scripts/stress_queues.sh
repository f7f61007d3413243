#!/usr/bin/env bash
# scripts/stress_queues.sh [ITEMS]   passes ITEMS (default 10^9) items through each of mpmc_ring, spsc_ring,
#                                    staging_queue, reorder_buffer and staging_pool with real threads, and
#                                    runs the interleavings that take minutes; prints the runs and results.
#                                    Low priority: 20 and 10 minutes on a loaded machine.
#                                    SKIP_MODEL, SKIP_STRESS: skips one of the two parts

items="${1:-1000000000}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_packages
configure release
build release test_queue
echo "commit $(git rev-parse --short HEAD), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
failed=0
if [[ -z "${SKIP_STRESS:-}" ]]; then
  echo "$items items through each queue"
  start=$SECONDS
  DEEPREC_TEST_ITEMS="$items" nice -n 19 build/release/tests/queue/test_queue -tc="stress*" || failed=1
  echo "stress: $((SECONDS - start)) s"
fi
if [[ -z "${SKIP_MODEL:-}" ]]; then
  start=$SECONDS
  DEEPREC_TEST_LONG=1 nice -n 19 build/release/tests/queue/test_queue -tc="model*,sites*,reclaimer*,keys*,versions*" || failed=1
  echo "model: $((SECONDS - start)) s"
fi
exit "$failed"
