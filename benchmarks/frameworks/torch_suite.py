#!/usr/bin/env python3
"""deeprec_torch beside PyTorch and FBGEMM: the same tables, the same ids, two threads, in one process.

A suite like the C++ ones, `frameworks` for scripts/bench.sh: it lists its benchmarks (--benchmark_list_tests), filters
them (--benchmark_filter) and writes a report in the form of Google Benchmark (--benchmark_out). Without PyTorch or
deeprec_torch every benchmark reports the reason and no figure; without fbgemm_gpu its figures are missing and a line
says so. README.md beside this file says what is timed.

DEEPREC_BENCH_PAIRS and DEEPREC_BENCH_SECONDS set the number of rounds, as in the other suites. DEEPREC_BENCH_ROWS
bounds the rows of a table, for a look at the answers: the figures are no evidence then.
"""

import gc
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / folder) for folder in ("support", "peers")]
from peer_suite import (  # noqa: E402
    Figures,
    Unavailable,
    error_of,
    free_memory,
    joined,
    last_level_cache,
    load_torch,
    measured,
    run_program,
    timed,
)

THREADS = 2
TABLES, BATCH = 26, 2048
MOST_ROWS = 10**6
FLOAT = 4  # bytes
TENSOR_BYTES = 10**9  # of an extension's table
SECONDS_OF_A_SAMPLE = 0.02  # at least
SECONDS_OF_A_SMALL_SAMPLE = 0.002  # of a call of one table, which takes microseconds
LEAST_SETS, MOST_SETS = 4, 4096  # of ids in a rotation
SERVED_ROWS = 100_000
EQUAL_STEPS, EQUAL_BATCH = 10, 128


# Sizes.


def most_rows():
    return min(MOST_ROWS, int(os.environ.get("DEEPREC_BENCH_ROWS") or MOST_ROWS))


