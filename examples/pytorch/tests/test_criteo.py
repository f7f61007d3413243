"""CriteoDataset beside a parse of the same lines in plain Python."""

import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from deeprec_torch import CriteoDataset, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig

data = Path(os.environ.get("DEEPREC_DATA_DIR") or Path(__file__).resolve().parents[4] / "shared" / "data") / "criteo"
many_rows = 1 << 62  # of so many no two tokens of a test have the same


def needs(name):
    path = data / name
    return pytest.mark.skipif(not path.exists(), reason=f"there is no {path}: set DEEPREC_DATA_DIR")


log = data / "criteo_kaggle_merged_24k.tsv"
needs_log = needs(log.name)


# --- lines, and what they mean -------------------------------------------------------------------


def line(number, label=None, missing=False):
    """A line that no other number has."""
    integers = [str(number * 13 + i - 1) for i in range(13)]
    tokens = [f"{number * 7919 + f:08x}" for f in range(26)]
    if missing:
        integers[2] = tokens[3] = ""
    return "\t".join([str(number % 2 if label is None else label), *integers, *tokens])


def write(path, lines):
    path.write_text("".join(text + "\n" for text in lines))
    return path


def parse(texts, delimiter="\t", skipped_columns=0, has_label=True):
    labels, dense, tokens = [], [], []
    for text in texts:
        fields = [field.strip('"') for field in text.rstrip("\n").split(delimiter)[skipped_columns:]]
        labels.append(float(fields.pop(0)) if has_label else 0.0)
        dense.append([float(field or 0) for field in fields[:13]])
        tokens.append(fields[13:])
    return torch.tensor(labels), torch.tensor(dense), tokens


def read(dataset):
    """All rows, from copies of the batches."""
    batches = [tuple(tensor.clone() for tensor in batch) for batch in dataset]
    if not batches:
        return torch.empty(0), torch.empty(0, 13), torch.empty(26, 0, dtype=torch.int64)
    return tuple(torch.cat(tensors, dim=dim) for tensors, dim in zip(zip(*batches), (0, 0, 1)))


def assert_rows(dataset, texts, **options):
    labels, dense, ids = read(dataset)
    expected_labels, expected_dense, tokens = parse(texts, **options)
    assert torch.equal(labels, expected_labels)
    assert torch.equal(dense, expected_dense)
    assert ids.shape == (26, len(tokens)) and ids.dtype == torch.int64
    for feature, of_feature in enumerate(ids.tolist()):
        of_token = {}
        assert [of_token.setdefault(row[feature], found) for row, found in zip(tokens, of_feature)] == of_feature
        assert len(set(of_token.values())) == len(of_token)


def assert_same(first, second):
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def threads_now():
    return len(os.listdir("/proc/self/task"))


def eventually(holds, seconds=5.0):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "small.tsv", [line(n, missing=n % 3 == 0) for n in range(100)])


# --- values --------------------------------------------------------------------------------------


@needs_log
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_values_are_those_of_the_lines(threads, prefetch):
    with open(log) as texts:
        assert_rows(CriteoDataset(log, many_rows, 1000, threads=threads, prefetch=prefetch), list(texts))


@needs("criteo_kaggle_deepctr200.csv")
def test_commas_and_a_header():
    path = data / "criteo_kaggle_deepctr200.csv"
    assert_rows(CriteoDataset(path, many_rows, 64), path.read_text().splitlines()[1:], delimiter=",")


@needs("criteo_kaggle_fullvocab_ids_rows90000.csv")
def test_an_id_column_and_tokens_as_they_are():
    path = data / "criteo_kaggle_fullvocab_ids_rows90000.csv"
    texts = path.read_text().splitlines()[1:]
    dataset = CriteoDataset(path, 1 << 30, 512, tokens="as_is")
    assert_rows(dataset, texts, delimiter=",", skipped_columns=1)
    _, _, tokens = parse(texts, ",", 1)
    assert torch.equal(read(dataset)[2], torch.tensor([[int(float(token)) for token in row] for row in tokens]).T)


@pytest.mark.parametrize("batch_size", [1, 7, 8, 64, 100, 101])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_sizes_of_batches(small, batch_size, prefetch):
    dataset = CriteoDataset(small, many_rows, batch_size, prefetch=prefetch)
    full, rest = divmod(100, batch_size)
    batches = list(dataset)
    assert [len(batch.labels) for batch in batches] == [batch_size] * full + [rest] * (rest > 0)
    for labels, dense, ids in batches:
        assert labels.dtype == dense.dtype == torch.float32
        assert dense.shape == (len(labels), 13) and ids.shape == (26, len(labels))
        assert labels.is_contiguous() and dense.is_contiguous() and ids.is_contiguous()
    assert_rows(dataset, small.read_text().splitlines())


