"""Ten thousand steps hold no more memory than two thousand."""

import subprocess
import sys

import pytest

LOOP = """
import os, sys
import torch
from torch import nn
from deeprec_torch import Adagrad, EmbeddingBag, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig, TableOptimizer

torch.set_num_threads(2)
kind = sys.argv[1]
ids = torch.arange(64).view(2, 32)
sizes = (None, 500) if kind == "growing" else (400, 500)
grows = {"capacity": 300, "when_full": "evict_least_recent"} if kind == "growing" else {}
configs = [TableConfig("u", sizes[0], 8, **grows), TableConfig("v", sizes[1], 8, pooling="mean")]
if kind == "EmbeddingBag":
    layer = EmbeddingBag(500, 16, mode="sum", sparse=True)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01)]
    def look_up(step):
        return layer((ids.t() * 7 + step) % 500)
else:
    tables = EmbeddingBagCollection(configs, Adagrad(0.01), seed=1, fused=kind != "apart")
    optimizers = [TableOptimizer(tables)]
    if kind == "compiled":
        tables.compile(backend="aot_eager")
    def look_up(step):
        of_u = ids[0] * 7 + step * 97 if kind == "growing" else (ids[0] * 7 + step) % 400
        return tables(KeyedJaggedTensor.one_hot(["u", "v"], torch.stack([of_u, (ids[1] + step) % 500])))
head = nn.Linear(16, 1)
optimizers.append(torch.optim.SGD(head.parameters(), lr=0.01))

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

for step in range(10_000):
    for optimizer in optimizers:
        optimizer.zero_grad()
    head(look_up(step)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    if step == 1999:
        before = resident()
print(resident() - before)
"""


@pytest.mark.parametrize("kind", ["EmbeddingBag", "fused", "apart", "growing", "compiled"])
def test_ten_thousand_steps(kind):
    """8,000 steps that kept half a kilobyte each would keep four megabytes."""
    ran = subprocess.run([sys.executable, "-c", LOOP, kind], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 4 << 20
