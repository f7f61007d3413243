#!/usr/bin/env bash
# scripts/raw_keys.sh TRAIN_CTR DATA   prints, for dlrm and lr, hashed buckets beside raw keys: AUC and log loss in the mean of five
# seeds, megabytes of tables, keys with rows, and samples per second, the median of five runs turn by turn
# DATA: Criteo text, such as criteo_kaggle_merged_24k.tsv; TRAIN_CTR: the program of the example

(($# == 2)) || { sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 2; }
set -euo pipefail
exec python3 - "$1" "$2" <<'PY'
import json
import statistics
import subprocess
import sys
import tempfile

program, data = sys.argv[1:]
kinds = ["hashed", "raw", "raw --admit 2", "raw --admit 5", "raw --ttl 40"]
runs = {}
with tempfile.NamedTemporaryFile() as result:
    for seed in range(1, 6):
        for kind in kinds:
            command = [program, "--data", data, "--model", "dlrm", "--model", "lr", "--threads", "2", "--seed", str(seed)]
            subprocess.run(command + ["--json", result.name, "--keys"] + kind.split(), check=True, stdout=subprocess.DEVNULL)
            for model in json.load(open(result.name))["models"]:
                runs.setdefault((model["model"], kind), []).append(model)
for (model, kind), all_of in sorted(runs.items(), key=lambda run: (run[0][0], kinds.index(run[0][1]))):
    mean = lambda get: statistics.mean(get(one) for one in all_of)
    print(f"{model}, {kind}: AUC {mean(lambda m: m['auc']):.4f}, log loss {mean(lambda m: m['logloss']):.4f}, "
          f"{mean(lambda m: sum(m['bytes'].values())) / 1e6:.1f} MB, {mean(lambda m: m.get('keys', {}).get('held', 0)):.0f} keys, "
          f"{statistics.median(m['samples_per_second'] for m in all_of):.0f} samples/s")
PY
