"""Ids and weights of lookups as the inputs of an op, and what is wrong with them."""

import tensorflow as tf

from ._library import ops


def combiner_of(combiner):
    if combiner not in ("sum", "mean", "sqrtn"):
        raise ValueError(f"deeprec: combiner must be sum, mean or sqrtn (is {combiner})")
    return combiner


def bag_arguments(sparse_ids, sparse_weights, combiner, sort):
    """indices, ids, dense_shape, weights, ragged, sort and combiner of an op of lookups."""
    if not isinstance(sort, bool):
        raise TypeError(f"deeprec: sort must be a bool (is {sort!r})")
    ragged = _is_ragged(sparse_ids, "sparse_ids")
    ids = _ids(sparse_ids.flat_values if ragged else sparse_ids.values)
    if ragged:
        indices, shape = tf.cast(sparse_ids.row_splits, tf.int64), tf.constant([], tf.int64)
    else:
        indices, shape = sparse_ids.indices, sparse_ids.dense_shape
    return {
        "indices": indices,
        "ids": ids,
        "dense_shape": shape,
        "weights": [] if sparse_weights is None else [_weights(sparse_weights, ragged)],
        "ragged": ragged,
        "sort": sort,
        "combiner": combiner_of(combiner),
    }


def _is_ragged(given, name):
    """Of a RaggedTensor or a SparseTensor; by what it has, as v1's SparseTensorValue and Keras's pass for one."""
    if isinstance(given, tf.RaggedTensor):
        if given.shape.rank != 2 or given.ragged_rank != 1:
            raise ValueError(f"deeprec: {name} of ragged rows must have 2 dimensions (has the shape {given.shape})")
        return True
    if not all(hasattr(given, part) for part in ("indices", "values", "dense_shape")):
        raise TypeError(f"deeprec: {name} must be a SparseTensor or a RaggedTensor (is a {type(given).__name__})")
    return False


def _ids(ids):
    ids = tf.convert_to_tensor(ids)
    if ids.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"deeprec: sparse_ids must be of int32 or int64 (are of {ids.dtype.name})")
    return ids


def _weights(given, ragged):
    if isinstance(given, tf.RaggedTensor):
        if not ragged:
            raise TypeError("deeprec: sparse_weights must be a SparseTensor, as sparse_ids is (is a RaggedTensor)")
        _is_ragged(given, "sparse_weights")
        given = given.flat_values
    elif hasattr(given, "indices"):
        if ragged:
            raise TypeError(f"deeprec: sparse_weights must be a RaggedTensor, as sparse_ids is (is a {type(given).__name__})")
        given = given.values
    weights = tf.convert_to_tensor(given)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(f"deeprec: sparse_weights must be numbers (are of {weights.dtype.name})")
    return tf.cast(weights, tf.float32)
