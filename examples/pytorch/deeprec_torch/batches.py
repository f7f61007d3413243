"""Batches of a collection: bags of many keys in one list of ids."""

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor


def _expect_keys_first(what: str, keys: list[str], given: Tensor):
    if given.dim() != 2 or given.shape[0] != len(keys):
        raise ValueError(
            f"KeyedJaggedTensor: {what} must be (K, B), a row for each of {len(keys)} keys (are {tuple(given.shape)})"
        )


def refuse_tracers(given: Tensor):
    """Their graphs would be saved without the tables."""
    if isinstance(given, torch.fx.Proxy) or torch.jit.is_tracing() or _is_exporting():
        raise NotImplementedError(
            "EmbeddingBagCollection: torch.fx.symbolic_trace, torch.jit and torch.export must be given no collection, "
            "whose tables they can't save. Use torch.compile, save(), the state dict"
        )


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # PyTorch 2.7


@dataclass
class KeyedJaggedTensor:
    """A batch of bags for each key: values (N), offsets (K * B + 1) or lengths (K * B), key by key.

    strides: the number of bags of each key, where they differ (then offsets have one element more than their sum); inverse, with
    strides: for each key (K, B), the number of the bag that each of B samples has. A collection also takes torchrec's, which has the same methods.
    """

    _keys: list[str]
    _values: Tensor
    _offsets: Tensor
    _weights: Tensor | None = None
    _strides: list[int] | None = None
    _inverse: Tensor | None = None
    _stride: int = field(init=False)

    def __post_init__(self):
        refuse_tracers(self._offsets)
        count = self._offsets.numel() - 1
        if self._strides is not None:
            self._strides = [int(stride) for stride in self._strides]
            if len(self._strides) != len(self._keys) or min(self._strides, default=0) < 0 or sum(self._strides) != count:
                raise ValueError(
                    f"KeyedJaggedTensor: strides must be numbers of bags of {len(self._keys)} keys, whose sum is that of all bags, {count} "
                    f"(are {self._strides})"
                )
            self._stride = max(self._strides, default=0)
        elif not self._keys or count < 0 or count % len(self._keys) != 0:
            raise ValueError(
                f"KeyedJaggedTensor: offsets must have a multiple of {len(self._keys)} elements and one (have {count + 1})"
            )
        else:
            self._stride = count // len(self._keys)
        if self._inverse is not None:
            _expect_keys_first("inverse", self._keys, self._inverse)
            if self._strides is None:
                raise ValueError("KeyedJaggedTensor: inverse must be with strides, whose bags it numbers (has none)")

    @classmethod
    def from_lengths(cls, keys, values: Tensor, lengths: Tensor, weights: Tensor | None = None, strides=None, inverse=None):
        """lengths (K * B) or (K, B), key by key; of as many bags as strides have."""
        keys = list(keys)
        if lengths.dim() != 1:
            _expect_keys_first("lengths", keys, lengths)
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise ValueError(f"KeyedJaggedTensor: lengths must be integers (are {lengths.dtype})")
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths.reshape(-1), 0, out=offsets[1:])
        return cls(keys, values, offsets, weights, strides, inverse)

    @classmethod
    def one_hot(cls, keys, ids: Tensor):
        """ids (K, B): one for each key and sample."""
        keys = list(keys)
        _expect_keys_first("ids", keys, ids)
        return cls(keys, ids.reshape(-1), torch.arange(ids.numel() + 1, dtype=torch.int64, device=ids.device))

    def keys(self):
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def offsets(self) -> Tensor:
        return self._offsets

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def stride(self) -> int:
        """B; of a batch with strides the largest."""
        return self._stride

    def variable_stride_per_key(self) -> bool:
        return self._strides is not None

    def stride_per_key(self) -> list[int]:
        return [self._stride] * len(self._keys) if self._strides is None else self._strides

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return None if self._inverse is None else (self._keys, self._inverse)


def varies(features) -> bool:
    """Whether the keys of a batch, also torchrec's, have their own numbers of bags."""
    asked = getattr(features, "variable_stride_per_key", None)
    return asked is not None and bool(asked())


