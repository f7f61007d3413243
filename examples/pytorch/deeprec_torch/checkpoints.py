"""Checkpoints of a collection while it trains: full files, deltas of what changed since, and readers that follow them."""

import atexit
import io
import os
import pickle
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .bag_collection import EmbeddingBagCollection, RowsParameter
from .growth import is_real, is_whole, whole

_WAIT = 100  # milliseconds between two looks at signals


class Restored(NamedTuple):
    """What a file had beside tables: the step and the numbers that were given; its own number, and that of its chain, which a
    full file begins; newer files that are not whole, or don't continue the chain, and why."""

    step: int
    numbers: dict[str, int | float]
    number: int
    chain: int
    passed_over: list[str]


def _restored(state) -> Restored:
    step, whole, real, number, chain, passed_over = state
    return Restored(step, {**dict(whole), **dict(real)}, number, chain, list(passed_over))


def _expect_collection(who: str, collection):
    if not isinstance(collection, EmbeddingBagCollection):
        raise TypeError(f"{who}: collection must be an EmbeddingBagCollection (is {type(collection).__name__})")


class _Dense:
    """Tensors with names: those of a mapping, or the parameters and persistent buffers that a module has at the moment."""

    def __init__(self, who: str, dense, collection: EmbeddingBagCollection):
        if not isinstance(dense, (nn.Module, Mapping, type(None))):
            raise TypeError(f"{who}: dense must be a module or a dict of tensors (is {type(dense).__name__})")
        self.who, self.dense, self.collection = who, dense, collection

    def now(self) -> tuple[list[str], list[Tensor]]:
        found = dict(self._of_module() if isinstance(self.dense, nn.Module) else self.dense or {})
        for name, tensor in found.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                must = "dense must have tensors by their names"
                raise TypeError(f"{self.who}: {must} (has {type(tensor).__name__} for {name!r})")
        return list(found), [tensor.detach() for tensor in found.values()]

    def _of_module(self):
        for prefix, module in self.dense.named_modules():
            if module is self.collection:
                yield from self._named(prefix, {name: p for name, p in module._parameters.items() if name != "_hook"})
                continue
            if isinstance(module, RowsParameter):  # of a collection
                continue
            if isinstance(module, EmbeddingBagCollection):
                raise ValueError(f"{self.who}: dense must have no other EmbeddingBagCollection (has {prefix!r}): it has its own files")
            kept = {name: buffer for name, buffer in module._buffers.items() if name not in module._non_persistent_buffers_set}
            yield from self._named(prefix, {**module._parameters, **kept})

    @staticmethod
    def _named(prefix: str, tensors):
        for name, tensor in tensors.items():
            if tensor is not None:
                yield (f"{prefix}.{name}" if prefix else name), tensor


def _bytes_of(states) -> io.BytesIO:
    saved = io.BytesIO()
    torch.save(states, saved)
    saved.seek(0)
    return saved


def _parts(states):
    """The members of what a state dict has, with their keys; None: it has none."""
    if type(states) in (dict, OrderedDict):
        return states.items()
    return enumerate(states) if type(states) in (list, tuple) else None


def _without_values(states):
    """The same, of tensors without elements: what else there is takes little time to save and load."""
    if type(states) is Tensor:
        return torch.empty(0, dtype=states.dtype, device="cpu")
    parts = _parts(states)
    if parts is None:
        return states
    return {key: _without_values(part) for key, part in parts} if isinstance(states, dict) else [_without_values(part) for _, part in parts]


def _unreadable(states, place: str = "") -> str | None:
    """The first part, and its type, that torch.load would refuse."""
    try:
        torch.load(_bytes_of(_without_values(states)), weights_only=True)
        return None
    except pickle.UnpicklingError:
        inner = (_unreadable(part, f"{place}[{key!r}]") for key, part in _parts(states) or ())
        return next(filter(None, inner), f"{place} is {type(states).__module__}.{type(states).__qualname__}")


