"""Tables that grow: a row for any key of int64, from the first time that it is trained.

    items = deeprec_tf.GrowingTable(16, deeprec_tf.Adagrad(0.05))
    with tf.GradientTape() as tape:
        pooled = deeprec_tf.growing_lookup(items, ids, training=True)
        loss = ...
    dense, rows = tape.gradient(loss, [model.trainable_variables, items.anchor])
    optimizer.apply_gradients(zip(dense, model.trainable_variables))
    items.apply_gradients(rows)

A gradient of a table is IndexedSlices of its anchor, a variable without rows, with keys in the place of row numbers: it may be scaled, clipped
and added like any other. The step is the table's own, on rows and on their state in place. deeprec_tf.keras has a layer and an
optimizer for model.fit.
"""

import numbers
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from ._ids import bag_arguments
from ._library import ops
from ._numbers import MOST_INT, is_number, is_whole



@dataclass(frozen=True)
class SGD:
    learning_rate: float = 0.01

    kind, parameters = "sgd", ()


@dataclass(frozen=True)
class Adagrad:
    """The step is learning_rate * g / (sqrt(squares) + epsilon), squares from initial_squares on."""

    learning_rate: float = 0.01
    epsilon: float = 1e-7
    initial_squares: float = 0.1

    kind = "adagrad"

    @property
    def parameters(self):
        return self.epsilon, self.initial_squares


