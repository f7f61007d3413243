#!/usr/bin/env python3
"""deeprec_tf beside TensorFlow: safe lookups, selects of rows and staged steps, two threads, in one process.

A suite like the C++ ones, `frameworks_tf` for scripts/bench.sh: it lists its benchmarks (--benchmark_list_tests),
filters them (--benchmark_filter) and writes a report in the form of Google Benchmark (--benchmark_out). Without
TensorFlow or deeprec_tf every benchmark reports the reason and no figure. README.md beside this file says what is
timed.

DEEPREC_BENCH_PAIRS and DEEPREC_BENCH_SECONDS set the number of rounds, as in the other suites. DEEPREC_BENCH_ROWS
bounds the rows of a table and of a large select, for a look at the answers: the figures are no evidence then.
"""

import gc
import importlib
import itertools
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/support"))
from peer_suite import (  # noqa: E402
    Figures,
    Unavailable,
    error_of,
    free_memory,
    keep_freed_memory,
    last_level_cache,
    measured,
    median,
    run_program,
    timed,
)

THREADS = 2
TABLES, BATCH, WIDTHS, SETS = 26, 2048, (16, 64), 8
MOST_ROWS = 10**5
FLOAT = 4  # bytes
SECONDS_OF_A_SAMPLE = 0.05  # at least
COPIES = 65
STEPS, EQUAL_STEPS = 40, 10


def counters_of(figures, **others):
    return {**figures.counters(), **{name: float(value) for name, value in others.items()}}


def bounded(rows):
    return min(rows, int(os.environ.get("DEEPREC_BENCH_ROWS") or rows))


# Safe lookups. A case is a width.