def _saved(states) -> Tensor:
    unreadable = _unreadable(states)
    if unreadable:
        must = "what torch.load reads with weights_only: tensors, numbers and strings of Python, in dicts and lists"
        raise TypeError(f"Checkpoints.cut: the state of optimizer must be {must} ({unreadable})")
    return torch.frombuffer(_bytes_of(states).getbuffer(), dtype=torch.uint8)


class Cut:
    """The state of one moment, that of the call that took it. Its file is written once, by a thread of C++, while training
    goes on. One that is dropped, or whose write failed, leaves its changes to the next delta."""

    def __init__(self, cut):
        self._cut = cut
        self.number: int = cut.number()
        self.path: str = cut.path()

    def write(self, background: bool = False) -> "Cut":
        """Begins to write, and returns when the file is on the disk; in the background at once. Errors: those of wait().
        KeyboardInterrupt ends the call, and not the write."""
        self._cut.write()
        if not background:
            self.wait()
        return self

    def wait(self) -> int:
        """Waits until the file is on the disk; returns its bytes. RuntimeError, torch.OutOfMemoryError or ValueError where it
        could not be written: then no file is left, and training goes on."""
        while not self._cut.wait(_WAIT):
            pass
        return self.bytes

    def done(self) -> bool:
        """Whether it was written, failed, or was dropped."""
        return self._cut.done()

    @property
    def bytes(self) -> int:
        """Of the file, when it is written. Errors: those of wait()."""
        return self._cut.bytes()

    def drop(self):
        """Ends a cut that is not to be written."""
        self._cut.drop()