def padded_offsets(features) -> Tensor:
    """The offsets (K * B + 1) of a batch that varies, where empty bags are added to each key, up to the largest number B."""
    given = features.offsets()
    strides = torch.tensor(features.stride_per_key(), dtype=torch.int64, device=given.device)
    starts = strides.cumsum(0) - strides
    bags = torch.arange(int(strides.max()), dtype=torch.int64, device=given.device)
    places = (starts.unsqueeze(1) + torch.minimum(bags, strides.unsqueeze(1))).flatten()
    expected = int(strides.sum()) + 1
    if given.numel() != expected:
        raise ValueError(f"deeprec: offsets must have one element more than all bags, {expected - 1} (have {given.numel()})")
    return torch.cat([given[places], given[-1:]])


def inverse_of(features) -> dict[str, Tensor]:
    """Of a batch that varies: for each key the number of the bag that each sample has, (B)."""
    asked = getattr(features, "inverse_indices_or_none", lambda: None)()
    if asked is None:
        raise ValueError(
            "EmbeddingBagCollection: the batch must have the same number of bags for each key (varies), or inverse indices; "
            "by_feature() gives the rows of each key by itself"
        )
    keys, inverse = asked
    if inverse.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"EmbeddingBagCollection: inverse must be int64 or int32 (is {inverse.dtype})")
    missing = [key for key in features.keys() if key not in keys]
    if missing:
        raise ValueError(f"EmbeddingBagCollection: inverse must be of the batch's keys (has none of {', '.join(missing)})")
    if not torch.compiler.is_compiling():
        bags = dict(zip(features.keys(), features.stride_per_key()))
        for key, numbers in zip(keys, inverse):
            wrong = numbers[(numbers < 0) | (numbers >= bags.get(key, 0))]
            if wrong.numel():
                must = f"numbers of the {bags.get(key, 0)} bags of key {key}, from 0 on"
                raise IndexError(f"EmbeddingBagCollection: inverse must be {must} (has {int(wrong[0])})")
    return dict(zip(keys, inverse))


@dataclass
class JaggedTensor:
    """Values (N, D) of B bags, with offsets (B + 1)."""

    _values: Tensor
    _offsets: Tensor

    def values(self) -> Tensor:
        return self._values

    def offsets(self) -> Tensor:
        return self._offsets

    def lengths(self) -> Tensor:
        return self._offsets.diff()

    def to_dense(self) -> list[Tensor]:
        """(L_b, D) of each bag, as views."""
        return list(self._values.split(self.lengths().tolist()))

    def to_padded_dense(self, length: int | None = None) -> Tensor:
        """(B, L, D): the first L of each bag, by default all, and zeros behind them."""
        lengths = self.lengths()
        most = int(lengths.max()) if length is None and lengths.numel() else length or 0
        columns = torch.arange(most, dtype=torch.int64, device=self._offsets.device)
        places = self._offsets[:-1].unsqueeze(1) + columns
        there = columns < lengths.unsqueeze(1)
        if self._values.shape[0] == 0:
            return self._values.new_zeros(*there.shape, self._values.shape[1])
        return torch.where(there.unsqueeze(2), self._values[places.clamp(max=self._values.shape[0] - 1)], 0)


@dataclass
class KeyedTensor:
    """Pooled rows side by side (B, sum of widths), with the key and the width of each; methods as torchrec's."""

    _keys: list[str]
    _length_per_key: list[int]
    _values: Tensor

    def __post_init__(self):
        if len(self._keys) != len(self._length_per_key) or self._values.dim() != 2 or sum(self._length_per_key) != self._values.shape[1]:
            raise ValueError(
                f"KeyedTensor: values must be (B, {sum(self._length_per_key)}), of {len(self._keys)} keys (are {tuple(self._values.shape)})"
            )

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def length_per_key(self) -> list[int]:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        return [0, *accumulate(self._length_per_key)]

    def key_dim(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Tensor:
        place = self._keys.index(key) if key in self._keys else -1
        if place < 0:
            raise KeyError(f"KeyedTensor: there is no key {key!r}")
        offsets = self.offset_per_key()
        return self._values[:, offsets[place] : offsets[place + 1]]

    def to_dict(self) -> dict[str, Tensor]:
        return {key: self[key] for key in self._keys}
