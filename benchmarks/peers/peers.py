#!/usr/bin/env python3
"""The same model trained by train_ctr and by PyTorch, on the same rows from the same first weights.

A suite like the C++ ones, `peers` for scripts/bench.sh: it lists its benchmarks (--benchmark_list_tests), filters them
(--benchmark_filter) and writes a report in the form of Google Benchmark (--benchmark_out). PyTorch and fbgemm_gpu are
optional peers: without PyTorch, without train_ctr or without the data every benchmark reports the reason and no
figure; without fbgemm_gpu its figures are missing and a line says so. README.md beside this file has the figures.

DEEPREC_BENCH_PAIRS sets the number of pairs (21).
"""

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
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from peer_suite import (  # noqa: E402
    OtherProcesses,
    Unavailable,
    error_of,
    figure,
    load_torch,
    measured,
    median,
    pairs_wanted,
    run_program,
)

DATA = "criteo/criteo_kaggle_merged_24k.tsv"
THREADS = 2
SEED = 1
SECONDS_OF_A_RUN = 0.5  # at least, of each side
LEAST_EPOCHS = 5  # of ours, in a run
WARM_UP = 5  # steps of PyTorch, which also estimate the time of a step
EQUAL_STEPS, EQUAL_BATCH, EQUAL_SQUARES = 50, 128, 0.1

KAGGLE = ["--width", "16", "--bottom", "512,256,64", "--top", "512,256"]
SPEEDS = {
    "peers/dlrm/batch:128": ("dlrm", 128, []),
    "peers/dlrm/batch:2048": ("dlrm", 2048, []),
    "peers/dlrm_kaggle/batch:2048": ("dlrm", 2048, KAGGLE),
    "peers/wdl/batch:2048": ("wdl", 2048, []),
    "peers/deepfm/batch:2048": ("deepfm", 2048, []),
}
EQUALS = {f"peers/equal/{model}": model for model in ("dlrm", "wdl", "deepfm")}


