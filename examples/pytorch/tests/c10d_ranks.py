"""One rank of test_ranks.py: RANK RANKS STORE LIBRARY CASE..."""

import os
import sys
from datetime import timedelta

import torch
from torch import distributed

rank, ranks = int(sys.argv[1]), int(sys.argv[2])
store = distributed.FileStore(sys.argv[3], ranks)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
torch.ops.load_library(sys.argv[4])
failed = 0
for case in sys.argv[5:]:
    groups = [distributed.new_group(timeout=timedelta(seconds=120)) for _ in range(2)]
    if case == "gone" and rank == 1:
        break
    names = [group.group_name for group in (*groups, distributed.group.WORLD)]
    failed += torch.ops.deeprec_test.run_case(case, *names)
sys.stdout.flush()
os._exit(failed)  # calls that nobody waits for are in flight: the groups would wait for them
