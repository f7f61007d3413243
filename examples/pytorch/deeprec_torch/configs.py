"""Configurations of tables, TorchRec's among them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .growth import CountingBloom, Probabilistic, check_admission, check_full, expect, is_real, whole

POOLINGS = {"sum": 0, "mean": 1}
FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": None, "int4": None}


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
        expect(isinstance(self.name, str), "TableConfig: name", "a str", self.name)
        names = self.feature_names
        fits = not isinstance(names, str) and isinstance(names, Iterable)
        names = tuple(names) if fits else names
        expect(fits and all(isinstance(name, str) for name in names), "TableConfig: feature_names", "a list of str", names)
        self._keep("feature_names", names or (self.name,))
        self._keep("embedding_dim", whole("TableConfig: embedding_dim", "an integer from 1 on", self.embedding_dim, 1))
        if self.init_bound is not None:
            fits = is_real(self.init_bound) and 0 <= self.init_bound < math.inf
            expect(fits, "TableConfig: init_bound", "None or a number from 0 on", self.init_bound)
            self._keep("init_bound", float(self.init_bound))
        if self.pooling not in POOLINGS:
            raise ValueError(f"TableConfig: pooling must be sum or mean (is {self.pooling!r})")
        if self.format not in FORMATS:
            raise ValueError(f"TableConfig: format must be one of {', '.join(FORMATS)} (is {self.format!r})")
        if self.num_embeddings is not None:
            must = "None or an integer"
            self._keep("num_embeddings", whole("TableConfig: num_embeddings", must, self.num_embeddings, -(2**63)))
            for name, usual in (("admission", None), ("capacity", None), ("when_full", "refuse"), ("default_row", 0.0)):
                given = getattr(self, name)
                expect(given == usual, f"TableConfig: {name}", "of a table that grows, of num_embeddings=None", given)
            return
        check_admission(self.admission)
        if self.capacity is not None:
            self._keep("capacity", whole("TableConfig: capacity", "None or an integer from 1 on", self.capacity, 1))
        check_full(self.when_full)
        if not is_real(self.default_row):
            try:
                self._keep("default_row", tuple(map(float, self.default_row)))
            except (TypeError, ValueError):
                raise ValueError(f"TableConfig: default_row must be a number, or a list of them (is {self.default_row!r})") from None
            must = f"a number or embedding_dim ({self.embedding_dim}) of them"
            expect(len(self.default_row) == self.embedding_dim, "TableConfig: default_row", must, self.default_row)

    def _keep(self, name: str, value):
        object.__setattr__(self, name, value)

    @property
    def grows(self) -> bool:
        return self.num_embeddings is None

    @property
    def first_bound(self) -> float:
        """init_bound, or the default."""
        if self.init_bound is not None:
            return self.init_bound
        return 0.01 if self.grows else 1 / math.sqrt(self.num_embeddings)


_TORCHREC_FORMATS = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "INT8": "int8", "INT4": "int4"}


def table_of(config) -> TableConfig:
    """A TableConfig as it is, or one of torchrec's EmbeddingBagConfig and EmbeddingConfig (pooled as a sum)."""
    if isinstance(config, TableConfig):
        return config
    kind = type(config).__name__
    if kind not in ("EmbeddingBagConfig", "EmbeddingConfig"):
        raise TypeError(f"EmbeddingBagCollection: tables must be TableConfigs, or torchrec's EmbeddingBagConfigs (is {kind})")
    format = _TORCHREC_FORMATS.get(config.data_type.name)
    if format is None:
        raise ValueError(f"EmbeddingBagCollection: data_type of {config.name} must be one of {', '.join(_TORCHREC_FORMATS)} (is {config.data_type})")
    low, high = config.weight_init_min, config.weight_init_max
    if (low is None) != (high is None) or (low is not None and low != -high):
        raise ValueError(f"EmbeddingBagCollection: first weights of {config.name} must be in [-b, b) (are in [{low}, {high}))")
    pooling = config.pooling.name.lower() if hasattr(config, "pooling") else "sum"
    return TableConfig(config.name, config.num_embeddings, config.embedding_dim, tuple(config.feature_names), pooling, format, high)
