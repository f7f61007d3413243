"""torch.nn.EmbeddingBag on deeprec's kernels."""

from inspect import signature

import torch
from torch import Tensor, nn

_embedding_bag = torch.ops.deeprec.embedding_bag.default
_renorm = torch.ops.deeprec.embedding_bag_renorm.default
_OPTIONS = list(signature(nn.EmbeddingBag).parameters)[2:]
_MODES = {"sum": 0, "mean": 1, "max": 2}
_TRACES_SPARSE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)  # 2.6 crashes


@torch.library.register_fake("deeprec::embedding_bag_row_gradients")
def _(gradient, *_):
    rows = torch.library.get_ctx().new_dynamic_size()
    return gradient.new_empty(rows, dtype=torch.int64), gradient.new_empty(rows, gradient.shape[1])


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """torch.nn.functional.embedding_bag, with its arguments in their order.

    Weights are float32, float16 or bfloat16 on the CPU. Sparse gradients have each row that the batch used once; they
    are coalesced, and weight.grad is marked so where it is the gradient of one call; their own derivatives raise. An id out
    of range raises IndexError with its bag and position, and nothing is written.
    """
    if sparse and not _TRACES_SPARSE and torch.compiler.is_compiling():
        raise NotImplementedError(
            f"EmbeddingBag: sparse=True under torch.compile must have PyTorch 2.7 or newer (is {torch.__version__}): torch.compiler.disable(bag) "
            "keeps the lookup out of its graphs"
        )
    kind = _MODES.get(mode)
    if kind is None:
        raise ValueError(f"embedding_bag: mode must be sum, mean or max (is {mode!r})")
    if kind == 2 and (sparse or scale_grad_by_freq):
        raise ValueError("embedding_bag: mode max must be without sparse and scale_grad_by_freq")
    if sparse and scale_grad_by_freq:
        raise ValueError("embedding_bag: sparse must be without scale_grad_by_freq")
    if per_sample_weights is not None and kind != 0:
        raise NotImplementedError(f"embedding_bag: per_sample_weights must be with mode sum (is {mode!r})")
    device = weight.device
    if (
        input.device != device
        or (offsets is not None and offsets.device != device)
        or (per_sample_weights is not None and per_sample_weights.device != device)
    ):
        _refuse_devices(device, input=input, offsets=offsets, per_sample_weights=per_sample_weights)
    if padding_idx is None:
        padding = -1
    else:
        rows = weight.shape[0]
        padding = padding_idx if padding_idx >= 0 else padding_idx + rows
        if not 0 <= padding < rows:
            raise ValueError(f"embedding_bag: padding_idx must be within {rows} rows (is {padding_idx})")
    if max_norm is not None:
        with torch.no_grad():
            _renorm(weight, input, offsets, per_sample_weights, max_norm, norm_type, padding, include_last_offset)
    return _embedding_bag(
        weight, input, offsets, per_sample_weights, kind, padding, sparse, scale_grad_by_freq, include_last_offset
    )


def _refuse_devices(device: torch.device, **given: Tensor | None):
    for name, tensor in given.items():
        if tensor is not None and tensor.device != device:
            raise NotImplementedError(f"embedding_bag: {name} must be on the device of the weight, {device} (is on {tensor.device})")


class EmbeddingBag(nn.EmbeddingBag):
    """torch.nn.EmbeddingBag with deeprec's kernels: same arguments, inputs, outputs and state dict.

    huge_pages: keep the weights on huge pages, where a random row costs one page walk less. The state dict is the
    same; to() and copies of the module move them to ordinary memory.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *args, huge_pages: bool = False, **options):
        if len(args) > len(_OPTIONS):
            raise TypeError(f"EmbeddingBag: there must be at most {2 + len(_OPTIONS)} positional arguments (are {2 + len(args)})")
        options = {**dict(zip(_OPTIONS, args)), **options}
        if not huge_pages or options.get("_weight") is not None:
            super().__init__(num_embeddings, embedding_dim, **options)
            return
        options["_weight"] = torch.ops.deeprec.empty_on_huge_pages(
            num_embeddings, embedding_dim, options.get("dtype") or torch.get_default_dtype()
        )
        super().__init__(num_embeddings, embedding_dim, **options)
        self.reset_parameters()

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )
