#!/usr/bin/env bash
# scripts/header_cost.sh [COMPILER...]: a table of the cost of including deeprec in a translation unit:
# seconds of processor time to compile at -O2 (median of 3, or of RUNS) and the size of the object. Default:
# g++. The claims header_cost.* are measured by the same program. See docs/header-cost.md.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec python3 benchmarks/header_cost/header_cost_suite.py --table "$@"
