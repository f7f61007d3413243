"""Many embedding tables in one call, their rows on huge pages, the optimizer's step in the backward pass."""

import copy
import io
import math
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor, distributed, nn

_lookup = torch.ops.deeprec.tables_lookup.default
_POOLINGS = {"sum": 0, "mean": 1}
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
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: tuple[str, ...] = ()
    pooling: str = "sum"
    format: str = "f32"
    init_bound: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "feature_names", tuple(self.feature_names) or (self.name,))
        if self.pooling not in _POOLINGS:
            raise ValueError(f"TableConfig: pooling must be sum or mean (is {self.pooling!r})")
        if self.format not in _FORMATS:
            raise ValueError(f"TableConfig: format must be one of {', '.join(_FORMATS)} (is {self.format!r})")


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
        if optimizer is not None and type(optimizer) not in _OPTIMIZERS:
            raise ValueError(f"EmbeddingCollection: optimizer must be SGD, Adagrad, RowwiseAdagrad or Adam (is {optimizer!r})")
        self.optimizer = optimizer
        self.process_local = process_local
        self._hook = nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"), optimizer is not None)
        self._make()
        if seed is None:
            seed = int(torch.randint(2**62, (), device="cpu"))
        for number, table in enumerate(self.tables):
            bound = 1 / math.sqrt(table.num_embeddings) if table.init_bound is None else table.init_bound
            self._tables.initialize(number, seed + number, bound)

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
            [t.num_embeddings for t in self.tables],
            [t.embedding_dim for t in self.tables],
            [t.format for t in self.tables],
            [[_POOLINGS[t.pooling]] * len(t.feature_names) for t in self.tables],
        )
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
        values, keys = features.values(), features.keys()
        _refuse_tracers(values)
        varies = getattr(features, "variable_stride_per_key", None)
        if varies is not None and varies():
            raise NotImplementedError("EmbeddingCollection: the batch must have the same number of bags for each key (varies)")
        trains = self.training and self.optimizer is not None and self._hook.requires_grad and torch.is_grad_enabled()
        if trains:
            self._expect_one_process()
            if not torch.compiler.is_compiling():
                _expect_left(self._hook)
        return _lookup(
            self._hook if trains else self._hook.detach(),
            self._rows_written,
            self._number,
            self._width,
            values,
            features.offsets(),
            features.weights_or_none(),
            features.stride(),
            len(keys),
            self._positions_of(keys),
        )

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

    def _rows(self, number: int) -> Tensor:
        rows = self._tables.bytes(number)
        dtype = _FORMATS[self.tables[number].format]
        return rows if dtype is None else rows.view(dtype)

    def weight(self, name: str) -> Tensor:
        """The rows of a table as they are stored, a view: (R, D), or of int8 and int4 FBGEMM's fused bytes."""
        return self._rows(self._number_of(name))

    def dequantized(self, name: str) -> Tensor:
        """The values that lookups read, a copy in float32."""
        return self._tables.values(self._number_of(name))

    def optimizer_state(self, name: str) -> Tensor:
        """(R, floats of state), a view: of Adam m, then v."""
        return self._tables.state(self._number_of(name))

    def assign(self, name: str, values: Tensor):
        """Sets the rows of a table, which converts them to its format. The optimizer's state stays."""
        self._tables.assign(self._number_of(name), values)

    def _number_of(self, name: str) -> int:
        for number, table in enumerate(self.tables):
            if table.name == name:
                return number
        raise KeyError(f"EmbeddingCollection: there is no table {name!r}")

    def quantize(self, format: str) -> "EmbeddingCollection":
        """The same tables for lookups only, in another format."""
        made = EmbeddingCollection([TableConfig(**{**asdict(t), "format": format}) for t in self.tables], seed=0)
        for table in self.tables:
            made.assign(table.name, self.dequantized(table.name))
        return made

    def save(self, path: str):
        """Rows, state, step and learning rate in one of deeprec's table files, which replaces the one at path as a whole."""
        self._tables.save(str(path))

    def load(self, path: str):
        """Fills the tables from such a file; a file that does not fit is refused and nothing is changed."""
        self._tables.load(str(path))
        if self.optimizer is not None:
            self.learning_rate = self._tables.learning_rate()

    # --- the state dict, copies and pickles ------------------------------------------------------

    def _views(self) -> dict[str, Tensor]:
        """What the state dict has of the tables' own memory."""
        views = {}
        for number, table in enumerate(self.tables):
            views[f"{table.name}.weight"] = self._rows(number)
            if self.optimizer is not None:
                views[f"{table.name}.state"] = self._tables.state(number)
        return views

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}_hook"]
        for name, view in self._views().items():
            destination[prefix + name] = view
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
        if self.optimizer is not None:
            known.add(prefix + "learning_rate")
        others = {key: value for key, value in state_dict.items() if key not in known}
        others[prefix + "_hook"] = self._hook
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def __getstate__(self):
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_tables", "_rows_written", "_number")}
        kept["_contents"] = _Contents((name, view.clone()) for name, view in self._views().items())
        kept["_contents"]["step"] = torch.tensor(self._tables.step())
        return kept

    def __setstate__(self, state):
        contents = state.pop("_contents")
        super().__setstate__(state)
        self._make()
        for name, view in self._views().items():
            view.copy_(contents[name])
        self._tables.set_step(int(contents["step"]))

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        state = self.__getstate__()
        contents = state.pop("_contents")
        made.__setstate__({**copy.deepcopy(state, memo), "_contents": contents})
        return made

    def extra_repr(self) -> str:
        lines = [f"{t.name}: ({t.num_embeddings}, {t.embedding_dim}), {t.format}, {t.pooling}" for t in self.tables]
        return "\n".join([*lines, f"optimizer: {self.optimizer}"])
