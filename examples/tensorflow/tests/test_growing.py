"""Growing tables: values and steps beside dense ones, keys, admission, checkpoints, Keras, and bad input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf
from deeprec_tf.keras import GrowingEmbedding, RowAdagrad, TablesOptimizer

bad = tf.errors.InvalidArgumentError
WIDTH = 8
KEYS = np.array([-(2**63), -5, 0, 3, 7, 10**15, 2**63 - 1], np.int64)


def bags(rng, keys=KEYS, count=9):
    lengths = rng.integers(0, 4, count)
    return tf.RaggedTensor.from_row_lengths(tf.constant(rng.choice(keys, int(lengths.sum())), tf.int64), lengths)


def dense_ids(ids):
    return tf.RaggedTensor.from_row_splits(tf.constant(np.searchsorted(KEYS, ids.flat_values.numpy())), ids.row_splits)


def stepped(optimizer, squares):
    """A step of deeprec_tf's optimizers in float64."""

    def sgd(row, g, state, number):
        row -= optimizer.learning_rate * g

    def adagrad(row, g, state, number):
        state[0] += g * g
        row -= optimizer.learning_rate * g / (np.sqrt(state[0]) + optimizer.epsilon)

    def rowwise(row, g, state, number):
        state[0] += np.mean(g * g)
        row -= optimizer.learning_rate * g / (np.sqrt(state[0]) + optimizer.epsilon)

    def adam(row, g, state, number):
        state[0] += (1 - optimizer.beta_1) * (g - state[0])
        state[1] += (1 - optimizer.beta_2) * (g * g - state[1])
        rate = optimizer.learning_rate / (1 - optimizer.beta_1**number)
        row -= rate * state[0] / (np.sqrt(state[1] / (1 - optimizer.beta_2**number)) + optimizer.epsilon)

    return {"sgd": sgd, "adagrad": adagrad, "rowwise_adagrad": rowwise, "adam": adam}[optimizer.kind]


