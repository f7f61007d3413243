"""The sides of tensorflow_suite.py: lookups as functions, selects and models as graphs with a session each."""

import ctypes
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/tensorflow/models"))

v1 = tf.compat.v1
try:
    import ctr_graphs
    import deeprec_tf

    deeprec_problem = ""
except ImportError as problem:
    deeprec_tf, deeprec_problem = None, f"deeprec_tf is not installed: {problem}"


def set_threads(threads):
    """Of the functions. Sessions have pools of their own."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def keep_large_memory():
    """The heap for results of any size, after peer_suite.keep_freed_memory()."""
    mmap_max = -4
    ctypes.CDLL(None).mallopt(mmap_max, 0)


def config_of(intra_op, inter_op, optimized=True):
    config = v1.ConfigProto(
        intra_op_parallelism_threads=intra_op, inter_op_parallelism_threads=inter_op, use_per_session_threads=True
    )
    if not optimized:  # nothing that would merge equal ops
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    return config


# Lookups.

LOOKUPS = {}
if deeprec_tf:
    LOOKUPS = {
        "ours": deeprec_tf.safe_embedding_lookup_sparse,
        "tensorflow": tf.nn.safe_embedding_lookup_sparse,
    }
MOST_IDS = 5


def random_ids(rng, rows, batch):
    """1 to 5 ids in a bag; one in 50 is -1, and one bag in 20 is empty."""
    sizes = rng.integers(1, MOST_IDS + 1, batch)
    sizes[rng.random(batch) < 0.05] = 0
    places = np.arange(MOST_IDS) < sizes[:, None]
    ids = rng.integers(0, rows, int(sizes.sum()))
    ids[rng.random(len(ids)) < 0.02] = -1
    return tf.SparseTensor(np.argwhere(places), ids, [batch, MOST_IDS])


class Lookups:
    """26 variables, and both sides' functions of the same ids on them."""

    def __init__(self, tables, rows, width, batch, rng):
        made = [rng.standard_normal((rows, width), np.float32) for _ in range(tables)]
        self.variables = [tf.Variable(values) for values in made]
        self.gradients = [tf.constant(rng.standard_normal((batch, width), np.float32)) for _ in range(tables)]
        self.rows, self.batch, self.rng = rows, batch, rng

    def ids(self):
        return [random_ids(self.rng, self.rows, self.batch) for _ in self.variables]

    def _pooled(self, lookup, ids):
        return [lookup(table, one, combiner="mean") for table, one in zip(self.variables, ids)]

    def _stepped(self, lookup, ids):
        with tf.GradientTape() as tape:
            pooled = self._pooled(lookup, ids)
        return tape.gradient(pooled, self.variables, self.gradients)

    def forward(self):
        return self._functions(self._pooled)

    def backward(self):
        """The gradients of all tables, IndexedSlices of each side's own rows."""
        return self._functions(self._stepped)

    def _functions(self, of):
        """{side: calls of a set of ids}. The ids of a set are captured by a function of its own: to pass 26 SparseTensors
        to one function takes Python longer than the lookups of either side."""
        functions = {}
        for side, lookup in LOOKUPS.items():
            made = {}

            def call(ids, lookup=lookup, made=made):
                if id(ids) not in made:
                    made[id(ids)] = tf.function(lambda: of(lookup, ids))
                return made[id(ids)]()

            functions[side] = call
        return functions

    def differences(self, functions, ids):
        """The largest one of any table, between values that were drawn from a normal distribution."""
        made = [[self._dense(value) for value in function(ids)] for function in functions.values()]
        if any(a.shape != b.shape for a, b in zip(*made)):
            return float("inf")
        return max(float(np.abs(a - b).max()) for a, b in zip(*made))

    @staticmethod
    def _dense(value):
        if not isinstance(value, tf.IndexedSlices):
            return value.numpy()
        shape = tf.cast(value.dense_shape, tf.int64)
        return tf.scatter_nd(tf.cast(value.indices, tf.int64)[:, None], value.values, shape).numpy()


# Wide & Deep in Keras: `tables` features of a wide and a deep variable each, with as many ids as Lookups', 13 numbers.


