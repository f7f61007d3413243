"""The library of ops, loaded once."""

from pathlib import Path

import tensorflow as tf

from ._version_check import check

check("deeprec_tf", "tf", "TensorFlow", tf.__version__)
ops = tf.load_op_library(str(next(Path(__file__).parent.glob("_ops*.so"))))