@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one sum for a row, of the mean of its squared gradient."""

    learning_rate: float = 0.01
    epsilon: float = 1e-7
    initial_squares: float = 0.0

    kind = "rowwise_adagrad"

    @property
    def parameters(self):
        return self.epsilon, self.initial_squares


@dataclass(frozen=True)
class Adam:
    """Lazy: rows that a batch does not use keep their moments."""

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    kind = "adam"

    @property
    def parameters(self):
        return self.beta_1, self.beta_2, self.epsilon


def _expect(fits, what, must, value):
    if not fits:
        raise ValueError(f"deeprec: {what} must be {must} (is {value!r})")


class GrowingTable(tf.saved_model.experimental.TrackableResource):
    """Rows of `width` float32 with the state of an optimizer, in the order of nothing: found by keys, any int64.

    optimizer      deeprec_tf.SGD, Adagrad, RowwiseAdagrad or Adam
    bound, seed    a new row's values are uniform in [-bound, bound), by the seed and the key: the same in every run
    capacity       the most rows; when_full "refuse" gives other keys none, "evict_least_recent" and
                   "evict_least_frequent" erase rows for them
    occurrences    how often a key must come in training before it gets a row
    default_value  what keys without a row read

    tf.train.Checkpoint saves and restores it where an attribute of a module or a model holds it: keys, rows, state, steps and
    frequencies, but not how often keys without a row have come; so do pickle and deepcopy. An asynchronous checkpoint has a second table in
    memory. Lookups and insertions may run side by side; steps,
    erasures and restores take turns with them. With TensorFlow 2's eager execution and functions, not in graphs of sessions.
    """

    def __init__(
        self,
        width,
        optimizer=None,
        bound=0.05,
        seed=0,
        capacity=None,
        when_full="refuse",
        occurrences=1,
        default_value=0.0,
        name="growing_table",
    ):
        optimizer = Adagrad() if optimizer is None else optimizer
        _expect(is_whole(width, 1, 2**24), "GrowingTable: width", "an integer from 1 to 2^24", width)
        _expect(isinstance(optimizer, (SGD, Adagrad, RowwiseAdagrad, Adam)), "GrowingTable: optimizer", "SGD, Adagrad, RowwiseAdagrad or Adam of deeprec_tf", optimizer)
        for field, value in vars(optimizer).items():
            _expect(is_number(value, 0), f"{type(optimizer).__name__}: {field}", "a finite number from 0 on", value)
        if isinstance(optimizer, Adam):
            for field in ("beta_1", "beta_2"):
                _expect(np.float32(getattr(optimizer, field)) < 1, f"Adam: {field}", "below 1 as float32", getattr(optimizer, field))
        _expect(is_number(bound, 0), "GrowingTable: bound", "a finite number from 0 on", bound)
        _expect(is_whole(seed, 0), "GrowingTable: seed", "an integer from 0 to 2^63 - 1", seed)
        _expect(capacity is None or is_whole(capacity, 1), "GrowingTable: capacity", "None or an integer from 1 on", capacity)
        kinds = ("refuse", "evict_least_recent", "evict_least_frequent")
        _expect(when_full in kinds, "GrowingTable: when_full", "refuse, evict_least_recent or evict_least_frequent", when_full)
        _expect(is_whole(occurrences, 1, 2**24 - 2), "GrowingTable: occurrences", "an integer from 1 to 2^24 - 2", occurrences)
        _expect(is_number(default_value), "GrowingTable: default_value", "a finite number", default_value)
        super().__init__()
        name = name or "growing_table"
        self.width, self.optimizer, self.name = int(width), optimizer, name
        options = {
            "bound": float(bound),
            "seed": int(seed),
            "capacity": None if capacity is None else int(capacity),
            "when_full": when_full,
            "occurrences": int(occurrences),
            "default_value": float(default_value),
        }
        self.options = MappingProxyType(options)  # a dict would be tracked
        with tf.init_scope():
            if not tf.executing_eagerly():
                raise RuntimeError("deeprec: a GrowingTable must be made with eager execution, or in a tf.function (is made in a graph)")
            self.anchor = tf.Variable(tf.zeros([0, self.width]), name=name + "_anchor")
            self.resource_handle  # noqa: B018  makes the table

    @property
    def anchor(self):
        """The variable whose gradient is that of the table."""
        return self._anchor

    @anchor.setter
    def anchor(self, variable):
        self._anchor = variable
        variable.is_anchor_of_deeprec = True  # for optimizers that do not have this table
        self._track_trackable(variable, "anchor", overwrite=True)

    def _create_resource(self):
        options = dict(self.options)
        capacity = options.pop("capacity")
        return ops.deeprec_growing_table(
            width=self.width,
            optimizer=self.optimizer.kind,
            parameters=[float(value) for value in self.optimizer.parameters],
            most_rows=MOST_INT if capacity is None else capacity,
            **options,
        )

    def apply_gradients(self, gradient, learning_rate=None):
        """One step of the rows that a gradient of the anchor has; None has none. A row that is there twice has one step, of the sum.

        gradient        tf.IndexedSlices with keys, as tape.gradient(loss, table.anchor) returns
        learning_rate   a number or a tensor, finite and not negative, of a schedule its value; None: the optimizer's

        A key that was not admitted, or was erased since, has no step. A gradient that is not finite, or its sum over a key that is there
        twice, raises InvalidArgumentError with the key and the column, and changes nothing.
        """
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            raise TypeError(f"deeprec: a gradient of a GrowingTable must be IndexedSlices with keys (is a {type(gradient).__name__})")
        rate = self.optimizer.learning_rate if learning_rate is None else learning_rate
        if isinstance(rate, numbers.Real):
            _expect(is_number(rate, 0), "apply_gradients: learning_rate", "a finite number from 0 on", rate)
        elif callable(rate) or isinstance(rate, (str, bytes)):
            raise TypeError(f"deeprec: apply_gradients: learning_rate must be a number or a tensor (is a {type(rate).__name__}); call a schedule with the step")
        return ops.deeprec_growing_apply(
            table=self.resource_handle,
            keys=tf.cast(gradient.indices, tf.int64),
            values=tf.cast(gradient.values, tf.float32),
            learning_rate=tf.cast(rate, tf.float32),
        )

    def rows(self, keys):
        """What lookups read for keys of any shape: (..., width)."""
        return ops.deeprec_growing_rows(table=self.resource_handle, keys=_keys(keys), width=self.width)

    def size(self):
        """The number of rows."""
        return ops.deeprec_growing_size(table=self.resource_handle)

    def erase(self, keys):
        """Erases the rows of keys and what is counted of them; returns how many rows."""
        return ops.deeprec_growing_erase(table=self.resource_handle, keys=tf.reshape(_keys(keys), [-1]))

    def evict(self, steps):
        """Erases the rows that had no step of the optimizer in more than `steps` steps; returns how many."""
        if tf.is_tensor(steps):
            _expect(steps.dtype.is_integer, "evict: steps", "of integers", steps.dtype.name)
        else:
            _expect(is_whole(steps, 0), "evict: steps", "an integer from 0 on", steps)
        return ops.deeprec_growing_evict(table=self.resource_handle, steps=tf.cast(steps, tf.int64))

    PARTS = ("keys", "rows", "state", "facts", "applied", "owner")

    def parts(self):
        """The contents as tensors, what checkpoints have: {name of PARTS: tensor}."""
        return dict(zip(self.PARTS, ops.deeprec_growing_export(table=self.resource_handle)))

    def set_parts(self, parts):
        """Takes the place of the contents. Parts of a table of another width or optimizer are refused, and nothing is changed."""
        return ops.deeprec_growing_import(table=self.resource_handle, **{part: parts[part] for part in self.PARTS})

    def _serialize_to_tensors(self):
        return self.parts()

    def _restore_from_tensors(self, restored):
        return self.set_parts(restored)

    def _copy_trackable_to_cpu(self, object_map):
        """Copies the contents: what an asynchronous checkpoint writes while training goes on. TensorFlow calls it eagerly, then in a function."""
        if self not in object_map:
            object_map[self] = GrowingTable(self.width, self.optimizer, name=self.name, **self.options)
        object_map[self].set_parts(self.parts())

    def __copy__(self):
        """The same table, as TensorFlow makes it to save a model."""
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__)
        return same

    def __reduce__(self):
        parts = {part: tensor.numpy() for part, tensor in self.parts().items()}
        return _table_with, (self.width, self.optimizer, self.name, dict(self.options), parts)


def _table_with(width, optimizer, name, options, parts):
    table = GrowingTable(width, optimizer, name=name, **options)
    table.set_parts(parts)
    return table


def growing_lookup(table, sparse_ids, sparse_weights=None, combiner="mean", training=False, sort=False, dtype=tf.float32, name=None):
    """The pooled rows (d0, ..., dr-2, D) of keys (d0, ..., dr-1).

    table         a GrowingTable
    sparse_ids    a SparseTensor or a RaggedTensor of keys, as safe_embedding_lookup_sparse takes them; every int64 is a key
    training      whether keys without a row get one. Without it, as to serve, nothing changes
    dtype         of the result: float32, float16 or bfloat16; added up in float32

    A key without a row reads the table's default_value. A bag without keys is zeros. Weights have gradients as well.
    """
    if not isinstance(table, GrowingTable):
        raise TypeError(f"deeprec: table must be a GrowingTable (is a {type(table).__name__})")
    if not isinstance(training, bool):
        raise TypeError(f"deeprec: training must be a bool (is {training!r})")
    if tf.as_dtype(dtype) not in (tf.float32, tf.float16, tf.bfloat16):
        raise TypeError(f"deeprec: dtype must be float32, float16 or bfloat16 (is {tf.as_dtype(dtype).name})")
    arguments = bag_arguments(sparse_ids, sparse_weights, combiner, sort)
    variable_accessed(table.anchor)
    with tf.name_scope(name or "growing_lookup"):
        return ops.deeprec_growing_lookup(
            table=table.resource_handle,
            anchor=table.anchor.handle,
            width=table.width,
            insert=training,
            out_type=dtype,
            **arguments,
        )


def _keys(keys):
    if isinstance(keys, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"deeprec: keys must be a tensor (is a {type(keys).__name__}); give its values")
    keys = tf.convert_to_tensor(keys, dtype_hint=tf.int64)  # of an empty list too
    if keys.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"deeprec: keys must be of int32 or int64 (are of {keys.dtype.name})")
    return tf.cast(keys, tf.int64)


@tf.RegisterGradient("DeeprecGrowingLookup")
def _gradient(op, gradient):
    weights = op.get_attr("M")
    arguments = {
        "gradient": tf.convert_to_tensor(gradient),
        "table": op.inputs[0],
        "indices": op.inputs[2],
        "ids": op.inputs[3],
        "dense_shape": op.inputs[4],
        "weights": list(op.inputs[5:]),
        **{name: op.get_attr(name) for name in ("combiner", "ragged", "sort", "width")},
    }
    keys, values = ops.deeprec_growing_row_gradients(**arguments)
    shape = tf.constant([0, op.get_attr("width")], tf.int32)  # of the type that TensorFlow's gradients have: branches must agree
    slices = tf.IndexedSlices(values, keys, shape)
    return [None, slices, None, None, None, *([ops.deeprec_growing_weight_gradients(**arguments)] if weights else [])]
