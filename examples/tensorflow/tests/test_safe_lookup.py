"""The lookup beside TensorFlow's own, values and gradients."""

import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf

v1 = tf.compat.v1


class Case:
    """A random lookup: its tables, ids, weights and options."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.parts = int(rng.choice([1, 1, 1, 2, 3, 5]))
        self.strategy = str(rng.choice(["div", "mod"]))
        rows, self.width = int(rng.integers(self.parts, 60)), int(rng.choice([1, 2, 3, 8, 16, 17, 32, 64]))
        self.tables = [
            rng.normal(size=(rows // self.parts + (p < rows % self.parts), self.width)).astype(np.float32)
            for p in range(self.parts)
        ]
        rank = int(rng.choice([2, 2, 2, 3]))
        leading = [int(n) for n in rng.integers(0 if seed % 20 == 0 else 1, 9, size=rank - 1)]
        bags, most = int(np.prod(leading)), int(rng.integers(1, 6))
        counts = rng.integers(0, most + 1, size=bags)
        of_bag = np.repeat(np.arange(bags), counts)
        within = np.concatenate([np.arange(n) for n in counts]) if bags else np.zeros(0)
        leads = np.stack(np.unravel_index(of_bag, leading), 1) if bags else np.zeros((0, rank - 1))
        self.indices = np.concatenate([leads, within[:, None]], 1).astype(np.int64).reshape(-1, rank)
        self.shape = np.array([*leading, most], np.int64)
        lowest = -3 if rng.random() < 0.5 else 0
        self.ids = rng.integers(lowest, rows, size=len(of_bag)).astype(rng.choice([np.int32, np.int64]))
        self.weights = None
        if rng.random() < 0.5:
            self.weights = rng.uniform(-0.3 if rng.random() < 0.4 else 0.1, 2, size=len(of_bag)).astype(np.float32)
        self.options = {
            "combiner": str(rng.choice(["sum", "mean", "sqrtn"])),
            "default_id": int(rng.integers(rows)) if rng.random() < 0.4 else None,
            "max_norm": float(rng.uniform(0.5, 4)) if rng.random() < 0.3 else None,
        }
        self.gradient = rng.normal(size=(*leading, self.width)).astype(np.float32)

    def run(self, lookup, tables, as_type=tf.float32):
        """The values, and the gradients of the tables (dense) and of the weights."""
        ids = tf.SparseTensor(self.indices, self.ids, self.shape)
        weights = None if self.weights is None else tf.constant(self.weights, as_type)
        sparse = None if weights is None else tf.SparseTensor(self.indices, weights, self.shape)
        with tf.GradientTape() as tape:
            tape.watch(tables)
            if weights is not None:
                tape.watch(weights)
            out = lookup(tables, ids, sparse, partition_strategy=self.strategy, **self.options)
            loss = tf.reduce_sum(out * tf.cast(self.gradient, as_type))
        wanted = [*tables, weights] if weights is not None else tables
        made = tape.gradient(loss, wanted)
        dense = [tf.zeros_like(w) if g is None else tf.convert_to_tensor(g) for g, w in zip(made, wanted)]
        return out.numpy(), [g.numpy() for g in dense]


def magnitudes(case):
    """How far f32 may be off, in units of its rounding: the most ids of a row, and sizes of all that is added."""
    scale = max([1.0, *(float(np.abs(t).max()) for t in case.tables)])
    weight = 1.0 if case.weights is None or not len(case.weights) else float(np.abs(case.weights).max()) + 1
    return scale * weight * max(1.0, float(np.abs(case.gradient).max(initial=0)))


# A divisor near 0 enlarges what is rounded, in TensorFlow's float64 as here: weights of such cases are above 0.1.
@pytest.mark.parametrize("block", range(20))
def test_configurations(block):
    for seed in range(block * 50, block * 50 + 50):
        case = Case(seed)
        exact_tables = [tf.constant(t, tf.float64) for t in case.tables]
        exact, exact_gradients = case.run(v1.nn.safe_embedding_lookup_sparse, exact_tables, tf.float64)
        as_variables = seed % 2 == 0
        tables = [tf.Variable(t) if as_variables else tf.constant(t) for t in case.tables]
        out, gradients = case.run(deeprec_tf.safe_embedding_lookup_sparse, tables)
        assert out.shape == exact.shape and out.dtype == np.float32
        allowed = 1e-5 * magnitudes(case) * case.shape[-1]
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=allowed, err_msg=f"seed {seed}")
        assert len(gradients) == len(exact_gradients)
        for made, wanted in zip(gradients, exact_gradients):
            # A sum over all bags that use a row, and over the columns.
            most = allowed * max(case.width, len(case.ids), 1)
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=most, err_msg=f"seed {seed}")


def sparse(rows, ids, shape):
    within = [0] * len(rows)
    return tf.SparseTensor(np.stack([rows, within], 1).astype(np.int64), np.array(ids, np.int64), shape)


def test_each_row_of_a_gradient_is_there_once():
    table = tf.Variable(tf.ones([10, 4]))
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [2, 0]], np.array([7, 3, 7, 3], np.int64), [3, 2])
    with tf.GradientTape() as tape:
        out = deeprec_tf.safe_embedding_lookup_sparse(table, ids, combiner="sum")
    slices = tape.gradient(out, table)
    assert isinstance(slices, tf.IndexedSlices)
    assert slices.indices.numpy().tolist() == [3, 7]
    np.testing.assert_array_equal(slices.values, np.full((2, 4), 2.0))
    assert tf.convert_to_tensor(slices).shape == [10, 4]


@pytest.mark.parametrize("in_variable", [True, False])
def test_a_bad_id_is_named_and_the_process_goes_on(in_variable):
    table = tf.ones([10, 4])
    table = tf.Variable(table) if in_variable else table
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bag 2, position 2, value 10"):
            deeprec_tf.safe_embedding_lookup_sparse(table, sparse([0, 1, 2], [1, 2, 10], [3, 1]))
        out = deeprec_tf.safe_embedding_lookup_sparse(table, sparse([0, 1, 2], [1, 2, 9], [3, 1]))
        np.testing.assert_array_equal(out, np.ones((3, 4)))


def test_bad_inputs():
    lookup = deeprec_tf.safe_embedding_lookup_sparse
    table, ids = tf.ones([10, 4]), sparse([0, 1], [1, 2], [3, 1])
    bad = tf.errors.InvalidArgumentError
    with pytest.raises(bad, match="rows of sparse_ids must ascend .position 1, row 0 after 1"):
        lookup(table, sparse([1, 0], [1, 2], [3, 1]))
    with pytest.raises(bad, match="within its shape .position 1 is not"):
        lookup(table, sparse([0, 3], [1, 2], [3, 1]))
    with pytest.raises(bad, match="default_row|row 10|10"):
        lookup(table, ids, default_id=10)
    with pytest.raises(bad, match="weight"):
        lookup(table, ids, tf.SparseTensor(ids.indices, [1.0, float("nan")], ids.dense_shape), combiner="sum")
    with pytest.raises((bad, ValueError), match="value for each id|Dimension"):
        lookup(table, ids, tf.constant([1.0]))
    with pytest.raises(bad, match="part 0 of a table of 12 rows must have 6 .has 10"):
        lookup([table, tf.ones([2, 4])], ids)
    with pytest.raises((bad, ValueError), match="one width|Dimension|Shapes"):
        lookup([table, tf.ones([10, 3])], ids)
    with pytest.raises((bad, ValueError), match="2 dimensions|rank"):
        lookup(tf.ones([10]), ids)
    with pytest.raises(TypeError, match="sparse_ids must be a SparseTensor or a RaggedTensor .is a EagerTensor"):
        lookup(table, tf.constant([[1, 2]]))
    with pytest.raises(TypeError, match="a table must be of float32, float16 or bfloat16 .is of float64"):
        lookup(tf.ones([10, 4], tf.float64), ids)
    with pytest.raises(ValueError, match="combiner must be sum, mean or sqrtn .is max"):
        lookup(table, ids, combiner="max")
    with pytest.raises(ValueError, match="default_id must be None or an integer from 0 to 2.63 - 1 .is -1"):
        lookup(table, ids, default_id=-1)
    with pytest.raises(ValueError, match="max_norm must be None or a number above 0"):
        lookup(table, ids, max_norm=0.0)
    with pytest.raises(ValueError, match="must have a part"):
        lookup([], ids)
    # A variable that was never initialized.
    with tf.Graph().as_default(), v1.Session() as session:
        lost = v1.get_variable("lost", [10, 4], use_resource=True)
        with pytest.raises(tf.errors.FailedPreconditionError, match="variable 'lost' is not"):
            session.run(lookup(lost, sparse([0], [1], [1, 1])))


def test_memory_that_is_refused():
    ids = tf.SparseTensor(np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [2**46, 1])
    for rows in (2**46, 2**58, 2**61):
        huge = tf.SparseTensor(ids.indices, ids.values, [rows, 1])
        with pytest.raises((tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError)):
            deeprec_tf.safe_embedding_lookup_sparse(tf.ones([10, 4]), huge)
    assert deeprec_tf.safe_embedding_lookup_sparse(tf.ones([10, 4]), sparse([0], [1], [1, 1])).shape == [1, 4]


def test_shapes_are_known_in_a_graph_and_bad_ones_refused():
    with tf.Graph().as_default():
        table = v1.get_variable("t", [10, 4], use_resource=True)
        ids = tf.SparseTensor(v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.int64, [None]), [5, 6, 7])
        assert deeprec_tf.safe_embedding_lookup_sparse(table, ids).shape.as_list() == [5, 6, 4]
        open_ids = v1.sparse_placeholder(tf.int64, [None, 7])
        assert deeprec_tf.safe_embedding_lookup_sparse(table, open_ids).shape.as_list() == [None, 4]
        with pytest.raises(ValueError):
            deeprec_tf.safe_embedding_lookup_sparse(tf.ones([4, 5, 6]), open_ids)
        with pytest.raises(ValueError):
            deeprec_tf.safe_embedding_lookup_sparse([tf.ones([4, 5]), tf.ones([4, 6])], open_ids)


@pytest.mark.parametrize("kind", ["resource", "reference"])
@pytest.mark.parametrize("optimizer", [v1.train.AdagradOptimizer, v1.train.GradientDescentOptimizer])
def test_training_in_a_session(kind, optimizer):
    rng = np.random.default_rng(1)
    initial = rng.normal(size=(30, 8)).astype(np.float32)
    counts = rng.integers(0, 4, size=(20, 16))
    losses, tables = [], []
    for lookup in (deeprec_tf.safe_embedding_lookup_sparse, v1.nn.safe_embedding_lookup_sparse):
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("t", initializer=initial, use_resource=kind == "resource")
            ids = v1.sparse_placeholder(tf.int64)
            loss = tf.reduce_sum(tf.square(lookup(table, ids, combiner="mean") - 1.0))
            train = optimizer(0.05).minimize(loss)
            session.run(v1.global_variables_initializer())
            random, seen = np.random.default_rng(2), []
            for step in range(20):
                of_bag = np.repeat(np.arange(16), counts[step])
                within = np.concatenate([np.arange(n) for n in counts[step]])
                values = random.integers(-1, 30, size=len(of_bag))
                fed = v1.SparseTensorValue(np.stack([of_bag, within], 1), values, (16, 4))
                seen.append(session.run([loss, train], {ids: fed})[0])
            losses.append(seen)
            tables.append(session.run(table))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-4, atol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_in_a_function_of_keras():
    table = tf.Variable(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    optimizer = tf.keras.optimizers.Adagrad(0.1)
    traces = []

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def step(ids):
        traces.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(deeprec_tf.safe_embedding_lookup_sparse(table, ids) - 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    optimizer.build([table])
    first = step(sparse([0, 1], [3, 4], [2, 1]))
    for size in (2, 3, 4):
        last = step(sparse([0, 1], [3, 4], [2, size]))
    assert last < first and len(traces) == 1


def test_a_table_of_keras():
    layer = tf.keras.layers.Embedding(10, 4)
    layer.build([None])
    with tf.GradientTape() as tape:
        out = deeprec_tf.safe_embedding_lookup_sparse(layer.embeddings, sparse([0, 1], [3, 4], [2, 1]))
    np.testing.assert_array_equal(out, layer.embeddings.numpy()[3:5])
    assert tape.gradient(out, layer.embeddings.value).indices.numpy().tolist() == [3, 4]


def test_a_saved_model_keeps_the_op(tmp_path):
    module = tf.Module()
    module.table = tf.Variable(tf.reshape(tf.range(40.0), [10, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None], tf.int64)])
    def call(indices, ids):
        return deeprec_tf.safe_embedding_lookup_sparse(module.table, tf.SparseTensor(indices, ids, [3, 2]))

    module.call = call
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    given = tf.constant([[0, 0], [2, 0]], tf.int64), tf.constant([2, 5], tf.int64)
    np.testing.assert_array_equal(loaded.call(*given), module.call(*given))
    np.testing.assert_array_equal(loaded.call(*given)[2], [20, 21, 22, 23])
