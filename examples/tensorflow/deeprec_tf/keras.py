"""Growing tables in Keras: a layer, and an optimizer that steps tables beside the variables of a model.

    layer = GrowingEmbedding(16, deeprec_tf.Adagrad(0.05))
    model.compile(TablesOptimizer(keras.optimizers.Adam(0.001), [layer]), loss=...)
    model.fit(...)
"""

import keras
import numpy as np
import tensorflow as tf

from ._ids import combiner_of
from .growing import SGD, Adagrad, Adam, GrowingTable, RowwiseAdagrad, growing_lookup

_OPTIMIZERS = {of.kind: of for of in (SGD, Adagrad, RowwiseAdagrad, Adam)}


@keras.saving.register_keras_serializable("deeprec_tf")
class GrowingEmbedding(keras.layers.Layer):
    """Pooled rows of a GrowingTable: (B, width) of keys (B, ...), a SparseTensor or a RaggedTensor. Keys get rows where `training` and `trainable`
    are true.

    Its one weight is the table's anchor, which has no elements. save_weights, .keras files and tf.train.Checkpoint keep the table, get_weights
    does not. options are those of the GrowingTable.
    """

    def __init__(self, width, optimizer=None, combiner="mean", sort=False, name=None, dtype=None, trainable=True, **options):
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.table = GrowingTable(width, optimizer, **options)
        self.combiner, self.sort = combiner_of(combiner), sort
        anchor = self.add_weight(shape=(0, width), initializer="zeros", name="anchor", autocast=False)
        self.table.anchor = anchor.value
        self.built = True

    def call(self, ids, weights=None, training=False):
        of = getattr(ids, "dtype", tf.int64)
        if tf.as_dtype(of).is_floating:
            raise TypeError(
                f"deeprec: keys of a GrowingEmbedding must be of int32 or int64 (are of {tf.as_dtype(of).name}); a Sequential model begins with "
                'keras.Input(shape, dtype="int64", ragged=True)'
            )
        inserts = bool(training) and self.trainable
        return growing_lookup(self.table, ids, weights, self.combiner, inserts, self.sort, self.compute_dtype)

    def get_config(self):
        optimizer = self.table.optimizer
        rule = {"kind": optimizer.kind, **{name: float(value) for name, value in vars(optimizer).items()}}
        own = {"width": self.table.width, "optimizer": rule, "combiner": self.combiner, "sort": self.sort}
        return {**super().get_config(), **own, **self.table.options}

    @classmethod
    def from_config(cls, config):
        rule = dict(config["optimizer"])
        return super().from_config({**config, "optimizer": _OPTIMIZERS[rule.pop("kind")](**rule)})

    def save_own_variables(self, store):
        for part, tensor in self.table.parts().items():
            store[part] = np.frombuffer(tensor.numpy(), np.uint8) if tensor.dtype == tf.string else tensor.numpy()

    def load_own_variables(self, store):
        missing = [part for part in GrowingTable.PARTS if part not in store]
        if missing:
            raise ValueError(f"deeprec: weights of {self.name} must have its table (have no {', '.join(missing)})")
        parts = {part: np.asarray(store[part]) for part in GrowingTable.PARTS}
        self.table.set_parts({part: value.tobytes() if value.dtype == np.uint8 else value for part, value in parts.items()})

    def compute_output_shape(self, ids_shape, weights_shape=None):
        del weights_shape
        return (*ids_shape[:-1], self.table.width)

    def compute_output_spec(self, ids, weights=None, training=False):
        del training
        return keras.KerasTensor(self.compute_output_shape(ids.shape), self.compute_dtype)


@keras.saving.register_keras_serializable("deeprec_tf")
class RowAdagrad(keras.optimizers.Adagrad):
    """keras.optimizers.Adagrad whose step with the gradient of rows (IndexedSlices) reads and writes these rows only.

    Keras's takes the root of the whole accumulator in each step. Otherwise than there, epsilon is added to the root, not under it, and the
    gradients of a row that is there several times are added first.
    """

    def update_step(self, gradient, variable, learning_rate):
        if not isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        accumulator = getattr(accumulator, "value", accumulator)
        rows, values = _each_row_once(gradient.indices, tf.cast(gradient.values, variable.dtype))
        return tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=variable.handle,
            accum=accumulator.handle,
            lr=tf.cast(learning_rate, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=values,
            indices=rows,
        )


def _each_row_once(rows, values):
    """As they are where rows ascend, as in gradients of this package."""

    def added():
        unique, places = tf.unique(rows)
        return unique, tf.math.unsorted_segment_sum(values, places, tf.size(unique))

    return tf.cond(tf.reduce_all(rows[1:] > rows[:-1]), lambda: (rows, values), added)


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _where(finite, gradient):
    """The gradient, or NaN: what tells a LossScaleOptimizer of an overflow elsewhere."""
    if gradient is None:
        return None
    values = _values(gradient)
    values = tf.where(finite, values, tf.constant(float("nan"), values.dtype))
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape) if isinstance(gradient, tf.IndexedSlices) else values


def _inner(variable):
    """TensorFlow's variable in one of Keras."""
    return getattr(variable, "_value", variable)


