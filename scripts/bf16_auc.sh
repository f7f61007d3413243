#!/usr/bin/env bash
# scripts/bf16_auc.sh TRAIN_CTR DATA   prints the AUC of dlrm and wdl for five seeds, in f32 and in bf16
# DATA: Criteo text, such as criteo_kaggle_merged_24k.tsv; TRAIN_CTR: the program of the example

(($# == 2)) || { sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"; exit 2; }
set -euo pipefail
for model in dlrm wdl; do
  for math in f32 forced_bf16; do
    for seed in 1 2 3 4 5; do
      "$1" --data "$2" --model "$model" --math "$math" --seed "$seed" |
        awk -v model="$model" '$1 == model { print $2 }'
    done | awk -v what="$model $math" '{ sum += $1; all = all " " $1 } END { printf "%s%s mean %.5f\n", what, all, sum / NR }'
  done
done
