"""Growing tables in Keras's files and copies, what is not trained, and what is not saved."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf
from deeprec_tf.keras import GrowingEmbedding, RowAdagrad, TablesOptimizer

KEYS = tf.ragged.constant([[1, -2], [3], [3, 4]], dtype=tf.int64)
LABELS = tf.constant([[0.0], [1.0], [0.5]])


def model_of(optimizer=None, **options):
    keys = keras.Input((None,), dtype="int64", ragged=True)
    layer = GrowingEmbedding(4, optimizer or deeprec_tf.Adam(0.01), **options)
    return keras.Model(keys, keras.layers.Dense(1)(layer(keys))), layer


def trained(steps=2, **options):
    model, layer = model_of(**options)
    model.compile(TablesOptimizer(keras.optimizers.SGD(0.1), [layer]), loss="mse")
    for _ in range(steps):
        model.train_on_batch(KEYS, LABELS)
    return model, layer


def expect_same(ours, other):
    for part, value in ours.parts().items():
        np.testing.assert_array_equal(value.numpy(), other.parts()[part].numpy(), part)


# --- files and copies --------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [deeprec_tf.SGD(0.1), deeprec_tf.Adagrad(0.1), deeprec_tf.RowwiseAdagrad(0.1), deeprec_tf.Adam(0.1)], ids=lambda o: o.kind)
def test_files_of_keras_have_the_tables(optimizer, tmp_path):
    model, layer = trained(optimizer=optimizer, bound=0.25, capacity=100, occurrences=2, combiner="sum", name="items")
    assert int(layer.table.size()) == 4
    model.compile(loss="mse")  # without a TablesOptimizer
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    other = loaded.get_layer("items")
    expect_same(layer.table, other.table)
    assert other.table.optimizer == optimizer and dict(other.table.options) == dict(layer.table.options) and other.combiner == "sum"
    np.testing.assert_array_equal(loaded(KEYS), model(KEYS))

    model.save_weights(tmp_path / "model.weights.h5")
    new, new_layer = model_of(optimizer)
    new.load_weights(tmp_path / "model.weights.h5")
    expect_same(layer.table, new_layer.table)


def test_weights_of_another_table_are_refused(tmp_path):
    model, _ = trained()
    model.save_weights(tmp_path / "model.weights.h5")
    others = model_of(deeprec_tf.SGD(0.1))[0]
    with pytest.raises(ValueError, match="must be of its optimizer, sgd .is of adam"):
        others.load_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="weights of it must have its table .have no keys, rows, state, facts, applied, owner"):
        GrowingEmbedding(4, name="it").load_own_variables({"0": np.zeros((0, 4))})


def test_interrupted_training_goes_on_with_its_rows(tmp_path):
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*callbacks):
        keras.utils.set_random_seed(3)
        model, layer = trained(steps=0)
        model.fit(KEYS, LABELS, batch_size=3, epochs=4, verbose=0, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup"), *callbacks])
        return layer

    with pytest.raises(KeyboardInterrupt):
        fit(Interrupts())
    resumed = fit()
    keras.utils.set_random_seed(3)
    model, whole = trained(steps=0)
    model.fit(KEYS, LABELS, batch_size=3, epochs=4, verbose=0, shuffle=False)
    expect_same(resumed.table, whole.table)


def test_a_model_with_a_tables_optimizer_says_what_to_save(tmp_path):
    with pytest.raises(NotImplementedError, match=r"use model.save_weights\(\), or tf.train.Checkpoint"):
        trained()[0].save(tmp_path / "model.keras")


def test_row_adagrad_is_found_by_its_name(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(RowAdagrad(0.5), loss="mse")
    model.save(tmp_path / "model.keras")
    assert type(keras.models.load_model(tmp_path / "model.keras").optimizer) is RowAdagrad


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))], ids=["deepcopy", "pickle"])
def test_copies_of_a_table_have_rows_of_their_own(copied):
    table = trained()[1].table
    other = copied(table)
    expect_same(table, other)
    before = table.rows([3]).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(deeprec_tf.growing_lookup(other, tf.ragged.constant([[3, 9]], dtype=tf.int64), training=True))
    other.apply_gradients(tape.gradient(loss, other.anchor))
    np.testing.assert_array_equal(table.rows([3]), before)
    assert int(table.size()) == 4 and int(other.size()) == 5


def test_a_deep_copy_of_a_module():
    module = tf.Module()
    module.table = deeprec_tf.GrowingTable(2)
    other = copy.deepcopy(module)
    deeprec_tf.growing_lookup(other.table, KEYS, training=True)
    assert int(module.table.size()) == 0 and int(other.table.size()) == 4


def test_an_asynchronous_checkpoint_is_of_one_moment(tmp_path):
    module = tf.Module()
    module.table, module.step = deeprec_tf.GrowingTable(2, deeprec_tf.SGD(0.1)), tf.Variable(0)
    checkpoint = tf.train.Checkpoint(module=module)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)

    def train(key):
        ids = tf.RaggedTensor.from_row_lengths(tf.range(1000, dtype=tf.int64) * 10 + key, [1000])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deeprec_tf.growing_lookup(module.table, ids, training=True))
        module.table.apply_gradients(tape.gradient(loss, module.table.anchor))
        module.step.assign_add(1)

    for step in range(1, 5):
        train(step)
        kept = {part: value.numpy() for part, value in module.table.parts().items()}
        path = checkpoint.save(str(tmp_path / f"of{step}"), options=options)
        train(step + 1)
        module.table.erase([10 + step])
        checkpoint.sync()
        other = tf.Module()
        other.table, other.step = deeprec_tf.GrowingTable(2, deeprec_tf.SGD(0.1)), tf.Variable(0)
        tf.train.Checkpoint(module=other).restore(path).expect_partial()
        assert int(other.step) == int(module.step) - 1
        for part, value in other.table.parts().items():
            np.testing.assert_array_equal(value.numpy(), kept[part], part)


# --- what is trained ---------------------------------------------------------------------------------


def test_a_table_that_the_optimizer_does_not_have_is_refused():
    keys = keras.Input((None,), dtype="int64", ragged=True)
    layers = [GrowingEmbedding(4, name=name) for name in ("one", "forgotten")]
    model = keras.Model(keys, keras.layers.Dense(1)(sum(layer(keys) for layer in layers)))
    model.compile(TablesOptimizer(keras.optimizers.Adam(), layers[:1]), loss="mse")
    with pytest.raises(ValueError, match="tables must have all growing tables of the model .have not that of forgotten/anchor"):
        model.fit(KEYS, LABELS, verbose=0)


def test_a_frozen_layer_inserts_nothing():
    model, layer = trained()
    layer.trainable = False
    model.compile(TablesOptimizer(keras.optimizers.SGD(0.1), [layer]), loss="mse")
    before = layer.table.rows([1, 3]).numpy()
    model.train_on_batch(tf.ragged.constant([[1, 77], [3], []], dtype=tf.int64), LABELS)
    assert int(layer.table.size()) == 4
    np.testing.assert_array_equal(layer.table.rows([1, 3]), before)
    assert not GrowingEmbedding(4, trainable=False).trainable


def test_sums_over_a_key_are_finite_or_refused():
    table = deeprec_tf.GrowingTable(2, deeprec_tf.SGD(1.0), bound=0.0)
    deeprec_tf.growing_lookup(table, KEYS, training=True)

    def step(values):
        table.apply_gradients(tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant([3, 1, 3], tf.int64)))

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite .key 3, column 1 is inf"):
        step([[1, 3e38], [1, 1], [1, 3e38]])
    np.testing.assert_array_equal(table.rows([1, 3]), np.zeros((2, 2)))
    step([[1, 3e38], [1, 2e38], [1, -3e38]])
    np.testing.assert_array_equal(table.rows([1, 3]), np.array([[-1, -2e38], [-2, 0]], np.float32))


# --- control flow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_a_condition_around_a_lookup(taken):
    table, rows = deeprec_tf.GrowingTable(2, bound=0.0), tf.Variable(tf.ones([9, 2]))
    ids = tf.sparse.from_dense([[1, 2], [3, 0]])

    @tf.function
    def gradients(condition):
        with tf.GradientTape() as tape:
            of_table = tf.cond(condition, lambda: deeprec_tf.growing_lookup(table, ids, combiner="sum", training=True), lambda: tf.zeros([2, 2]))
            of_rows = tf.cond(
                condition, lambda: deeprec_tf.safe_embedding_lookup_sparse(rows, ids, combiner="sum"), lambda: tf.nn.embedding_lookup(rows, [4, 4])
            )
            loss = tf.reduce_sum(of_table) + tf.reduce_sum(of_rows)
        found = tape.gradient(loss, [table.anchor, rows])
        table.apply_gradients(found[0])
        return tf.convert_to_tensor(found[1])

    expected = np.zeros((9, 2))
    expected[[1, 2, 3] if taken else [4]] = 1 if taken else 2
    np.testing.assert_array_equal(gradients(tf.constant(taken)), expected)
    assert int(table.size()) == (3 if taken else 0)  # 0 pads the dense ids and is no entry


# --- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: deeprec_tf.GrowingTable(2, bound=1e39), "bound must be a finite number from 0 on .is 1e.39"),
        (lambda: deeprec_tf.GrowingTable(2, default_value=1e300), "default_value must be a finite number"),
        (lambda: deeprec_tf.GrowingTable(2, deeprec_tf.Adam(beta_2=0.99999999999)), "beta_2 must be below 1 as float32"),
        (lambda: deeprec_tf.GrowingTable(2).rows(KEYS), "keys must be a tensor .is a RaggedTensor"),
        (lambda: deeprec_tf.GrowingTable(2).evict(1.9), "steps must be an integer from 0 on"),
        (lambda: deeprec_tf.GrowingTable(2).evict("3"), "steps must be an integer from 0 on"),
        (lambda: deeprec_tf.GrowingTable(2).evict(tf.constant(1.5)), "steps must be of integers .is 'float32'"),
        (lambda: step_at(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)), "learning_rate must be a number or a tensor .is a ExponentialDecay.; call"),
        (lambda: step_at("a"), "learning_rate must be a number or a tensor .is a str"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(), GrowingEmbedding(2)), "tables must be a list .is a GrowingEmbedding"),
        (lambda: TablesOptimizer(keras.optimizers.SGD(), [], rates=0.1), "rates must be None or a function of a step's number .is 0.1"),
        (lambda: GrowingEmbedding(2, combiner="max"), "combiner must be sum, mean or sqrtn .is max"),
        (lambda: GrowingEmbedding(2)(tf.constant([[1.0]])), "keys of a GrowingEmbedding must be of int32 or int64 .are of float32.*keras.Input"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def step_at(rate):
    deeprec_tf.GrowingTable(2).apply_gradients(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3], tf.int64)), rate)


def test_numbers_of_numpy_are_taken():
    table = deeprec_tf.GrowingTable(np.int64(2), deeprec_tf.SGD(np.float32(0.5)), bound=np.float64(0.0), name=None)
    deeprec_tf.growing_lookup(table, KEYS, training=True)
    table.apply_gradients(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3], tf.int64)), np.float32(0.25))
    np.testing.assert_array_equal(table.rows([3]), [[-0.25, -0.25]])
    assert table.rows([]).shape == [0, 2]
