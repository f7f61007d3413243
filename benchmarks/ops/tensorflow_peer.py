#!/usr/bin/env python3
"""TensorFlow's CPU kernels against ours, in one process, on the same arrays, one thread each.

A suite like the C++ ones: it lists its benchmarks (--benchmark_list_tests), filters them (--benchmark_filter) and
writes a report in the form of Google Benchmark (--benchmark_out), so that scripts/bench.sh reproduce runs it as the
suite `tensorflow`. TensorFlow is an optional peer: without it, or without our library, every benchmark reports the
reason and no figure.

  tensorflow/where, select, dynamic_stitch, transpose, tile, bias_add_grad, sparse_segment_mean

The time of an op is a slope: graphs with 1 and with 65 copies of the op, one after another, are run alternately, and
the difference over 64 is one op. What one run costs beside its op is op_overhead_us. Ours is called 1 and 65 times by
one call of a C function, for the same slope. A pair of slopes gives one value of `speedup` (TensorFlow's time over
ours), every second pair is measured in the opposite order, and the report has the median with its 95 % interval.

Graph optimizations are off, since they would merge the copies; a trace of one run shows that all of them ran.
TensorFlow allocates each result, ours writes to memory of the caller. glibc is set to keep freed memory, so that
TensorFlow's allocations return to it without page faults.

Our library (--library, libdeeprec_ops_peer.so, of benchmarks/ops/peer.cpp) exports C functions. Matrices are dense
and row by row. Each function performs the op `calls` times and returns 0, or anything else for an error:

  int deeprec_peer_row_select(const uint8_t* cond, const float* then, const float* otherwise, float* out,
                              int64_t rows, int64_t width, int64_t calls);
      out[r] = cond[r] ? then[r] : otherwise[r]                    all (rows, width); cond (rows), 0 or 1
  int deeprec_peer_dynamic_stitch(const int32_t* const* indices, const float* const* data, int64_t parts,
                                  int64_t rows, int64_t width, float* out, int64_t out_rows, int64_t calls);
      out[indices[p][r]] = data[p][r]                              indices[p] (rows), data[p] (rows, width)
  int deeprec_peer_transpose(const float* in, float* out, int64_t rows, int64_t cols, int64_t calls);
      in (rows, cols), out (cols, rows)
  int deeprec_peer_tile(const float* in, float* out, int64_t rows, int64_t cols, int64_t times_down,
                        int64_t times_across, int64_t calls);
      in (rows, cols), out (rows * times_down, cols * times_across)
  int deeprec_peer_bias_add_grad(const float* in, float* out, int64_t rows, int64_t cols, int64_t calls);
      out[c] = sum over r of in[r][c]                              in (rows, cols), out (cols)
  int deeprec_peer_sparse_segment_mean(const float* data, int64_t data_rows, int64_t width, const int64_t* indices,
                                       const int64_t* segments, int64_t entries, float* out, int64_t out_rows,
                                       int64_t calls);
      out[s] = mean of data[indices[e]] over the e with segments[e] == s; 0 where there are none. segments ascend

DEEPREC_BENCH_PAIRS sets the number of pairs (41).
"""

import ctypes
import math
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from peer_suite import (  # noqa: E402
    Unavailable,
    entry_of,
    error_of,
    figure,
    keep_freed_memory,
    median,
    pairs_wanted,
    run_program,
)

COPIES = 65
SECONDS_OF_A_STEP = 0.02  # small ops are timed several times in a round
OUR_ERROR, THEIR_ERROR = (
    1e-5,
    1e-2,
)  # of sums, over the sum of absolute values; TensorFlow adds 51200 floats in order


# What the ops need.


def load_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import numpy
        import tensorflow
    except ImportError as problem:
        raise Unavailable(f"TensorFlow is not installed: {problem}") from problem
    return tensorflow, numpy


