"""Lookups of a collection whose backward pass makes gradients of rows, instead of stepping them."""

import torch
from torch import Tensor

_lookup = torch.ops.deeprec.tables_lookup.default
_row_gradients = torch.ops.deeprec.embedding_bag_row_gradients.default
_each = torch.ops.deeprec.tables_lookup_each.default
_step = torch.ops.deeprec.tables_step.default
_weight_gradients = torch.ops.deeprec.embedding_bag_sample_gradients.default


class _Bags:
    """The bags of one feature or more as those of an EmbeddingBag: ids, offsets with the last one, weights, gradients."""

    def __init__(self, places: list[tuple[int, int]], batch, gradient: Tensor, width: int):
        """places: for each feature its key, and the first of its columns."""
        values, offsets, weights, bags, ends = batch
        parts, starts, count = [], [offsets.new_zeros(1)], 0
        for key, _ in places:
            first, last = ends[key], ends[key + 1]
            parts.append(slice(first, last))
            starts.append(offsets[key * bags + 1 : (key + 1) * bags + 1] + (count - first))
            count += last - first
        self.ids = _joined([values[part] for part in parts])
        self.offsets = torch.cat(starts)
        self.weights = None if weights is None else _joined([weights[part] for part in parts])
        self.gradient = _joined([gradient[:, column : column + width] for _, column in places])


def _joined(parts) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class RowGradients(torch.autograd.Function):
    """out = apply(collection, batch, weights, *rows): the gradient of a table's rows is sparse and coalesced."""

    @staticmethod
    def forward(ctx, collection, batch, weights, *rows):
        values, offsets, _, bags, keys, positions = batch
        ctx.collection, ctx.sizes = collection, (bags, keys, positions)
        reads = weights is not None and weights.requires_grad
        ctx.save_for_backward(values, offsets, weights, *(rows if reads else ()))
        return _lookup(collection._hook, collection._rows_written, collection._number, collection._width, *batch)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        values, offsets, weights, *rows = ctx.saved_tensors
        bags, keys, positions = ctx.sizes
        ends = offsets[::bags].tolist() if bags else [0] * (keys + 1)
        batch = values, offsets, weights, bags, ends
        gradient = gradient.to(torch.float32)
        of_weights = torch.zeros_like(weights) if weights is not None and ctx.needs_input_grad[2] else None
        of_rows, feature, column = [], 0, 0
        for number, table in enumerate(ctx.collection.tables):
            places, mode = [], {"sum": 0, "mean": 1}[table.pooling]
            for _ in table.feature_names:
                places.append((positions[feature] if positions else feature, column))
                feature, column = feature + 1, column + table.embedding_dim
            of_rows.append(None)
            if ctx.needs_input_grad[3 + number]:
                at = _Bags(places, batch, gradient, table.embedding_dim)
                size = (table.num_embeddings, table.embedding_dim)
                ids, summed = _row_gradients(at.gradient, size[0], at.ids, at.offsets, at.weights, mode, -1, True)
                to = ctx.collection._row_dtype(number)
                made = torch.sparse_coo_tensor(ids.unsqueeze(0), summed.to(to), size, check_invariants=False)
                of_rows[-1] = made._coalesced_(True)
            if of_weights is not None:
                for place in places:
                    at = _Bags([place], batch, gradient, table.embedding_dim)
                    part = slice(ends[place[0]], ends[place[0] + 1])
                    of_weights[part] += _weight_gradients(at.gradient, rows[number], at.ids, at.offsets, at.weights, mode, -1, True)
        return None, None, of_weights, *of_rows


@torch.no_grad()
def merge(parameter: Tensor):
    """A post-accumulate hook: PyTorch drops the mark of a gradient that it stores, and adds another one behind it. A norm, or an
    optimizer, sees each row once then."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
        ids = gradient._indices()[0]
        if ids.numel() < 2 or bool((ids[1:] > ids[:-1]).all()):
            gradient._coalesced_(True)
        else:
            parameter.grad = gradient.coalesce()


class EachRow(torch.autograd.Function):
    """Rows of ids, not pooled: apply(collection, inserts, lists, hook, *rows), a list of ids for each feature. The backward pass
    steps the rows of a fused collection, whose hook it comes by, or makes sparse gradients of rows. Outputs that no loss used have
    no gradient, and their rows neither."""

    @staticmethod
    def forward(ctx, collection, inserts, lists, hook, *rows):
        ctx.collection, ctx.stepped, ctx.hook = collection, False, hook
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*lists)
        return tuple(_each(collection._rows_written, collection._number, lists, inserts))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        collection, lists = ctx.collection, ctx.saved_tensors
        nothing = (None,) * len(ctx.needs_input_grad)
        if all(gradient is None for gradient in gradients):
            return nothing
        if collection.fused:
            if not ctx.hook.requires_grad:  # frozen since the lookup
                return nothing
            if ctx.stepped:
                must = "have one backward pass, which steps the rows (has a second one): add the losses and call backward() once"
                raise RuntimeError(f"deeprec: a lookup must {must}")
            ctx.stepped = True
            widths = collection.feature_widths
            ids = [one[:0] if gradient is None else one for one, gradient in zip(lists, gradients)]
            given = [torch.empty(0, width) if gradient is None else gradient for width, gradient in zip(widths, gradients)]
            _step(collection._rows_written, collection._number, ids, given)
            return None, None, None, torch.zeros(1, dtype=torch.float32, device="cpu")
        of_rows, feature = [], 0
        for number, table in enumerate(collection.tables):
            own = slice(feature, feature + len(table.feature_names))
            feature = own.stop
            of_rows.append(None)
            used = [(ids, gradient) for ids, gradient in zip(lists[own], gradients[own]) if gradient is not None]
            if used and ctx.needs_input_grad[4 + number]:
                size = (table.num_embeddings, table.embedding_dim)
                ids = _joined([ids for ids, _ in used]).to(torch.int64)
                values = _joined([gradient for _, gradient in used]).to(torch.float32)
                # Summed in float32, and rounded once.
                summed = torch.sparse_coo_tensor(ids.unsqueeze(0), values, size, check_invariants=False).coalesce()
                rounded = summed._values().to(collection._row_dtype(number))
                made = torch.sparse_coo_tensor(summed._indices(), rounded, size, check_invariants=False)
                of_rows[-1] = made._coalesced_(True)
        return None, None, None, None, *of_rows