class KerasModels:
    """{side: a training step as a function}: of TensorFlow's lookups and Keras's Adagrad, of ours and the same Adagrad, and of ours and
    deeprec_tf.keras.RowAdagrad. All have the same weights."""

    def __init__(self, tables, rows, width, batch, rng):
        import keras  # after the threads are set
        from deeprec_tf.keras import RowAdagrad

        self.tables, self.rows, self.width, self.batch, self.rng, self.keras = tables, rows, width, batch, rng, keras
        adagrad = keras.optimizers.Adagrad
        self.steps = {
            "ours": self._step(LOOKUPS["ours"], RowAdagrad),
            "lookups": self._step(LOOKUPS["ours"], adagrad),
            "tensorflow": self._step(lambda table, ids, combiner: LOOKUPS["tensorflow"](table.value, ids, combiner=combiner), adagrad),
        }

    def _model(self, lookup):
        keras, rows = self.keras, self.rows

        class Pooled(keras.layers.Layer):
            def __init__(self, width, seed):
                super().__init__()
                self.table = self.add_weight(shape=(rows, width), initializer=keras.initializers.RandomNormal(stddev=0.05, seed=seed))
                self.built = True

            def call(self, ids):
                return lookup(self.table, ids, combiner="mean")

        class WideAndDeep(keras.Model):
            def __init__(self, tables, width):
                super().__init__()
                self.wide = [Pooled(1, seed) for seed in range(tables)]
                self.deep = [Pooled(width, seed) for seed in range(tables)]
                self.hidden = [keras.layers.Dense(units, activation="relu") for units in (256, 128, 64)]
                self.head = keras.layers.Dense(1)

            def call(self, numbers, ids):
                x = tf.concat([numbers, *(layer(one) for layer, one in zip(self.deep, ids))], 1)
                for layer in self.hidden:
                    x = layer(x)
                return self.head(x) + tf.add_n([layer(one) for layer, one in zip(self.wide, ids)])

        return WideAndDeep(self.tables, self.width)

    def _step(self, lookup, adagrad):
        self.keras.utils.set_random_seed(1)
        model, optimizer = self._model(lookup), adagrad(0.02)
        functions = {}

        def step(batch):
            numbers, labels, ids = batch
            with tf.GradientTape() as tape:
                logits = model(numbers, ids)
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        def call(batch):
            """A batch is captured by a function of its own, as Lookups' ids are."""
            if id(batch) not in functions:
                if not functions:
                    step(batch)  # makes the variables
                functions[id(batch)] = tf.function(lambda: step(batch))
            return functions[id(batch)]()

        return call

    def batches(self, count):
        rng = self.rng
        return [
            (
                tf.constant(rng.standard_normal((self.batch, 13), np.float32)),
                tf.constant(rng.integers(0, 2, (self.batch, 1)), tf.float32),
                [random_ids(rng, self.rows, self.batch) for _ in range(self.tables)],
            )
            for _ in range(count)
        ]


# Selects.


class Selects:
    """Chains of selects of rows on variables, of both sides, in one session."""

    def __init__(self, shape, copies, threads):
        forms = {
            "ours": deeprec_tf.row_select,
            "tensorflow": lambda condition, x, y: tf.raw_ops.Select(condition=condition, x=x, y=y),
        }
        self.copies = copies
        with tf.Graph().as_default() as graph:
            operands = [
                tf.random.uniform(shape[:1], seed=1) < 0.5,
                tf.random.uniform(shape, seed=2),
                tf.random.uniform(shape, seed=3),
            ]
            kept = [v1.Variable(operand, trainable=False, use_resource=False) for operand in operands]
            tensors = [variable.value() for variable in kept]
            self.first = {side: form(*tensors) for side, form in forms.items()}
            self.chains = {side: self._chain(form, tensors) for side, form in forms.items()}
            self.session = v1.Session(graph=graph, config=config_of(threads, 1, optimized=False))
            self.session.run(v1.global_variables_initializer())
            self.calls = {
                side: (
                    self.session.make_callable(self.first[side].op),
                    self.session.make_callable(chain[-1].op),
                )
                for side, chain in self.chains.items()
            }

    def _chain(self, form, tensors):
        """One op after another, each on the same operands, and none of them one that can be left out."""
        made = []
        for _ in range(self.copies):
            with tf.control_dependencies([m.op for m in made[-1:]]):
                made.append(form(*tensors))
        return made

    def equal(self):
        ours, theirs = (self.session.run(first) for first in self.first.values())
        return ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()

    def all_run(self):
        """Whether a run of a chain performs each of its ops."""
        for chain in self.chains.values():
            metadata = v1.RunMetadata()
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            self.session.run(chain[-1].op, options=options, run_metadata=metadata)
            ran = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
            if len(ran & {op.op.name for op in chain}) != len(chain):
                return False
        return True

    def close(self):
        self.session.close()


# Models.


class Model:
    """A model in a session: run by itself, or with stages that run ahead."""

    def __init__(self, graph, fetches, puts, threads):
        self.fetches, self.puts = fetches, puts
        self.session = v1.Session(graph=graph, config=config_of(*threads))
        self.session.run("init")

    def _run(self, count, warm_up):
        """The losses and the seconds of `count` steps behind a few that are not timed."""
        if not self.puts:
            return self._steps(self.session.run, count, warm_up)
        with deeprec_tf.StagedSession(self.session, self.puts) as steps:  # its threads end with the block
            return self._steps(steps.run, count, warm_up)

    def _steps(self, run, count, warm_up):
        for _ in range(warm_up):
            run(self.fetches)
        start = time.perf_counter()
        losses = [run(self.fetches)[0] for _ in range(count)]
        return losses, (time.perf_counter() - start) / count

    def losses(self, count):
        return self._run(count, 0)[0]

    def seconds(self, count, warm_up=5):
        return self._run(count, warm_up)[1]

    def stage_seconds(self, count):
        """What the stages alone take for a record."""
        self.session.run(self.puts)
        start = time.perf_counter()
        for _ in range(count):
            self.session.run(self.puts)
        seconds = (time.perf_counter() - start) / count
        deeprec_tf.StagedSession(self.session, self.puts).close()  # drops the records
        return seconds

    def close(self):
        self.session.close()


def models_of(model, path, pause, threads):
    """{side: one model with the same weights that reads the same lines}; and whether smart_stage moved the stage."""
    sizes = ctr_graphs.Sizes()
    plain = ctr_graphs.build(model, path, sizes, staged=False, pause=pause)
    user = ctr_graphs.build(model, path, sizes, staged=True, pause=pause)
    smart = deeprec_tf.smart_stage(user.graph, user.fetches)
    return {
        "ours": Model(smart.graph, user.fetches, smart.puts, threads),
        "unstaged": Model(plain.graph, plain.fetches, [], threads),
        "user": Model(user.graph, user.fetches, [user.put], threads),
    }, smart.changed
