#!/usr/bin/env python3
"""train_ctr as a person runs it: how soon it shows progress, and what its page costs.

A suite like the C++ ones, `train` for scripts/bench.sh. The rows are synthetic, of the shape of Criteo's logs.

  train/first_output/text, /gzip   seconds from the start to the first progress on a terminal, of a file with 10 GB of
                                   text, which is deleted behind it
  train/report                     the seconds of a run with --report over those without, in pairs
"""

import contextlib
import gzip
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from peer_suite import Figures, Unavailable, measured, run_program  # noqa: E402

TEXT_BYTES = 10 * 10**9
OUTPUTS = {"train/first_output/text": False, "train/first_output/gzip": True}
REPORT = "train/report"
LONGEST = 60  # seconds without progress


def run_of(program, arguments):
    """Seconds of a run that must succeed."""
    begun = time.perf_counter()
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"failed: train_ctr ended with {ended.returncode}: {ended.stderr.strip()[-200:]}")
    return time.perf_counter() - begun


def large_file(program, folder, compressed):
    """Rows over and over, up to so many bytes of text."""
    rows = Path(folder, "rows.tsv")
    run_of(program, ["--rows", "100000", "--synthesize", str(rows)])
    text = rows.read_bytes()
    times = -(-TEXT_BYTES // len(text))
    piece = gzip.compress(text, 1) if compressed else text
    if shutil.disk_usage(folder).free < 1.2 * times * len(piece):
        raise Unavailable(f"needs {1.2e-9 * times * len(piece):.0f} GB of disk for temporary files")
    large = Path(folder, "large.gz" if compressed else "large.tsv")
    with open(large, "wb") as file:
        for _ in range(times):
            file.write(piece)
    return large


def first_output(program, large):
    """Seconds until the program writes how much it has read; stderr is a terminal."""
    terminal, end = pty.openpty()
    begun, seen = time.perf_counter(), b""
    run = subprocess.Popen(
        [program, "--data", str(large), "--model", "lr"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=end
    )
    os.close(end)
    try:
        while b"read  " not in seen:
            left = begun + LONGEST - time.perf_counter()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                raise Unavailable(f"failed: no progress within {LONGEST} seconds: {seen!r}")
            got = b""
            with contextlib.suppress(OSError):  # the program has ended
                got = os.read(terminal, 4096)
            if not got:
                raise Unavailable(f"failed: train_ctr ended, and wrote {seen!r}")
            seen += got
        return time.perf_counter() - begun
    finally:
        run.kill()
        run.wait()
        os.close(terminal)


def measure(name, program):
    if not program or not Path(program).exists():
        raise Unavailable("train_ctr is not built")
    figures = Figures(name)
    with tempfile.TemporaryDirectory() as folder:
        if name == REPORT:
            how = ["--model", "dlrm", "--threads", "1"]
            page = ["--report", str(Path(folder, "page"))]
            sides = {"without": lambda: run_of(program, how), "with": lambda: run_of(program, [*how, *page])}

            def one_round():
                seconds = figures.turn(sides)
                figures.add("of_run", seconds["with"] / seconds["without"])

        else:
            large = large_file(program, folder, OUTPUTS[name])

            def one_round():
                figures.add("seconds", first_output(program, large))

        figures.sample(one_round)
    counters = figures.counters()
    return counters, counters.get("with_us") or 1e6 * counters["seconds"]


def run(names, arguments):
    return {}, measured(names, lambda name: measure(name, arguments.train_ctr))


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1:], __doc__, {"--train-ctr": "the program"}, [*OUTPUTS, REPORT], run))
