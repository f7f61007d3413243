"""The library of ops, loaded once."""

from pathlib import Path

import tensorflow as tf

ops = tf.load_op_library(str(next(Path(__file__).parent.glob("_ops*.so"))))
