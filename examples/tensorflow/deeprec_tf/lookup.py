"""safe_embedding_lookup_sparse: prune, fill, gather, clip and combine as one op, with its gradients."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed  # what makes a tape watch a handle

from ._frozen import freezes_as
from ._ids import bag_arguments
from ._library import ops
from ._numbers import is_number, is_whole

_TYPES = (tf.float32, tf.float16, tf.bfloat16)


def safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids,
    sparse_weights=None,
    combiner="mean",
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
    allow_fast_lookup=False,
    sort=False,
):
    """As tf.nn.safe_embedding_lookup_sparse: the pooled rows (d0, ..., dr-2, D) of sparse_ids (d0, ..., dr-1).

    embedding_weights   a variable or a tensor (R, D) of float32, float16 or bfloat16, or a list of its parts. A resource
                        variable is read under its lock, and is neither copied nor cast
    sparse_ids          a SparseTensor of int32 or int64, of at least 2 dimensions, in row-major order, or a RaggedTensor
                        of 2 dimensions
    sparse_weights      as sparse_ids, with numbers in the same places, or None
    combiner            "sum", "mean" or "sqrtn"
    allow_fast_lookup   changes nothing: there is one way of looking up
    sort                whether the entries of a SparseTensor may come in any order; those of one row keep theirs

    The result has the type of the table, and is added up in float32; in a layer of Keras under mixed_bfloat16 or mixed_float16 the result of
    the layer's variable has the layer's compute type. Ids below 0 are dropped and, but for "sum", those whose weight is not above 0. A row without ids
    becomes zeros, or the row default_id. An id not below R is an InvalidArgumentError with its place.
    Gradients: of the tables IndexedSlices with each row once, and of the weights. Those of the weights, and those of the
    tables through max_norm, read a variable as it is when they are computed.
    Otherwise than in TensorFlow an id not below R is an error even where its weight drops it, default_id must be below R
    even where no row is empty, with "sum" a weight must be a number, max_norm must be above 0, a row with a NaN is not clipped, and tables of
    float64 are refused.
    """
    arguments = bag_arguments(sparse_ids, sparse_weights, "mean" if combiner is None else combiner, sort)
    if default_id is not None and not is_whole(default_id, 0):
        raise ValueError(f"deeprec: default_id must be None or an integer from 0 to 2^63 - 1 (is {default_id!r})")
    if max_norm is not None and not (is_number(max_norm) and np.float32(max_norm) > 0):
        raise ValueError(f"deeprec: max_norm must be None or a number above 0 and finite, as float32 (is {max_norm!r})")
    if partition_strategy not in ("div", "mod"):
        raise ValueError(f"deeprec: partition_strategy must be div or mod (is {partition_strategy!r})")
    tables, out_type, in_variables = _tables(embedding_weights)
    op = ops.deeprec_resource_safe_lookup if in_variables else ops.deeprec_safe_lookup
    if in_variables:
        arguments["T"] = tables[0].dtype.base_dtype
        for table in tables:
            variable_accessed(table)
    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        return op(
            tables=[table.handle for table in tables] if in_variables else tables,
            out_type=out_type,
            default_id=-1 if default_id is None else default_id,
            max_norm=-1.0 if max_norm is None else float(max_norm),
            partition_strategy=partition_strategy,
            **arguments,
        )


def _tables(given):
    """The parts of a table, the type of what is pooled, and whether the parts are resource variables."""
    tables = given
    if not isinstance(tables, (list, tuple)):
        tables = list(tables) if hasattr(tables, "_variable_list") else [tables]  # a PartitionedVariable
    if not tables:
        raise ValueError("deeprec: embedding_weights must have a part (has none)")
    for table in tables:
        if table is None or isinstance(table, (dict, str)):
            raise TypeError(f"deeprec: embedding_weights must be a variable, a tensor or a list of these (has a {type(table).__name__})")
    # A variable of Keras has the type of the layer that is called.
    out_type = tf.as_dtype(tables[0].dtype).base_dtype if hasattr(tables[0], "dtype") else None
    tables = [_of_keras(table) for table in tables]
    in_variables = all(_is_resource(table) for table in tables)
    if not in_variables:
        tables = [tf.convert_to_tensor(table) for table in tables]
    for p, table in enumerate(tables):
        if table.dtype.base_dtype not in _TYPES:
            raise TypeError(f"deeprec: a table must be of float32, float16 or bfloat16 (is of {table.dtype.name})")
        if table.dtype.base_dtype != tables[0].dtype.base_dtype:
            raise TypeError(f"deeprec: parts of a table must be of one type (part {p} is of {table.dtype.name}, part 0 of {tables[0].dtype.name})")
    return tables, out_type if in_variables else tables[0].dtype.base_dtype, in_variables


def _of_keras(table):
    """The variable of TensorFlow within one of Keras, as it is: `value` may be a cast of the whole table."""
    inner = getattr(table, "_value", None)
    if inner is None:
        inner = getattr(table, "value", table)
    return table if callable(inner) else inner


def _is_resource(table):
    return hasattr(table, "handle") and table.handle.dtype == tf.resource


def _gradient(op, gradient, of_rows, of_weights, shape_of):
    parts, weights = op.get_attr("P"), op.get_attr("M")
    tables, inputs = list(op.inputs[:parts]), list(op.inputs[parts:])
    arguments = {
        "gradient": tf.convert_to_tensor(gradient),
        "tables": tables,
        "indices": inputs[0],
        "ids": inputs[1],
        "dense_shape": inputs[2],
        "weights": inputs[3:],
        "combiner": op.get_attr("combiner"),
        "default_id": op.get_attr("default_id"),
        "max_norm": op.get_attr("max_norm"),
        "partition_strategy": op.get_attr("partition_strategy"),
        "ragged": op.get_attr("ragged"),
        "sort": op.get_attr("sort"),
    }
    if tables[0].dtype == tf.resource:
        arguments["T"] = op.get_attr("T")
    rows, values = of_rows(**arguments)
    slices = [tf.IndexedSlices(v, r, shape_of(table)) for v, r, table in zip(values, rows, tables)]
    return [*slices, None, None, None, *([of_weights(**arguments)] if weights else [])]


@tf.RegisterGradient("DeeprecSafeLookup")
def _lookup_gradient(op, gradient):
    of_rows, of_weights = ops.deeprec_safe_lookup_row_gradients, ops.deeprec_safe_lookup_weight_gradients
    return _gradient(op, gradient, of_rows, of_weights, lambda table: tf.shape(table, out_type=tf.int32))


@tf.RegisterGradient("DeeprecResourceSafeLookup")
def _resource_lookup_gradient(op, gradient):
    of_rows = ops.deeprec_resource_safe_lookup_row_gradients
    of_weights = ops.deeprec_resource_safe_lookup_weight_gradients
    # Of the type that TensorFlow's gradients have: the branches of a condition must agree.
    shape_of = lambda handle: tf.raw_ops.VariableShape(input=handle, out_type=tf.int32)  # noqa: E731
    return _gradient(op, gradient, of_rows, of_weights, shape_of)


freezes_as("DeeprecResourceSafeLookup", "DeeprecSafeLookup")
