"""deeprec's embedding layers for PyTorch on the CPU.

    EmbeddingBag          in the place of torch.nn.EmbeddingBag
    EmbeddingBagCollection   many tables in one call, stepped in the backward pass or by a TableOptimizer; dense, or growing with
                             their keys
    UnpooledEmbeddingCollection     the same, a row for each id
    ShardedEmbeddingBagCollection   the same, its tables at many processes
    Checkpoints           files of a collection while it trains: full ones and deltas; Follower: a collection that follows them
    KeyMap                numbers in [0, capacity) for any keys
    CriteoDataset         Criteo's click log as tensors, parsed ahead on threads

The ops behind them are torch.ops.deeprec.*, with CPU, autograd and Meta kernels in C++.
"""

from importlib.util import find_spec as _find_spec
from warnings import warn as _warn

import torch as _torch

from ._version_check import check as _check

_check("deeprec_torch", "torch", "PyTorch", _torch.__version__)


def ops_library() -> str:
    """The path of the library of ops, for a program that loads it by itself."""
    return _find_spec("deeprec_torch._ops").origin


_torch.ops.load_library(ops_library())

from .bag_collection import EmbeddingBagCollection, UnpooledEmbeddingCollection  # noqa: E402
from .batches import JaggedTensor, KeyedJaggedTensor, KeyedTensor  # noqa: E402
from .checkpoints import Checkpoints, Cut, Follower, Restored  # noqa: E402
from .configs import TableConfig  # noqa: E402
from .criteo import CriteoBatch, CriteoDataset  # noqa: E402
from .embedding_bag import EmbeddingBag, embedding_bag  # noqa: E402
from .growth import CountingBloom, L2Below, LeastFrequent, LeastRecent, Probabilistic, StepTTL  # noqa: E402
from .key_map import KeyMap  # noqa: E402
from .optimizers import SGD, Adagrad, Adam, RowwiseAdagrad, TableOptimizer  # noqa: E402
from .serving import ServedTables  # noqa: E402
from .sharded_collection import ShardedEmbeddingBagCollection  # noqa: E402

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Checkpoints",
    "CountingBloom",
    "CriteoBatch",
    "CriteoDataset",
    "Cut",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Follower",
    "JaggedTensor",
    "KeyMap",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "L2Below",
    "LeastFrequent",
    "LeastRecent",
    "Probabilistic",
    "Restored",
    "RowwiseAdagrad",
    "ServedTables",
    "ShardedEmbeddingBagCollection",
    "StepTTL",
    "TableConfig",
    "TableOptimizer",
    "UnpooledEmbeddingCollection",
    "embedding_bag",
    "ops_library",
]

_RENAMED = {"EmbeddingCollection": "EmbeddingBagCollection", "ShardedEmbeddingCollection": "ShardedEmbeddingBagCollection"}


def __getattr__(name):
    """The names of version 0.2, until the next version."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _warn(
        f"deeprec_torch.{name} is now {_RENAMED[name]}: as in TorchRec, where {name} is what UnpooledEmbeddingCollection is here. The next "
        "version has the new name alone",
        DeprecationWarning,
        stacklevel=2,
    )
    return globals()[_RENAMED[name]]