def rows_for(bytes_of_a_row):
    """As many rows of each of the tables as a quarter of the free memory holds."""
    return min(most_rows(), free_memory() // 4 // (TABLES * bytes_of_a_row))


def rotation(make, bytes_of_a_set):
    """Sets of ids in turn, for all sides, so that no set comes again while its rows are in a cache: together their rows
    are twice the last level."""
    sets = math.ceil(2 * last_level_cache() / bytes_of_a_set)
    return itertools.cycle([make() for _ in range(min(max(sets, LEAST_SETS), MOST_SETS))])


def batches_of(sides, rows, row_bytes, hotness, **options):
    def make():
        return sides.Batch.random(TABLES, rows, BATCH, hotness, **options)

    made = rotation(make, TABLES * BATCH * hotness * row_bytes)
    return next(made), made


# Timing.


def expect_equal(ours, theirs, tolerance, what):
    difference = float((ours - theirs).abs().max())
    if not (ours.shape == theirs.shape and difference <= tolerance):
        raise Unavailable(f"wrong answer: {what} differ by {difference}")


def expect_equal_bags(sides, calls, batch, hotness, what="bags"):
    """Sums of values in [-1, 1], each side in its own order."""
    pooled = {name: sides.joined_bags(call(batch)) for name, call in calls.items()}
    for name, theirs in pooled.items():
        expect_equal(pooled["ours"], theirs, 2e-6 * hotness, f"{what} of ours and of {name}")


def counters_of(figures, **others):
    return {**figures.counters(), **{name: float(value) for name, value in others.items()}}


# Benchmarks: measure(sides, name) returns the counters. A case is a number of ids in a bag.


def measure_forward(sides, name, width):
    rows = rows_for(2 * width * FLOAT)  # of two sides; FBGEMM's tables come on top
    calls = sides.lookups_of(sides.equal_tables(TABLES, rows, width, trained=False))
    figures = Figures(name)
    with sides.torch.no_grad():
        cases = {}
        for hotness in (1, 20):
            batch, ahead = batches_of(sides, rows, width * FLOAT, hotness)
            expect_equal_bags(sides, calls, batch, hotness)
            cases[f"ids_{hotness}"] = timed(calls, ahead, SECONDS_OF_A_SAMPLE)
        figures.sample(lambda: [figures.compare(samples, case) for case, samples in cases.items()])
    return counters_of(figures, rows=rows)


def measure_train(sides, name, width):
    rows = rows_for((3 * width + 1) * FLOAT)  # ours has one sum for a row, PyTorch one for each weight
    tables = sides.equal_tables(TABLES, rows, width, trained=True)
    gradient = sides.torch.empty(BATCH, TABLES * width).uniform_(-0.1, 0.1)
    lookups = sides.lookups_of(tables)
    equal_steps = sides.steps_of(tables, gradient, sides.RowwiseStep(tables["pytorch"]))
    figures, cases, rotations = Figures(name), {}, {}
    for hotness in (1, 20):
        batch, rotations[hotness] = batches_of(sides, rows, width * FLOAT, hotness)
        with sides.torch.no_grad():
            expect_equal_bags(sides, lookups, batch, hotness)
        for _ in range(2):  # one after the other on the same rows
            for step in equal_steps.values():
                step(batch)
        with sides.torch.no_grad():
            expect_equal_bags(sides, lookups, batch, hotness, "bags after two steps")
    del equal_steps
    steps = sides.steps_of(tables, gradient, sides.adagrad_of(tables["pytorch"]))
    for hotness, ahead in rotations.items():
        cases[f"ids_{hotness}"] = timed(steps, ahead, SECONDS_OF_A_SAMPLE)
    figures.sample(lambda: [figures.compare(samples, case) for case, samples in cases.items()])
    return counters_of(figures, rows=rows)


def measure_configurations(sides, name, rows_of, calls_on):
    """Every configuration of one table, on the same weight for both sides, in turn in each round. Of each width
    rows_of(width) and, of a weight, calls_on(weight): {side: call of a batch}."""
    torch, figures, widths = sides.torch, Figures(name), (16, 64, 128)
    calls = {width: calls_on(torch.empty(rows_of(width), width).uniform_(-1, 1)) for width in widths}
    cases = {threads: {} for threads in (1, THREADS)}

    def samples_of(width, bags, hotness):
        offsets, ids, rows = torch.arange(bags) * hotness, bags * hotness, rows_of(width)
        ahead = rotation(lambda: (torch.randint(rows, (ids,)), offsets), ids * width * FLOAT)
        expect_equal_bags(sides, calls[width], next(ahead), hotness)
        return timed(calls[width], ahead, SECONDS_OF_A_SMALL_SAMPLE)

    def one_round():
        ratios = []
        for threads, samples in cases.items():
            torch.set_num_threads(threads)
            for case, both in samples.items():
                seconds = figures.turn(both, case)
                ratios.append(seconds["pytorch"] / seconds["ours"])
                figures.add("least", ratios[-1], case)
        figures.add("geomean", math.exp(sum(map(math.log, ratios)) / len(ratios)))

    with torch.no_grad():
        for threads, samples in cases.items():
            torch.set_num_threads(threads)
            for width, bags, hotness in itertools.product(widths, (128, 2048, 20000), (1, 5, 20)):
                samples[f"bags_{bags}_ids_{hotness}_d_{width}_threads_{threads}"] = samples_of(width, bags, hotness)
        figures.sample(one_round)
    return counters_of(figures, rows=min(map(rows_of, widths)))


def measure_one_table(sides, name):
    return measure_configurations(sides, name, lambda width: most_rows(), sides.bags_on)


def measure_extension(sides, name):
    most = min(TENSOR_BYTES, free_memory() // 4 // 3)

    def rows_of(width):
        rows = most // (width * FLOAT)
        return min(rows, most_rows()) if "DEEPREC_BENCH_ROWS" in os.environ else rows

    try:
        calls_on = sides.extension_on(ROOT)
    except (ImportError, OSError, RuntimeError) as problem:  # what PyTorch raises where it can't compile
        raise Unavailable(f"torch_extension.cpp is not compiled: {problem}") from problem
    counters = measure_configurations(sides, name, rows_of, calls_on)
    return {**counters, **({} if most == TENSOR_BYTES else {"label": f"unfit: tensors of {most >> 20} MB"})}


def measure_sparse_step(sides, name, width):
    """A layer of one table, its backward pass and SparseAdam's step: rows and moments of two sides."""
    torch = sides.torch
    rows = min(most_rows(), free_memory() // 4 // (2 * 3 * width * FLOAT))
    weight = torch.empty(rows, width).uniform_(-1, 1)
    gradient = torch.empty(BATCH, width).uniform_(-0.1, 0.1)
    bags = sides.sparse_bags(weight)
    steps = {side: sides.sparse_adam_step(bag, gradient) for side, bag in bags.items()}
    lookups = {side: (lambda bag: lambda batch: bag(*batch))(bag) for side, bag in bags.items()}
    figures, cases, rotations, offsets = Figures(name), {}, {}, torch.arange(BATCH)
    for hotness in (1, 20):
        rotations[hotness] = rotation(
            lambda hotness=hotness: (torch.randint(rows, (BATCH * hotness,)), offsets * hotness),
            BATCH * hotness * width * FLOAT,
        )
        batch = next(rotations[hotness])
        for _ in range(2):  # before any is timed: the sides make different numbers of steps then
            for step in steps.values():
                step(batch)
        with torch.no_grad():
            expect_equal_bags(sides, lookups, batch, hotness, "bags after two steps")
    for hotness, ahead in rotations.items():
        cases[f"ids_{hotness}"] = timed(steps, ahead, SECONDS_OF_A_SAMPLE)
    figures.sample(lambda: [figures.compare(samples, case) for case, samples in cases.items()])
    return counters_of(figures, rows=rows)


def measure_int8(sides, name, widths):
    if not sides.fbgemm_gpu:
        raise Unavailable(sides.torch_models.fbgemm_problem)
    figures, hotness, cases = Figures(name), 20, {}
    rows = rows_for(sum(3 * (width + 8) for width in widths))  # ours, and those of two operators
    for width in widths:
        tables = sides.Int8Tables(TABLES, rows, width)
        with sides.torch.no_grad():
            batch, ahead = batches_of(sides, rows, width + 8, hotness, with_i32=True)
            expect_equal_bags(sides, tables.sides(), batch, hotness)
            cases[width] = timed(tables.sides(), ahead, SECONDS_OF_A_SAMPLE)

    def one_round():
        for width, samples in cases.items():
            seconds = figures.turn(samples, f"d_{width}")
            for form in samples:
                if form != "ours":
                    figures.add("over_fbgemm", seconds[form] / seconds["ours"], f"{form}_d_{width}")

    with sides.torch.no_grad():
        figures.sample(one_round)
    return counters_of(figures, rows=rows)


def measure_dlrm(sides, name):
    export = sides.RandomExport(64 * BATCH)
    forms = ["ours", "tables", "one_table", *(["fbgemm"] if sides.fbgemm_gpu else [])]
    logits = {}
    for form in ["ours", "one_table"]:  # our rows are stepped by rowwise Adagrad, which PyTorch has not
        step, logits_of, batches = sides.dlrm_trainer(export, form, rowwise=True)
        few = list(batches(EQUAL_BATCH)[:EQUAL_STEPS])
        for batch in few:
            step(batch)
        logits[form] = sides.torch.from_numpy(logits_of(few))
    expect_equal(logits["ours"], logits["one_table"], 1e-4, f"logits after {EQUAL_STEPS} steps")

    samples = {}
    for form in forms:
        step, _, batches = sides.dlrm_trainer(export, form)
        samples.update(timed({form: step}, itertools.cycle(batches(BATCH)), 5 * SECONDS_OF_A_SAMPLE))
    figures = Figures(name)

    def one_round():
        seconds = figures.turn(samples)
        for form in ("tables", "one_table"):
            figures.add("over_pytorch", seconds[form] / seconds["ours"], form)
        if "fbgemm" in seconds:
            figures.add("over_fbgemm", seconds["fbgemm"] / seconds["ours"])

    figures.sample(one_round)
    return counters_of(figures)


def measure_switch(sides, name, compiled):
    """A training step where only the rows are kept by another module: nn.EmbeddingBag(sparse=True), ours in its place, a collection. All
    are stepped by Adagrad: a collection's rows by its own, the others by PyTorch's."""
    torch, export = sides.torch, sides.RandomExport(32 * BATCH)
    forms = {"pytorch": "tables", "bag": "bags", "collection": "collection"}
    logits = {}
    for side, form in forms.items():
        step, logits_of, batches = sides.dlrm_trainer(export, form, compiled=compiled)
        few = list(batches(EQUAL_BATCH)[:EQUAL_STEPS])
        for batch in few:
            step(batch)
        logits[side] = torch.from_numpy(logits_of(few))
    for side in ("bag", "collection"):
        expect_equal(logits[side], logits["pytorch"], 1e-4, f"logits of {side} and pytorch after {EQUAL_STEPS} steps")
    cases = {}
    for size in (256, BATCH):
        for threads in (1, THREADS):
            torch.set_num_threads(threads)
            samples = {}
            for side, form in forms.items():
                step, _, batches = sides.dlrm_trainer(export, form, compiled=compiled)
                samples.update(timed({side: step}, itertools.cycle(batches(size)), 5 * SECONDS_OF_A_SAMPLE))
            cases[(size, threads)] = samples
    figures = Figures(name)

    def one_round():
        for (size, threads), samples in cases.items():
            torch.set_num_threads(threads)
            case = f"batch_{size}_threads_{threads}"
            seconds = figures.turn(samples, case)
            for side in ("bag", "collection"):
                figures.add(f"{side}_over_pytorch", seconds["pytorch"] / seconds[side], case)

    figures.sample(one_round)
    counters = counters_of(figures)
    return {**counters, "ours_us": counters[f"collection_us_batch_{BATCH}_threads_{THREADS}"]}


def measure_serving(sides, name):
    """A program in C++ (serve_latency.cpp) that runs an exported int8 collection, and FBGEMM's quantised tables from TorchScript: each call by
    itself, one batch after the other in turn."""
    if not sides.fbgemm_gpu:
        raise Unavailable(sides.torch_models.fbgemm_problem)
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = sides.program_of("serve_latency.cpp", ROOT, folder)
            words = sides.served_programs(TABLES, min(most_rows(), SERVED_ROWS), 64, folder)
        except (ImportError, OSError, RuntimeError) as problem:
            raise Unavailable(f"serve_latency.cpp is not compiled, or the tables not exported: {problem}") from problem
        figures = Figures(name)

        def one_round():
            for size, hotness in itertools.product((1, 8, 32), (1, 20)):
                ran = subprocess.run([program, *words, str(TABLES), str(size), str(hotness), "2000"], capture_output=True, text=True)
                if ran.returncode != 0:
                    raise Unavailable(f"serve_latency: {ran.stderr.strip()}")
                case, seen = f"batch_{size}_ids_{hotness}", list(map(float, ran.stdout.split()))
                figures.add("p99_over_fbgemm", seen[1] / seen[0], case)
                for side, value in zip(("ours_p99_us", "fbgemm_p99_us", "ours_us", "fbgemm_us"), seen if figures.counts else ()):
                    figures.notes.setdefault(joined(side, case), []).append(value)

        figures.sample(one_round)
    return counters_of(figures)


def measure_dense_ranks(sides, name):
    try:
        library = sides.library_of("dense_ranks.cpp", ROOT)
    except (ImportError, OSError, RuntimeError) as problem:  # what PyTorch raises where it can't compile
        raise Unavailable(f"dense_ranks.cpp is not compiled: {problem}") from problem
    return measure_on_ranks(name, "dense_ranks.py", library)


def measure_on_ranks(name, program, *words):
    """Two processes, each on a thread, as two_ranks.py has them."""
    program = Path(__file__).with_name(program)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        store, result = Path(folder, "store"), Path(folder, "result")
        commands = [[sys.executable, program, str(rank), store, name, result, *words] for rank in range(2)]
        ranks = [subprocess.Popen(command, env=environment, stdout=sys.stderr) for command in commands]
        try:
            while result_codes := [rank.poll() for rank in ranks]:
                if None not in result_codes or any(result_codes):
                    break
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if not result.exists():
            raise Unavailable(f"the processes ended with {result_codes}")
        counters = json.loads(result.read_text(encoding="utf-8"))
    if "unavailable" in counters:
        raise Unavailable(counters["unavailable"])
    return counters


BENCHMARKS = {
    **{
        f"frameworks/torch/forward/d:{width}": lambda sides, name, width=width: measure_forward(sides, name, width)
        for width in (16, 64, 128)
    },
    "frameworks/torch/one_table": measure_one_table,
    "frameworks/torch/extension": measure_extension,
    "frameworks/torch/train/d:64": lambda sides, name: measure_train(sides, name, 64),
    "frameworks/torch/sparse_step": lambda sides, name: measure_sparse_step(sides, name, 64),
    "frameworks/torch/int8": lambda sides, name: measure_int8(sides, name, (64, 128)),
    "frameworks/torch/dlrm/batch:2048": measure_dlrm,
    "frameworks/torch/dlrm/eager": lambda sides, name: measure_switch(sides, name, compiled=False),
    "frameworks/torch/dlrm/compiled": lambda sides, name: measure_switch(sides, name, compiled=True),
    "frameworks/torch/serve": measure_serving,
    "frameworks/torch/sharded/rows": lambda _, name: measure_on_ranks(name, "sharded_ranks.py", "rows"),
    "frameworks/torch/sharded/whole": lambda _, name: measure_on_ranks(name, "sharded_ranks.py", "whole"),
    "frameworks/torch/dense/buckets": measure_dense_ranks,
}


# The program.


def label_of(sides, name):
    """What makes figures no evidence, or less of it."""
    words = []
    if os.environ.get("DEEPREC_BENCH_ROWS"):
        words.append("unfit: DEEPREC_BENCH_ROWS bounds the rows")
    if name not in ("frameworks/torch/extension", "frameworks/torch/dense/buckets"):  # compiled on the sources here
        built = Path(sides.deeprec_torch.__file__).with_name("_ops.so").stat().st_mtime
        sources = [ROOT / "include", ROOT / "examples/pytorch/csrc"]
        if any(path.stat().st_mtime > built for source in sources for path in source.rglob("*.[chi]*")):
            words.append("deeprec_torch is older than the sources here")
    return "; ".join(words)


def run(names, _arguments):
    try:
        sides = load_torch("torch_sides")
        if not sides.deeprec_torch:
            raise Unavailable(sides.deeprec_problem)
    except Unavailable as problem:
        print(f"SKIPPED: {problem}")
        return {}, [error_of(name, str(problem)) for name in names]
    peers = {"torch": sides.torch.__version__}
    if sides.fbgemm_gpu:
        peers["fbgemm_gpu"] = sides.fbgemm_gpu.__version__
    else:
        print(f"ABSENT: {sides.torch_models.fbgemm_problem}")

    gc.disable()  # a collection would be part of some samples

    def measure(name):
        gc.collect()
        sides.torch.set_num_threads(THREADS)
        sides.torch.manual_seed(1)
        counters = BENCHMARKS[name](sides, name)
        ours = [value for key, value in counters.items() if key.startswith("ours_us")]
        label = "; ".join(filter(None, [counters.get("label"), label_of(sides, name)]))
        return {**counters, "label": label}, max(ours)

    return peers, measured(names, measure)


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1:], "deeprec_torch beside PyTorch and FBGEMM", {}, list(BENCHMARKS), run))