OPTIMIZERS = [deeprec_tf.SGD(0.1), deeprec_tf.Adagrad(0.1), deeprec_tf.RowwiseAdagrad(0.1), deeprec_tf.Adam(0.01)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_training_is_that_of_a_dense_table(optimizer, combiner):
    """Lookups by the dense op on the same values, steps in float64 of the gradients that TensorFlow finds."""
    rng = np.random.default_rng(5)
    table = deeprec_tf.GrowingTable(WIDTH, optimizer, bound=0.5, seed=11)
    exact, states = {}, {}
    for number in range(1, 21):
        ids = bags(rng)
        weights = tf.constant(rng.uniform(0.2, 2, len(ids.flat_values)), tf.float32)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            pooled = deeprec_tf.growing_lookup(table, ids, weights, combiner, training=True)
            loss = tf.reduce_sum(tf.square(pooled - 1.0))
        for key in np.unique(ids.flat_values):
            if key not in exact:  # its first values are those of the seed: read, since it was inserted now
                exact[key] = table.rows(key).numpy().astype(np.float64)
                assert np.abs(exact[key]).max() < 0.5 and np.abs(exact[key]).max() > 0
                states[key] = np.zeros((2, WIDTH)) + (optimizer.initial_squares if hasattr(optimizer, "initial_squares") else 0)
        values = tf.Variable(np.stack([exact.get(key, np.zeros(WIDTH)) for key in KEYS]), dtype=tf.float32)
        with tf.GradientTape() as dense:
            dense.watch(weights)
            wanted = deeprec_tf.safe_embedding_lookup_sparse(values, dense_ids(ids), weights, combiner)
            wanted_loss = tf.reduce_sum(tf.square(wanted - 1.0))
        np.testing.assert_allclose(pooled, wanted, rtol=2e-5, atol=2e-6)
        of_rows, of_weights = dense.gradient(wanted_loss, [values, weights])
        made = tape.gradient(loss, table.anchor)
        assert isinstance(made, tf.IndexedSlices) and made.indices.numpy().tolist() == sorted(set(ids.flat_values.numpy()))
        np.testing.assert_allclose(made.values, of_rows.values, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(tape.gradient(loss, weights), of_weights, rtol=1e-3, atol=1e-3)
        table.apply_gradients(made)
        for key, g in zip(made.indices.numpy(), made.values.numpy().astype(np.float64)):
            state = states[key]
            if optimizer.kind == "rowwise_adagrad":
                state = state[:1, 0]
            stepped(optimizer, state)(exact[key], g, states[key] if optimizer.kind != "rowwise_adagrad" else state, number)
        np.testing.assert_allclose(table.rows(KEYS), [exact.get(key, np.zeros(WIDTH)) for key in KEYS], rtol=1e-4, atol=1e-5)
    assert int(table.size()) == len(exact) == len(KEYS)


def test_keys_are_inserted_in_training_only():
    table = deeprec_tf.GrowingTable(4, default_value=0.25, bound=0.0)
    ids = tf.ragged.constant([[5, 6], [], [-7]], dtype=tf.int64)
    np.testing.assert_array_equal(deeprec_tf.growing_lookup(table, ids), [[0.25] * 4, [0] * 4, [0.25] * 4])
    assert int(table.size()) == 0
    np.testing.assert_array_equal(deeprec_tf.growing_lookup(table, ids, training=True), np.zeros((3, 4)))
    assert int(table.size()) == 3
    np.testing.assert_array_equal(table.rows([[5, 8]]), [[[0] * 4, [0.25] * 4]])
    with tf.GradientTape() as tape:
        out = deeprec_tf.growing_lookup(table, tf.ragged.constant([[5, 99]], dtype=tf.int64))
    made = tape.gradient(out, table.anchor)
    assert made.indices.numpy().tolist() == [5]  # a key without a row has no gradient
    assert int(table.erase([5, 99])) == 1 and int(table.size()) == 2
    table.apply_gradients(made)  # nor a step, once it is erased
    assert int(table.size()) == 2


def test_admission_capacity_and_eviction():
    ids = tf.ragged.constant([[1]], dtype=tf.int64)
    table = deeprec_tf.GrowingTable(4, occurrences=3)
    for wanted in (0, 0, 1):
        deeprec_tf.growing_lookup(table, ids, training=True)
        assert int(table.size()) == wanted
    table = deeprec_tf.GrowingTable(4, capacity=2)
    deeprec_tf.growing_lookup(table, tf.ragged.constant([[1, 2, 3]], dtype=tf.int64), training=True)
    assert int(table.size()) == 2
    table = deeprec_tf.GrowingTable(4, deeprec_tf.SGD(0.1))
    for key in (1, 2, 3, 4):
        with tf.GradientTape() as tape:
            out = deeprec_tf.growing_lookup(table, tf.ragged.constant([[key]], dtype=tf.int64), training=True)
        table.apply_gradients(tape.gradient(out, table.anchor))
    assert int(table.evict(steps=1)) == 2 and int(table.size()) == 2
    assert table.rows([3]).numpy().any() and not table.rows([1]).numpy().any()


def test_two_lookups_of_a_table_have_one_step():
    table = deeprec_tf.GrowingTable(4, deeprec_tf.SGD(1.0), bound=0.0)
    a, b = (tf.ragged.constant(ids, dtype=tf.int64) for ids in ([[1, 2]], [[2, 3]]))
    with tf.GradientTape() as tape:
        total = sum(deeprec_tf.growing_lookup(table, ids, combiner="sum", training=True) for ids in (a, b))
    table.apply_gradients(tape.gradient(total, table.anchor))
    np.testing.assert_array_equal(table.rows([1, 2, 3]), [[-1] * 4, [-2] * 4, [-1] * 4])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_results_of_16_bits_and_entries_in_any_order(dtype):
    table = deeprec_tf.GrowingTable(WIDTH, bound=0.5)
    sparse = tf.SparseTensor([[2, 0], [0, 0], [2, 1]], tf.constant([4, 5, 6], tf.int64), [3, 2])
    weights = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        out = deeprec_tf.growing_lookup(table, sparse, weights, "sum", training=True, sort=True, dtype=dtype)
        loss = tf.reduce_sum(tf.cast(out, tf.float32))
    rows = table.rows([4, 5, 6]).numpy()
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, tf.cast([2 * rows[1], 0 * rows[0], rows[0] + 3 * rows[2]], dtype))
    np.testing.assert_allclose(tape.gradient(loss, weights), rows.sum(1), rtol=1e-5)
    with pytest.raises(bad, match="rows of sparse_ids must ascend"):
        deeprec_tf.growing_lookup(table, sparse, training=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_a_checkpoint_continues_to_the_bit(optimizer, tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.items = deeprec_tf.GrowingTable(WIDTH, optimizer, seed=3)

    def train(model, seed):
        rng = np.random.default_rng(seed)
        for _ in range(5):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(deeprec_tf.growing_lookup(model.items, bags(rng), training=True) - 1.0))
            model.items.apply_gradients(tape.gradient(loss, model.items.anchor))

    model, other = Model(), Model()
    train(model, 0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    train(other, 9)  # what it holds is replaced
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert int(other.items.size()) == int(model.items.size()) > 0
    np.testing.assert_array_equal(other.items.rows(KEYS), model.items.rows(KEYS))
    for one in (model, other):
        train(one, 1)
    np.testing.assert_array_equal(other.items.rows(KEYS), model.items.rows(KEYS))
    assert int(model.items.evict(4)) == int(other.items.evict(4))


def test_a_checkpoint_of_another_table_is_refused_and_changes_nothing(tmp_path):
    def module(**options):
        made = tf.Module()
        made.items = deeprec_tf.GrowingTable(**{"width": 4, "optimizer": deeprec_tf.Adagrad(), **options})
        return made

    saved = module()
    deeprec_tf.growing_lookup(saved.items, tf.ragged.constant([[1, 2, 3]], dtype=tf.int64), training=True)
    path = tf.train.Checkpoint(m=saved).save(str(tmp_path / "c"))
    for options, text in (
        ({"optimizer": deeprec_tf.Adam()}, "must be of its optimizer, adam .is of adagrad"),
        ({"width": 5}, r"rows .R, 5.*has .3., .3,4."),
        ({"capacity": 2}, "room for all keys of its checkpoint.*of 3, 2 have a row"),
    ):
        other = module(**options)
        deeprec_tf.growing_lookup(other.items, tf.ragged.constant([[9]], dtype=tf.int64), training=True)
        with pytest.raises(bad, match=text):
            tf.train.Checkpoint(m=other).restore(path)
        assert int(other.items.size()) == 1


def import_parts(table, **changed):
    parts = {**{k: v.numpy() for k, v in table._serialize_to_tensors().items()}, **changed}
    table._restore_from_tensors({k: tf.constant(v) for k, v in parts.items()})


def test_parts_of_a_checkpoint_that_do_not_fit():
    table = deeprec_tf.GrowingTable(4)
    deeprec_tf.growing_lookup(table, tf.ragged.constant([[1, 2]], dtype=tf.int64), training=True)
    import_parts(table)
    for changed, text in (
        ({"keys": np.array([1, 1])}, "which differ .of 2, 1 have a row"),
        ({"keys": np.array([1, 2, 3])}, r"must have keys .R., rows"),
        ({"state": np.zeros((2, 3), np.float32)}, "state .R, 4"),
        ({"facts": np.array([[0, 0], [-1, 0]])}, "of key 2 are -1 and 0"),
        ({"facts": np.array([[0, 2**24], [0, 0]])}, "of key 1 are 0 and 16777216"),
    ):
        with pytest.raises(bad, match=text):
            import_parts(table, **changed)
    assert int(table.size()) == 2


def test_a_saved_model_serves_a_growing_table(tmp_path):
    module = tf.Module()
    module.items = deeprec_tf.GrowingTable(4, bound=0.5)
    deeprec_tf.growing_lookup(module.items, tf.ragged.constant([[1, 2]], dtype=tf.int64), training=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(ids):
        return deeprec_tf.growing_lookup(module.items, tf.RaggedTensor.from_uniform_row_length(ids, 1))

    module.serve = serve
    given = tf.constant([2, 1, 77], tf.int64)
    wanted = serve(given)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(given), wanted)
    assert wanted.numpy()[:2].any() and not wanted.numpy()[2].any()


def test_in_a_function_whose_trace_is_kept():
    table = deeprec_tf.GrowingTable(4, deeprec_tf.Adagrad(0.2))
    dense = tf.Variable(tf.ones([4, 1]))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build([dense])
    traces = []

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
    def step(ids):
        traces.append(1)
        with tf.GradientTape() as tape:
            pooled = deeprec_tf.growing_lookup(table, ids, training=True)
            loss = tf.reduce_mean(tf.square(pooled @ dense - 1.0))
        of_dense, of_rows = tape.gradient(loss, [dense, table.anchor])
        optimizer.apply([of_dense], [dense])
        table.apply_gradients(of_rows, learning_rate=tf.constant(0.2))
        return loss

    losses = [float(step(tf.ragged.constant([[k, k + 1], [k + 2]], dtype=tf.int64))) for k in [0, 1, 2, 3] * 20]
    assert len(traces) == 1 and losses[-1] < losses[0] / 10 and int(table.size()) == 6


class Items(keras.Model):
    def __init__(self, table=None, **options):
        super().__init__(**options)
        self.items = GrowingEmbedding(4, deeprec_tf.Adagrad(0.3), combiner="sum")
        self.head = keras.layers.Dense(1, dtype="float32")

    def call(self, ids, training=False):
        rows = tf.RaggedTensor.from_uniform_row_length(tf.reshape(ids, [-1]), 2)
        return self.head(self.items(rows, training=training))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_fit_of_keras(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        keras.utils.set_random_seed(1)
        model = Items()
        optimizer = TablesOptimizer(keras.optimizers.Adam(0.02), [model.items])
        if policy == "mixed_float16":
            scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02), initial_scale=2.0**8)
            optimizer = TablesOptimizer(scaled, [model.items])
        model.compile(optimizer, loss="mse", auto_scale_loss=False)
        rng = np.random.default_rng(0)
        ids = rng.integers(0, 30, (256, 2)) * 10**12
        target = ((ids // 10**12) % 2).sum(1, keepdims=True).astype(np.float32)
        history = model.fit(ids, target, batch_size=32, epochs=8, verbose=0).history["loss"]
        assert history[-1] < history[0] / 4
        assert int(model.items.table.size()) == len(np.unique(ids))
        before = int(model.items.table.size())
        model.predict(ids + 1, verbose=0)
        assert int(model.items.table.size()) == before
        assert int(model.optimizer.iterations) == 8 * 8
        path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
        other = Items()
        other(ids[:2])
        tf.train.Checkpoint(model=other).restore(path).expect_partial()
        np.testing.assert_array_equal(other(ids), model(ids))
    finally:
        keras.config.set_dtype_policy("float32")


def test_an_overflow_steps_nothing_under_loss_scaling():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = Items()
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**40)
        model.compile(TablesOptimizer(scaled, [model.items]), loss="mse", auto_scale_loss=False)
        ids = np.array([[1, 2]])
        model(ids, training=True)
        rows, head = model.items.table.rows([1, 2]).numpy(), model.head.kernel.numpy()
        model.fit(ids, np.ones((1, 1), np.float32), verbose=0)
        np.testing.assert_array_equal(model.items.table.rows([1, 2]), rows)
        np.testing.assert_array_equal(model.head.kernel, head)
        assert float(scaled.dynamic_scale) == 2.0**39
        # Gradients that overflow in the table only.
        gradients = [tf.IndexedSlices(tf.constant([[np.inf] * 4]), tf.constant([1], tf.int64), [0, 4]), tf.ones([4, 1]), tf.ones([1])]
        model.optimizer.apply(gradients, model.trainable_variables)
        np.testing.assert_array_equal(model.items.table.rows([1, 2]), rows)
        np.testing.assert_array_equal(model.head.kernel, head)
        assert float(scaled.dynamic_scale) == 2.0**38
        scaled.dynamic_scale.assign(4.0)
        gradients[0] = tf.IndexedSlices(tf.constant([[4.0] * 4]), tf.constant([1], tf.int64), [0, 4])
        model.optimizer.apply(gradients, model.trainable_variables)
        np.testing.assert_allclose(model.head.kernel, head - 0.1 / 4, rtol=1e-5)
        np.testing.assert_allclose(model.items.table.rows([1])[0], rows[0] - 0.3 / np.sqrt(1.1), rtol=1e-5)
    finally:
        keras.config.set_dtype_policy("float32")


def test_rates_of_a_schedule():
    table = deeprec_tf.GrowingTable(2, deeprec_tf.SGD(5.0), bound=0.0)
    optimizer = TablesOptimizer(keras.optimizers.SGD(0.1), [table], rates=keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.5]))
    dense = keras.Variable([1.0])
    gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3], tf.int64), [0, 2])
    deeprec_tf.growing_lookup(table, tf.ragged.constant([[3]], dtype=tf.int64), training=True)
    for wanted in (-1.0, -2.0, -2.5):
        optimizer.apply([tf.ones([1]), gradient], [dense, table.anchor])
        np.testing.assert_array_equal(table.rows([3]), [[wanted] * 2])
    np.testing.assert_allclose(dense.numpy(), [0.7], rtol=1e-6)


