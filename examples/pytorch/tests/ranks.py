"""Runs a program of this folder in several processes with one gloo group between them, over the loopback interface."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from torch import distributed

HERE = Path(__file__).resolve().parent
SECONDS = 300

needs_gloo = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available() and socket.if_nameindex()[0][1] == "lo"),
    reason="ranks are NOT tested: this PyTorch has no gloo, or this machine no loopback interface",
)


def run_ranks(program: str, ranks: int, *arguments: str):
    """Each process has its rank, the number of ranks, a file for them to meet by, and the arguments. One that fails ends all."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        running, outputs = [], [Path(folder, f"rank{rank}") for rank in range(ranks)]
        for rank, output in enumerate(outputs):
            command = [sys.executable, str(HERE / program), str(rank), str(ranks), str(Path(folder, "store")), *arguments]
            with output.open("w") as to:
                running.append(subprocess.Popen(command, env=environment, stdout=to, stderr=subprocess.STDOUT))
        until = time.monotonic() + SECONDS
        try:
            while any(process.poll() is None for process in running):
                if time.monotonic() > until or any(process.poll() for process in running):
                    break
                time.sleep(0.05)
        finally:
            codes = [process.poll() for process in running]
            for process in running:
                process.kill()
                process.wait()
        said = "\n".join(f"rank {rank}, {code}:\n{output.read_text()}" for rank, (code, output) in enumerate(zip(codes, outputs)))
    assert codes == [0] * ranks, said