def measure_safe_lookup(sides, name, functions_of, tolerance):
    rows = min(bounded(MOST_ROWS), free_memory() // 4 // (TABLES * sum(WIDTHS) * FLOAT))
    figures, cases, rng = Figures(name), {}, sides.np.random.default_rng(7)
    for width in WIDTHS:
        lookups = sides.Lookups(TABLES, rows, width, BATCH, rng)
        functions, sets = functions_of(lookups), [lookups.ids() for _ in range(SETS)]
        for ids in sets[:2]:
            difference = lookups.differences(functions, ids)
            if not difference <= tolerance:
                raise Unavailable(f"wrong answer: ours and TensorFlow's differ by {difference} at width {width}")
        cases[f"d_{width}"] = timed(functions, itertools.cycle(sets), SECONDS_OF_A_SAMPLE)
    figures.sample(lambda: [figures.compare(samples, case) for case, samples in cases.items()])
    return counters_of(figures, rows=rows)


# Steps of Keras.


def measure_keras(sides, name):
    rows = min(bounded(MOST_ROWS), free_memory() // 4 // (TABLES * 3 * 2 * (WIDTHS[0] + 1) * FLOAT))
    figures = Figures(name)
    models = sides.KerasModels(TABLES, rows, WIDTHS[0], BATCH, sides.np.random.default_rng(7))
    batches = models.batches(4)
    losses = {side: [float(step(batch)) for batch in batches * 2] for side, step in models.steps.items()}
    for side, values in losses.items():
        difference = max(abs(a - b) for a, b in zip(values, losses["tensorflow"]))
        if not difference <= 1e-4:
            raise Unavailable(f"wrong answer: losses of {side} and TensorFlow differ by {difference}")
    calls = timed(models.steps, itertools.cycle(batches), SECONDS_OF_A_SAMPLE)

    def one_round():
        seconds = figures.turn(calls)
        figures.add("over_tensorflow", seconds["tensorflow"] / seconds["ours"])
        figures.add("lookups_over_tensorflow", seconds["tensorflow"] / seconds["lookups"])

    figures.sample(one_round)
    return counters_of(figures, rows=rows)


# Selects of rows.


def one_run(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def slope_of(one, many, times=25):
    """Seconds of one op of a chain: how much longer the chain takes than one op, each the median of so many."""
    seconds = [(one_run(one), one_run(many)) for _ in range(times)]
    return (median([m for _, m in seconds]) - median([o for o, _ in seconds])) / (COPIES - 1)


def expect_equal_selects(selects):
    if not selects.equal():
        raise Unavailable("wrong answer: ours is not TensorFlow's")
    if not selects.all_run():
        raise Unavailable("failed: a run does not perform all ops of a chain")


def measure_row_select(sides, name):
    selects, figures = sides.Selects((1024, 64), COPIES, THREADS), Figures(name)
    expect_equal_selects(selects)
    slopes = {side: lambda calls=calls: slope_of(*calls) for side, calls in selects.calls.items()}

    def one_round():
        seconds = figures.turn(slopes)
        if min(seconds.values()) <= 0:
            raise Unavailable("unfit: noise of the machine is larger than the time of 64 ops")
        figures.add("over_tensorflow", seconds["tensorflow"] / seconds["ours"])

    figures.sample(one_round)
    selects.close()
    return counters_of(figures)


def measure_large_row_select(sides, name):
    """Results of 256 MB and, where it is more, of 1.25 times the last-level cache."""
    width, rows = 64, {"256_MB": 1 << 20}
    beyond_cache = last_level_cache() * 5 // 4 // (width * FLOAT)
    if beyond_cache > rows["256_MB"] and 4 * beyond_cache * width * FLOAT <= free_memory():
        rows["beyond_cache"] = beyond_cache
    cases, figures = {}, Figures(name)
    sides.keep_large_memory()
    for case, count in rows.items():
        cases[case] = sides.Selects((bounded(count), width), 1, THREADS)
        expect_equal_selects(cases[case])

    def one_round():
        for case, selects in cases.items():
            calls = {side: lambda one=one: one_run(one) for side, (one, _) in selects.calls.items()}
            figures.compare(calls, case)

    figures.sample(one_round)
    for selects in cases.values():
        selects.close()
    return counters_of(figures, **{f"megabytes_{case}": rows[case] * width * FLOAT / 2**20 for case in rows})


# Stages.


def criteo_lines():
    folder = os.environ.get("DEEPREC_DATA_DIR")
    path = Path(folder or "", "criteo/criteo_kaggle_merged_24k.tsv")
    if not folder or not path.exists():
        raise Unavailable("no criteo/criteo_kaggle_merged_24k.tsv in DEEPREC_DATA_DIR")
    return path


def measure_smart_stage(sides, name, model, intra_op, pause=0.0):
    path, figures = criteo_lines(), Figures(name)
    models, changed = sides.models_of(model, path, pause, (intra_op, 2))
    if not changed:
        raise Unavailable(f"failed: smart_stage moves nothing in {model}")
    losses = {side: made.losses(EQUAL_STEPS) for side, made in models.items()}
    for side, values in losses.items():
        if values != losses["ours"]:
            raise Unavailable(f"wrong answer: losses of {model}, ours {losses['ours']}, {side} {values}")
    stage_share, moved_share = [], []

    def one_round():
        seconds = figures.turn({side: lambda made=made: made.seconds(STEPS) for side, made in models.items()})
        for side in ("unstaged", "user"):
            figures.add(f"over_{side}", seconds[side] / seconds["ours"])
        of_stage = {side: models[side].stage_seconds(STEPS // 4) for side in ("ours", "user")}
        stage_share.append(of_stage["ours"] / seconds["unstaged"])
        moved_share.append((of_stage["ours"] - of_stage["user"]) / seconds["unstaged"])

    figures.sample(one_round)
    counters = counters_of(figures, stage_share=median(stage_share), moved_share=median(moved_share))
    for side, made in models.items():
        counters[f"{side}_steps_per_s"] = 1e6 / counters[f"{side}_us"]
        made.close()
    return counters


BENCHMARKS = {
    "frameworks_tf/safe_lookup/forward": lambda sides, name: measure_safe_lookup(
        sides, name, sides.Lookups.forward, 1e-5
    ),
    "frameworks_tf/safe_lookup/backward": lambda sides, name: measure_safe_lookup(
        sides, name, sides.Lookups.backward, 1e-5
    ),
    "frameworks_tf/keras/wdl": measure_keras,
    "frameworks_tf/row_select/slope": measure_row_select,
    "frameworks_tf/row_select/big": measure_large_row_select,
    "frameworks_tf/smart_stage/wdl": lambda sides, name: measure_smart_stage(sides, name, "wdl", 1),
    "frameworks_tf/smart_stage/dlrm": lambda sides, name: measure_smart_stage(sides, name, "dlrm", 1),
    "frameworks_tf/smart_stage/bound/wdl": lambda sides, name: measure_smart_stage(sides, name, "wdl", 2),
    "frameworks_tf/smart_stage/bound/dlrm": lambda sides, name: measure_smart_stage(sides, name, "dlrm", 2),
    "frameworks_tf/smart_stage/throttled": lambda sides, name: measure_smart_stage(sides, name, "wdl", 1, 0.002),
}


# The program.


def load_sides():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"  # else all sessions have the intra-op threads of the first one
    try:
        importlib.import_module("tensorflow")
    except ImportError as problem:
        raise Unavailable(f"TensorFlow is not installed: {problem}") from problem
    sides = importlib.import_module("tensorflow_sides")
    if not sides.deeprec_tf:
        raise Unavailable(sides.deeprec_problem)
    keep_freed_memory()
    sides.set_threads(THREADS)
    return sides


def label_of(sides):
    """What makes figures no evidence, or less of it."""
    words = []
    if os.environ.get("DEEPREC_BENCH_ROWS"):
        words.append("unfit: DEEPREC_BENCH_ROWS bounds the rows")
    built = next(Path(sides.deeprec_tf.__file__).parent.glob("_ops*.so")).stat().st_mtime
    sources = [ROOT / "include", ROOT / "examples/tensorflow/csrc"]
    if any(path.stat().st_mtime > built for source in sources for path in source.rglob("*.[chi]*")):
        words.append("deeprec_tf is older than the sources here")
    return "; ".join(words)


def run(names, _arguments):
    try:
        sides = load_sides()
    except Unavailable as problem:
        print(f"SKIPPED: {problem}")
        return {}, [error_of(name, str(problem)) for name in names]
    gc.disable()  # a collection would be part of some samples

    def measure(name):
        gc.collect()
        counters = BENCHMARKS[name](sides, name)
        ours = [value for key, value in counters.items() if key.startswith("ours_us")]
        return {**counters, "label": label_of(sides)}, max(ours)

    return {"tensorflow": sides.tf.__version__}, measured(names, measure)


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1:], "deeprec_tf beside TensorFlow", {}, list(BENCHMARKS), run))