@pytest.mark.parametrize("in_function", [True, False])
def test_adagrad_of_rows_is_that_of_keras(in_function):
    """Rows in order and not, once and twice, and dense gradients; rows that no gradient has stay as they are."""
    rng = np.random.default_rng(2)
    ours, theirs = (keras.Variable(rng.normal(size=(30, 4)), dtype="float32") for _ in range(2))
    theirs.assign(ours)
    pair = [RowAdagrad(0.1), ours], [keras.optimizers.Adagrad(0.1), theirs]
    for optimizer, variable in pair:
        optimizer.build([variable])
    apply = pair[0][0].apply
    for rows in ([2, 5, 9], [9, 2], [4, 4, 1], [], [7]):
        values = tf.constant(rng.normal(size=(len(rows), 4)), tf.float32)
        before = ours.numpy()
        gradient = tf.IndexedSlices(values, tf.constant(rows, tf.int64), [30, 4])
        step = lambda: apply([gradient], [ours])  # noqa: E731
        (tf.function(step) if in_function else step)()
        theirs_gradient = tf.math.unsorted_segment_sum(values, tf.constant(rows, tf.int64), 30)
        pair[1][0].apply([theirs_gradient], [theirs])
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        others = np.setdiff1d(np.arange(30), rows)
        np.testing.assert_array_equal(ours.numpy()[others], before[others])
    for optimizer, variable in pair:
        optimizer.apply([tf.ones([30, 4])], [variable])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_bad_gradients_and_rates():
    table = deeprec_tf.GrowingTable(2, deeprec_tf.SGD(1.0), bound=0.0)
    deeprec_tf.growing_lookup(table, tf.ragged.constant([[3, 4]], dtype=tf.int64), training=True)

    def slices(values, keys=(3, 4)):
        return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(keys, tf.int64))

    for value in (np.nan, np.inf, -np.inf):
        for kind in OPTIMIZERS:
            other = deeprec_tf.GrowingTable(2, kind, bound=0.0)
            deeprec_tf.growing_lookup(other, tf.ragged.constant([[3, 4]], dtype=tf.int64), training=True)
            with pytest.raises(bad, match="gradient of the table must be finite .key 4, column 1 is"):
                other.apply_gradients(slices([[1, 1], [1, value]]))
            np.testing.assert_array_equal(other.rows([3, 4]), np.zeros((2, 2)))
    with pytest.raises(bad, match=r"must have keys .U. and values .U, 2."):
        table.apply_gradients(slices([[1, 1, 1], [1, 1, 1]]))
    with pytest.raises(bad, match=r"must have keys .U. and values .U, 2."):
        table.apply_gradients(slices([[1, 1]]))
    with pytest.raises(TypeError, match="must be IndexedSlices with keys .is a EagerTensor"):
        table.apply_gradients(tf.ones([2, 2]))
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="learning_rate must be a finite number from 0 on"):
            table.apply_gradients(slices([[1, 1], [1, 1]]), rate)
        with pytest.raises(bad, match="learning_rate must be finite and not negative"):
            table.apply_gradients(slices([[1, 1], [1, 1]]), tf.constant(rate))
    with pytest.raises(bad, match="learning_rate must be one number"):
        table.apply_gradients(slices([[1, 1], [1, 1]]), tf.constant([1.0, 2.0]))
    assert table.apply_gradients(None) is None
    np.testing.assert_array_equal(table.rows([3, 4]), np.zeros((2, 2)))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: deeprec_tf.GrowingTable(0), "width must be an integer from 1"),
        (lambda: deeprec_tf.GrowingTable(2.5), "width must be an integer from 1"),
        (lambda: deeprec_tf.GrowingTable(True), "width must be an integer from 1"),
        (lambda: deeprec_tf.GrowingTable(4, "adagrad"), "optimizer must be SGD, Adagrad"),
        (lambda: deeprec_tf.GrowingTable(4, deeprec_tf.SGD(-0.1)), "SGD: learning_rate must be a finite number from 0 on .is -0.1"),
        (lambda: deeprec_tf.GrowingTable(4, deeprec_tf.Adagrad(float("nan"))), "Adagrad: learning_rate must be"),
        (lambda: deeprec_tf.GrowingTable(4, deeprec_tf.Adagrad(0.1, epsilon=-1.0)), "Adagrad: epsilon must be"),
        (lambda: deeprec_tf.GrowingTable(4, deeprec_tf.Adam(beta_2=1.0)), "Adam: beta_2 must be below 1"),
        (lambda: deeprec_tf.GrowingTable(4, bound=-1.0), "bound must be a finite number from 0 on"),
        (lambda: deeprec_tf.GrowingTable(4, seed=-1), "seed must be an integer from 0"),
        (lambda: deeprec_tf.GrowingTable(4, capacity=0), "capacity must be None or an integer from 1 on"),
        (lambda: deeprec_tf.GrowingTable(4, when_full="drop"), "when_full must be refuse"),
        (lambda: deeprec_tf.GrowingTable(4, occurrences=0), "occurrences must be an integer from 1"),
        (lambda: deeprec_tf.GrowingTable(4, default_value=float("inf")), "default_value must be a finite number"),
        (lambda: deeprec_tf.growing_lookup(tf.ones([2, 2]), tf.ragged.constant([[1]])), "table must be a GrowingTable"),
        (lambda: deeprec_tf.growing_lookup(deeprec_tf.GrowingTable(4), tf.ragged.constant([[1.0]])), "sparse_ids must be of int32 or int64"),
        (lambda: deeprec_tf.growing_lookup(deeprec_tf.GrowingTable(4), tf.constant([1])), "sparse_ids must be a SparseTensor or a RaggedTensor"),
        (lambda: deeprec_tf.growing_lookup(deeprec_tf.GrowingTable(4), tf.ragged.constant([[1]]), training=1), "training must be a bool"),
        (lambda: deeprec_tf.growing_lookup(deeprec_tf.GrowingTable(4), tf.ragged.constant([[1]]), dtype=tf.float64), "dtype must be float32"),
        (lambda: deeprec_tf.GrowingTable(4).rows([1.5]), "keys must be of int32 or int64"),
        (lambda: deeprec_tf.GrowingTable(4).evict(-1), "steps must be an integer from 0 on"),
        (lambda: TablesOptimizer("adam", []), "inner must be an optimizer of Keras"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(), [tf.ones([2])]), "tables must be GrowingEmbedding"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=2), []), "inner must have no gradient_accumulation_steps .has 2"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(loss_scale_factor=8.0), []), "inner must have no loss_scale_factor .has 8.0"),
        (lambda: keras.optimizers.LossScaleOptimizer(TablesOptimizer(keras.optimizers.SGD(), [])), "must be in a TablesOptimizer .is around one"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(), [SHARED, SHARED]), "tables must differ"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


