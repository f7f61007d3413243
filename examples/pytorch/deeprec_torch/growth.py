"""How tables grow: which keys get rows, and which rows go."""

import operator
from dataclasses import dataclass
from numbers import Integral, Real


@dataclass(frozen=True)
class CountingBloom:
    """Admits a key that has come `occurrences` times, counted in little memory and some keys too early.

    false_share: of the keys that never came, admitted when `keys` others have come `occurrences` times each.
    """

    occurrences: int
    keys: int = 1_000_000
    false_share: float = 0.01
    seed: int = 0


@dataclass(frozen=True)
class Probabilistic:
    """Admits each occurrence of a key with a probability: by seed, key, step and occurrence, the same in every run."""

    share: float
    seed: int = 0


@dataclass(frozen=True)
class StepTTL:
    """Rows whose last update, or birth, is more than so many steps ago; that of the step before is 1 ago."""

    steps: int


@dataclass(frozen=True)
class L2Below:
    """Rows half of whose sum of squares is below a threshold."""

    threshold: float


@dataclass(frozen=True)
class LeastRecent:
    """All but `rows_left` rows, those that were trained last. Rows of one step go in the order of their keys."""

    rows_left: int


@dataclass(frozen=True)
class LeastFrequent:
    """All but `rows_left` rows, those that the most positions of batches trained; then as LeastRecent."""

    rows_left: int


_FULL = {"refuse": 0, "evict_least_recent": 1, "evict_least_frequent": 2}
_MOST = 2**63 - 1


def is_whole(value, least: int = 0, most: int = _MOST) -> bool:
    """numpy's integers too."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= value <= most


def expect(fits: bool, what: str, must: str, value):
    if not fits:
        raise ValueError(f"{what} must be {must} (is {value!r})")


def whole(what: str, must: str, value, least: int = 0, most: int = _MOST) -> int:
    """The value as an int; ValueError where it is none, or not in [least, most]."""
    expect(is_whole(value, least, most), what, must, value)
    return operator.index(value)


def is_real(value) -> bool:
    """numpy's numbers too."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_admission(admission):
    """None, the occurrences that are counted exactly, CountingBloom or Probabilistic."""
    if isinstance(admission, CountingBloom):
        expect(is_whole(admission.occurrences, 1, 65535), "CountingBloom: occurrences", "from 1 to 65535", admission.occurrences)
        expect(is_whole(admission.keys, 1), "CountingBloom: keys", "an integer from 1 on", admission.keys)
        share = admission.false_share
        expect(is_real(share) and 0 < share < 1, "CountingBloom: false_share", "in (0, 1)", share)
        expect(is_whole(admission.seed), "CountingBloom: seed", "an integer from 0 to 2^63 - 1", admission.seed)
    elif isinstance(admission, Probabilistic):
        expect(is_real(admission.share) and 0 < admission.share <= 1, "Probabilistic: share", "in (0, 1]", admission.share)
        expect(is_whole(admission.seed), "Probabilistic: seed", "an integer from 0 to 2^63 - 1", admission.seed)
    elif admission is not None:
        must = "None, an integer from 1 to 2^24 - 2, CountingBloom or Probabilistic"
        expect(is_whole(admission, 1, 2**24 - 2), "TableConfig: admission", must, admission)


def check_full(when_full):
    expect(when_full in _FULL, "TableConfig: when_full", "refuse, evict_least_recent or evict_least_frequent", when_full)


def growth_integers(table) -> list[int]:
    """As growth_of in csrc/embedding_tables.cpp reads them; nothing for a dense table."""
    if table.num_embeddings is not None:
        return []
    admission = table.admission
    kind, occurrences, keys, seed = 0, 1, 0, 0
    if isinstance(admission, CountingBloom):
        kind, occurrences, keys, seed = 2, admission.occurrences, admission.keys, admission.seed
    elif isinstance(admission, Probabilistic):
        kind, seed = 3, admission.seed
    elif admission is not None:
        kind, occurrences = 1, admission
    return list(map(operator.index, (table.capacity or 0, _FULL[table.when_full], kind, occurrences, keys, seed)))


def growth_floats(table) -> list[float]:
    if table.num_embeddings is not None:
        return []
    admission = table.admission
    share = {CountingBloom: "false_share", Probabilistic: "share"}.get(type(admission))
    default = table.default_row
    row = list(default) if isinstance(default, tuple) else [default] * table.embedding_dim
    return [1.0 if share is None else float(getattr(admission, share)), *map(float, row)]


def policy_numbers(policy) -> tuple[int, int, float]:
    """Which policy, its count and its threshold, as csrc/growing.hpp has them."""
    if isinstance(policy, L2Below):
        expect(is_real(policy.threshold), "L2Below: threshold", "a number", policy.threshold)
        return 1, 0, float(policy.threshold)
    counts = {StepTTL: (0, "steps"), LeastRecent: (2, "rows_left"), LeastFrequent: (3, "rows_left")}
    if type(policy) not in counts:
        must = "StepTTL, L2Below, LeastRecent or LeastFrequent"
        raise ValueError(f"EmbeddingBagCollection.evict: policy must be {must} (is {policy!r})")
    number, name = counts[type(policy)]
    return number, whole(f"{type(policy).__name__}: {name}", "an integer from 0 on", getattr(policy, name)), 0.0
