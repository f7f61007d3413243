"""What torch_suite.py times: the same tables as PyTorch, FBGEMM and deeprec_torch keep them, and a step of each.

A side is a function of a batch. Its batches are made beforehand, and lie in memory as each side wants them.
"""

import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import torch_models
from torch_models import FusedTables, ManyTables, RowwiseAdagrad, Trainer, fbgemm_gpu

try:
    import deeprec_torch
    from deeprec_torch import EmbeddingBag, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig

    deeprec_problem = ""
except (ImportError, OSError) as problem:  # OSError: built for another PyTorch
    deeprec_torch, deeprec_problem = None, f"deeprec_torch is not installed: {problem}"
if fbgemm_gpu:
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

TRAINING = {
    "row_rate": 0.02,
    "row_epsilon": 1e-8,
    "dense_rate": 0.01,
    "dense_epsilon": 1e-8,
    "initial_squares": 0.1,  # from 0 a first step is the rate times a sign, which rounding may turn
}


def names_of(tables):
    return [f"t{number}" for number in range(tables)]


# Batches.


@dataclass
class Batch:
    """The same ids for all sides, in one memory: `columns` and `jagged` are views of `values`."""

    values: torch.Tensor  # (tables * bags * hotness), table by table
    ends: torch.Tensor  # (tables * bags + 1)
    columns: list  # (bags * hotness) of each table
    offsets: torch.Tensor  # (bags) of a column
    jagged: object
    i32: tuple = ()  # values and ends of 32 bits, where a side takes them

    @classmethod
    def random(cls, tables, rows, bags, hotness, with_i32=False):
        values = torch.randint(rows, (tables * bags * hotness,))
        ends = torch.arange(tables * bags + 1) * hotness
        columns = list(values.view(tables, -1).unbind(0))
        jagged = KeyedJaggedTensor(names_of(tables), values, ends)
        return cls(values, ends, columns, ends[:bags].clone(), jagged, (values.int(), ends.int()) if with_i32 else ())


# Tables.


class CollectionTables(FusedTables):
    """The form `ours` of torch_models: an EmbeddingBagCollection, whose backward pass steps the rows."""

    rule = "RowwiseAdagrad"

    def __init__(self, weights, first_row, sizes):
        nn.Module.__init__(self)
        self.first_row = torch.from_numpy(first_row)
        rows = np.diff(first_row).tolist()
        optimizer = getattr(deeprec_torch, self.rule)(
            lr=sizes["row_rate"], eps=sizes["row_epsilon"], initial_accumulator_value=sizes["initial_squares"]
        )
        self.tables = collection_of(weights.split(rows), optimizer)
        self.keys = names_of(len(rows))

    def prepare(self, rows):
        return KeyedJaggedTensor(self.keys, *super().prepare(rows))

    def forward(self, prepared):
        return self.tables(prepared)


class AdagradTables(CollectionTables):
    """The form `collection`: stepped by the rule that PyTorch has."""

    rule = "Adagrad"


class OwnBags(ManyTables):
    """The form `bags`: in the place of nn.EmbeddingBag, and no more than that."""

    @staticmethod
    def layer():
        return EmbeddingBag


torch_models.FORMS["ours"] = (CollectionTables, CollectionTables)
torch_models.FORMS["collection"] = (AdagradTables, AdagradTables)
torch_models.FORMS["bags"] = (OwnBags, OwnBags)


def collection_of(weights, optimizer=None):
    names = names_of(len(weights))
    made = EmbeddingBagCollection([TableConfig(name, *table.shape) for name, table in zip(names, weights)], optimizer)
    for name, table in zip(names, weights):
        made.assign(name, table)
    return made


def equal_tables(tables, rows, width, trained):
    """The same rows as {"ours", "pytorch", "fbgemm"} keep them, each as it allocates by default."""
    weights = torch.empty(tables * rows, width).uniform_(-1, 1)
    first_row = np.arange(tables + 1) * rows
    ours = CollectionTables(weights, first_row, TRAINING).tables if trained else collection_of(weights.split(rows))
    made = {"ours": ours, "pytorch": ManyTables(weights, first_row, TRAINING).bags}
    if fbgemm_gpu:
        made["fbgemm"] = FusedTables(weights, first_row, TRAINING).tables
    return made


# Lookups. PyTorch's bags are left as they are: what joins them to one tensor, as the others return, is not timed.


def lookups_of(tables):
    bags = tables["pytorch"]
    sides = {
        "ours": lambda batch: tables["ours"](batch.jagged),
        "pytorch": lambda batch: [bag(column, batch.offsets) for bag, column in zip(bags, batch.columns)],
        "fbgemm": lambda batch: tables["fbgemm"](batch.values, batch.ends),
    }
    return {name: sides[name] for name in tables}


def joined_bags(pooled):
    return torch.cat(pooled, dim=1) if isinstance(pooled, list) else pooled


# Training steps: lookup, backward pass from a fixed gradient of the pooled rows, and the step of the rows. PyTorch's
# gradient lies in memory table by table, so that its backward pass neither splits nor copies it.


