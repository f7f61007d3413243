"""dlrm, wdl and deepfm of train_ctr in PyTorch, from the rows and the first weights that train_ctr --export wrote.

A form is where the rows of the 39 tables are kept:

  tables      an EmbeddingBag(sparse=True) for each table, the usual one
  one_table   one EmbeddingBag(sparse=True) over the rows of all tables
  fbgemm      FBGEMM's table-batched embeddings, whose backward pass steps the rows. Rows of one float, which it does
              not have, are kept as in one_table

All stacks are stepped by torch.optim.Adagrad, and the rows too, except that FBGEMM steps its own by rowwise Adagrad.
Our rows are stepped by rowwise Adagrad, which PyTorch does not have: RowwiseAdagrad is that, to compare numbers.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

try:
    import fbgemm_gpu
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
except (ImportError, OSError) as problem:  # OSError: built for another PyTorch
    fbgemm_gpu, fbgemm_problem = None, f"fbgemm_gpu is not installed: {problem}"


class Export:
    """What train_ctr --export wrote into a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.sizes = json.loads((self.folder / "sizes.json").read_text(encoding="utf-8"))
        self.first_row = self.array("first_row").flatten()
        self.test_logits = self.array("test_logits")
        self.test_labels = self.array("test_labels")

    def array(self, name):
        return np.load(self.folder / f"{name}.npy")

    def weights(self, part):
        return torch.from_numpy(self.array(f"{self.sizes['model']}, {part}"))

    def batches(self, use, size, prepare):
        """(dense, labels, prepare(rows)) of the batches of "train" or "test"; rows are numbers among all."""
        dense, labels = (torch.from_numpy(self.array(f"{use}_{what}")) for what in ("dense", "labels"))
        rows = torch.from_numpy(self.array(f"{use}_rows")).long()
        cut = [tensor.split(size) for tensor in (dense, labels, rows)]
        return [(d.clone(), y.clone(), prepare(r)) for d, y, r in zip(*cut)]


# Forms: prepare(rows) makes of row numbers (B, 39) what forward() takes, which returns the rows side by side.


class ManyTables(nn.Module):
    @staticmethod
    def layer():
        return nn.EmbeddingBag

    def __init__(self, weights, first_row, _sizes):
        super().__init__()
        self.first_row = first_row.tolist()
        self.bags = nn.ModuleList(
            self.layer().from_pretrained(weights[begin:end].clone(), freeze=False, mode="sum", sparse=True)
            for begin, end in zip(self.first_row, self.first_row[1:])
        )

    def prepare(self, rows):
        columns = zip(rows.unbind(1), self.first_row)
        return [(column - first).contiguous() for column, first in columns], torch.arange(len(rows))

    def forward(self, prepared):
        ids, offsets = prepared
        return torch.cat([bag(column, offsets) for bag, column in zip(self.bags, ids)], dim=1)


class OneTable(nn.Module):
    def __init__(self, weights, _first_row, _sizes):
        super().__init__()
        self.bag = nn.EmbeddingBag.from_pretrained(weights.clone(), freeze=False, mode="sum", sparse=True)

    def prepare(self, rows):
        return rows.flatten(), torch.arange(rows.numel()), len(rows)

    def forward(self, prepared):
        ids, offsets, samples = prepared
        return self.bag(ids, offsets).view(samples, -1)


class FusedTables(nn.Module):
    def __init__(self, weights, first_row, sizes):
        super().__init__()
        self.first_row = torch.from_numpy(first_row)
        rows = np.diff(first_row).tolist()
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(count, weights.shape[1], EmbeddingLocation.HOST, ComputeDevice.CPU) for count in rows],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=sizes["row_rate"],
            eps=sizes["row_epsilon"],
            pooling_mode=PoolingMode.SUM,
        )
        for table, first in zip(self.tables.split_embedding_weights(), weights.split(rows)):
            table.copy_(first)
        for (squares,) in self.tables.split_optimizer_states():
            squares.fill_(sizes["initial_squares"])

    def prepare(self, rows):
        by_table = (rows - self.first_row[:-1]).t().contiguous().flatten()
        return by_table, torch.arange(len(by_table) + 1)

    def forward(self, prepared):
        return self.tables(*prepared)


FORMS = {"tables": (ManyTables, ManyTables), "one_table": (OneTable, OneTable), "fbgemm": (FusedTables, OneTable)}


# Models: forward(dense, prepared rows) is the logit (B, 1). `row_groups` are (part, rate, epsilon) of the tables.


