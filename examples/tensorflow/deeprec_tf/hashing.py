"""to_hash_bucket: the rows that deeprec's readers give to tokens with farmhash_bucket."""

import tensorflow as tf

from ._library import ops
from ._numbers import is_whole


def to_hash_bucket(tokens, num_buckets, name=None):
    """As tf.strings.to_hash_bucket_fast, by the function that `criteo_format{.bucket = farmhash_bucket}` calls.

    tokens        strings of any shape, or a RaggedTensor of them
    num_buckets   from 1 to 2^63 - 1
    """
    if not is_whole(num_buckets, 1):
        raise ValueError(f"deeprec: num_buckets must be an integer from 1 to 2^63 - 1 (is {num_buckets!r})")
    if isinstance(tokens, tf.RaggedTensor):
        return tf.ragged.map_flat_values(to_hash_bucket, tokens, num_buckets, name)
    return ops.deeprec_hash_bucket(tokens=tokens, num_buckets=num_buckets, name=name)