@needs_log
def test_prefetch_and_threads_change_nothing():
    passes = [list(CriteoDataset(log, 1000, 777, threads=t, prefetch=p)) for t, p in [(1, 0), (1, 3), (2, 0), (4, 8)]]
    for others in passes[1:]:
        assert len(others) == len(passes[0])
        for first, second in zip(passes[0], others):
            assert_same(first, second)


def test_rows_of_tables_and_missing_values(small):
    rows = [10 + f for f in range(26)]
    _, dense, ids = read(CriteoDataset(str(small), rows, 16, missing_dense=-7.5))
    assert all(0 <= each.min() and each.max() < of for each, of in zip(ids, rows))
    assert (dense[::3, 2] == -7.5).all() and (dense != -7.5).sum() == 1300 - 34


def test_files_in_their_order(tmp_path):
    lines = [line(n) for n in range(50)]
    paths = [write(tmp_path / f"day_{i}.tsv", lines[a:b]) for i, (a, b) in enumerate([(0, 20), (20, 20), (20, 50)])]
    assert_rows(CriteoDataset(paths, many_rows, 8), lines)


def test_lines_without_a_label(small, tmp_path):
    texts = small.read_text().splitlines()
    bare = write(tmp_path / "bare.tsv", [text.partition("\t")[2] for text in texts])
    dataset = CriteoDataset(bare, many_rows, 30, labels="by_fields")
    assert_rows(dataset, bare.read_text().splitlines(), has_label=False)
    assert torch.equal(read(dataset)[2], read(CriteoDataset(small, many_rows, 30, labels="by_fields"))[2])
    assert_rows(CriteoDataset(small, many_rows, 30, labels="by_fields"), texts)
    with pytest.raises(ValueError, match=r"bare\.tsv:1:\d+: malformed text: wrong number of fields"):
        read(CriteoDataset(bare, many_rows, 30))


def test_no_files():
    assert list(CriteoDataset([], 10, 8)) == []


def test_iterating_twice_and_at_once(small):
    dataset = CriteoDataset(small, many_rows, 9)
    first = read(dataset)
    assert_same(first, read(dataset))
    for one, other in zip(dataset, dataset, strict=True):
        assert_same(one, other)


def test_batches_feed_a_collection(small):
    keys = [f"C{f}" for f in range(1, 27)]
    collection = EmbeddingBagCollection([TableConfig(key, 100, 4) for key in keys])
    for batch in CriteoDataset(small, 100, 32):
        features = KeyedJaggedTensor.one_hot(keys, batch.ids)
        assert features.values().data_ptr() == batch.ids.data_ptr()
        expected = [collection.dequantized(key)[batch.ids[f]] for f, key in enumerate(keys)]
        assert torch.equal(collection(features), torch.cat(expected, dim=1))


# --- memory --------------------------------------------------------------------------------------


@needs_log
@pytest.mark.parametrize("prefetch", [0, 2])
def test_memory_is_used_again(prefetch):
    # As many blocks as are read ahead, one that is read, one of the loop.
    dataset = CriteoDataset(log, 1000, 512, prefetch=prefetch)
    assert len({batch.ids.data_ptr() for batch in dataset}) <= prefetch + 2
    assert len({tensor.data_ptr() for batch in dataset for tensor in batch}) <= 3 * (prefetch + 2)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_one_tensor_keeps_the_batch(small, kept):
    iterator = iter(CriteoDataset(small, many_rows, 10, prefetch=0))
    tensors = [next(iterator)[kept][1:] for _ in range(3)]  # views
    copies = [tensor.clone() for tensor in tensors]
    places = {tensor.data_ptr() for tensor in tensors}
    assert len(places) == 3
    for batch in iterator:
        assert batch[kept][1:].data_ptr() not in places
    assert_same(tensors, copies)
    del iterator, batch
    gc.collect()
    assert_same(tensors, copies)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_tensors_outlive_the_reader(small, prefetch):
    expected = read(CriteoDataset(small, many_rows, 10))
    batches = list(CriteoDataset(small, many_rows, 10, prefetch=prefetch))
    gc.collect()
    labels, dense, ids = (torch.cat(tensors, dim=dim) for tensors, dim in zip(zip(*batches), (0, 0, 1)))
    assert_same((labels, dense, ids), expected)


def test_tensors_may_be_written_to(small):
    for batch in CriteoDataset(small, many_rows, 10):
        for tensor in batch:
            tensor.fill_(5)
    assert_rows(CriteoDataset(small, many_rows, 10), small.read_text().splitlines())


def test_tensors_dropped_on_another_thread(small):
    seen = []
    for batch in CriteoDataset(small, many_rows, 5):
        seen.append(int(batch.labels.sum()))
        thread = threading.Thread(target=lambda dropped: dropped.clear(), args=([*batch],))
        del batch
        thread.start()
        thread.join()
    assert sum(seen) == 50


