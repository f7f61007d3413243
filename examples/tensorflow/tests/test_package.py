"""The library within the process: what it exports, whom it meets, and the buckets of tokens."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf

LIBRARY = next(Path(deeprec_tf.__file__).parent.glob("_ops*.so"))


def test_no_symbol_is_exported():
    listed = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == []
    needed = subprocess.run(["nm", "-D", "--undefined-only", "-C", str(LIBRARY)], capture_output=True, text=True, check=True)
    assert "tensorflow::OpKernel" in needed.stdout and "deeprec::" not in needed.stdout


def test_products_beside_the_ops():
    """Eigen's and oneDNN's products give the same before and after ops of ours ran between them."""
    rng = np.random.default_rng(0)
    a, b = (tf.constant(rng.normal(size=(256, 256)).astype(np.float32)) for _ in range(2))
    filters = tf.constant(rng.normal(size=(3, 3, 8, 8)).astype(np.float32))
    image = tf.constant(rng.normal(size=(2, 32, 32, 8)).astype(np.float32))

    def products():
        return tf.matmul(a, b).numpy(), tf.nn.conv2d(image, filters, 1, "SAME").numpy()

    before = products()
    table = tf.Variable(tf.random.normal([1000, 32]))
    for _ in range(20):
        ids = tf.sparse.from_dense(tf.random.uniform([512, 4], maxval=1000, dtype=tf.int64))
        deeprec_tf.safe_embedding_lookup_sparse(table, ids)
        deeprec_tf.row_select(tf.random.uniform([256]) < 0.5, a, b)
    for old, new in zip(before, products()):
        np.testing.assert_array_equal(old, new)


def test_buckets_of_a_million_strings():
    rng = np.random.default_rng(7)
    for buckets in (1, 10, 1000, 2**20, 2**31 - 1, 2**40):
        count = 10**6 if buckets == 2**20 else 10**4
        lengths = np.where(rng.random(count) < 0.9, rng.integers(0, 40, count), rng.integers(0, 300, count))
        ends = np.cumsum(lengths)
        text = rng.integers(0, 256, size=int(ends[-1]), dtype=np.uint8).tobytes()
        strings = tf.constant([text[end - n : end] for end, n in zip(ends, lengths)])
        ours = deeprec_tf.to_hash_bucket(strings, buckets)
        np.testing.assert_array_equal(ours, tf.strings.to_hash_bucket_fast(strings, buckets))
    assert deeprec_tf.to_hash_bucket(tf.constant([["a"], ["b"]]), 5).shape == [2, 1]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        deeprec_tf.to_hash_bucket(["a"], 0)


def test_a_library_built_with_another_tensorflow_is_refused_by_name(tmp_path):
    """A copy of the package whose record of the build names another version."""
    package = Path(deeprec_tf.__file__).parent
    shutil.copytree(package, tmp_path / "deeprec_tf")
    assert (tmp_path / "deeprec_tf" / "_built_with.txt").read_text() == tf.__version__
    (tmp_path / "deeprec_tf" / "_built_with.txt").write_text("2.0.1")
    ran = subprocess.run([sys.executable, "-c", "import deeprec_tf"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and f"built with 2.0.1, this is {tf.__version__}" in ran.stderr


def test_a_build_begins_again_for_another_header_or_framework(tmp_path):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages"))
    import building

    csrc = Path(__file__).resolve().parents[1] / "csrc"
    first = building.depends(csrc, tmp_path, "tensorflow 1")
    assert any(h.endswith("embedding/lookup/lookup.hpp") for h in first) and any(h.endswith("csrc/call.hpp") for h in first)
    stamp = Path(first[0])
    old = stamp.stat().st_mtime_ns
    building.depends(csrc, tmp_path, "tensorflow 1")
    assert stamp.stat().st_mtime_ns == old and stamp.read_text() == "tensorflow 1"
    os.utime(stamp, ns=(0, 0))
    building.depends(csrc, tmp_path, "tensorflow 2")
    assert stamp.stat().st_mtime_ns > 0 and stamp.read_text() == "tensorflow 2"