def stack_of(weights, widths, last_relu):
    """A stack whose weights lie behind each other: layer by layer, weights (O, I) and then the bias."""
    layers, at = [], 0
    flat = weights.flatten()
    for number, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            for parameter in (layer.weight, layer.bias):
                parameter.copy_(flat[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
        layers.append(layer)
        if last_relu or number + 2 < len(widths):
            layers.append(nn.ReLU())
    if at != len(flat):
        raise ValueError(f"a stack of {widths} has {at} weights, not {len(flat)}")
    return nn.Sequential(*layers)


class Model(nn.Module):
    wide_part, deep_part = "wide rows", "deep rows"

    def __init__(self, export, form):
        super().__init__()
        sizes = export.sizes
        self.slots, self.width = len(export.first_row) - 1, sizes["width"]
        self.numbers = export.array("train_dense").shape[1]
        make_deep, make_wide = FORMS[form]
        self.deep = make_deep(export.weights(self.deep_part), export.first_row, sizes)
        self.wide = make_wide(export.weights(self.wide_part), export.first_row, sizes) if self.wide_part else None

    def prepare(self, rows):
        return self.deep.prepare(rows), self.wide.prepare(rows) if self.wide else None


class DLRM(Model):
    wide_part, deep_part = None, "rows"

    def __init__(self, export, form):
        super().__init__(export, form)
        sizes = export.sizes
        vectors = self.slots + 1
        self.bottom = stack_of(export.weights("bottom"), [self.numbers, *sizes["bottom"], self.width], True)
        crossed = self.width + vectors * (vectors - 1) // 2
        self.top = stack_of(export.weights("top"), [crossed, *sizes["top"], 1], False)
        below = torch.tril_indices(vectors, vectors, -1)
        self.pairs = below[0] * vectors + below[1]

    def forward(self, dense, prepared):
        first = self.bottom(dense)
        vectors = torch.cat([first, self.deep(prepared[0])], dim=1).view(len(dense), -1, self.width)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([first, products.index_select(1, self.pairs)], dim=1))


class WideDeep(Model):
    def __init__(self, export, form):
        super().__init__(export, form)
        widths = [self.numbers + self.slots * self.width, *export.sizes["top"], 1]
        self.stack = stack_of(export.weights("stack"), widths, False)

    def forward(self, dense, prepared):
        return self.logit(dense, self.deep(prepared[0]), self.wide(prepared[1]))

    def logit(self, dense, rows, weights):
        return self.stack(torch.cat([dense, rows], dim=1)) + weights.sum(1, keepdim=True)


class DeepFM(WideDeep):
    def logit(self, dense, rows, weights):
        vectors = rows.view(len(dense), self.slots, self.width)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) / 2
        return super().logit(dense, rows, weights) + pairs


MODELS = {"dlrm": DLRM, "wdl": WideDeep, "deepfm": DeepFM}


class RowwiseAdagrad(torch.optim.Optimizer):
    """deeprec's: a row's sum of squares grows by the mean of squares of the row's gradient, which is the sum over the
    batch."""

    def __init__(self, groups, initial_squares):
        super().__init__(groups, {})
        self.squares = {p: torch.full((len(p),), float(initial_squares)) for g in self.param_groups for p in g["params"]}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for table in group["params"]:
                gradient = table.grad.coalesce()
                rows, values = gradient.indices()[0], gradient.values()
                squares = self.squares[table]
                squares[rows] += values.square().mean(1)
                step = group["lr"] / (squares[rows].sqrt() + group["eps"])
                table.index_add_(0, rows, values * -step.unsqueeze(1))


class Trainer:
    """A model with its optimizers, at its first weights."""

    def __init__(self, export, form, rowwise=False):
        sizes = export.sizes
        self.model = MODELS[sizes["model"]](export, form)
        self.loss = nn.BCEWithLogitsLoss()
        initial = sizes["initial_squares"]
        rows = [("deep", "row"), *([("wide", "wide")] if self.model.wide else [])]
        groups = [
            {
                "params": list(getattr(self.model, part).parameters()),
                "lr": sizes[f"{rate}_rate"],
                "eps": sizes[f"{rate}_epsilon"],
            }
            for part, rate in rows
            if not isinstance(getattr(self.model, part), FusedTables)
        ]
        of_rows = {parameter for part, _ in rows for parameter in getattr(self.model, part).parameters()}
        of_stacks = [parameter for parameter in self.model.parameters() if parameter not in of_rows]
        self.optimizers = [
            torch.optim.Adagrad(
                of_stacks, lr=sizes["dense_rate"], eps=sizes["dense_epsilon"], initial_accumulator_value=initial
            )
        ]
        if groups and rowwise:
            self.optimizers.append(RowwiseAdagrad(groups, initial))
        elif groups:
            self.optimizers.append(torch.optim.Adagrad(groups, initial_accumulator_value=initial))

    def train(self, batches):
        for dense, labels, rows in batches:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.loss(self.model(dense, rows), labels).backward()
            for optimizer in self.optimizers:
                optimizer.step()

    @torch.no_grad()
    def logits(self, batches):
        return torch.cat([self.model(dense, rows) for dense, _, rows in batches]).numpy()


def auc_of(logits, labels):
    """The chance that a click has a greater logit than another row; equal ones count half."""
    clicks, others = (np.sort(logits[labels == value]) for value in (1, 0))
    below, not_above = (np.searchsorted(others, clicks, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(clicks) * len(others)))
