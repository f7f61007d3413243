"""Many embedding tables in one call, their rows on huge pages, the optimizer's step in the backward pass."""

import math
from dataclasses import asdict, dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

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
        count = self._offsets.numel() - 1
        if not self._keys or count < 0 or count % len(self._keys) != 0:
            raise ValueError(
                f"KeyedJaggedTensor: offsets must have a multiple of {len(self._keys)} elements and one (have {count + 1})"
            )
        self._stride = count // len(self._keys)

    @classmethod
    def from_lengths(cls, keys, values: Tensor, lengths: Tensor, weights: Tensor | None = None):
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(list(keys), values, offsets, weights)

    @classmethod
    def one_hot(cls, keys, ids: Tensor):
        """ids (K, B): one for each key and sample."""
        return cls(list(keys), ids.reshape(-1), _ends_of_ones(ids.numel()))

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


class EmbeddingCollection(nn.Module):
    """Tables that one call looks up, all features side by side: out (B, sum of the features' widths), float32.

    With an optimizer, the backward pass steps the rows that the batch used, each once with the sum of its gradients,
    and leaves no gradient behind: the weights are no parameters of the module. A batch of weights has no gradient of
    them. In eval mode, under no_grad and without an optimizer nothing is stepped.

    The state dict has a tensor for the rows of each table (uint8 for int8 and int4: FBGEMM's fused rows) and one for
    the optimizer's state, both views of the tables' own memory. Concurrent lookups are safe; a backward pass excludes
    them. Errors name the table and the bag.
    """

    def __init__(self, tables, optimizer=None, seed: int = 0):
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
        self._make()
        for number, table in enumerate(self.tables):
            bound = 1 / math.sqrt(table.num_embeddings) if table.init_bound is None else table.init_bound
            self._tables.initialize(number, seed + number, bound)

    def _make(self):
        # Not a buffer or a parameter: it has no elements.
        self._hook = torch.empty(0, requires_grad=self.optimizer is not None)
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
    def learning_rate(self) -> float:
        return self.optimizer.lr

    @learning_rate.setter
    def learning_rate(self, lr: float):
        self.optimizer = type(self.optimizer)(**{**asdict(self.optimizer), "lr": lr})
        self._set_options()

    def _positions_of(self, keys) -> list[int]:
        keys = tuple(keys)
        known = self._positions.get(keys)
        if known is None:
            missing = [name for name in self.feature_names if name not in keys]
            if missing:
                raise ValueError(f"EmbeddingCollection: the batch must have the keys {', '.join(missing)} (has {', '.join(keys)})")
            known = self._positions[keys] = [keys.index(name) for name in self.feature_names]
        return known

    def forward(self, features) -> Tensor:
        """features: a KeyedJaggedTensor, of this module or torchrec's, with the collection's features among its keys."""
        hook = self._hook if self.training else self._hook.detach()
        return _lookup(
            hook,
            self._number,
            self._width,
            features.values(),
            features.offsets(),
            features.weights_or_none(),
            features.stride(),
            self._positions_of(features.keys()),
        )

    def split(self, out: Tensor) -> dict[str, Tensor]:
        """The columns of each feature, as views."""
        return dict(zip(self.feature_names, out.split(self.feature_widths, dim=1)))

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
        made = EmbeddingCollection([TableConfig(**{**asdict(t), "format": format}) for t in self.tables])
        for table in self.tables:
            made.assign(table.name, self.dequantized(table.name))
        return made

    def save(self, path: str):
        """Rows, state and the step in one of deeprec's table files, which replaces the one at path as a whole."""
        self._tables.save(str(path))

    def load(self, path: str):
        """Fills the tables from such a file; a file that does not fit is refused and nothing is changed."""
        self._tables.load(str(path))

    # --- the state dict, copies and pickles ------------------------------------------------------

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for number, table in enumerate(self.tables):
            destination[f"{prefix}{table.name}.weight"] = self._rows(number)
            if self.optimizer is not None:
                destination[f"{prefix}{table.name}.state"] = self._tables.state(number)
        destination[f"{prefix}step"] = torch.tensor(self._tables.step())

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        ours = {}
        for number, table in enumerate(self.tables):
            ours[f"{table.name}.weight"] = self._rows(number)
            if self.optimizer is not None:
                ours[f"{table.name}.state"] = self._tables.state(number)
        for name, to in ours.items():
            given = state_dict.get(prefix + name)
            if given is None:
                missing_keys.append(prefix + name)
            elif given.shape != to.shape or given.dtype != to.dtype:
                error_msgs.append(f"{prefix}{name} must be {to.dtype} {tuple(to.shape)} (is {given.dtype} {tuple(given.shape)})")
            else:
                to.copy_(given)
        step = state_dict.get(prefix + "step")
        if step is None:
            missing_keys.append(prefix + "step")
        else:
            self._tables.set_step(int(step))
        if strict:
            known = {prefix + name for name in [*ours, "step"]}
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in known)

    def __getstate__(self):
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_tables", "_hook", "_number")}
        kept["_contents"] = {name: value.clone() for name, value in self.state_dict().items()}
        return kept

    def __setstate__(self, state):
        contents = state.pop("_contents")
        super().__setstate__(state)
        self._make()
        self.load_state_dict(contents)

    def __deepcopy__(self, memo):
        made = EmbeddingCollection.__new__(EmbeddingCollection)
        made.__setstate__(self.__getstate__())
        memo[id(self)] = made
        return made

    def extra_repr(self) -> str:
        lines = [f"{t.name}: ({t.num_embeddings}, {t.embedding_dim}), {t.format}, {t.pooling}" for t in self.tables]
        return "\n".join([*lines, f"optimizer: {self.optimizer}"])