def load_library(path):
    if not path:
        raise Unavailable("libdeeprec_ops_peer.so is not built")
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise Unavailable(f"libdeeprec_ops_peer.so does not load: {problem}") from problem


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])


class Op:
    """One comparison: inputs, the graph of one copy, and the call of ours."""

    def __init__(self, inputs, graph, function, arguments, out, sums=None):
        self.inputs = inputs  # arrays, which the graph gets as tensors
        self.graph = graph  # tensors -> a tensor
        self.function = function
        self.arguments = arguments  # of the C function, without `calls`
        self.out = out
        self.sums = sums  # the result in double, for ops that round; all inputs are positive


def select_inputs(np, rng):
    cond = rng.integers(0, 2, 1024).astype(bool)
    return [cond, rng.random((1024, 64), np.float32), rng.random((1024, 64), np.float32)]


def select_op(np, inputs, graph):
    cond, then, otherwise = inputs
    out = np.empty_like(then)
    arguments = [*map(pointer, (cond, then, otherwise, out)), *map(ctypes.c_int64, then.shape)]
    return Op(inputs, graph, "deeprec_peer_row_select", arguments, out)


def where(tf, np, rng):
    cond, then, otherwise = select_inputs(np, rng)
    return select_op(np, [cond.reshape(-1, 1), then, otherwise], tf.where)  # (1024, 1): broadcast along the rows


def select(tf, np, rng):
    return select_op(np, select_inputs(np, rng), lambda c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y))


def dynamic_stitch(tf, np, rng):
    parts, rows, width = 40, 2500, 64
    order = rng.permutation(parts * rows).astype(np.int32)
    indices = [np.ascontiguousarray(piece) for piece in np.split(order, parts)]
    data = [rng.random((rows, width), np.float32) for _ in range(parts)]
    out = np.empty((parts * rows, width), np.float32)
    arguments = [
        pointers(indices),
        pointers(data),
        *map(ctypes.c_int64, (parts, rows, width)),
        pointer(out),
        ctypes.c_int64(parts * rows),
    ]

    def graph(*tensors):
        return tf.raw_ops.DynamicStitch(indices=list(tensors[:parts]), data=list(tensors[parts:]))

    return Op(indices + data, graph, "deeprec_peer_dynamic_stitch", arguments, out)


def transpose(tf, np, rng):
    values = rng.random((1024, 64), np.float32)
    out = np.empty((64, 1024), np.float32)
    arguments = [pointer(values), pointer(out), *map(ctypes.c_int64, values.shape)]
    return Op([values], tf.transpose, "deeprec_peer_transpose", arguments, out)


def tile(tf, np, rng):
    values, times = rng.random((512, 50), np.float32), (2, 50)
    out = np.empty((1024, 2500), np.float32)
    arguments = [pointer(values), pointer(out), *map(ctypes.c_int64, values.shape + times)]
    return Op([values], lambda x: tf.tile(x, times), "deeprec_peer_tile", arguments, out)


def bias_add_grad(tf, np, rng):
    values = rng.random((51200, 512), np.float32)
    out = np.empty(512, np.float32)
    arguments = [pointer(values), pointer(out), *map(ctypes.c_int64, values.shape)]
    return Op(
        [values],
        lambda x: tf.raw_ops.BiasAddGrad(out_backprop=x),
        "deeprec_peer_bias_add_grad",
        arguments,
        out,
        sums=values.sum(axis=0, dtype=np.float64),
    )


