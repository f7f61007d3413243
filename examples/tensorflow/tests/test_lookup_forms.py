"""Forms of a lookup beside TensorFlow's own: ragged ids, rows of 16 bits, entries in any order, frozen graphs, mixed precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import deeprec_tf

lookup = deeprec_tf.safe_embedding_lookup_sparse
ROWS, WIDTH = 40, 8


def ragged_case(seed, splits=tf.int64, ids=tf.int64):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, 13)
    flat = tf.constant(rng.integers(-2, ROWS, int(lengths.sum())), ids)
    weights = tf.constant(rng.uniform(0.1, 2, len(flat)), tf.float32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    as_ragged = lambda values: tf.RaggedTensor.from_row_splits(values, tf.constant(starts, splits))  # noqa: E731
    return as_ragged(flat), as_ragged(weights)


def table_of(dtype=tf.float32, seed=0):
    return tf.Variable(tf.cast(np.random.default_rng(seed).normal(size=(ROWS, WIDTH)), dtype))


def with_gradients(look_up, table, weights=None):
    with tf.GradientTape() as tape:
        if weights is not None:
            tape.watch(weights)
        out = look_up()
        loss = tf.reduce_sum(tf.cast(out, tf.float32) * np.arange(WIDTH, dtype=np.float32))
    of_table, of_weights = tape.gradient(loss, [table, table if weights is None else weights])
    return out, tf.convert_to_tensor(of_table), None if weights is None else of_weights


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("splits", [tf.int32, tf.int64])
@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
def test_ragged_ids_are_as_the_same_sparse_ones(combiner, splits, id_type):
    for seed in range(4):
        ids, weights = ragged_case(seed, splits, id_type)
        table = table_of(seed=seed)
        for given in (None, weights):
            flat = None if given is None else given.flat_values
            ragged = with_gradients(lambda: lookup(table, ids, given, combiner, default_id=3), table, flat)
            sparse_weights = None if given is None else tf.SparseTensor(ids.to_sparse().indices, flat, ids.to_sparse().dense_shape)
            sparse = with_gradients(lambda: lookup(table, ids.to_sparse(), sparse_weights, combiner, default_id=3), table, flat)
            for made, wanted in zip(ragged, sparse):
                if wanted is not None:
                    np.testing.assert_array_equal(made, wanted)
            # TensorFlow's keeps no bag whose ids are all dropped, so that it is asked for valid ids only.
            if bool(tf.reduce_all(ids.flat_values >= 0)):
                theirs = tf.nn.safe_embedding_lookup_sparse(table, ids, given, combiner, default_id=3)
                np.testing.assert_allclose(ragged[0], theirs, rtol=1e-5, atol=1e-6)


def test_ragged_shapes_are_known_in_a_graph():
    table = table_of()

    @tf.function(input_signature=[tf.RaggedTensorSpec([5, None], tf.int64)])
    def call(ids):
        out = lookup(table, ids)
        assert out.shape == [5, WIDTH]
        return out

    np.testing.assert_array_equal(call(tf.ragged.constant([[1], [], [2, 3], [], [4]], dtype=tf.int64))[4], table[4])
    assert lookup(table, tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0])).shape == [0, WIDTH]


def unchecked(values, splits):
    return tf.RaggedTensor.from_row_splits(tf.constant(values, tf.int64), tf.constant(splits, tf.int64), validate=False)


def test_bad_ragged_ids():
    table, bad = table_of(), tf.errors.InvalidArgumentError
    with pytest.raises(bad, match=r"row_splits of sparse_ids must not descend .row 1 is from 2 to 1"):
        lookup(table, unchecked([1, 2, 3], [0, 2, 1, 3]))
    with pytest.raises(bad, match="begin with 0 and end with 3, the number of ids .are 0 and 9"):
        lookup(table, unchecked([1, 2, 3], [0, 2, 9]))
    with pytest.raises(bad, match="begin with 0 and end with 3, the number of ids .are 1 and 3"):
        lookup(table, unchecked([1, 2, 3], [1, 2, 3]))
    with pytest.raises(bad, match="begin with 0 .* .are -4 and 3"):
        lookup(table, unchecked([1, 2, 3], [-4, 2, 3]))
    with pytest.raises(bad, match="bag 1, position 2, value 40"):
        lookup(table, tf.ragged.constant([[1, 2], [40]], dtype=tf.int64))
    with pytest.raises(ValueError, match=r"sparse_ids of ragged rows must have 2 dimensions"):
        lookup(table, tf.ragged.constant([[[1], [2]], [[3]]], dtype=tf.int64))
    with pytest.raises(TypeError, match="sparse_weights must be a RaggedTensor, as sparse_ids is .is a SparseTensor"):
        ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
        lookup(table, ids, tf.SparseTensor([[0, 0]], [1.0], [1, 1]))
    with pytest.raises((bad, ValueError), match="value for each id|Dimension|Shapes"):
        lookup(table, ids, tf.ragged.constant([[1.0], [2.0]]))
    with pytest.raises(TypeError, match="sparse_weights must be a SparseTensor, as sparse_ids is .is a RaggedTensor"):
        lookup(table, ids.to_sparse(), tf.ragged.constant([[1.0], [2.0]]))


@pytest.mark.parametrize("name", ["float32", "float64", "bool", "complex64", "string", "uint8"])
@pytest.mark.parametrize("ragged", [True, False])
def test_ids_of_other_types_are_refused_by_name(name, ragged):
    values = tf.constant(["1", "2"]) if name == "string" else tf.cast([1, 1], name)
    ids = tf.RaggedTensor.from_row_splits(values, [0, 1, 2]) if ragged else tf.SparseTensor([[0, 0], [1, 0]], values, [2, 1])
    with pytest.raises(TypeError, match=f"sparse_ids must be of int32 or int64 .are of {name}"):
        lookup(table_of(), ids)
    if name in ("bool", "complex64", "string"):
        good = tf.cast(tf.ones([2]), tf.int64)
        ids = tf.RaggedTensor.from_row_splits(good, [0, 1, 2]) if ragged else tf.SparseTensor([[0, 0], [1, 0]], good, [2, 1])
        with pytest.raises(TypeError, match=f"sparse_weights must be numbers .are of {name}"):
            lookup(table_of(), ids, values)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("in_variable", [True, False])
def test_tables_of_16_bits(dtype, in_variable):
    """Sums are of float32, so both sides round each result once: by half a unit of the type apart at most."""
    unit = 2.0**-10 if dtype == tf.float16 else 2.0**-7
    for seed in range(6):
        ids, weights = ragged_case(seed)
        ids = tf.maximum(ids, 0)
        table = table_of(dtype, seed)
        wide = tf.Variable(tf.cast(table, tf.float32))
        for given in (None, weights):
            flat = None if given is None else given.flat_values
            given_table = table if in_variable else tf.convert_to_tensor(table)
            with tf.GradientTape() as tape:
                tape.watch(given_table)
                out = lookup(given_table, ids, given, "mean", max_norm=1.5 if seed % 2 else None)
                loss = tf.reduce_sum(tf.cast(out, tf.float32) * np.arange(WIDTH, dtype=np.float32))
            made = tape.gradient(loss, given_table)
            exact, gradient, _ = with_gradients(lambda: lookup(wide, ids, given, "mean", max_norm=1.5 if seed % 2 else None), wide, flat)
            assert out.dtype == dtype and made.values.dtype == dtype
            np.testing.assert_array_equal(out, tf.cast(exact, dtype))
            gap = np.abs(tf.cast(tf.convert_to_tensor(made), tf.float32).numpy() - gradient.numpy())
            assert (gap <= unit * np.abs(gradient.numpy()) + 1e-6).all()
    other = tf.Variable(tf.zeros([ROWS, WIDTH]))
    with pytest.raises(TypeError, match="parts of a table must be of one type .part 1 is of float32"):
        lookup([table, other], ids)


def test_weights_of_another_type_are_cast_as_by_tensorflow():
    ids, weights = ragged_case(1)
    table = table_of()
    exact = lookup(table, ids, weights)
    for dtype in (tf.float64, tf.bfloat16):
        cast = tf.cast(weights, dtype)
        np.testing.assert_allclose(lookup(table, ids, cast), exact, rtol=1e-2, atol=1e-2)
    with tf.GradientTape() as tape:
        wide = tf.cast(weights.flat_values, tf.float64)
        tape.watch(wide)
        out = lookup(table, ids, wide)
    assert tape.gradient(out, wide).dtype == tf.float64


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
def test_entries_in_any_order(rank, id_type):
    rng = np.random.default_rng(rank)
    shape = np.array([3, 4, 5][:rank])
    indices = np.argwhere(rng.random(shape) < 0.6)
    ids = rng.integers(-1, ROWS, len(indices))
    weights = rng.uniform(0.1, 2, len(indices)).astype(np.float32)
    # Entries of a row keep their order, so the sums have the same bits.
    order = rng.permutation(len(indices))
    rows = indices[order][:, :-1]
    stable = np.lexsort(rows.T[::-1])
    table = table_of()
    results = []
    for places, sort in ((order, True), (order[stable], False)):
        given = tf.constant(weights[places])
        sparse = tf.SparseTensor(indices[places], tf.constant(ids[places], id_type), shape)
        made = with_gradients(lambda: lookup(table, sparse, given, "mean", sort=sort), table, given)
        results.append([*made[:2], made[2].numpy()[np.argsort(places)]])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)
    shuffled = tf.SparseTensor(indices[order], ids[order], shape)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of sparse_ids must ascend .*sort=True takes them in any order"):
        lookup(table, shuffled)
    ids[order[7]] = ROWS
    shuffled = tf.SparseTensor(indices[order], ids[order], shape)
    with pytest.raises(tf.errors.InvalidArgumentError, match="position 7, value 40"):
        lookup(table, shuffled, sort=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="within its shape .position 0 is not"):
        lookup(table, tf.SparseTensor([[9, 0], [0, 0]], [1, 2], [3, 1]), sort=True)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_frozen_graph_gives_the_same(dtype, parts):
    table = table_of(dtype)
    tables = [tf.Variable(part) for part in tf.split(table, [14, 13, 13])] if parts == 3 else table
    dense = tf.Variable(tf.ones([WIDTH, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)])
    def model(ids, splits):
        pooled = lookup(tables, tf.RaggedTensor.from_row_splits(ids, splits), combiner="sum")
        return tf.cast(pooled, tf.float32) @ dense

    given = tf.constant([1, 2, 39], tf.int64), tf.constant([0, 2, 2, 3], tf.int64)
    concrete = model.get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete)
    kinds = {node.op for node in frozen.graph.as_graph_def().node}
    assert "DeeprecSafeLookup" in kinds and not kinds & {"DeeprecResourceSafeLookup", "VarHandleOp", "ReadVariableOp"}
    np.testing.assert_array_equal(frozen(*given)[0], model(*given))
    # Graphs without ops of this package are frozen as before.
    plain = tf.function(lambda: tf.gather(dense, [1, 0]) + 1.0).get_concrete_function()
    np.testing.assert_array_equal(convert_variables_to_constants_v2(plain)()[0], plain())


class Pooled(keras.layers.Layer):
    def build(self, _):
        self.table = self.add_weight(shape=(ROWS, WIDTH), initializer=keras.initializers.RandomNormal(seed=1), name="table")

    def call(self, ids):
        return lookup(self.table, ids, combiner="sum")


@pytest.mark.parametrize("policy, compute", [("mixed_bfloat16", tf.bfloat16), ("mixed_float16", tf.float16), ("float32", tf.float32)])
def test_a_layer_under_mixed_precision(policy, compute):
    """The variable stays of float32 and is not cast; its gradient is of float32, and of the rows that were used."""
    layer = Pooled(dtype=policy)
    layer.build(None)
    ids = tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            out = layer(ids)
            loss = tf.reduce_sum(tf.cast(out, tf.float32))
        return out, tape.gradient(loss, layer.table.value)

    out, gradient = step()
    assert out.dtype == compute and gradient.values.dtype == tf.float32
    table = layer.table.numpy()
    np.testing.assert_array_equal(out, tf.cast([table[1] + table[2] + table[3], table[4]], compute))
    np.testing.assert_array_equal(gradient.indices, [1, 2, 3, 4])
    assert not any(op.type == "Cast" and op.outputs[0].shape == [ROWS, WIDTH] for op in step.get_concrete_function().graph.get_operations())


def test_a_model_trains_under_mixed_precision():
    for policy in ("mixed_bfloat16", "mixed_float16"):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,), dtype="int64")
        pooled = PooledDense(dtype=policy)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(pooled))
        optimizer = keras.optimizers.Adagrad(0.3)
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer, loss="mse")
        rng = np.random.default_rng(0)
        ids = rng.integers(0, ROWS, (256, 4))
        history = model.fit(ids, (ids % 2).sum(1, keepdims=True).astype(np.float32), batch_size=32, epochs=6, verbose=0)
        assert history.history["loss"][-1] < history.history["loss"][0] / 2


class PooledDense(Pooled):
    def call(self, ids):
        rows = tf.RaggedTensor.from_uniform_row_length(tf.reshape(ids, [-1]), 4)
        return lookup(self.table, rows, combiner="sum")

    def compute_output_spec(self, ids):
        return keras.KerasTensor((ids.shape[0], WIDTH), self.compute_dtype)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"default_id": 2.5}, "default_id must be None or an integer from 0 to 2.63 - 1 .is 2.5"),
        ({"default_id": True}, "default_id must be None or an integer from 0 to 2.63 - 1 .is True"),
        ({"default_id": 2**70}, "default_id must be None or an integer from 0 to 2.63 - 1 .is 1180591620717411303424"),
        *[
            ({"max_norm": given}, f"max_norm must be None or a number above 0 and finite, as float32 .is {text}")
            for given, text in [(float("nan"), "nan"), (-1.0, "-1.0"), (0, "0"), (1e-50, "1e-50"), (1e39, "1e.39"), (True, "True"), ("a", "'a'")]
        ],
        ({"partition_strategy": "hash"}, "partition_strategy must be div or mod .is 'hash'"),
        ({"combiner": "max"}, "combiner must be sum, mean or sqrtn .is max"),
        ({"sort": 1}, "sort must be a bool .is 1"),
    ],
)
def test_bad_options(arguments, text):
    with pytest.raises((TypeError, ValueError), match=text):
        lookup(table_of(), tf.ragged.constant([[1]], dtype=tf.int64), **arguments)


@pytest.mark.parametrize("table", [None, {}, [None], "rows"])
def test_tables_that_are_none(table):
    with pytest.raises(TypeError, match="embedding_weights must be a variable, a tensor or a list of these .has a"):
        lookup(table, tf.ragged.constant([[1]], dtype=tf.int64))


def test_without_a_combiner_it_is_mean_as_in_tensorflow():
    ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    table = table_of()
    np.testing.assert_array_equal(lookup(table, ids, combiner=None), lookup(table, ids, combiner="mean"))


def test_a_gradient_of_nan_reaches_the_rows_that_were_used():
    """As of TensorFlow's own op: what a gradient holds is the optimizer's affair."""
    table = table_of()
    with tf.GradientTape() as tape:
        out = lookup(table, tf.ragged.constant([[1], [2]], dtype=tf.int64), combiner="sum")
        loss = tf.reduce_sum(out * tf.constant([[np.nan], [1.0]], tf.float32))
    made = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
    assert np.isnan(made[1]).all() and (made[2] == 1).all() and (made[3:] == 0).all()