def _done(_):
    return tf.constant(True)


class TablesOptimizer(keras.optimizers.Optimizer):
    """An optimizer of Keras for a model's variables, and beside it the steps of its growing tables by their own optimizers.

    inner      steps all variables but anchors, with its clipping, averages and schedules, which tables do not have. It may be a
               LossScaleOptimizer: the tables' gradients are divided by its scale, and a step that overflows anywhere steps nothing
    tables     GrowingEmbedding layers and GrowingTables
    rates      None: the rates of the tables' optimizers; else a function of inner.iterations, for all tables

    Refused are a LossScaleOptimizer around it, as compile() makes one under mixed_float16 (it looks for the rows of an anchor; compile with
    auto_scale_loss=False), a constant loss_scale_factor, and gradient_accumulation_steps: the tables would step more often than the variables.
    """

    def __init__(self, inner, tables, rates=None, name="tables_optimizer"):
        if not isinstance(inner, keras.optimizers.Optimizer):
            raise TypeError(f"deeprec: inner must be an optimizer of Keras (is a {type(inner).__name__})")
        for of in (inner, getattr(inner, "inner_optimizer", None)):
            for option in ("gradient_accumulation_steps", "loss_scale_factor"):
                if getattr(of, option, None):
                    raise ValueError(f"deeprec: inner must have no {option} (has {getattr(of, option)})")
        if isinstance(tables, (GrowingEmbedding, GrowingTable)):
            raise TypeError(f"deeprec: tables must be a list (is a {type(tables).__name__})")
        if rates is not None and not callable(rates):
            raise TypeError(f"deeprec: rates must be None or a function of a step's number (is {rates!r})")
        tables = [layer.table if isinstance(layer, GrowingEmbedding) else layer for layer in tables]
        for table in tables:
            if not isinstance(table, GrowingTable):
                raise TypeError(f"deeprec: tables must be GrowingEmbedding layers or GrowingTables (has a {type(table).__name__})")
        if len({id(table) for table in tables}) != len(tables):
            raise ValueError("deeprec: tables must differ (one is there twice)")
        super().__init__(learning_rate=0.0, name=name)
        self.inner, self._tables, self._rates = inner, tables, rates
        self._scales = isinstance(inner, keras.optimizers.LossScaleOptimizer)

    def __setattr__(self, name, value):
        # What a LossScaleOptimizer does to the optimizer that it is given.
        if name == "loss_scale_factor" and "_scales" in self.__dict__:
            raise ValueError(
                "deeprec: a LossScaleOptimizer must be in a TablesOptimizer (is around one): TablesOptimizer(LossScaleOptimizer(optimizer), tables), "
                "and compile(auto_scale_loss=False)"
            )
        super().__setattr__(name, value)

    def scale_loss(self, loss):
        return self.inner.scale_loss(loss)

    def _table_of(self, variable):
        return next((table for table in self._tables if table.anchor is _inner(variable)), None)

    def build(self, variables):
        for variable in variables:
            if getattr(_inner(variable), "is_anchor_of_deeprec", False) and self._table_of(variable) is None:
                name = getattr(variable, "path", variable.name)
                raise ValueError(f"deeprec: tables must have all growing tables of the model (have not that of {name})")
        self.inner.build([variable for variable in variables if self._table_of(variable) is None])
        self._all = list(variables)
        super().build([])

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        variables = self._all if trainable_variables is None else list(trainable_variables)
        grads = list(grads)
        if len(grads) != len(variables):
            raise ValueError(f"deeprec: gradients must be as many as variables, {len(variables)} (are {len(grads)})")
        rate = None if self._rates is None else self._rates(self.inner.iterations)
        dense, of_tables = [], []
        for gradient, variable in zip(grads, variables):
            table = self._table_of(variable)
            (dense if table is None else of_tables).append((gradient, variable if table is None else table))

        def step_tables(divisor=None):
            for gradient, table in of_tables:
                if gradient is not None and divisor is not None:
                    gradient = tf.IndexedSlices(tf.cast(gradient.values, tf.float32) / divisor, gradient.indices)
                table.apply_gradients(gradient, rate)

        if self._scales:
            scale = tf.identity(self.inner.dynamic_scale.value)  # the steps change it
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values(g))) for g in grads if g is not None])
            tf.cond(finite, lambda: _done(step_tables(scale)), lambda: _done(None))
            dense = [(_where(finite, g), v) for g, v in dense]
        else:
            step_tables()
        if dense:
            self.inner.apply([g for g, _ in dense], [v for _, v in dense])

    @property
    def variables(self):
        return self.inner.variables

    @property
    def learning_rate(self):
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner.learning_rate = learning_rate

    @property
    def iterations(self):
        return self.inner.iterations

    def finalize_variable_values(self, var_list):
        self.inner.finalize_variable_values([v for v in var_list if self._table_of(v) is None])

    def get_config(self):
        raise NotImplementedError(
            "deeprec: a TablesOptimizer has no config, as its tables are objects of the model: use model.save_weights(), or tf.train.Checkpoint, which "
            "keeps the optimizer too"
        )
