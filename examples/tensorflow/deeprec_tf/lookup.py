"""safe_embedding_lookup_sparse: prune, fill, gather, clip and combine as one op, with its gradients."""

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed  # what makes a tape watch a handle

from ._library import ops


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
):
    """As tf.compat.v1.nn.safe_embedding_lookup_sparse: the pooled rows (d0, ..., dr-2, D) of sparse_ids (d0, ..., dr-1).

    embedding_weights   a variable or a tensor (R, D) of float32, or a list of its parts. A resource variable is read
                        under its lock, and is not copied
    sparse_ids          a SparseTensor of int32 or int64, of at least 2 dimensions, in row-major order
    sparse_weights      a SparseTensor of float32 with the indices of sparse_ids, or None
    combiner            "sum", "mean" or "sqrtn"
    allow_fast_lookup   changes nothing: there is one way of looking up

    Ids below 0 are dropped and, but for "sum", those whose weight is not above 0. A row without ids becomes zeros, or
    the row default_id. An id not below R is an InvalidArgumentError with its place.
    Gradients: of the tables IndexedSlices with each row once, and of the weights. Those of the weights, and those of the
    tables through max_norm, read a variable as it is when they are computed.
    Not supported, and refused by name: RaggedTensor, tables of other types than float32 (so a layer's variable under the
    policy mixed_bfloat16, which casts itself), SparseTensor of ids whose rows are not in order.
    Otherwise than in TensorFlow an id not below R is an error even where its weight drops it, default_id must be below R
    even where no row is empty, and with "sum" a weight must be a number.
    """
    for name_of, operand in (("sparse_ids", sparse_ids), ("sparse_weights", sparse_weights)):
        if isinstance(operand, tf.RaggedTensor):
            raise TypeError(f"deeprec: {name_of} must be a SparseTensor (is a RaggedTensor): {name_of}.to_sparse() makes one")
    if not all(hasattr(sparse_ids, part) for part in ("indices", "values", "dense_shape")):
        raise TypeError(f"deeprec: sparse_ids must be a SparseTensor (is a {type(sparse_ids).__name__})")
    if combiner not in ("sum", "mean", "sqrtn"):
        raise ValueError(f"deeprec: combiner must be sum, mean or sqrtn (is {combiner})")
    if default_id is not None and default_id < 0:
        raise ValueError(f"deeprec: default_id must not be negative (is {default_id})")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"deeprec: max_norm must be above 0 (is {max_norm})")
    tables = embedding_weights
    if not isinstance(tables, (list, tuple)):
        tables = list(tables) if hasattr(tables, "_variable_list") else [tables]  # a PartitionedVariable
    if not tables:
        raise ValueError("deeprec: embedding_weights must have a part (has none)")
    tables = [_of_keras(table) for table in tables]
    in_variables = all(_is_resource(table) for table in tables)
    op = ops.deeprec_resource_safe_lookup if in_variables else ops.deeprec_safe_lookup
    if not in_variables:
        tables = [tf.convert_to_tensor(table) for table in tables]
    for table in tables:
        if table.dtype.base_dtype != tf.float32:
            raise TypeError(
                f"deeprec: a table must be of float32 (is of {table.dtype.name}); of a layer under mixed_bfloat16 give the variable itself, "
                "which is"
            )
        if in_variables:
            variable_accessed(table)
    weights = []
    if sparse_weights is not None:
        weights = [sparse_weights.values if isinstance(sparse_weights, tf.SparseTensor) else sparse_weights]
    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        return op(
            tables=[table.handle for table in tables] if in_variables else tables,
            indices=sparse_ids.indices,
            ids=sparse_ids.values,
            dense_shape=sparse_ids.dense_shape,
            weights=weights,
            combiner=combiner,
            default_id=-1 if default_id is None else default_id,
            max_norm=-1.0 if max_norm is None else max_norm,
            partition_strategy=partition_strategy,
        )


def _of_keras(table):
    """The variable of TensorFlow within one of Keras."""
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
    }
    rows, values = of_rows(**arguments)
    slices = [tf.IndexedSlices(v, r, shape_of(table)) for v, r, table in zip(values, rows, tables)]
    return [*slices, None, None, None, *([of_weights(**arguments)] if weights else [])]


@tf.RegisterGradient("DeeprecSafeLookup")
def _lookup_gradient(op, gradient):
    of_rows, of_weights = ops.deeprec_safe_lookup_row_gradients, ops.deeprec_safe_lookup_weight_gradients
    return _gradient(op, gradient, of_rows, of_weights, lambda table: tf.shape(table, out_type=tf.int64))


@tf.RegisterGradient("DeeprecResourceSafeLookup")
def _resource_lookup_gradient(op, gradient):
    of_rows = ops.deeprec_resource_safe_lookup_row_gradients
    of_weights = ops.deeprec_resource_safe_lookup_weight_gradients
    shape_of = lambda handle: tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)  # noqa: E731
    return _gradient(op, gradient, of_rows, of_weights, shape_of)
