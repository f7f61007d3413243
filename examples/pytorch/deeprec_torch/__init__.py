"""deeprec's embedding layers for PyTorch on the CPU.

    EmbeddingBag          in the place of torch.nn.EmbeddingBag
    EmbeddingCollection   many tables in one call, the optimizer's step in the backward pass
    CriteoDataset         Criteo's click log as tensors, parsed ahead on threads

The ops behind them are torch.ops.deeprec.*, with CPU, autograd and Meta kernels in C++.
"""

from importlib.util import find_spec as _find_spec

import torch as _torch

_torch.ops.load_library(_find_spec("deeprec_torch._ops").origin)

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

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "CriteoBatch",
    "CriteoDataset",
    "EmbeddingBag",
    "EmbeddingCollection",
    "KeyedJaggedTensor",
    "RowwiseAdagrad",
    "TableConfig",
    "embedding_bag",
]