@pytest.mark.parametrize("prefetch", [0, 2])
def test_byte_budget(small, prefetch):
    # Of 3 batches and a little.
    iterator = iter(CriteoDataset(small, many_rows, 10, prefetch=prefetch, max_bytes=3 * (10 * 272 + 4096) + 100))
    kept = [next(iterator) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match=r"CriteoReader\.next: .* within max_bytes \(3 of 6816 bytes"):
            next(iterator)
    labels = [batch.labels.clone() for batch in kept]
    kept.clear()
    labels += [batch.labels.clone() for batch in iterator]
    assert torch.equal(torch.cat(labels), parse(small.read_text().splitlines())[0])
    with pytest.raises(ValueError, match=r"max_bytes.* must be from 6816 to .* \(is 6815\)"):
        CriteoDataset(small, many_rows, 10, max_bytes=6815)


@needs_log
def test_a_loop_stays_within_its_budget():
    size = 1000 * 272 + 4096
    for prefetch, batches in itertools.product([0, 1, 4], [2, 3]):
        dataset = CriteoDataset(log, 100, 1000, prefetch=prefetch, max_bytes=batches * size)
        assert sum(len(batch.labels) for batch in dataset) == 24583


# --- faults --------------------------------------------------------------------------------------


def spoiled(tmp_path, number=60):
    lines = [line(n) for n in range(100)]
    fields = lines[number].split("\t")
    fields[3] = "1x"
    lines[number] = "\t".join(fields)
    column = len("\t".join(fields[:3])) + 2
    return write(tmp_path / "spoiled.tsv", lines), lines, column


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_malformed_line(tmp_path, prefetch):
    path, lines, column = spoiled(tmp_path)
    iterator = iter(CriteoDataset(path, many_rows, 16, prefetch=prefetch))
    sizes = []
    with pytest.raises(ValueError, match=rf"spoiled\.tsv:61:{column}: malformed text: ") as caught:
        for batch in iterator:
            sizes.append(len(batch.labels))
    assert sizes == [16, 16, 16, 12]
    with pytest.raises(ValueError) as again:
        next(iterator)
    assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_malformed_lines_that_are_skipped(tmp_path, prefetch):
    path, lines, column = spoiled(tmp_path)
    dataset = CriteoDataset(path, many_rows, 16, prefetch=prefetch, on_malformed="skip")
    with pytest.warns(UserWarning, match=rf"were skipped \(1, the first: .*spoiled\.tsv:61:{column}: "):
        assert_rows(dataset, lines[:60] + lines[61:])


def test_no_warning_without_skipped_lines(small):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(CriteoDataset(small, many_rows, 16, on_malformed="skip"))


def test_missing_files(small, tmp_path):
    dataset = CriteoDataset([small, tmp_path / "none.tsv"], many_rows, 16)
    with pytest.raises(FileNotFoundError, match=r"none\.tsv"):
        iter(dataset)
    with pytest.raises(IsADirectoryError):
        iter(CriteoDataset(tmp_path, many_rows, 16))
    with pytest.raises(RuntimeError, match=r"none\.tsv: input or output error: no such file"):
        dataset._reader(dataset.paths)


def test_a_file_that_is_gone_later(small, tmp_path):
    second = write(tmp_path / "second.tsv", [line(1)])
    iterator = iter(CriteoDataset([small, second], many_rows, 100, prefetch=0, threads=1))
    second.unlink()
    assert len(next(iterator).labels) == 100
    with pytest.raises(RuntimeError, match=r"second\.tsv: input or output error: no such file"):
        next(iterator)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_closed_reader(small, prefetch):
    iterator = iter(CriteoDataset(small, many_rows, 16, prefetch=prefetch))
    batch = next(iterator)
    iterator.close()
    iterator.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"closed: CriteoReader\.next: the reader must be open"):
            next(iterator)
    assert torch.equal(batch.labels, parse(small.read_text().splitlines()[:16])[0])


def test_the_end_stays(small):
    iterator = iter(CriteoDataset(small, many_rows, 64))
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    reader = CriteoDataset(small, many_rows, 64)._reader([str(small)])
    assert [reader.next() is None for _ in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"batch_size": 0}, "batch_size must be from 1 to 1073741824 (is 0)"),
        ({"rows": 0}, "rows must be above 0"),
        ({"rows": [5] * 25}, "rows must be of 26 tables (are 25)"),
        ({"threads": -1}, "threads must be from 0 to 4096 (is -1)"),
        ({"prefetch": -1}, "prefetch must be from 0 to 65536 (is -1)"),
        ({"max_bytes": -1}, "max_bytes, with room for a batch, must be from"),
        ({"on_malformed": "drop"}, "on_malformed must be fault or skip (is drop)"),
        ({"labels": "none"}, "labels must be present, by_fields or absent (is none)"),
        ({"tokens": "raw"}, "tokens must be hashed or as_is (is raw)"),
    ],
)
def test_options_are_checked(options, text):
    with pytest.raises(ValueError) as caught:
        CriteoDataset([], **{"rows": 10, "batch_size": 8, **options})
    assert f"CriteoReader: {text}" in str(caught.value)


