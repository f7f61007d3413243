"""The library within the process: what it exports, whom it meets, and the buckets of tokens."""

import importlib.metadata
import os
import re
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
    for buckets in (0, -1, 1.5, True, 2**63):
        with pytest.raises(ValueError, match=r"num_buckets must be an integer from 1 to 2\^63 - 1"):
            deeprec_tf.to_hash_bucket(["a"], buckets)
    ragged = tf.ragged.constant([["a"], [], ["b", ""]])
    assert deeprec_tf.to_hash_bucket(ragged, 9).to_list() == tf.strings.to_hash_bucket_fast(ragged, 9).to_list()


def test_a_library_built_with_another_tensorflow_is_refused_by_name(tmp_path):
    """A copy of the package whose record of the build names another version."""
    package = Path(deeprec_tf.__file__).parent
    shutil.copytree(package, tmp_path / "deeprec_tf")
    assert (tmp_path / "deeprec_tf" / "_built_with.txt").read_text() == tf.__version__
    (tmp_path / "deeprec_tf" / "_built_with.txt").write_text("2.0.1")
    ran = subprocess.run([sys.executable, "-c", "import deeprec_tf"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and f"built with 2.0.1, this is {tf.__version__}" in ran.stderr
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"take the wheel deeprec_tf-*+tf{tf.__version__}-{python}-*.whl" in ran.stderr


def test_a_tensorflow_whose_converter_is_another_warns():
    """All but frozen graphs works."""
    program = (
        "import warnings, tensorflow as tf\n"
        "from tensorflow.python.framework import convert_to_constants\n"
        "del convert_to_constants._Node\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import deeprec_tf\n"
        "print([str(w.message) for w in seen if w.category is RuntimeWarning and 'deeprec_tf' in str(w.message)])\n"
        "ids = tf.sparse.from_dense(tf.constant([[1, 2]], tf.int64))\n"
        "print(deeprec_tf.safe_embedding_lookup_sparse(tf.Variable(tf.ones([4, 2])), ids, combiner='sum').numpy().tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    warned, looked_up = ran.stdout.strip().splitlines()
    assert f"can't be frozen by TensorFlow {tf.__version__}" in warned and looked_up == "[[2.0, 2.0]]"


def test_the_version_of_the_package_names_its_tensorflow():
    found = importlib.metadata.version("deeprec_tf")
    assert found.split("+")[1] == "tf" + re.sub("[^a-z0-9]+", ".", tf.__version__)
    assert importlib.metadata.requires("deeprec_tf") in (None, ['pytest; extra == "test"'])  # of no package of TensorFlow
    building = packaging()
    root = Path(__file__).resolve().parents[3]
    assert building.version("torch", "2.6.0+cu124") == f"{found.split('+')[0]}+torch2.6.0.cu124"
    assert f"VERSION {found.split('+')[0]}" in (root / "CMakeLists.txt").read_text()


def packaging():
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages"))
    import building

    return building


def test_a_build_begins_again_for_another_header_or_framework(tmp_path):
    building = packaging()
    csrc = Path(__file__).resolve().parents[1] / "csrc"
    first = building.depends(csrc, tmp_path, "tensorflow 1")
    root = csrc.parents[2]
    headers = [*(root / "include").rglob("*.hpp"), *(root / "include").rglob("*.inl"), *csrc.glob("*.hpp"), *csrc.parents[1].glob("packages/*.hpp")]
    assert {str(header) for header in headers} <= set(first)
    assert any(h.endswith("embedding/lookup/lookup.hpp") for h in first) and any(h.endswith("csrc/call.hpp") for h in first)
    stamp = Path(first[0])
    old = stamp.stat().st_mtime_ns
    building.depends(csrc, tmp_path, "tensorflow 1")
    assert stamp.stat().st_mtime_ns == old and stamp.read_text() == "tensorflow 1"
    os.utime(stamp, ns=(0, 0))
    building.depends(csrc, tmp_path, "tensorflow 2")
    assert stamp.stat().st_mtime_ns > 0 and stamp.read_text() == "tensorflow 2"


STEPS = """
import os, sys
import numpy as np, tensorflow as tf, deeprec_tf

rng = np.random.default_rng(0)
table = tf.Variable(tf.random.normal([2000, 32]))
items = deeprec_tf.GrowingTable(16, deeprec_tf.Adagrad(0.1))
a, b = tf.random.normal([256, 64]), tf.random.normal([256, 64])

@tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
def step(ids):
    with tf.GradientTape() as tape:
        pooled = deeprec_tf.safe_embedding_lookup_sparse(table, ids)
        grown = deeprec_tf.growing_lookup(items, ids, training=True)
        loss = tf.reduce_sum(tf.square(pooled)) + tf.reduce_sum(tf.square(grown - 1.0))
    of_table, of_items = tape.gradient(loss, [table, items.anchor])
    table.scatter_sub(tf.IndexedSlices(0.001 * of_table.values, of_table.indices))
    items.apply_gradients(of_items)
    return tf.reduce_sum(deeprec_tf.row_select(a[:, 0] > 0, a, b)) + loss

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def run(steps):
    for _ in range(steps):
        lengths = rng.integers(0, 6, rng.integers(1, 200))
        ids = tf.RaggedTensor.from_row_lengths(tf.constant(rng.integers(0, 2000, int(lengths.sum()))), lengths)
        step(ids)

steps = int(sys.argv[1])
run(max(300, steps // 4))
before = resident()
run(steps)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_memory_does_not_grow():
    """Steps of training after as many as warm the allocators up; DEEPREC_LONG_STEPS=10000 by hand."""
    steps = int(os.environ.get("DEEPREC_LONG_STEPS", "600"))
    ran = subprocess.run([sys.executable, "-c", STEPS, str(steps)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    # A row of 32 floats that each step leaves would be 77 KB; a batch, 30 MB; a tensor of the table, 150 MB.
    assert int(ran.stdout.split()[-1]) < 24 << 20


FORKED = """
import os, sys
import numpy as np, tensorflow as tf, deeprec_tf

table = tf.constant(np.arange(80.0, dtype=np.float32).reshape(20, 4))
ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
used = sys.argv[1] == "used"
if used:
    deeprec_tf.safe_embedding_lookup_sparse(table, ids)
child = os.fork()
if child == 0:
    try:
        deeprec_tf.safe_embedding_lookup_sparse(table, ids)
    except tf.errors.FailedPreconditionError as problem:
        print(problem.message, flush=True)
        os._exit(3)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_after_an_op_is_refused_by_name():
    """TensorFlow's threads are not in it: an op that waits for them would hang."""
    ran = subprocess.run([sys.executable, "-c", FORKED, "used"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 3, ran.stderr
    assert "a process that was forked after TensorFlow was used has none of its threads" in ran.stdout and "spawn" in ran.stdout
