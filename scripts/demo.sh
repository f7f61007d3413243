#!/usr/bin/env bash
# scripts/demo.sh [FILE] [ARGUMENT...]: trains click models on FILE (-: the standard input), or on generated data.
# The arguments are passed to the program, which runs in the caller's folder; scripts/demo.sh --help lists them.

caller="$PWD" demo="$0"
file=()
if [[ $# -gt 0 && ( "$1" == - || "$1" != -* ) ]]; then
  file=(--data "$1")
  shift
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install_packages </dev/null
configure release </dev/null
build release train_ctr </dev/null
cd "$caller"
program="$root/build/release/examples/train_ctr"
(($#)) && exec "$program" "${file[@]}" "$@"
"$program" "${file[@]}" --model dlrm --model lr
cat >&2 <<END

What to do next, in this folder:
  $demo FILE --model dlrm --epochs 5 --valid 0.1 --patience 2 --save clicks.model --report report
      trains on your rows, keeps the best epoch, and draws report/report.html
  $demo --load clicks.model --evaluate TOMORROW            how good it is for rows with labels
  $demo --load clicks.model --predict ROWS --output p.txt  the probability of a click of each row
  $demo TOMORROW --model dlrm --load clicks.model --new-data --save clicks.model     trains on
  $demo --help                                             all options; $root/docs/train_ctr.md explains them
END
