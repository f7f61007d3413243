#!/usr/bin/env bash
# scripts/demo.sh [FILE] [ARGUMENT...]: trains click models on FILE, or on generated data.
# The arguments are passed to the program; scripts/demo.sh --help lists them.

file=()
if [[ $# -gt 0 && "$1" != -* ]]; then
  file=(--data "$(realpath -- "$1")")
  shift
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install_packages
configure release
build release train_ctr
(($#)) || set -- --model dlrm --model lr
exec build/release/examples/train_ctr "${file[@]}" "$@"