# --- threads and processes -----------------------------------------------------------------------


@needs_log
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_break_leaves_no_thread(prefetch):
    dataset = CriteoDataset(log, 1000, 256, threads=3, prefetch=prefetch)
    gc.collect()  # readers of other tests, in tracebacks
    before = threads_now()
    for _ in range(3):
        for batch in dataset:
            during = threads_now()
            break
        assert during == before + 2 + (prefetch > 0)
        assert eventually(lambda: threads_now() == before)
    list(dataset)
    assert eventually(lambda: threads_now() == before)
    with pytest.raises(ZeroDivisionError):
        for batch in dataset:
            1 / 0
    gc.collect()
    assert eventually(lambda: threads_now() == before)


@needs_log
def test_other_threads_run_while_next_waits():
    # Without an interval a thread gets Python's lock only where another one gives it up.
    reader = CriteoDataset(log, 1000, 24583, threads=1, prefetch=0)._reader([str(log)])
    steps, stop = 0, False

    def run():
        nonlocal steps
        while not stop:
            steps += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        sys.setswitchinterval(100)
        before = steps
        tensors = reader.next()
        during = steps - before
    finally:
        stop = True
        sys.setswitchinterval(interval)
        thread.join()
    assert len(tensors[0]) == 24583
    assert during > 10


@needs_log
def test_next_on_many_threads():
    for prefetch in (0, 2):
        reader = CriteoDataset(log, 1000, 100, prefetch=prefetch)._reader([str(log)])
        counts = []

        def take():
            while (tensors := reader.next()) is not None:
                counts.append(len(tensors[0]))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(counts) == 24583 and len(counts) == 246


def test_pickles(small):
    dataset = CriteoDataset(small, [7] * 26, 10, labels="by_fields", prefetch=1, missing_dense=2)
    assert_same(read(pickle.loads(pickle.dumps(dataset))), read(dataset))


def test_a_loader_without_workers(small):
    dataset = CriteoDataset(small, many_rows, 16)
    batches = list(DataLoader(dataset, batch_size=None))
    assert type(batches[0]).__name__ == "CriteoBatch"
    assert_same([tensor for batch in batches for tensor in batch], [tensor for batch in dataset for tensor in batch])


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_the_files(tmp_path, context, workers):
    lines = [line(n) for n in range(60)]
    paths = [write(tmp_path / f"day_{i}.tsv", lines[30 * i : 30 * i + 30]) for i in range(2)]
    dataset = CriteoDataset(paths, many_rows, 10)
    running = iter(dataset)  # its threads are not in a forked worker
    held = next(running)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, timeout=120)
    for _ in range(2):
        batches = [tuple(batch) for batch in loader]
        assert [len(batch[0]) for batch in batches] == [10] * 6
        # Workers deliver in turn; each has its files' rows in order.
        batches.sort(key=lambda batch: float(batch[1][0, 0]))
        labels, dense, ids = (torch.cat(tensors, dim=dim) for tensors, dim in zip(zip(*batches), (0, 0, 1)))
        assert_same((labels, dense, ids), read(dataset))
    assert_same(held, next(iter(dataset)))
    assert sum(len(batch.labels) for batch in running) == 50


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_fault_in_a_worker(tmp_path, context):
    path, _, column = spoiled(tmp_path)
    loader = DataLoader(
        CriteoDataset(path, many_rows, 16), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=120
    )
    with pytest.raises(ValueError, match=rf"spoiled\.tsv:61:{column}: malformed text: "):
        for _ in loader:
            pass


def test_a_break_in_a_loader_with_workers(small):
    dataset = CriteoDataset(small, many_rows, 1)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120)
    for _ in range(3):
        for _ in loader:
            break


def test_an_iterator_in_a_forked_process(small):
    # It is refused there, and dropped without a wait for threads that are not there.
    program = f"""
import gc, os
from deeprec_torch import CriteoDataset
iterator = iter(CriteoDataset({str(small)!r}, 10, 4, prefetch=3))
batch = next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        assert "CriteoReader.next: the process must be the one that made the reader" in str(error)
        iterator.close()
        del iterator, batch
        gc.collect()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert sum(len(batch.labels) for batch in iterator) == 96
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_interpreter_ends_with_a_reader(small):
    program = f"""
from deeprec_torch import CriteoDataset
iterator = iter(CriteoDataset({str(small)!r}, 10, 4, prefetch=3, threads=2))
batch = next(iterator)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
