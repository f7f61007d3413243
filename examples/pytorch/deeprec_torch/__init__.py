"""deeprec's embedding layers for PyTorch on the CPU.

    EmbeddingBag          in the place of torch.nn.EmbeddingBag
    EmbeddingCollection   many tables in one call, the optimizer's step in the backward pass; dense, or growing with their keys
    ShardedEmbeddingCollection   the same, its tables at many processes
    Checkpoints           files of a collection while it trains: full ones and deltas; Follower: a collection that follows them
    KeyMap                numbers in [0, capacity) for any keys
    CriteoDataset         Criteo's click log as tensors, parsed ahead on threads

The ops behind them are torch.ops.deeprec.*, with CPU, autograd and Meta kernels in C++.
"""

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

import torch as _torch

_built_with = (_Path(__file__).parent / "_built_with.txt").read_text()
if _built_with != _torch.__version__:
    raise ImportError(
        f"deeprec_torch: the library must be built with the PyTorch that runs it (built with {_built_with}, this is {_torch.__version__}): "
        "pip install --no-build-isolation --no-deps --force-reinstall <checkout>/examples/pytorch"
    )
_torch.ops.load_library(_find_spec("deeprec_torch._ops").origin)

from .checkpoints import Checkpoints, Cut, Follower, Restored  # noqa: E402
from .criteo import CriteoBatch, CriteoDataset  # noqa: E402
from .embedding_bag import EmbeddingBag, embedding_bag  # noqa: E402
from .embedding_collection import (  # noqa: E402
    SGD,
    Adagrad,
    Adam,
    EmbeddingCollection,
    KeyedJaggedTensor,
    RowwiseAdagrad,
    TableConfig,
)
from .growth import CountingBloom, L2Below, LeastFrequent, LeastRecent, Probabilistic, StepTTL  # noqa: E402
from .key_map import KeyMap  # noqa: E402
from .sharded_collection import ShardedEmbeddingCollection  # noqa: E402

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
    "EmbeddingCollection",
    "Follower",
    "KeyMap",
    "KeyedJaggedTensor",
    "L2Below",
    "LeastFrequent",
    "LeastRecent",
    "Probabilistic",
    "Restored",
    "RowwiseAdagrad",
    "ShardedEmbeddingCollection",
    "StepTTL",
    "TableConfig",
    "embedding_bag",
]