def steps_of(tables, gradient, optimizer):
    """`optimizer` steps the bags of PyTorch; the other sides step their rows in the backward pass."""
    bags = tables["pytorch"]
    gradients = [piece.contiguous() for piece in gradient.chunk(len(bags), dim=1)]

    def pytorch(batch):
        optimizer.zero_grad(set_to_none=True)
        pooled = [bag(column, batch.offsets) for bag, column in zip(bags, batch.columns)]
        torch.autograd.backward(pooled, gradients)
        optimizer.step()

    sides = {
        "ours": lambda batch: tables["ours"](batch.jagged).backward(gradient),
        "pytorch": pytorch,
        "fbgemm": lambda batch: tables["fbgemm"](batch.values, batch.ends).backward(gradient),
    }
    return {name: sides[name] for name in tables}


def adagrad_of(bags):
    return torch.optim.Adagrad(
        bags.parameters(),
        lr=TRAINING["row_rate"],
        eps=TRAINING["row_epsilon"],
        initial_accumulator_value=TRAINING["initial_squares"],
    )


class RowwiseStep(RowwiseAdagrad):
    """What the rows of the other sides are stepped by, for PyTorch's bags."""

    def __init__(self, bags):
        group = {"params": list(bags.parameters()), "lr": TRAINING["row_rate"], "eps": TRAINING["row_epsilon"]}
        super().__init__([group], TRAINING["initial_squares"])


# Sparse gradients that an optimizer of PyTorch steps with.


def sparse_bags(weight):
    """Each on rows of its own, which are stepped."""
    kinds = {"ours": EmbeddingBag, "pytorch": nn.EmbeddingBag}
    return {side: kind(*weight.shape, mode="sum", sparse=True, _weight=weight.clone()) for side, kind in kinds.items()}


def sparse_adam_step(bag, gradient):
    optimizer = torch.optim.SparseAdam(list(bag.parameters()))
    bag.weight.grad = torch.sparse_coo_tensor(size=bag.weight.shape)
    optimizer.step()  # makes the moments
    for moments in optimizer.state[bag.weight].values():
        if isinstance(moments, torch.Tensor):
            moments.zero_()  # maps their pages, which the first steps would else be timed for

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        bag(*batch).backward(gradient)
        optimizer.step()

    return step


# Rows of 8 bits.


def exact_weights(rows, width):
    """Rows that 8 bits hold exactly, with a scale and a bias that are exact in f16, which FBGEMM's tables keep."""
    codes = torch.randint(256, (rows, width)).float()
    codes[:, 0], codes[:, 1] = 0, 255
    scale = torch.randint(1, 3, (rows, 1)) / 256
    bias = torch.randint(-16, 1, (rows, 1)) / 16
    return codes.mul_(scale).add_(bias)


class Int8Tables:
    """A collection of int8 tables, and the same rows as FBGEMM's operators take them:

    batched        IntNBitTableBatchedEmbeddingBagsCodegen on ids of 64 bits
    batched_i32    the same on ids of 32 bits, without its check of ids
    by_table       PyTorch's operator of FBGEMM's kernel for rows with a scale and a bias in f32, once for each table
    """

    def __init__(self, tables, rows, width):
        self.ours = collection_of([exact_weights(rows, width) for _ in range(tables)]).quantize("int8")
        self.fused = [self.ours.weight(name).clone() for name in names_of(tables)]  # codes, scale, bias
        self.checked = self.batched(rows, width, BoundsCheckMode.WARNING)
        self.unchecked = self.batched(rows, width, BoundsCheckMode.NONE)
        self.unchecked.weights_host = self.checked.weights_host
        for (stored, _), row in zip(self.checked.split_embedding_weights(split_scale_shifts=False), self.fused):
            stored[:, :4] = row[:, width:].contiguous().view(torch.float32).half().view(torch.uint8)
            stored[:, 4:] = row[:, :width]

    def batched(self, rows, width, check):
        specs = [(name, rows, width, SparseType.INT8, EmbeddingLocation.HOST) for name in names_of(len(self.fused))]
        made = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs, device="cpu", output_dtype=SparseType.FP32, bounds_check_mode=check
        )
        made.initialize_weights()
        return made

    def sides(self):
        bag = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
        return {
            "ours": lambda batch: self.ours(batch.jagged),
            "batched": lambda batch: self.checked(batch.values, batch.ends),
            "batched_i32": lambda batch: self.unchecked(*batch.i32),
            "by_table": lambda batch: [
                bag(row, column, batch.offsets, False, 0) for row, column in zip(self.fused, batch.columns)
            ],
        }


# Lookups that a program in C++ serves.


