"""What the processes of a benchmark over two ranks share: their group over gloo, and rounds in which process 0 says whose turn
it is.

    rank, group, result = begin()              of RANK STORE BENCHMARK RESULT ...
    compare({"ours": step, "other": step})     each side's step is called by both processes
"""

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "support"))
from peer_suite import Figures, Unavailable, keep_freed_memory  # noqa: E402

import torch  # noqa: E402
from torch import distributed  # noqa: E402

RANKS = 2
STEPS = 20  # of a sample


def begin():
    """The rank, and a group that nothing else uses."""
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    store = distributed.FileStore(sys.argv[2], RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    return rank, distributed.new_group()


def check_equal(ours, others, where):
    """All sides' answers at both ranks, as {side: tensor}."""
    for side, other in others.items():
        worst = (ours - other).abs().max().reshape(1)
        distributed.all_reduce(worst, distributed.ReduceOp.MAX)
        if not float(worst) <= 1e-5:
            raise Unavailable(f"wrong answer: ours and {side} differ by {float(worst)} {where}")


def compare(steps, more):
    """Times the sides' steps in turn; process 0 writes the counters, and `more` of them."""
    sides = list(steps)
    processes = [None] * RANKS
    distributed.all_gather_object(processes, os.getpid())
    order = torch.zeros(1, dtype=torch.int64)

    def command(number):
        order.fill_(number)
        distributed.broadcast(order, 0)
        return int(order)

    def run(side):
        for _ in range(STEPS):
            steps[side]()

    if distributed.get_rank() != 0:
        while (number := command(0)) >= 0:
            run(sides[number])
    else:
        figures = Figures(sys.argv[3], processes[1:])

        def sample_of(side):
            def sample():
                command(sides.index(side))
                start = time.perf_counter()
                run(side)
                return (time.perf_counter() - start) / STEPS

            return sample

        samples = {side: sample_of(side) for side in sides}
        figures.sample(lambda: figures.compare(samples))
        command(-1)
        Path(sys.argv[4]).write_text(json.dumps({**figures.counters(), **more}), encoding="utf-8")
    distributed.barrier()


def run_rank(main):
    """The program: why it could not run is said by process 0."""
    try:
        main()
    except Unavailable as reason:
        if sys.argv[1] == "0":
            Path(sys.argv[4]).write_text(json.dumps({"unavailable": str(reason)}), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # no collective clean-up of what may have ended early