def sparse_segment_mean(tf, np, rng):
    rows, width, segment_count = 51200, 128, 5120
    data = rng.random((rows, width), np.float32)
    indices = rng.integers(0, rows, rows)
    segments = np.sort(rng.integers(0, segment_count, rows))
    segments[-1] = segment_count - 1  # so that both have as many rows
    out = np.empty((segment_count, width), np.float32)
    sums = np.zeros(out.shape)
    np.add.at(sums, segments, data[indices])
    sums /= np.maximum(np.bincount(segments, minlength=segment_count), 1)[:, None]
    arguments = [
        pointer(data),
        *map(ctypes.c_int64, data.shape),
        pointer(indices),
        pointer(segments),
        ctypes.c_int64(rows),
        pointer(out),
        ctypes.c_int64(segment_count),
    ]
    return Op(
        [data, indices, segments],
        tf.sparse.segment_mean,
        "deeprec_peer_sparse_segment_mean",
        arguments,
        out,
        sums=sums,
    )


OPS = {
    f"tensorflow/{make.__name__}": make
    for make in (where, select, dynamic_stitch, transpose, tile, bias_add_grad, sparse_segment_mean)
}
# The published operators, Select by the faster of TensorFlow's two formulations.
SIX = [name for name in OPS if name != "tensorflow/where"]
ALL_SIX = "tensorflow/all_six"


# Both sides.


