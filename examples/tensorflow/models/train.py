#!/usr/bin/env python3
"""Trains Wide & Deep and DLRM in TensorFlow three times: without a stage, with the user's, and with smart_stage's.

    python train.py --data train.tsv --model wdl --model dlrm --steps 300 --intra 1

For each model a line: steps per second of the three, and whether the losses of all steps are the same. --explain prints what moved and why the rest stayed.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402

import deeprec_tf  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ctr_graphs  # noqa: E402

v1 = tf.compat.v1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="lines as Criteo's: a label, 13 integers, 26 tokens, by tabs")
    parser.add_argument("--model", action="append", choices=sorted(ctr_graphs.MODELS), help="default: all")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--buckets", type=int, default=10_000, help="rows of each table")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=2, help="records ahead of the steps")
    parser.add_argument("--intra", type=int, default=0, help="threads of an op; 0: one for each processor")
    parser.add_argument("--inter", type=int, default=2, help="ops at once")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that the source lets each batch wait")
    parser.add_argument("--explain", action="store_true")
    return parser.parse_args()


def threads_of(options):
    return v1.ConfigProto(intra_op_parallelism_threads=options.intra, inter_op_parallelism_threads=options.inter)


def train(graph, step, puts, options):
    """Losses of all steps, and steps per second of the second half."""
    losses, half = [], options.steps // 2
    with v1.Session(graph=graph, config=threads_of(options)) as session:
        session.run("init")
        staged = deeprec_tf.StagedSession(session, puts, options.capacity) if puts else None
        run = staged.run if staged else session.run
        try:
            for i in range(options.steps):
                if i == half:
                    start = time.perf_counter()
                losses.append(run(step.fetches)[0])
            rate = (options.steps - half) / (time.perf_counter() - start)
        finally:
            if staged:
                staged.close()
    return losses, rate


def trace(step, options):
    """What the ops of a step and of its put cost, of three steps after the first ones."""
    full, traced = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), []
    with v1.Session(graph=step.graph, config=threads_of(options)) as session:
        session.run("init")
        for i in range(8):
            metadata = v1.RunMetadata()
            session.run([step.put, *step.fetches], options=full, run_metadata=metadata)
            if i >= 5:
                traced.append(metadata)
    return traced


def main():
    options = arguments()
    sizes = ctr_graphs.Sizes(options.batch, options.buckets, options.width)
    for model in options.model or sorted(ctr_graphs.MODELS):
        plain = ctr_graphs.build(model, options.data, sizes, False, options.pause)
        step = ctr_graphs.build(model, options.data, sizes, True, options.pause)
        made = deeprec_tf.smart_stage(step.graph, step.fetches, traced_steps=trace(step, options))
        if options.explain:
            print(made.explanation)
        runs = [
            train(plain.graph, plain, [], options),
            train(step.graph, step, [step.put], options),
            train(made.graph, step, made.puts, options),
        ]
        same = all(losses == runs[0][0] for losses, _ in runs)
        rates = [rate for _, rate in runs]
        print(
            f"{model}: unstaged {rates[0]:.1f}, user's stage {rates[1]:.1f}, smart_stage {rates[2]:.1f} steps/s;"
            f" loss {runs[0][0][0]:.4f} to {runs[0][0][-1]:.4f}, {'the same' if same else 'DIFFERENT'} in all three",
            flush=True,
        )
        if not same:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