def served_programs(tables, rows, width, folder):
    """The arguments of serve_latency.cpp that are of the tables: as AOTInductor and as TorchScript have them."""
    both = Int8Tables(tables, rows, width)
    served = both.ours.served()
    ours, theirs = Path(folder, "ours.pt2"), Path(folder, "theirs.pt")
    bags = torch.export.Dim("bags", min=1)
    shapes = {"values": {0: torch.export.Dim("many", min=2)}, "offsets": {0: tables * bags + 1}}
    batch = torch.randint(rows, (tables * 3,)), torch.arange(tables * 3 + 1)
    torch._inductor.aoti_compile_and_package(torch.export.export(served, batch, dynamic_shapes=shapes), package_path=str(ours))
    torch.jit.script(both.checked).save(theirs)
    libraries = ":".join(path for path in torch.ops.loaded_libraries if "fbgemm" in path)
    return [deeprec_torch.ops_library(), str(ours), libraries, str(theirs), str(rows)]


def program_of(source, root, folder):
    """A program of this folder that runs without Python, with PyTorch's libraries."""
    from torch.utils.cpp_extension import include_paths

    library, program = Path(torch.__file__).parent / "lib", Path(folder, Path(source).stem)
    flags = ["-std=c++20", "-O2", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    flags += [f"-isystem{path}" for path in include_paths()]
    links = [f"-L{library}", f"-Wl,-rpath,{library}", "-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch", "-lc10", "-ldl"]
    words = [os.environ.get("CXX", "g++"), *flags, str(root / "benchmarks" / "frameworks" / source), "-o", str(program), *links]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode != 0:
        raise RuntimeError(built.stderr)
    return str(program)


# DLRM.


class RandomExport(torch_models.Export):
    """Rows, labels and first weights of train_ctr's DLRM, all of them random: 13 tables of 512 buckets, 26 of the rows
    that train_ctr has in the mean for the log that the suite `peers` trains on."""

    def __init__(self, samples):
        self.sizes = {"model": "dlrm", "width": 16, "bottom": [128], "top": [64], **TRAINING}
        self.first_row = np.cumsum([0] + [512] * 13 + [1000] * 26)
        draw = np.random.default_rng(1)
        rows = draw.integers(np.diff(self.first_row), size=(samples, 39)) + self.first_row[:-1]
        self.arrays = {
            "train_dense": draw.random((samples, 26), dtype=np.float32),
            "train_labels": (draw.random((samples, 1)) < 0.25).astype(np.float32),
            "train_rows": rows,
            "dlrm, rows": draw.normal(0, 0.1, (self.first_row[-1], 16)).astype(np.float32),
            "dlrm, bottom": self.stack(draw, [26, 128, 16]),
            "dlrm, top": self.stack(draw, [16 + 40 * 39 // 2, 64, 1]),
        }

    @staticmethod
    def stack(draw, widths):
        layers = [(draw.normal(0, math.sqrt(2 / i), i * o), np.zeros(o)) for i, o in zip(widths, widths[1:])]
        return np.concatenate([part for layer in layers for part in layer]).astype(np.float32).reshape(1, -1)

    def array(self, name):
        return self.arrays[name]


def dlrm_trainer(export, form, rowwise=False, compiled=False):
    """(step of a batch, logits of batches, batches of a size) of a form of torch_models."""
    trainer = Trainer(export, form, rowwise)
    if compiled:
        # By inductor, for each size of a batch. All trainers share the code of a model; beyond the limit dynamo runs it in eager mode.
        torch._dynamo.config.cache_size_limit = 64
        trainer.model.compile(dynamic=False)
    return (
        lambda batch: trainer.train([batch]),
        trainer.logits,
        lambda size: export.batches("train", size, trainer.model.prepare),
    )


def bag_with(kind, weight):
    """A module of PyTorch's or ours on that very weight."""
    made = kind(*weight.shape, mode="sum", _weight=weight)
    if made.weight.data_ptr() != weight.data_ptr():
        raise RuntimeError("the bag has copied the weight")
    return made


def bags_on(weight):
    bags = {"ours": bag_with(EmbeddingBag, weight), "pytorch": bag_with(nn.EmbeddingBag, weight)}
    return {side: (lambda bag: lambda batch: bag(*batch))(bag) for side, bag in bags.items()}


def compiled(source, root, **how):
    """A source of this folder, compiled on the headers here."""
    from torch.utils.cpp_extension import load as load_extension  # of a PyTorch that can compile

    built = root / "build" / "bench" / Path(source).stem
    built.mkdir(parents=True, exist_ok=True)
    return load_extension(
        f"deeprec_bench_{Path(source).stem}",
        [str(root / "benchmarks" / "frameworks" / source)],
        extra_include_paths=[str(root / "include")],
        extra_cflags=["-std=c++20", "-O2", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
        build_directory=str(built),
        **how,
    )


def library_of(source, root):
    """The path of a library of ops."""
    compiled(source, root, is_python_module=False)
    return str(root / "build" / "bench" / Path(source).stem / f"deeprec_bench_{Path(source).stem}.so")


def extension_on(root):
    """A function of a weight, as bags_on: of torch_extension.cpp, compiled on the headers here, and PyTorch's."""
    extension = compiled("torch_extension.cpp", root)
    return lambda weight: {
        "ours": lambda batch: extension.bag_sums(weight, *batch),
        "pytorch": lambda batch: nn.functional.embedding_bag(batch[0], weight, batch[1], mode="sum"),
    }
