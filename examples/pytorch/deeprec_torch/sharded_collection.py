"""Embedding tables whose rows lie at many processes, in one call of all of them."""

import operator
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch import Tensor, distributed

from .bag_collection import EmbeddingBagCollection, seed_of
from .configs import table_of
from .growth import is_whole
from .optimizers import RULES


class _Lookup(torch.autograd.Function):
    """That the collection's parameter requires a gradient is why the backward pass comes by; its gradient is 0."""

    @staticmethod
    def forward(ctx, hook, sharded, batch):
        out, ctx.lookup = sharded.lookup(*batch)
        ctx.sharded, ctx.hook = sharded, hook
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        if not ctx.hook.requires_grad:  # frozen since the lookup
            return None, None, None
        ctx.sharded.update(gradient, ctx.lookup)
        return torch.zeros(1, dtype=torch.float32, device="cpu"), None, None


class ShardedEmbeddingBagCollection(EmbeddingBagCollection):
    """An EmbeddingBagCollection whose tables lie at the processes of a group. Each calls it with its own batch, of any number
    of bags, also none, and gets the rows of it: out (B, sum of the features' widths), as from one process.

        tables = ShardedEmbeddingBagCollection(configs, RowwiseAdagrad(0.1), placements={"countries": 0})
        (loss(tables(batch)) * batch.stride() / all_bags).backward()    # gradients of the processes are added

    placements  for each table "rows", the default: row r is at process r mod n, distinct rows are sent; or a number: all of
                its rows are at that process, which pools them
    group       its processes; used for nothing else, with a backend for the CPU. By default a group of all, over gloo
    patience    for each message: then a process that waits raises, and names the one that is silent where it can
    seed        of the first weights, which are those of an EmbeddingBagCollection with it; of process 0

    All processes construct it with the same tables, and call it and its backward pass in one order: no lookup between a
    lookup and its backward pass. A fault of one, a bad id for example, is raised by all of them, with its rank; nothing is
    written then, and training goes on. After an exception of the connection, of the order or of the patience the
    collection is of no use: end the process, since gloo waits for its own limit when the group is destroyed.

    assign, weight, optimizer_state, dequantized, save, load and the state dict are of the part of this process: the rows
    part(name) of each table, in this order. Rows are sent as float32.

    Bits: outputs, and steps of tables at one process, are those of one process on the batches one behind the other. Of other
    tables a row's gradients are added within each process first, and then in the order of the processes.
    """

    def __init__(
        self,
        tables,
        optimizer=None,
        seed: int | None = None,
        *,
        placements: Mapping[str, str | int] | None = None,
        group: "distributed.ProcessGroup | None" = None,
        patience: timedelta = timedelta(minutes=10),
    ):
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError("ShardedEmbeddingBagCollection: torch.distributed must be initialized (is not)")
        tables = tuple(map(table_of, tables))
        if group is None:
            group = distributed.new_group(backend="gloo", timeout=patience + timedelta(minutes=1))
        self._processes, self._process = distributed.get_world_size(group), distributed.get_rank(group)
        if self._process < 0:
            raise ValueError("ShardedEmbeddingBagCollection: this process must be one of the group (is not)")
        self._ranks = [self._rank_of(table, dict(placements or {})) for table in tables]
        unknown = set(placements or {}) - {table.name for table in tables}
        if unknown:
            raise ValueError(f"ShardedEmbeddingBagCollection: placements must be of tables ({', '.join(sorted(unknown))} is none)")
        drawn = torch.tensor([seed_of(seed)], dtype=torch.int64, device="cpu")
        distributed.broadcast(drawn, distributed.get_global_rank(group, 0), group)
        if getattr(optimizer, "weight_decay", 0):
            raise NotImplementedError(f"ShardedEmbeddingBagCollection: weight_decay must be 0 (is {optimizer.weight_decay})")
        self._group, self._patience = group, patience
        super().__init__(tables, optimizer, int(drawn), process_local=True)

    def _rank_of(self, table, placements) -> int:
        where = placements.get(table.name, "rows")
        if table.grows:
            raise NotImplementedError(f"ShardedEmbeddingBagCollection: table {table.name} must not grow: such tables are not sharded")
        if where == "rows":
            return -1
        if not is_whole(where, 0, self._processes - 1):
            must = f'"rows" or a process below {self._processes}'
            raise ValueError(f"ShardedEmbeddingBagCollection: the placement of table {table.name} must be {must} (is {where!r})")
        return operator.index(where)

    def part(self, name: str) -> range:
        """The numbers of the rows of a table that this process holds, in the order in which it does."""
        number = self._number_of(name)
        rows, rank = self.tables[number].num_embeddings, self._ranks[number]
        if rank < 0:
            return range(self._process, rows, self._processes)
        return range(rows if rank == self._process else 0)

    def _make(self):
        super()._make()
        self._sharded = torch.classes.deeprec.ShardedTables(
            self._number,
            RULES.get(type(self.optimizer), ""),
            self._group.group_name,
            [table.num_embeddings for table in self.tables],
            self._ranks,
            self._patience.total_seconds(),
        )

    @torch.compiler.disable
    def forward(self, features) -> Tensor:
        try:
            trains, batch = self._checked(features)
            weights = features.weights_or_none()
            if weights is not None and weights.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError("deeprec: weights of a batch must not require a gradient: they have no gradient here")
        except Exception:
            self._sharded.refuse()  # the others raise as well
            raise
        return _Lookup.apply(self._hook if trains else self._hook.detach(), self._sharded, batch)

    def by_feature(self, features):
        raise NotImplementedError("ShardedEmbeddingBagCollection.by_feature: the batch must have the same number of bags for each key")

    def unpooled(self, features):
        raise NotImplementedError("ShardedEmbeddingBagCollection.unpooled: lookups must be pooled")

    def served(self, format=None, keys=None):
        raise NotImplementedError("ShardedEmbeddingBagCollection.served: a collection must be of one process")

    def quantize(self, format: str):
        raise NotImplementedError("ShardedEmbeddingBagCollection.quantize: a collection must be of one process")

    def __getstate__(self):
        raise NotImplementedError("ShardedEmbeddingBagCollection: copies and pickles must be of the state dict, not of the module")