SHARED = deeprec_tf.GrowingTable(2)


def test_bad_ops_and_graphs():
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="must be made with eager execution"):
        deeprec_tf.GrowingTable(4)
    ids = tf.ragged.constant([[1]], dtype=tf.int64)
    arguments = dict(indices=ids.row_splits, ids=ids.flat_values, dense_shape=tf.zeros([0], tf.int64), weights=[], ragged=True, insert=True)
    ops = deeprec_tf.growing.ops
    with pytest.raises(bad, match="rows of the table must have 9 columns .have 2"):
        ops.deeprec_growing_lookup(table=SHARED.resource_handle, anchor=SHARED.anchor.handle, width=9, **arguments)
    with pytest.raises(bad, match="resource|type"):
        ops.deeprec_growing_lookup(table=SHARED.anchor.handle, anchor=SHARED.anchor.handle, width=2, **arguments)
    with pytest.raises(bad, match="weight is not a number: resolve: bag 0, position 0"):
        deeprec_tf.growing_lookup(SHARED, ids, tf.ragged.constant([[float("nan")]]))
    # A step by an optimizer of Keras that does not know the table.
    with tf.GradientTape() as tape:
        out = deeprec_tf.growing_lookup(SHARED, ids, training=True)
    with pytest.raises(bad):
        keras.optimizers.SGD(0.1).apply_gradients([(tape.gradient(out, SHARED.anchor), SHARED.anchor)])


def test_empty_batches():
    table = deeprec_tf.GrowingTable(4)
    none = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0])
    with tf.GradientTape() as tape:
        out = deeprec_tf.growing_lookup(table, none, training=True)
    assert out.shape == [0, 4]
    table.apply_gradients(tape.gradient(out, table.anchor))
    only_empty = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0, 0, 0])
    np.testing.assert_array_equal(deeprec_tf.growing_lookup(table, only_empty, training=True), np.zeros((2, 4)))
    assert int(table.size()) == 0 and table.rows(np.zeros((0,), np.int64)).shape == [0, 4]
