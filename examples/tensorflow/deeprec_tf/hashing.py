"""to_hash_bucket: the rows that deeprec's readers give to tokens with farmhash_bucket."""

from ._library import ops


def to_hash_bucket(tokens, num_buckets, name=None):
    """As tf.strings.to_hash_bucket_fast, by the function that `criteo_format{.bucket = farmhash_bucket}` calls.

    tokens        strings of any shape
    num_buckets   at least 1
    """
    return ops.deeprec_hash_bucket(tokens=tokens, num_buckets=num_buckets, name=name)
