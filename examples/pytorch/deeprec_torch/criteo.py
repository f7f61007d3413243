"""Criteo's click log as tensors."""

import os
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .growth import expect, is_real, whole

_TABLES = 26


def _whole(name: str, value) -> int:
    """Its range is checked by the reader."""
    return whole(f"CriteoDataset: {name}", "an integer", value, -(2**63))


class CriteoBatch(NamedTuple):
    """labels (B) and dense (B, 13) in float32, ids (26, B) in int64: contiguous, in the memory they were read into.

    KeyedJaggedTensor.one_hot(keys, batch.ids) makes no copy of the ids. The next batches are read into the memory when
    all three tensors and their views are gone: tensors may be kept, at the cost of memory, and written to.
    """

    labels: Tensor
    dense: Tensor
    ids: Tensor


class CriteoIterator(Iterator):
    """The batches of one pass over the files.

    An error does not end it: a malformed line raises again, and where tensors are dropped after an OutOfMemoryError
    the rows continue.
    """

    def __init__(self, reader):
        self._reader = reader
        self._ended = False

    def __next__(self) -> CriteoBatch:
        if self._ended:
            raise StopIteration
        tensors = self._reader.next()
        if tensors is not None:
            return CriteoBatch(*tensors)
        self._ended = True
        skipped, first = self._reader.skipped()
        self.close()
        if skipped:
            warnings.warn(f"CriteoDataset: malformed lines were skipped ({skipped}, the first: {first})", stacklevel=2)
        raise StopIteration

    def close(self):
        """Ends the threads, as dropping the iterator does. Batches stay."""
        self._reader.close()


class CriteoDataset(IterableDataset):
    """Batches of the rows of Criteo's files, in their order: a CriteoBatch each, the last one maybe smaller.

        for labels, dense, ids in CriteoDataset("train.txt", rows=1 << 20, batch_size=8192): ...

    A line has a label, 13 integers and 26 tokens, by tab or comma; a header and an Id column are skipped. C++ threads
    parse and read ahead, begun by each iteration and ended with it, a break included. Python's lock is not held.

    With a DataLoader pass batch_size=None. It needs no workers: num_workers=0 reads ahead as well, and a worker copies
    each batch to shared memory. Workers take whole files in turn (paths[id::num_workers]); of more workers than files
    the rest yield nothing. An iterator is of the process that made it.

    paths         a file, or several; not compressed
    rows          of each table: a number, or 26; an id is below it
    batch_size    rows of a batch
    threads       that parse; by default torch.get_num_threads(): 1 in a worker
    prefetch      batches that are read ahead; 0: no thread reads ahead
    on_malformed  "fault": the rows before a malformed line arrive, then ValueError with file:line:column.
                  "skip": the line is left out, and a warning at the end has their number and the first
    max_bytes     of all batches: those read ahead and those whose tensors are in use, 272 bytes a row and 4 KB each.
                  Where they leave no room for the next batch, torch.OutOfMemoryError; a loop has two in use.
                  None: no limit. Text that is being parsed is not counted
    labels        "present"; "by_fields": a file whose first line has one field fewer has none; "absent". Without
                  them labels are 0
    tokens        "hashed": to a row of the table, with another hash for each; "as_is": row numbers
    missing_dense the value of an integer that is missing
    """

    def __init__(
        self,
        paths: str | os.PathLike | Iterable[str | os.PathLike],
        rows: int | Iterable[int],
        batch_size: int,
        *,
        threads: int | None = None,
        prefetch: int = 2,
        on_malformed: str = "fault",
        max_bytes: int | None = None,
        labels: str = "present",
        tokens: str = "hashed",
        missing_dense: float = 0.0,
    ):
        super().__init__()
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self.paths = [os.fspath(path) for path in paths]
        rows = list(rows) if isinstance(rows, Iterable) else [rows] * _TABLES
        self.rows = [_whole("rows", each) for each in rows]
        self.batch_size = _whole("batch_size", batch_size)
        self.threads = None if threads is None else _whole("threads", threads)
        self.prefetch = _whole("prefetch", prefetch)
        self.on_malformed = on_malformed
        self.max_bytes = None if max_bytes is None else _whole("max_bytes", max_bytes)
        self.labels = labels
        self.tokens = tokens
        expect(is_real(missing_dense), "CriteoDataset: missing_dense", "a number", missing_dense)
        self.missing_dense = float(missing_dense)
        self._reader([])  # refuses options

    def _reader(self, paths):
        return torch.classes.deeprec.CriteoReader(
            paths,
            self.rows,
            self.labels,
            self.tokens,
            self.missing_dense,
            self.batch_size,
            torch.get_num_threads() if self.threads is None else self.threads,
            self.prefetch,
            0 if self.max_bytes is None else self.max_bytes,
            self.on_malformed,
        )

    def __iter__(self) -> CriteoIterator:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in paths:
            open(path, "rb").close()  # its exception names what is wrong: FileNotFoundError, PermissionError ...
        return CriteoIterator(self._reader(paths))
