"""Many embedding tables in one call, their rows on huge pages, the optimizer's step in the backward pass."""

import copy
import io
import math
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor, distributed, nn

from .growth import (
    CountingBloom,
    Probabilistic,
    check_admission,
    check_full,
    expect,
    growth_floats,
    growth_integers,
    is_real,
    is_whole,
    policy_numbers,
)
from .key_map import as_signed

_lookup = torch.ops.deeprec.tables_lookup.default
_lookup_or_insert = torch.ops.deeprec.tables_lookup_or_insert.default
_POOLINGS = {"sum": 0, "mean": 1}
_GROWN = ("keys", "weight", "state", "steps", "frequencies", "filter")  # as `contents` of csrc/embedding_tables.cpp
_FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": None, "int4": None}


@dataclass(frozen=True)
class SGD:
    lr: float = 0.01


@dataclass(frozen=True)
class Adagrad:
    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """One sum for a row, of the mean of its squared gradient."""

    lr: float = 0.01
    eps: float = 1e-8
    initial_accumulator_value: float = 0.0


@dataclass(frozen=True)
class Adam:
    """Lazy, as torch.optim.SparseAdam: rows that a batch does not use keep their moments."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


_OPTIMIZERS = {SGD: "sgd", Adagrad: "adagrad", RowwiseAdagrad: "rowwise_adagrad", Adam: "adam"}


@dataclass(frozen=True)
class TableConfig:
    """A table, and the features that are looked up in it (itself, by its name).

    format: f32, f16 or bf16; int8 or int4 without an optimizer. init_bound: the first weights are uniform in
    [-init_bound, init_bound), by default 1 / sqrt(num_embeddings).

    num_embeddings=None: the table grows. Any 64-bit integer is a key, and has a row from the first time on that a batch
    which trains has it, as far as the table admits it.

    admission    None: every key. An integer: a key that has come so often, counted exactly; it is admitted in the batch
                 of that occurrence. CountingBloom, Probabilistic
    capacity     rows at most; None: no limit
    when_full    "refuse": keys get no rows. "evict_least_recent", "evict_least_frequent": 1/32 of the rows, at least
                 those that are needed, make room: those trained longest ago, or by the fewest positions; none of the
                 step that goes on, and none that the batch has
    default_row  what a key without a row reads, a number or embedding_dim of them; it is not trained
    init_bound   by default 0.01
    """

    name: str
    num_embeddings: int | None
    embedding_dim: int
    feature_names: tuple[str, ...] = ()
    pooling: str = "sum"
    format: str = "f32"
    init_bound: float | None = None
    admission: int | CountingBloom | Probabilistic | None = None
    capacity: int | None = None
    when_full: str = "refuse"
    default_row: float | tuple[float, ...] = 0.0

    def __post_init__(self):
        object.__setattr__(self, "feature_names", tuple(self.feature_names) or (self.name,))
        if self.pooling not in _POOLINGS:
            raise ValueError(f"TableConfig: pooling must be sum or mean (is {self.pooling!r})")
        if self.format not in _FORMATS:
            raise ValueError(f"TableConfig: format must be one of {', '.join(_FORMATS)} (is {self.format!r})")
        if self.num_embeddings is not None:
            for name, usual in (("admission", None), ("capacity", None), ("when_full", "refuse"), ("default_row", 0.0)):
                given = getattr(self, name)
                expect(given == usual, f"TableConfig: {name}", "of a table that grows, of num_embeddings=None", given)
            return
        check_admission(self.admission)
        unbounded = self.capacity is None
        expect(unbounded or is_whole(self.capacity, 1), "TableConfig: capacity", "None or an integer from 1 on", self.capacity)
        check_full(self.when_full)
        if not is_real(self.default_row):
            try:
                object.__setattr__(self, "default_row", tuple(map(float, self.default_row)))
            except (TypeError, ValueError):
                raise ValueError(f"TableConfig: default_row must be a number, or a list of them (is {self.default_row!r})") from None
            must = f"a number or embedding_dim ({self.embedding_dim}) of them"
            expect(len(self.default_row) == self.embedding_dim, "TableConfig: default_row", must, self.default_row)

    @property
    def grows(self) -> bool:
        return self.num_embeddings is None

    @property
    def first_bound(self) -> float:
        """init_bound, or the default."""
        if self.init_bound is not None:
            return self.init_bound
        return 0.01 if self.grows else 1 / math.sqrt(self.num_embeddings)


@lru_cache(maxsize=16)
def _ends_of_ones(count: int) -> Tensor:
    return torch.arange(count + 1)


def _expect_keys_first(what: str, keys: list[str], given: Tensor):
    if given.dim() != 2 or given.shape[0] != len(keys):
        raise ValueError(
            f"KeyedJaggedTensor: {what} must be (K, B), a row for each of {len(keys)} keys (are {tuple(given.shape)})"
        )


def _refuse_tracers(given: Tensor):
    """Their graphs would be saved without the tables."""
    if isinstance(given, torch.fx.Proxy) or torch.jit.is_tracing() or _is_exporting():
        raise NotImplementedError(
            "EmbeddingCollection: torch.fx.symbolic_trace, torch.jit and torch.export must be given no collection, "
            "whose tables they can't save. Use torch.compile, save(), the state dict"
        )


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # PyTorch 2.7


@dataclass
class KeyedJaggedTensor:
    """A batch of bags for each key: values (N), offsets (K * B + 1) or lengths (K * B), key by key.

    EmbeddingCollection also takes torchrec's, which has the same methods.
    """

    _keys: list[str]
    _values: Tensor
    _offsets: Tensor
    _weights: Tensor | None = None
    _stride: int = field(init=False)

    def __post_init__(self):
        _refuse_tracers(self._offsets)
        count = self._offsets.numel() - 1
        if not self._keys or count < 0 or count % len(self._keys) != 0:
            raise ValueError(
                f"KeyedJaggedTensor: offsets must have a multiple of {len(self._keys)} elements and one (have {count + 1})"
            )
        self._stride = count // len(self._keys)

    @classmethod
    def from_lengths(cls, keys, values: Tensor, lengths: Tensor, weights: Tensor | None = None):
        """lengths (K * B) or (K, B), key by key."""
        keys = list(keys)
        if lengths.dim() != 1:
            _expect_keys_first("lengths", keys, lengths)
        if lengths.is_floating_point() or lengths.is_complex():
            raise ValueError(f"KeyedJaggedTensor: lengths must be integers (are {lengths.dtype})")
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths.reshape(-1), 0, out=offsets[1:])
        return cls(keys, values, offsets, weights)

    @classmethod
    def one_hot(cls, keys, ids: Tensor):
        """ids (K, B): one for each key and sample."""
        keys = list(keys)
        _expect_keys_first("ids", keys, ids)
        return cls(keys, ids.reshape(-1), _ends_of_ones(ids.numel()))

    def keys(self):
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def offsets(self) -> Tensor:
        return self._offsets

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def stride(self) -> int:
        return self._stride


# The gradient that the parameter of a collection is left with: who scales gradients scales it too. A power of 2, which all
# types hold; its square is 0 in float32, so that it is no part of a norm.
_LEFT = 2.0**-100


def _expect_left(hook: Tensor):
    if hook.grad is not None and float(hook.grad) not in (0.0, _LEFT):
        raise RuntimeError(
            "EmbeddingCollection: gradients must not be scaled between two backward passes, which step the rows (were: by "
            "GradScaler, clip_grad_norm_ or the like). Scale the loss by no GradScaler, clip the other parameters only"
        )


@torch.no_grad()
def _leave(hook: Tensor):
    _expect_left(hook)
    hook.grad.fill_(_LEFT)


class _Contents(dict):
    """Tensors that are sent to another process by their values: those sent by reference would be gone before they arrive."""


def _contents_of(saved: bytes) -> _Contents:
    return _Contents(torch.load(io.BytesIO(saved)))


def _by_value(contents: _Contents):
    saved = io.BytesIO()
    torch.save(dict(contents), saved)
    return _contents_of, (saved.getvalue(),)


ForkingPickler.register(_Contents, _by_value)


class EmbeddingCollection(nn.Module):
    """Tables that one call looks up, all features side by side: out (B, sum of the features' widths), float32.

    With an optimizer, the backward pass steps the rows that the batch used, each once with the sum of its gradients.
    The rows are no parameters. The module's one parameter has one element that nothing reads: requires_grad_(False),
    of a module above too, freezes the tables. A batch of weights has no gradient of them. In eval mode, under no_grad,
    frozen and without an optimizer nothing is stepped.

    A step of its own is each lookup that a backward pass comes through. What a training loop does to gradients between
    the backward pass and a step comes too late and is refused: a second backward pass through one lookup, a GradScaler,
    clip_grad_norm_ over the module's parameter, several processes (process_local=True: each trains its own tables).
    docs/pytorch.md has the list.

    The state dict has a tensor for the rows of each table (uint8 for int8 and int4: FBGEMM's fused rows) and one for
    the optimizer's state, both views of the tables' own memory, the step and the learning rate. Concurrent lookups are
    safe; a backward pass excludes them. Errors name the table and the bag.

    Tables of num_embeddings=None grow: a lookup that a backward pass can come through inserts keys, others only find.
    Keys are int64, int32 or, where a table grows, uint64, whose bits are those of an int64. The state dict has copies of
    their keys, weight, state, steps and frequencies, in ascending order of the keys, the seed of first values and the
    counters of CountingBloom; one of any size may be loaded, and training goes on with the same bits. What an integer
    admission has counted of keys that wait is not in it: they begin again. keys, rows, size, statistics, erase and evict
    are for these tables; erase, evict and inserting lookups take turns, beside lookups. A fault of a batch leaves the
    keys that were inserted before it was found.

    seed: of the first weights; by default torch's generator draws it.
    """

    _version = 2  # of the state dict: 2 has the learning rate

    def __init__(self, tables, optimizer=None, seed: int | None = None, *, process_local: bool = False):
        super().__init__()
        self.tables = tuple(tables)
        if not self.tables:
            raise ValueError("EmbeddingCollection: tables must not be empty")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError(f"EmbeddingCollection: names of tables must differ (are {', '.join(names)})")
        for table in self.tables:
            if not table.grows and table.num_embeddings < 1:
                raise ValueError(f"EmbeddingCollection: table {table.name} must have rows and columns (has {table.num_embeddings} rows)")
        if optimizer is not None and type(optimizer) not in _OPTIMIZERS:
            raise ValueError(f"EmbeddingCollection: optimizer must be SGD, Adagrad, RowwiseAdagrad or Adam (is {optimizer!r})")
        self.optimizer = optimizer
        self.process_local = process_local
        self._hook = nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"), optimizer is not None)
        self._make()
        if seed is None:
            seed = int(torch.randint(2**62, (), device="cpu"))
        self._initialize(seed)

    def _initialize(self, seed: int):
        for number, table in enumerate(self.tables):
            numbers = self.part(table.name)
            self._tables.initialize(number, seed + number, table.first_bound, numbers.start, numbers.step)

    def part(self, name: str) -> range:
        """The numbers of the rows that the collection holds of a table that does not grow: all of them."""
        return range(self.tables[self._number_of(name)].num_embeddings or 0)

    def _make(self):
        if self.optimizer is not None:
            wanted = self._hook.requires_grad
            self._hook.requires_grad_(True).register_post_accumulate_grad_hook(_leave)
            self._hook.requires_grad_(wanted)
        # Stands for the rows: ops read and write it, so that a compiler keeps their order.
        self._rows_written = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._tables = torch.classes.deeprec.EmbeddingTables(
            _OPTIMIZERS.get(type(self.optimizer), ""),
            [t.name for t in self.tables],
            [len(self.part(t.name)) for t in self.tables],
            [t.embedding_dim for t in self.tables],
            [t.format for t in self.tables],
            [[_POOLINGS[t.pooling]] * len(t.feature_names) for t in self.tables],
            [growth_integers(t) for t in self.tables],
            [growth_floats(t) for t in self.tables],
        )
        self._grows = any(t.grows for t in self.tables)
        self._number = self._tables.number()
        self._width = self._tables.total_width()
        self.feature_names = [name for t in self.tables for name in t.feature_names]
        self.feature_widths = [t.embedding_dim for t in self.tables for _ in t.feature_names]
        self._positions = {tuple(self.feature_names): []}
        self._set_options()

    def _set_options(self):
        given = asdict(self.optimizer) if self.optimizer is not None else {}
        betas = given.get("betas", (0.9, 0.999))
        self._tables.set_options(
            given.get("lr", 0.0), given.get("eps", 1e-8), given.get("initial_accumulator_value", 0.0), *betas
        )

    @property
    def learning_rate(self) -> float | None:
        """None without an optimizer."""
        return None if self.optimizer is None else self.optimizer.lr

    @learning_rate.setter
    def learning_rate(self, lr: float):
        if self.optimizer is None:
            raise ValueError("EmbeddingCollection: a collection with a learning rate must have an optimizer (has none)")
        self.optimizer = type(self.optimizer)(**{**asdict(self.optimizer), "lr": lr})
        self._set_options()

    def _positions_of(self, keys) -> list[int]:
        keys = tuple(keys)
        known = self._positions.get(keys)
        if known is None:
            missing = [name for name in self.feature_names if name not in keys]
            if missing:
                raise ValueError(f"EmbeddingCollection: the batch must have the keys {', '.join(missing)} (has {', '.join(keys)})")
            if len(set(keys)) != len(keys):
                raise ValueError(f"EmbeddingCollection: the batch's keys must differ (are {', '.join(keys)})")
            known = self._positions[keys] = [keys.index(name) for name in self.feature_names]
        return known

    def forward(self, features) -> Tensor:
        """features: a KeyedJaggedTensor, of this module or torchrec's, with the collection's features among its keys."""
        trains, batch = self._checked(features)
        return (_lookup_or_insert if trains and self._grows else _lookup)(
            self._hook if trains else self._hook.detach(), self._rows_written, self._number, self._width, *batch
        )

    def _checked(self, features) -> tuple[bool, tuple]:
        """Whether a lookup trains, and its batch: values, offsets, weights, bags, number of keys, positions of the features."""
        values, offsets, keys = features.values(), features.offsets(), features.keys()
        _refuse_tracers(values)
        if not values.device == offsets.device == self._hook.device:
            name, given = ("values", values) if values.device != self._hook.device else ("offsets", offsets)
            raise NotImplementedError(f"EmbeddingCollection: {name} must be on the CPU (is on {given.device})")
        varies = getattr(features, "variable_stride_per_key", None)
        if varies is not None and varies():
            raise NotImplementedError("EmbeddingCollection: the batch must have the same number of bags for each key (varies)")
        trains = self.training and self.optimizer is not None and self._hook.requires_grad and torch.is_grad_enabled()
        if trains:
            self._expect_one_process()
            if not torch.compiler.is_compiling():
                _expect_left(self._hook)
        if self._grows:
            values = as_signed(values)
        weights = features.weights_or_none()
        return trains, (values, offsets, weights, features.stride(), len(keys), self._positions_of(keys))

    def _expect_one_process(self):
        if not self.process_local and distributed.is_available() and distributed.is_initialized():
            if distributed.get_world_size() > 1:
                raise RuntimeError(
                    "EmbeddingCollection: a collection that is trained must be in one process, or process_local=True (there "
                    f"are {distributed.get_world_size()}): each steps its own rows by its own batches, and nothing makes "
                    "them equal, DistributedDataParallel neither"
                )

    def split(self, out: Tensor) -> dict[str, Tensor]:
        """The columns of each feature, as views."""
        if len(set(self.feature_names)) != len(self.feature_names):
            raise ValueError(f"EmbeddingCollection.split: features must differ (are {', '.join(self.feature_names)})")
        return dict(zip(self.feature_names, out.split(self.feature_widths, dim=1)))

    def __prepare_scriptable__(self):
        """What torch.jit.script calls first."""
        raise NotImplementedError("EmbeddingCollection: torch.jit.script must be given no collection, whose tables it can't save")

    def _apply(self, fn, recurse=True):
        """The tables stay on the CPU and in their formats, and the parameter with them."""
        hook = self._parameters.pop("_hook")
        try:
            return super()._apply(fn, recurse)
        finally:
            self._parameters = {"_hook": hook, **self._parameters}

    def _stored(self, number: int, rows: Tensor) -> Tensor:
        dtype = _FORMATS[self.tables[number].format]
        return rows if dtype is None else rows.view(dtype)

    def weight(self, name: str) -> Tensor:
        """The rows of a table as they are stored: (R, D), or of int8 and int4 FBGEMM's fused bytes. A view; of a table that
        grows a copy, in the order of keys(name)."""
        return self._part(name, "weight")

    def optimizer_state(self, name: str) -> Tensor:
        """(R, floats of state), of Adam m, then v. A view; of a table that grows a copy, in the order of keys(name)."""
        return self._part(name, "state")

    def _part(self, name: str, part: str) -> Tensor:
        number = self._number_of(name)
        if self.tables[number].grows:
            return self._contents_of(number)[part]
        return self._stored(number, self._tables.bytes(number)) if part == "weight" else self._tables.state(number)

    def dequantized(self, name: str) -> Tensor:
        """The values that lookups read, a copy in float32; of a table that grows in the order of keys(name)."""
        number = self._number_of(name)
        return self.rows(name, self.keys(name)) if self.tables[number].grows else self._tables.values(number)

    def assign(self, name: str, values: Tensor, keys: Tensor | None = None):
        """Sets the rows of a table, which converts them to its format; of a table that grows those of `keys` (N), with new
        rows for keys that have none, whatever its admission. The optimizer's state stays. ValueError where the capacity is
        not enough: keys before have their rows."""
        number = self._number_of(name)
        if self.tables[number].grows != (keys is not None):
            must = "given for" if self.tables[number].grows else "absent for"
            kind = "grows" if self.tables[number].grows else "is dense"
            raise ValueError(f"EmbeddingCollection.assign: keys must be {must} table {name}, which {kind}")
        if keys is None:
            self._tables.assign(number, values)
        else:
            self._tables.assign_to(number, as_signed(keys), values)

    # --- tables that grow ------------------------------------------------------------------------

    def _grown(self, method: str, name: str) -> int:
        number = self._number_of(name)
        if not self.tables[number].grows:
            raise ValueError(f"EmbeddingCollection.{method}: table {name} must be one that grows (is dense)")
        return number

    def size(self, name: str) -> int:
        """The number of rows."""
        return self._tables.size(self._grown("size", name))

    def keys(self, name: str) -> Tensor:
        """The keys that have rows (R), int64 in ascending order: a copy."""
        return self._tables.keys(self._grown("keys", name))

    def rows(self, name: str, keys: Tensor) -> Tensor:
        """The values that lookups read for keys (N): (N, D) in float32, the default row for keys without one."""
        return self._tables.rows_of(self._grown("rows", name), as_signed(keys))

    def erase(self, name: str, keys: Tensor) -> int:
        """Erases the rows of keys (N), and what was counted of keys that wait; returns how many rows. A key that comes
        again has a new row. A backward pass whose lookup was before does not step them."""
        return self._tables.erase(self._grown("erase", name), as_signed(keys))

    def evict(self, name: str, policy) -> int:
        """Erases the rows that StepTTL, L2Below, LeastRecent or LeastFrequent chooses, and returns how many. Rows that were
        made since the last backward pass stay."""
        number = self._grown("evict", name)
        return self._tables.evict(number, *policy_numbers(policy))

    def statistics(self, name: str) -> dict[str, int]:
        """rows; candidates: keys that wait for an integer admission; index_bytes, row_bytes, filter_bytes; waiting_rows:
        erased, and still kept for readers; refused: keys for which the table was full, each time that they came; evicted:
        rows, since the table was made or loaded."""
        return dict(self._tables.statistics(self._grown("statistics", name)))

    def _number_of(self, name: str) -> int:
        for number, table in enumerate(self.tables):
            if table.name == name:
                return number
        raise KeyError(f"EmbeddingCollection: there is no table {name!r}")

    def quantize(self, format: str) -> "EmbeddingCollection":
        """The same tables for lookups only, in another format."""
        made = EmbeddingCollection([replace(t, format=format) for t in self.tables], seed=0)
        for table in self.tables:
            keys = self.keys(table.name) if table.grows else None
            made.assign(table.name, self.dequantized(table.name) if keys is None else self.rows(table.name, keys), keys)
        return made

    def save(self, path: str):
        """Rows, state, step and learning rate in one of deeprec's table files, which replaces the one at path as a whole."""
        self._tables.save(str(path))

    def load(self, path: str):
        """Fills the tables from such a file; a file that does not fit is refused and nothing is changed."""
        self._tables.load(str(path))
        self._take_learning_rate()

    def _take_learning_rate(self):
        """That of the tables, after they were loaded."""
        if self.optimizer is not None:
            self.learning_rate = self._tables.learning_rate()

    # --- the state dict, copies and pickles ------------------------------------------------------

    def _contents_of(self, number: int) -> dict[str, Tensor]:
        """What a table that grows holds, by the names of _GROWN: copies."""
        contents = dict(zip(_GROWN, self._tables.contents(number)))
        contents["weight"] = self._stored(number, contents["weight"])
        contents["seed"] = torch.tensor(self._tables.seed(number))
        return contents

    def _restore(self, number: int, contents: dict[str, Tensor]):
        rows = contents["weight"]
        if rows.dim() > 0:
            contents = {**contents, "weight": rows.contiguous().view(torch.uint8)}
        parts = [contents[part] for part in _GROWN]
        self._tables.restore(number, parts, int(contents["seed"]), self.tables[number].first_bound)

    def _grown_names(self, number: int) -> dict[str, str]:
        """Names in the state dict of the parts of a table that grows."""
        table = self.tables[number]
        parts = [*_GROWN, "seed"]
        if self.optimizer is None:
            parts.remove("state")
        if not isinstance(table.admission, CountingBloom):
            parts.remove("filter")
        return {part: f"{table.name}.{part}" for part in parts}

    def _views(self) -> dict[str, Tensor]:
        """What the state dict has of the memory of dense tables."""
        views = {}
        for number, table in enumerate(self.tables):
            if table.grows:
                continue
            views[f"{table.name}.weight"] = self.weight(table.name)
            if self.optimizer is not None:
                views[f"{table.name}.state"] = self._tables.state(number)
        return views

    def _copies(self) -> dict[str, Tensor]:
        """What the state dict has of tables that grow."""
        copies = {}
        for number, table in enumerate(self.tables):
            if table.grows:
                contents = self._contents_of(number)
                copies.update({name: contents[part] for part, name in self._grown_names(number).items()})
        return copies

    def _load_copies(self, given, missing: list[str], errors: list[str], prefix: str = ""):
        """Replaces the tables that grow, each as a whole or not at all."""
        for number, table in enumerate(self.tables):
            if not table.grows:
                continue
            names = {part: prefix + name for part, name in self._grown_names(number).items()}
            absent = [name for name in names.values() if name not in given]
            missing += absent
            if absent:
                continue
            contents = {part: given[name] for part, name in names.items()}
            wrong = [names[part] for part, value in contents.items() if not isinstance(value, Tensor)]
            if wrong:
                errors.append(f"{', '.join(wrong)} must be tensors")
                continue
            dtype = _FORMATS[table.format] or torch.uint8
            if contents["weight"].dtype != dtype:
                errors.append(f"{names['weight']} must be {dtype} (is {contents['weight'].dtype})")
                continue
            contents.setdefault("state", torch.empty(contents["keys"].numel(), 0))
            contents.setdefault("filter", torch.empty(0, dtype=torch.uint8))
            try:
                self._restore(number, contents)
            except (ValueError, RuntimeError, NotImplementedError) as refused:
                errors.append(f"{prefix}{table.name}: {refused}")

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}_hook"]
        for name, part in {**self._views(), **self._copies()}.items():
            destination[prefix + name] = part
        destination[f"{prefix}step"] = torch.tensor(self._tables.step())
        if self.optimizer is not None:
            destination[f"{prefix}learning_rate"] = torch.tensor(self.learning_rate, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        ours = self._views()
        step, rate = state_dict.get(prefix + "step"), state_dict.get(prefix + "learning_rate")
        for name, to in ours.items():
            given = state_dict.get(prefix + name)
            if given is None:
                missing_keys.append(prefix + name)
            elif given.shape != to.shape or given.dtype != to.dtype:
                error_msgs.append(f"{prefix}{name} must be {to.dtype} {tuple(to.shape)} (is {given.dtype} {tuple(given.shape)})")
            else:
                to.copy_(given)
        self._load_copies(state_dict, missing_keys, error_msgs, prefix)
        if step is None:
            missing_keys.append(prefix + "step")
        elif torch.as_tensor(step).is_floating_point() or int(step) < 1:
            error_msgs.append(f"{prefix}step must be an integer from 1 on (is {step})")
        else:
            self._tables.set_step(int(step))
        if self.optimizer is not None:
            if rate is not None:
                self.learning_rate = float(rate)
            elif (local_metadata.get("version") or 1) >= 2:
                missing_keys.append(prefix + "learning_rate")
        known = {prefix + name for name in [*ours, "step"]}
        for number, table in enumerate(self.tables):
            if table.grows:
                known |= {prefix + name for name in self._grown_names(number).values()}
        if self.optimizer is not None:
            known.add(prefix + "learning_rate")
        others = {key: value for key, value in state_dict.items() if key not in known}
        others[prefix + "_hook"] = self._hook
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def __getstate__(self):
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_tables", "_rows_written", "_number")}
        kept["_contents"] = _Contents((name, view.clone()) for name, view in self._views().items())
        kept["_contents"].update(self._copies())
        kept["_contents"]["step"] = torch.tensor(self._tables.step())
        return kept

    def __setstate__(self, state):
        contents = state.pop("_contents")
        super().__setstate__(state)
        self._make()
        for name, view in self._views().items():
            view.copy_(contents[name])
        refused = []
        self._load_copies(contents, refused, refused)
        if refused:
            raise ValueError(f"EmbeddingCollection: what is copied must fit ({'; '.join(refused)})")
        self._tables.set_step(int(contents["step"]))

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        state = self.__getstate__()
        contents = state.pop("_contents")
        made.__setstate__({**copy.deepcopy(state, memo), "_contents": contents})
        return made

    def extra_repr(self) -> str:
        lines = [f"{t.name}: ({'grows' if t.grows else t.num_embeddings}, {t.embedding_dim}), {t.format}, {t.pooling}" for t in self.tables]
        return "\n".join([*lines, f"optimizer: {self.optimizer}"])