class TrainCtr:
    def __init__(self, program, folder):
        self.data = Path(os.environ.get("DEEPREC_DATA_DIR") or ".", DATA)
        self.program, self.result = program, Path(folder, "result.json")
        if not program or not Path(program).exists():
            raise Unavailable("train_ctr is not built")
        if not self.data.exists():
            raise Unavailable(f"no {DATA} in DEEPREC_DATA_DIR")

    def run(self, model, batch_size, arguments):
        """What --json says of the model."""
        command = [self.program, "--data", self.data, "--model", model, "--batch-size", str(batch_size)]
        command += ["--threads", str(THREADS), "--seed", str(SEED), "--json", self.result, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise Unavailable(f"failed: train_ctr ended with {ended.returncode}: {ended.stderr.strip()[-200:]}")
        return json.loads(self.result.read_text(encoding="utf-8"))["models"][0]


def forms_of(peer):
    """The forms that there are here."""
    return [form for form in peer.FORMS if form != "fbgemm" or peer.fbgemm_gpu]


# Speed.


def auc_after_an_epoch(peer, export, trainer, batches):
    trainer.train(batches)
    test = export.batches("test", 4096, trainer.model.prepare)
    return peer.auc_of(trainer.logits(test), export.test_labels)


class TorchRun:
    """A form of PyTorch; each call trains on from where the last one ended. The batches lie in memory."""

    def __init__(self, peer, export, form, batch_size):
        self.trainer = peer.Trainer(export, form)
        self.batches = export.batches("train", batch_size, self.trainer.model.prepare)
        self.auc = auc_after_an_epoch(peer, export, self.trainer, self.batches)
        self.ahead = itertools.cycle(self.batches)
        self.steps = WARM_UP
        seconds = WARM_UP * batch_size / self()
        self.steps = max(WARM_UP, math.ceil(WARM_UP * SECONDS_OF_A_RUN / seconds))

    def __call__(self):
        """Samples per second."""
        batches = list(itertools.islice(self.ahead, self.steps))
        start = time.perf_counter()
        self.trainer.train(batches)
        return sum(len(labels) for _, labels, _ in batches) / (time.perf_counter() - start)


def measure_speed(peer, train_ctr, folder, model, batch_size, sizes, pairs):
    ours = train_ctr.run(model, batch_size, [*sizes, "--export", folder])
    export = peer.Export(folder)
    samples = len(export.array("train_labels"))
    counters = {"auc": peer.auc_of(export.test_logits, export.test_labels)}
    if abs(counters["auc"] - ours["auc"]) > 1e-4:
        raise Unavailable(f"wrong answer: AUC {counters['auc']} of the exported logits, {ours['auc']} by train_ctr")

    runs = {form: TorchRun(peer, export, form, batch_size) for form in forms_of(peer)}
    counters.update({f"auc_{form}": run.auc for form, run in runs.items()})
    rowwise = peer.Trainer(export, "one_table", rowwise=True)
    counters["auc_rowwise"] = auc_after_an_epoch(peer, export, rowwise, runs["one_table"].batches)
    del rowwise
    first = train_ctr.run(model, batch_size, [*sizes, "--epochs", str(LEAST_EPOCHS)])["samples_per_second"]
    epochs = max(LEAST_EPOCHS, math.ceil(SECONDS_OF_A_RUN * first / samples))
    runs["ours"] = lambda: train_ctr.run(model, batch_size, [*sizes, "--epochs", str(epochs)])["samples_per_second"]

    speeds, others = {name: [] for name in runs}, OtherProcesses()
    for pair in range(pairs):
        for name in list(runs) if pair % 2 else reversed(runs):
            speeds[name].append(runs[name]())
    counters["others"] = others.share()
    counters.update({f"{name}_per_second": median(values) for name, values in speeds.items()})
    theirs = [form for form in runs if form != "ours"]
    ratios = {form: [mine / other for mine, other in zip(speeds["ours"], speeds[form])] for form in theirs}
    for form, values in ratios.items():
        counters.update(figure(f"speedup_{form}", values))
    bags = [form for form in ratios if form != "fbgemm"]
    best, best_of_all = (min(forms, key=lambda form: median(ratios[form])) for forms in (bags, list(ratios)))
    counters.update(figure("speedup", ratios[best]))  # over the faster form of EmbeddingBag
    counters.update(figure("speedup_best", ratios[best_of_all]))  # over the fastest form
    counters.update(figure("auc_difference", [abs(counters["auc"] - counters["auc_rowwise"])] * pairs))
    counters.update(figure("auc_below", [counters[f"auc_{best}"] - counters["auc"]] * pairs))
    counters.update(pairs=float(pairs), samples=float(samples), test_samples=float(len(export.test_labels)))
    return counters, 1e6 * samples / counters["ours_per_second"]


# Equal numbers.


def measure_equality(peer, train_ctr, folder, model, pairs):
    """The greatest difference of a test logit from ours, and between PyTorch with one and with two threads."""
    arguments = ["--steps", str(EQUAL_STEPS), "--initial-squares", str(EQUAL_SQUARES), "--export", folder]
    train_ctr.run(model, EQUAL_BATCH, arguments)
    export = peer.Export(folder)
    logits = {}
    for threads in (1, THREADS):
        peer.torch.set_num_threads(threads)
        trainer = peer.Trainer(export, "one_table", rowwise=True)
        batches = export.batches("train", EQUAL_BATCH, trainer.model.prepare)[:EQUAL_STEPS]
        began = time.perf_counter()
        trainer.train(batches)
        seconds = time.perf_counter() - began
        logits[threads] = trainer.logits(export.batches("test", 4096, trainer.model.prepare))
    difference = float(abs(logits[THREADS] - export.test_logits).max())
    untrained = peer.Trainer(export, "one_table")
    first = untrained.logits(export.batches("test", 4096, untrained.model.prepare))
    counters = {
        **figure("logit_difference", [difference] * pairs),
        "one_thread_difference": float(abs(logits[1] - logits[THREADS]).max()),
        "trained_by": float(abs(logits[THREADS] - first).max()),  # what 50 steps change a logit by
        "pairs": float(pairs),
    }
    return counters, 1e6 * seconds


# The program.


def line_of(name, counters):
    if "logit_difference" in counters:
        return (
            "{name}: test logits within {logit_difference:.2g} of PyTorch's, PyTorch's with one thread within "
            "{one_thread_difference:.2g}; {trained_by:.2g} by training"
        ).format(name=name, **counters)
    forms = [key.removeprefix("auc_") for key in counters if f"speedup_{key.removeprefix('auc_')}" in counters]
    lines = [
        "{name}: speedup {speedup:.3g} [{speedup_low:.3g}..{speedup_high:.3g}], ours {ours_per_second:.0f} samples/s, "
        "AUC {auc:.4f} (PyTorch with rowwise Adagrad {auc_rowwise:.4f})".format(name=name, **counters)
    ]
    lines += [
        f"  PyTorch, {form}: {counters[f'{form}_per_second']:.0f} samples/s, AUC {counters[f'auc_{form}']:.4f}; "
        f"ours over it {counters[f'speedup_{form}']:.3g}"
        for form in forms
    ]
    return "\n".join(lines)


def run(names, arguments):
    try:
        with tempfile.TemporaryDirectory() as folder:
            TrainCtr(arguments.train_ctr, folder)
        peer = load_torch("torch_models")
    except Unavailable as problem:
        print(f"SKIPPED: {problem}")
        return {}, [error_of(name, str(problem)) for name in names]
    peers = {"torch": peer.torch.__version__, "numpy": peer.np.__version__}
    if peer.fbgemm_gpu:
        peers["fbgemm_gpu"] = peer.fbgemm_gpu.__version__
    else:
        print(f"ABSENT: {peer.fbgemm_problem}")
    pairs = pairs_wanted(21)

    def measure(name):
        peer.torch.set_num_threads(THREADS)
        with tempfile.TemporaryDirectory() as folder:
            train_ctr = TrainCtr(arguments.train_ctr, folder)
            if name in SPEEDS:
                return measure_speed(peer, train_ctr, folder, *SPEEDS[name], pairs)
            return measure_equality(peer, train_ctr, folder, EQUALS[name], pairs)

    return peers, measured(names, measure, line_of)


if __name__ == "__main__":
    sys.exit(
        run_program(
            sys.argv[1:],
            "Models trained by train_ctr and by PyTorch",
            {"--train-ctr": "the program"},
            [*SPEEDS, *EQUALS],
            run,
        )
    )
