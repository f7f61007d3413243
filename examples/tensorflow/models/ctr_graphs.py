"""Wide & Deep and DLRM on Criteo's lines as graphs of tf.compat.v1: lines, decode_csv, hash buckets, lookups, a
multilayer perceptron, Adagrad.

    lines ─> decode_csv ─│stage│─> hash buckets ─> lookups ─> layers ─> loss        the user's cut, where there is one
"""

import time
from dataclasses import dataclass

import tensorflow as tf

import deeprec_tf

v1 = tf.compat.v1
DENSE, TOKENS = 13, 26


@dataclass
class Sizes:
    batch: int = 512
    buckets: int = 10_000
    width: int = 16
    hidden: tuple = (256, 128, 64)
    rate: float = 0.02


@dataclass
class Step:
    graph: object
    loss: str
    train: str
    put: str | None  # of the user's stage

    @property
    def fetches(self):
        return [self.loss, self.train]


def read_lines(path, batch, pause=0.0):
    """`batch` lines of a file, again from its start at its end. `pause`: seconds that the source lets each batch wait."""
    data = tf.data.TextLineDataset(str(path)).repeat().batch(batch, drop_remainder=True)
    if pause > 0:

        def late(lines):
            time.sleep(pause)
            return lines

        data = data.map(lambda lines: tf.ensure_shape(tf.numpy_function(late, [lines], tf.string), [batch]))
    return v1.data.make_one_shot_iterator(data).get_next()


def decode(lines):
    defaults = [[0.0]] * (1 + DENSE) + [[""]] * TOKENS
    return tf.io.decode_csv(lines, defaults, field_delim="\t", use_quote_delim=False)


def hidden_layers(x, units, name):
    for i, n in enumerate(units):
        w = v1.get_variable(f"{name}/w{i}", [x.shape[1], n], initializer=v1.glorot_uniform_initializer(seed=i))
        b = v1.get_variable(f"{name}/b{i}", [n], initializer=v1.zeros_initializer())
        x = tf.nn.relu(tf.matmul(x, w) + b)
    return x


def logits_of(x, name):
    w = v1.get_variable(f"{name}/w", [x.shape[1], 1], initializer=v1.glorot_uniform_initializer(seed=9))
    return tf.squeeze(tf.matmul(x, w), 1)


def lookups(ids, sizes, width, name):
    tables = [
        v1.get_variable(f"{name}/{i}", [sizes.buckets, width], initializer=v1.random_normal_initializer(0, 0.05, seed=i))
        for i in range(TOKENS)
    ]
    return [tf.nn.embedding_lookup(table, column) for table, column in zip(tables, ids)]


def wide_and_deep(dense, ids, sizes):
    vectors = lookups(ids, sizes, sizes.width, "deep")
    deep = hidden_layers(tf.concat([dense, *vectors], 1), sizes.hidden, "layers")
    wide = tf.add_n(lookups(ids, sizes, 1, "wide"))
    return logits_of(deep, "deep_logits") + tf.squeeze(wide, 1)


def dlrm(dense, ids, sizes):
    bottom = hidden_layers(dense, (*sizes.hidden[:-1], sizes.width), "bottom")
    vectors = tf.stack([bottom, *lookups(ids, sizes, sizes.width, "tables")], 1)
    products = tf.matmul(vectors, vectors, transpose_b=True)
    below = [i * (TOKENS + 1) + j for i in range(TOKENS + 1) for j in range(i)]
    pairs = tf.gather(tf.reshape(products, [-1, (TOKENS + 1) ** 2]), below, axis=1)
    return logits_of(hidden_layers(tf.concat([bottom, pairs], 1), sizes.hidden, "top"), "logits")


MODELS = {"wdl": wide_and_deep, "dlrm": dlrm}


def build(model, path, sizes, staged, pause=0.0):
    """A graph that trains a model. `staged`: with the user's stage behind decode_csv."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(1)
        columns = decode(read_lines(path, sizes.batch, pause))
        put = None
        if staged:
            put, columns = deeprec_tf.stage(columns)
        labels, numbers, tokens = columns[0], columns[1 : 1 + DENSE], columns[1 + DENSE :]
        dense = tf.math.log1p(tf.maximum(tf.stack(numbers, 1), 0.0))
        ids = [tf.strings.to_hash_bucket_fast(column, sizes.buckets) for column in tokens]
        logits = MODELS[model](dense, ids, sizes)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
        train = v1.train.AdagradOptimizer(sizes.rate).minimize(loss, name="train")
        v1.global_variables_initializer()
    return Step(graph, loss.name, train.name, put.name if put is not None else None)
