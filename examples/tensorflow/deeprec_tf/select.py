"""row_select: tf.where with a condition for each row."""

import tensorflow as tf

from ._library import ops


def row_select(condition, x, y, name=None):
    """Row b of the result is that of x where condition[b], else that of y.

    condition   (B) of bool
    x, y        (B, ...) or, for one row for all, (1, ...): of one type, which is not a string

    Only the chosen rows are read, and their bits are copied. Where TensorFlow needs x or y no more, it is written in
    place.
    """
    return ops.deeprec_row_select(condition=condition, x=x, y=y, name=name)


@tf.RegisterGradient("DeeprecRowSelect")
def _gradient(op, gradient):
    condition, x, y = op.inputs

    # Of no rows there is no first one to take the zeros from.
    zeros = tf.zeros(tf.concat([[1], tf.shape(gradient)[1:]], 0), gradient.dtype)

    def of(operand, made):
        known, rows = operand.shape[0] if operand.shape.rank else None, condition.shape[0]
        if known is not None and known != 1 or known == rows == 1:
            return made
        # One row for all, or perhaps one.
        repeated = tf.not_equal(tf.shape(operand)[0], tf.shape(made)[0])
        return tf.cond(repeated, lambda: tf.reduce_sum(made, axis=0, keepdims=True), lambda: made)

    return (
        None,
        of(x, ops.deeprec_row_select(condition=condition, x=gradient, y=zeros)),
        of(y, ops.deeprec_row_select(condition=condition, x=zeros, y=gradient)),
    )
