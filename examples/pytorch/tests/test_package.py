"""The package as a shared object: symbols, threads, and other libraries beside it."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
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


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["EmbeddingBag", "fused", "apart"])
def test_a_layer_in_workers(kind, how):
    """Lookups in the processes of a DataLoader, after the parent's threads have run."""
    lookups = Lookups(kind)
    lookups.look_up(torch.randint(1000, (5000, 20)))  # the parent's OpenMP threads exist now
    loader = torch.utils.data.DataLoader(lookups, batch_size=4, num_workers=2, multiprocessing_context=how, timeout=300)
    rows = torch.cat([part for part in loader])
    assert torch.equal(rows, torch.stack([lookups[i] for i in range(16)]))


class Lookups(torch.utils.data.Dataset):
    def __init__(self, kind):
        if kind == "EmbeddingBag":
            self.layer = deeprec_torch.EmbeddingBag(1000, 16, mode="sum")
        else:
            self.layer = EmbeddingBagCollection([TableConfig("a", 1000, 16)], deeprec_torch.SGD(0.1), seed=1, fused=kind == "fused")

    def __len__(self):
        return 16

    @torch.no_grad()
    def look_up(self, ids):
        if isinstance(self.layer, EmbeddingBagCollection):
            return self.layer(KeyedJaggedTensor.from_lengths(["a"], ids.flatten(), torch.full((1, len(ids)), ids.shape[1])))
        return self.layer(ids)

    def __getitem__(self, i):
        return self.look_up(torch.arange(i, i + 20).unsqueeze(0)).squeeze(0)


def packaging():
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages"))
    import building

    return building


def test_a_library_built_with_another_pytorch_is_refused_by_name(tmp_path):
    """A copy of the package whose record of the build has another version."""
    made = tmp_path / "deeprec_torch"
    shutil.copytree(Path(deeprec_torch.__file__).parent, made)
    assert (made / "_built_with.txt").read_text() == torch.__version__

    def refused():
        ran = subprocess.run([sys.executable, "-c", "import deeprec_torch"], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 1
        return ran.stderr

    (made / "_built_with.txt").write_text("2.0.1")
    text, label = refused(), re.sub("[^a-z0-9]+", ".", torch.__version__)
    assert f"must be built with the PyTorch that runs it (built with 2.0.1, this is {torch.__version__})" in text
    assert f"take the wheel deeprec_torch-*+torch{label}-cp{sys.version_info.major}{sys.version_info.minor}-*.whl" in text
    (made / "_built_with.txt").unlink()
    assert "the library must be there" in refused()


def test_the_version_of_the_package_names_its_pytorch():
    found = importlib.metadata.version("deeprec_torch")
    assert found == packaging().version("torch", torch.__version__)
    assert f"torch=={torch.__version__.split('+')[0]}" in importlib.metadata.requires("deeprec_torch")


def test_a_build_begins_again_for_another_header_or_framework(tmp_path):
    csrc = Path(__file__).resolve().parents[1] / "csrc"
    root = csrc.parents[2]
    files = [file for folder in (root / "include", root / "examples" / "packages", csrc) for file in folder.rglob("*")]
    headers = {str(file) for file in files if file.suffix in (".hpp", ".inl", ".map")}
    first = packaging().depends(csrc, tmp_path, "torch 1")
    assert headers and set(first[1:]) == headers and Path(first[0]).read_text() == "torch 1"
    old = Path(first[0]).stat().st_mtime_ns
    packaging().depends(csrc, tmp_path, "torch 1")
    assert Path(first[0]).stat().st_mtime_ns == old
    packaging().depends(csrc, tmp_path, "torch 2")
    assert Path(first[0]).read_text() == "torch 2"


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
