#!/usr/bin/env bash
# scripts/demo.sh [FILE] [ARGUMENT...]: trains click models on FILE (-: the standard input), or on generated data.
# The arguments are passed to the program, which runs in the caller's folder; scripts/demo.sh --help lists them.

caller="$PWD"
file=()
if [[ $# -gt 0 && ( "$1" == - || "$1" != -* ) ]]; then
  file=(--data "$1")
  shift
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install_packages </dev/null
configure release </dev/null
build release train_ctr </dev/null
(($#)) || set -- --model dlrm --model lr
cd "$caller"
exec "$root/build/release/examples/train_ctr" "${file[@]}" "$@"