class Graphs:
    """A session with the op once and with all copies of it."""

    def __init__(self, tf, op):
        self.tf = tf
        v1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            fed = [v1.placeholder(array.dtype, array.shape) for array in op.inputs]
            kept = [v1.Variable(tensor, trainable=False, use_resource=False) for tensor in fed]
            tensors = [variable.value() for variable in kept]
            self.first = op.graph(*tensors)
            self.one = tf.group(self.first)
            before = {operation.name for operation in graph.get_operations()}
            copies = []
            for _ in range(COPIES):  # in a chain, so that each begins on the thread that ended the one before
                with tf.control_dependencies(copies[-1:]):
                    copies.append(op.graph(*tensors))
            # Those that compute the results, without the constants beside them.
            self.copies = {copy.op.name for copy in copies} - before
            self.many = tf.group(*copies)
            config = v1.ConfigProto(
                intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=True
            )
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
            self.session = v1.Session(graph=graph, config=config)
            self.session.run(v1.global_variables_initializer(), dict(zip(fed, op.inputs)))
            self.run_one = self.session.make_callable(self.one)
            self.run_many = self.session.make_callable(self.many)

    def result(self):
        return self.session.run(self.first)

    def copies_run(self):
        """How many of the copies one run performs."""
        v1 = self.tf.compat.v1
        metadata = v1.RunMetadata()
        self.session.run(self.many, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
        ran = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
        return len(ran & self.copies)


def ours_of(library, op):
    try:
        function = getattr(library, op.function)
    except AttributeError as problem:
        raise Unavailable(f"libdeeprec_ops_peer.so has no {op.function}") from problem
    function.restype = ctypes.c_int

    def call(calls):
        if function(*op.arguments, ctypes.c_int64(calls)) != 0:
            raise Unavailable(f"failed: {op.function} returned an error")

    return call


def wrong_answer(np, op, theirs):
    """Whose result is wrong; empty: neither."""
    if op.out.shape != theirs.shape:
        return f"ours has the shape {op.out.shape}, TensorFlow's {theirs.shape}"
    if op.sums is None:
        return "" if op.out.tobytes() == theirs.tobytes() else "ours is not TensorFlow's"
    for whose, result, error in (("ours", op.out, OUR_ERROR), ("TensorFlow's", theirs, THEIR_ERROR)):
        if not (np.abs(result - op.sums) <= error * op.sums).all():
            return f"{whose} is not what sums in double are"
    return ""


def seconds_of(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def measured_round(graphs, ours, swapped, times=1):
    """Seconds of TensorFlow's 1 and 65 and of ours, each the median of so many in turn."""
    steps = [
        ("one", graphs.run_one, ()),
        ("many", graphs.run_many, ()),
        ("our_one", ours, (1,)),
        ("our_many", ours, (COPIES,)),
    ]
    seconds = {name: [] for name, _, _ in steps}
    for _ in range(times):
        for name, call, arguments in steps[::-1] if swapped else steps:
            seconds[name].append(seconds_of(call, *arguments))
    return {name: median(values) for name, values in seconds.items()}


def slopes(times):
    steps = COPIES - 1
    return (times["many"] - times["one"]) / steps, (times["our_many"] - times["our_one"]) / steps


def measure(tf, np, library, make, pairs):
    """The counters of one benchmark, and the ratios of its pairs."""
    op = make(tf, np, np.random.default_rng(7))
    ours = ours_of(library, op)
    graphs = Graphs(tf, op)
    op.out.fill(-1)
    ours(1)
    wrong = wrong_answer(np, op, graphs.result())
    if wrong:
        raise Unavailable(f"wrong answer: {wrong}")
    if graphs.copies_run() != COPIES:
        raise Unavailable(f"failed: a run performs {graphs.copies_run()} of {COPIES} copies")
    measured_round(graphs, ours, False)  # uncounted
    many = measured_round(graphs, ours, False)["our_many"]
    times = min(25, max(1, round(SECONDS_OF_A_STEP / many)))
    rounds = [measured_round(graphs, ours, turn % 2 == 1, times) for turn in range(pairs)]
    theirs, own = zip(*map(slopes, rounds))
    ratios = [t / o if o > 0 else math.inf for t, o in zip(theirs, own)]  # noise may make a slope negative
    speedup = speedup_of(ratios)
    if min(median(theirs), median(own), speedup["speedup_low"]) <= 0 or math.isinf(speedup["speedup_high"]):
        raise Unavailable("unfit: noise of the machine is larger than the time of 64 ops")
    overheads = [seconds["one"] - slope for seconds, slope in zip(rounds, theirs)]
    counters = {
        **speedup,
        "tensorflow_us": median(theirs) * 1e6,
        "ours_us": median(own) * 1e6,
        "op_overhead_us": median(overheads) * 1e6,
    }
    return counters, ratios


def speedup_of(ratios):
    return {**figure("speedup", ratios), "pairs": float(len(ratios))}


def geometric_mean(ratios):
    """The counters of ALL_SIX: pair by pair, the geometric mean over the operators."""
    missing = [name for name in SIX if name not in ratios]
    if missing:
        raise Unavailable(f"not run: {', '.join(missing)}")
    means = [
        math.exp(sum(math.log(ratio) for ratio in pair) / len(pair))
        for pair in zip(*(ratios[name] for name in SIX))
        if all(0 < ratio < math.inf for ratio in pair)
    ]
    return {**speedup_of(means), "ours_us": 0.0}


# The program.


def run(names, arguments):
    try:
        library = load_library(arguments.library)
        keep_freed_memory()
        tf, np = load_tensorflow()
    except Unavailable as problem:
        return {}, [error_of(name, str(problem)) for name in names]
    pairs = pairs_wanted(41)
    entries, ratios = [], {}
    for name in names:
        try:
            if name == ALL_SIX:
                counters = geometric_mean(ratios)
            else:
                counters, ratios[name] = measure(tf, np, library, OPS[name], pairs)
        except Unavailable as problem:
            entries.append(error_of(name, str(problem)))
            print(f"{name}: {problem}")
            continue
        entries.append(entry_of(name, counters, counters["ours_us"]))
        line = "{name}: speedup {speedup:.3g} [{speedup_low:.3g}..{speedup_high:.3g}]"
        if name != ALL_SIX:
            line += ", TensorFlow {tensorflow_us:.1f} us + {op_overhead_us:.1f} us, ours {ours_us:.1f} us"
        print(line.format(**entries[-1]))
    return {"tensorflow": tf.__version__, "numpy": np.__version__}, entries


if __name__ == "__main__":
    sys.exit(
        run_program(
            sys.argv[1:],
            "TensorFlow's CPU kernels against ours",
            {"--library": "libdeeprec_ops_peer.so"},
            [*OPS, ALL_SIX],
            run,
        )
    )
