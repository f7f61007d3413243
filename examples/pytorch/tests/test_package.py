"""The package as a shared object: symbols, threads, and other libraries beside it."""

import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import deeprec_torch
from deeprec_torch import EmbeddingBagCollection, KeyedJaggedTensor, TableConfig

OPS = importlib.util.find_spec("deeprec_torch._ops").origin


def test_no_symbol_is_exported():
    listed = subprocess.run(["nm", "-D", "--defined-only", OPS], capture_output=True, text=True, check=True).stdout
    assert listed.strip() == ""


def test_both_threads_work():
    """Without -fopenmp at::parallel_for would be a loop, silently."""
    needed = subprocess.run(["ldd", OPS], capture_output=True, text=True, check=True).stdout
    assert "libgomp" in needed
    program = (
        "import os, torch, deeprec_torch\n"
        "torch.set_num_threads(2)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "layer = deeprec_torch.EmbeddingBag(100_000, 64, mode='sum')\n"
        "layer.weight.data.zero_()\n"
        "layer(torch.randint(100_000, (20_000, 20)))\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) >= 1


def test_the_same_bits_for_any_number_of_threads():
    torch.manual_seed(1)
    layer = deeprec_torch.EmbeddingBag(1000, 48, mode="mean", sparse=True)
    ids = torch.randint(1000, (3000, 7))
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        layer.weight.grad = None
        out = layer(ids)
        out.square().sum().backward()
        results.append((out.detach(), layer.weight.grad._values()))
    torch.set_num_threads(threads)
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(gradient, results[0][1])


def test_the_gil_is_released():
    """While one thread of Python is in a lookup, another one runs."""
    ours = EmbeddingBagCollection([TableConfig("a", 1000, 64)], seed=1)
    batch = KeyedJaggedTensor.one_hot(["a"], torch.randint(1000, (1, 200_000)))
    wanted, turns, progress, wrong = ours(batch), [0], [], []

    def look_up():
        for _ in range(20):
            before = turns[0]
            out = ours(batch)
            progress.append(turns[0] - before)
            if not torch.equal(out, wanted):
                wrong.append(1)

    worker = threading.Thread(target=look_up)
    worker.start()
    while worker.is_alive():
        turns[0] += 1
    worker.join()
    assert not wrong
    # With the lock held there would be a turn only where it is handed over right before or after the op.
    assert sum(1 for p in progress if p > 0) >= 10


def test_beside_fbgemm_and_onednn():
    fbgemm = pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed", exc_type=(ImportError, OSError))
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    assert fbgemm is not None and torch.backends.mkldnn.is_available()
    ours = EmbeddingBagCollection([TableConfig("a", 100, 16)], deeprec_torch.SGD(0.1), seed=1)
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(100, 16, EmbeddingLocation.HOST, ComputeDevice.CPU)], learning_rate=0.1
    )
    ours.assign("a", theirs.split_embedding_weights()[0].detach())
    batch = KeyedJaggedTensor.from_lengths(["a"], torch.randint(100, (60,)), torch.full((20,), 3))
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):  # oneDNN's products
            dense = torch.nn.functional.linear(torch.randn(64, 64), torch.randn(64, 64))
        assert torch.isfinite(dense.float()).all()
        one, other = ours(batch), theirs(batch.values(), batch.offsets())
        torch.testing.assert_close(one, other)
        one.sum().backward()
        other.sum().backward()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_layer_in_workers(how):
    """Lookups in the processes of a DataLoader, after the parent's threads have run."""
    layer = deeprec_torch.EmbeddingBag(1000, 16, mode="sum")
    layer(torch.randint(1000, (5000, 20)))  # the parent's OpenMP threads exist now
    loader = torch.utils.data.DataLoader(
        Lookups(layer), batch_size=4, num_workers=2, multiprocessing_context=how, timeout=300
    )
    with torch.no_grad():
        rows = torch.cat([part for part in loader])
        assert torch.equal(rows, torch.cat([layer(torch.arange(i, i + 20).unsqueeze(0)) for i in range(16)]))


class Lookups(torch.utils.data.Dataset):
    def __init__(self, layer):
        self.layer = layer

    def __len__(self):
        return 16

    def __getitem__(self, i):
        with torch.no_grad():
            return self.layer(torch.arange(i, i + 20).unsqueeze(0)).squeeze(0)


@pytest.mark.parametrize("section, lines", [("Tables that grow", 3), ("Checkpoints", 1)])
def test_the_programs_of_the_docs(section, lines):
    page = (Path(__file__).resolve().parents[3] / "docs" / "pytorch.md").read_text().split(f"## {section}\n")[1]
    program = page.split("```python\n")[1].split("```")[0]
    printed = textwrap.dedent(page.split("```")[2].split("\n|")[0]).strip()
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == printed and len(printed.splitlines()) == lines


def test_versions_are_printed():
    """What these tests ran with, for the log."""
    print(f"PyTorch {torch.__version__}, {sys.version.split()[0]}, {torch.get_num_threads()} threads, {Path(OPS).name}")
    print(torch.__config__.parallel_info().splitlines()[0], os.uname().machine)
