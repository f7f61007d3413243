"""The library of ops, loaded once."""

import sys
from pathlib import Path

import tensorflow as tf

_folder = Path(__file__).parent
_built_with = (_folder / "_built_with.txt").read_text()
if _built_with != tf.__version__:
    raise ImportError(
        f"deeprec_tf: the library must be built with the TensorFlow that runs it (built with {_built_with}, this is {tf.__version__}): take the wheel "
        f"deeprec_tf-*+tf{tf.__version__}-cp{sys.version_info.major}{sys.version_info.minor}-*.whl, or build it: "
        "pip install --no-build-isolation --no-deps --force-reinstall <checkout>/examples/tensorflow"
    )
ops = tf.load_op_library(str(next(_folder.glob("_ops*.so"))))
