"""row_select beside tf.where."""

import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf

TYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint8, tf.int16, tf.int32, tf.int64, tf.bool, tf.complex64]


def random_bits(rng, shape, dtype):
    """Values of all bits: NaN payloads, -0 and denormals too."""
    made = rng.integers(0, 256, size=(*shape, dtype.size), dtype=np.uint8)
    if dtype == tf.bool:
        made &= 1
    return tf.reshape(tf.bitcast(made, dtype) if dtype.size > 1 else tf.constant(made.view(dtype.as_numpy_dtype)[..., 0]), shape)


def bits(tensor):
    return np.ascontiguousarray(tensor.numpy()).view(np.uint8)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_bits_of_random_shapes(dtype):
    rng = np.random.default_rng(dtype.as_datatype_enum)
    for _ in range(40):
        rows = int(rng.choice([0, 1, 2, 7, 64, 300]))
        rest = [int(n) for n in rng.integers(0, 20, size=int(rng.integers(0, 3)))]
        condition = tf.constant(rng.random(rows) < rng.random())
        x = random_bits(rng, [rows if rng.random() < 0.7 else 1, *rest], dtype)
        y = random_bits(rng, [rows if rng.random() < 0.7 else 1, *rest], dtype)
        out = deeprec_tf.row_select(condition, x, y)
        wide = tf.reshape(condition, [rows, *[1] * len(rest)])
        wanted = tf.where(wide, tf.broadcast_to(x, [rows, *rest]), tf.broadcast_to(y, [rows, *rest]))
        assert out.shape == wanted.shape and out.dtype == dtype
        np.testing.assert_array_equal(bits(out), bits(wanted))


@pytest.mark.parametrize("of_x, of_y", [(5, 5), (1, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize("in_function", [False, True])
def test_gradients(of_x, of_y, in_function):
    rng = np.random.default_rng(3)
    condition = tf.constant([True, False, True, True, False])
    x, y = tf.constant(rng.normal(size=(of_x, 3, 2))), tf.constant(rng.normal(size=(of_y, 3, 2)))
    g = tf.constant(rng.normal(size=(5, 3, 2)))

    def gradients(select, x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            loss = tf.reduce_sum(select(x, y) * g)
        return tape.gradient(loss, [x, y])

    unknown = tf.TensorSpec([None, 3, 2], tf.float64)
    wrap = tf.function(input_signature=[unknown, unknown]) if in_function else lambda f: f
    ours = wrap(lambda x, y: gradients(lambda x, y: deeprec_tf.row_select(condition, x, y), x, y))(x, y)
    wanted = gradients(lambda x, y: tf.where(condition[:, None, None], x, y), x, y)
    for made, other in zip(ours, wanted):
        assert made.shape == other.shape
        np.testing.assert_allclose(made, other, rtol=1e-12)


def test_gradient_of_one_row():
    x, y = tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        out = deeprec_tf.row_select([False], x, y)
    of_x, of_y = tape.gradient(out, [x, y])
    assert of_x.numpy().tolist() == [[0, 0]] and of_y.numpy().tolist() == [[1, 1]]


def test_operands_that_are_needed_again_are_not_written():
    x, y = tf.Variable(tf.ones([4, 3])), tf.Variable(tf.zeros([4, 3]))
    for _ in range(2):
        out = deeprec_tf.row_select([True, False, True, False], x, y)
        assert out.numpy()[:, 0].tolist() == [1, 0, 1, 0]
        assert x.numpy().min() == 1 and y.numpy().max() == 0

    @tf.function
    def chained(x, y):  # temporaries, which may be written in place
        a, b = x + 1.0, y + 1.0
        return deeprec_tf.row_select([True, False, True, False], a * 2.0, b * 2.0), a

    out, a = chained(x, y)
    assert out.numpy()[:, 0].tolist() == [4, 2, 4, 2] and a.numpy().min() == 2


def test_bad_operands():
    ok = tf.ones([3, 2])
    for condition, x, y in [
        ([True, False], ok, ok),
        ([[True, False, True]], ok, ok),
        ([True, False, True], tf.ones([2, 2]), ok),
        ([True, False, True], ok, tf.ones([3, 4])),
        ([True, False, True], tf.ones([]), tf.ones([])),
        ([True, False, True], ok, tf.ones([3, 2, 1])),
    ]:
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            deeprec_tf.row_select(condition, x, y)
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        deeprec_tf.row_select([True], tf.constant([["a"]]), tf.constant([["b"]]))
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        deeprec_tf.row_select([True, False, True], ok, tf.ones([3, 2], tf.float64))
    assert deeprec_tf.row_select([True, False, True], ok, ok).shape == [3, 2]


def test_shapes_are_known_in_a_graph():
    with tf.Graph().as_default():
        select = deeprec_tf.row_select
        some = tf.compat.v1.placeholder(tf.float32, [None, 7])
        flags = tf.compat.v1.placeholder(tf.bool, [12])
        assert select(flags, some, tf.zeros([1, 7])).shape.as_list() == [12, 7]
        with pytest.raises(ValueError):
            select(flags, tf.zeros([11, 7]), some)
        with pytest.raises(ValueError):
            select(flags, tf.zeros([12, 8]), some)
