"""A collection for lookups only, which torch.export, AOTInductor and TorchScript can save."""

import torch
from torch import Tensor, nn

from .configs import FORMATS, POOLINGS


class _Rows(nn.Module):
    def __init__(self, rows: Tensor):
        super().__init__()
        self.register_buffer("rows", rows)


class ServedTables(nn.Module):
    """The tables of a collection as buffers, and their lookup: out (B, sum of the features' widths) = served(values, offsets, weights).

        served = tables.served("int8")
        torch.export.save(torch.export.export(served, (values, offsets), dynamic_shapes=...), "tables.pt2")
        torch.jit.script(served).save("tables.pt")

    Made by EmbeddingBagCollection.served(). values (N), offsets (K * B + 1) and weights (N) are those of a KeyedJaggedTensor of `keys`.
    The rows are a copy. What was saved runs where the library of ops is loaded: torch.ops.load_library of deeprec_torch.ops_library(),
    or dlopen in C++ (examples/pytorch/serving). On the CPU.
    """

    def __init__(self, collection, keys=None):
        super().__init__()
        keys = list(dict.fromkeys(collection.feature_names) if keys is None else keys)
        self.tables = nn.ModuleList(_Rows(collection.weight(table.name).clone()) for table in collection.tables)
        self.formats: list[int] = [list(FORMATS).index(table.format) for table in collection.tables]
        self.widths: list[int] = [table.embedding_dim for table in collection.tables]
        self.of_feature: list[int] = [number for number, table in enumerate(collection.tables) for _ in table.feature_names]
        self.poolings: list[int] = [POOLINGS[table.pooling] for table in collection.tables for _ in table.feature_names]
        self.positions: list[int] = list(collection._positions_of(keys)) or list(range(len(keys)))
        self.keys: int = len(keys)

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        rows: list[Tensor] = []
        for table in self.tables:
            rows.append(table.rows)
        return torch.ops.deeprec.pooled_lookup(
            rows, values, offsets, weights, self.formats, self.widths, self.of_feature, self.poolings, self.keys, self.positions
        )

    def _apply(self, fn, recurse=True):
        """The rows stay on the CPU and in their formats."""
        return self