class Checkpoints:
    """Files of a folder that a collection is restored from: full files, and deltas, in O(rows that changed).

        saves = Checkpoints("/models/ctr", tables, optimizer=adam, dense=net)
        last = saves.restore()                                       # None: the folder is empty
        written = saves.write_full(last.step if last else 0)
        for step in range(last.step if last else 0, steps):
            ...                                                      # forward, backward, step
            if step % 1000 == 999: written = saves.write_full(step + 1, {"auc": auc}, background=True)
            elif step % 10 == 9 and written.done(): saves.write_delta(step + 1)

    A file is the state between two steps: keys, rows, optimizer state, steps and frequencies of tables that grow, rows and state
    of dense ones, the dense tensors, the step and the learning rate. A collection that is restored goes on with the same bits, but
    for what an admission counted since the last full file. What restore() reads was checked: after a crash it is the last file that
    write() or wait() reported, or a newer one. The files are those of deeprec's checkpoint_folder: C++ reads them too.

    folder       is made by the first write. One writes to it, many may read
    collection   its tables that grow are in one Checkpoints at most; while it exists load_state_dict() and load() of them raise
                 RuntimeError
    optimizer    a torch.optim.Optimizer of the other parameters: its state dict, in each file; or a dict of optimizers, schedules of
                 rates and gradient scalers, by their names. That of the collection needs none but for its rates: a TableOptimizer.
                 A state that torch.load does not read with weights_only, as a rate of numpy, is a TypeError of the cut
    dense        a module, its parameters and persistent buffers as they are at the moment of a cut (the collection may be a part
                 of it), or a dict of tensors, on the CPU. Each file has all of them, and all dense tables. A delta continues
                 files with the same names, types and shapes
    kept_chains  full files that stay, with their deltas
    copy_budget  bytes of rows that training may copy, because it changes them before they are written. Beyond, it waits

    Cuts, restore() and close() are calls between two steps: while the backward pass of another thread runs, none may be made;
    lookups, also those that insert, may. One cut at a time: another one raises RuntimeError. Each process of several has a folder
    of its own. A write in the background needs no lock of Python; os.fork(), and so DataLoader workers, and the interpreter's end
    wait for it. In a forked process the methods raise RuntimeError. No pickle, no copy.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        collection: EmbeddingBagCollection,
        optimizer: "torch.optim.Optimizer | Mapping[str, object] | None" = None,
        *,
        dense: nn.Module | Mapping[str, Tensor] | None = None,
        kept_chains: int = 2,
        copy_budget: int = 64 << 20,
    ):
        _expect_collection("Checkpoints", collection)
        for one in optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]:
            if one is None and not isinstance(optimizer, Mapping) or isinstance(one, torch.optim.Optimizer):
                continue
            if not (isinstance(optimizer, Mapping) and hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                must = "a torch.optim.Optimizer of the dense parameters, a dict of what has a state dict, or None: the collection has its own"
                raise TypeError(f"Checkpoints: optimizer must be {must} (is {type(one).__name__})")
        kept_chains = whole("Checkpoints: kept_chains", "an integer from 1 on", kept_chains, 1)
        copy_budget = whole("Checkpoints: copy_budget", "an integer from 1 on", copy_budget, 1)
        self.folder = os.fsdecode(os.fspath(folder))
        self.collection = collection
        self.optimizer = optimizer
        self._dense = _Dense("Checkpoints", dense, collection)
        self._saves = torch.classes.deeprec.Checkpoints(collection._number, self.folder, kept_chains, copy_budget, *self._dense.now())
        _alive.add(self)

    def cut(self, full: bool, step: int | None = None, numbers: Mapping[str, int | float] | None = None) -> Cut:
        """Takes the state of this moment, to be written later, by any thread. Dense values are copied now, rows when they
        change or are written.

        full     False: what changed since the file before. ValueError where none was written or restored
        step     of the file; by default the backward passes of the collection until now
        numbers  that restore() returns, by their names: integers of 64 bits, or floats
        """
        if not isinstance(full, bool):
            raise TypeError(f"Checkpoints.cut: full must be a bool (is {type(full).__name__})")
        if step is None:
            step = self.collection._tables.step() - 1
        step = whole("Checkpoints.cut: step", "an integer from 0 on", step)
        integers, floats = self._checked({} if numbers is None else numbers)
        optimizer = None if self.optimizer is None else _saved(self._states())
        failed = self._saves.untold()
        if failed:
            warnings.warn(f"Checkpoints: a write in the background failed, and the next file has its changes: {failed}", RuntimeWarning, stacklevel=2)
        return Cut(self._saves.take(full, step, integers, floats, *self._dense.now(), optimizer))

    def write_full(self, step: int | None = None, numbers: Mapping[str, int | float] | None = None, background: bool = False) -> Cut:
        """cut(True, step, numbers).write(background). Older chains than kept_chains are removed when the file is written. A
        write in the background that fails, and that nobody waits for, warns at the next cut."""
        return self._write(True, step, numbers, background)

    def write_delta(self, step: int | None = None, numbers: Mapping[str, int | float] | None = None, background: bool = False) -> Cut:
        """The same, for what changed since the file before."""
        return self._write(False, step, numbers, background)

    def _write(self, full, step, numbers, background):
        if not isinstance(background, bool):
            raise TypeError(f"Checkpoints: background must be a bool (is {type(background).__name__})")
        return self.cut(full, step, numbers).write(background)

    def _checked(self, numbers) -> tuple[dict[str, int], dict[str, float]]:
        if not isinstance(numbers, Mapping):
            raise TypeError(f"Checkpoints.cut: numbers must be a dict (is {type(numbers).__name__})")
        own = ("collection, ", *(f"{table.name}, " for table in self.collection.tables))
        for name, value in numbers.items():
            if not isinstance(name, str) or not (is_whole(value, -(2**63)) or is_real(value) and not isinstance(value, Integral)):
                must = "numbers must be integers of 64 bits or floats, by their names"
                raise TypeError(f"Checkpoints.cut: {must} ({name!r} is {value!r})")
            if name.startswith(own):
                raise ValueError(f"Checkpoints.cut: names of numbers must not begin as those of tables ({name!r} does)")
        integers = {name: int(value) for name, value in numbers.items() if is_whole(value, -(2**63))}
        return integers, {name: float(value) for name, value in numbers.items() if name not in integers}

    def restore(self) -> Restored | None:
        """Fills the tables, the dense tensors and the optimizer from the newest full file that is whole, and its deltas as far
        as they are whole. None where the folder has no file: then nothing is changed.

        ValueError or NotImplementedError where a file does not fit (another width, format, optimizer, shape; a table that it does
        not have), and these or RuntimeError where no full file is whole: then nothing is changed either, but for a state of
        `optimizer` that is absent or does not fit, which is read last. Where files were passed over, the next one must be a full
        one.
        """
        if not self._saves.restore(*self._dense.now()):
            return None
        self.collection._after_loading()
        if self.optimizer is not None:
            self._restore_optimizer()
        return _restored(self._saves.restored())

    def _restore_optimizer(self):
        saved = self._saves.restored_optimizer()
        if saved is None:
            raise ValueError(f"Checkpoints.restore: files of {self.folder} must have the state of an optimizer (have none)")
        states = torch.load(io.BytesIO(saved.numpy().tobytes()))
        if not isinstance(self.optimizer, Mapping):
            self.optimizer.load_state_dict(states)
            return
        if states.keys() != self.optimizer.keys():
            must = f"the states of {', '.join(self.optimizer)}"
            raise ValueError(f"Checkpoints.restore: files of {self.folder} must have {must} (have those of {', '.join(map(str, states))})")
        for name, one in self.optimizer.items():
            one.load_state_dict(states[name])

    def _states(self) -> dict:
        if isinstance(self.optimizer, Mapping):
            return {name: one.state_dict() for name, one in self.optimizer.items()}
        return self.optimizer.state_dict()

    def position(self) -> tuple[int, int]:
        """Chain and number of the file that the next delta continues; (0, 0): none."""
        chain, number = self._saves.position()
        return chain, number

    def close(self):
        """Waits for a write that goes on, as dropping the object does, and follows the tables no more. A cut that is not written
        keeps them until it is dropped."""
        self._saves.settle()
        self._saves.close()

    def __reduce__(self):
        raise TypeError("Checkpoints: must be made in each process, of its collection (no pickle, no copy)")


_alive: "weakref.WeakSet[Checkpoints]" = weakref.WeakSet()


def _wait_for_writes():
    for saves in list(_alive):
        saves._saves.settle()


# A forked process would have the locks of a thread that writes, and not the thread.
os.register_at_fork(before=_wait_for_writes)
atexit.register(_wait_for_writes)


class Follower:
    """A collection that follows the files of a folder, which another process writes: for serving.

        serving = EmbeddingBagCollection(tables.tables, tables.optimizer).eval()
        follower = Follower("/models/ctr", serving, dense=net)
        while True:
            if follower.poll(): print(follower.state().step)

    Tables must have the widths, formats and optimizer of those that were saved. poll() may run in one thread while others look
    up tables that grow: each row is as it was or as it is then, the rows of one batch may be of both. Dense tables and tensors
    are written in place. Nothing else may change the tables. dense: as for Checkpoints.
    """

    def __init__(self, folder: str | os.PathLike, collection: EmbeddingBagCollection, *, dense: nn.Module | Mapping[str, Tensor] | None = None):
        _expect_collection("Follower", collection)
        self.folder = os.fsdecode(os.fspath(folder))
        self.collection = collection
        self._dense = _Dense("Follower", dense, collection)
        self._files = torch.classes.deeprec.Follower(collection._number, self.folder, *self._dense.now())

    def poll(self) -> bool:
        """Applies the files that are new: deltas, and where a chain has ended or is broken the newest full file that is whole.
        Whether there were any. ValueError or NotImplementedError where a file does not fit: the tables stay as they are; files
        that are not whole are in state().passed_over."""
        try:
            return self._files.poll(*self._dense.now())
        finally:
            self.collection._after_loading()

    def state(self) -> Restored | None:
        """Of the last file; None before there was one."""
        state = _restored(self._files.state())
        return state if state.number else None

    def close(self):
        """Follows no more; the tables stay as they are."""
        self._files.close()

    def __reduce__(self):
        raise TypeError("Follower: must be made in each process, of its collection (no pickle, no copy)")
