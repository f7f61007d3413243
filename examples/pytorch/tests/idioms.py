"""What a training loop does, each idiom once: for a collection and for layers of PyTorch alike.

A loop takes a Run, trains, and returns its losses. Two Runs that begin with the same rows and see the same batches must have the
same losses.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import deeprec_torch
from deeprec_torch import EmbeddingBagCollection, KeyedJaggedTensor, TableConfig, TableOptimizer

SEED, BAGS, STEPS = 11, 24, 4
BOUND = 2e-5  # of a loss, relative
TABLES = [TableConfig("users", 40, 8), TableConfig("items", 20, 8, feature_names=("bought", "seen"), pooling="mean")]
FEATURES = [name for table in TABLES for name in table.feature_names]
RULES = {
    "SGD": (deeprec_torch.SGD, torch.optim.SGD, 0.1),
    "Adagrad": (deeprec_torch.Adagrad, torch.optim.Adagrad, 0.1),
    "Adam": (deeprec_torch.Adam, torch.optim.SparseAdam, 0.01),
}


def batch_of(step: int, all_rows: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Values and offsets of the bags of each feature, and targets. all_rows: each row is used."""
    draw = torch.Generator().manual_seed(step)
    rows = [table.num_embeddings for table in TABLES for _ in table.feature_names]
    lengths = torch.randint(0, 4, (len(rows), BAGS), generator=draw)
    if all_rows:
        lengths.fill_(2)
    values = [torch.randint(n, (int(some.sum()),), generator=draw) for n, some in zip(rows, lengths)]
    if all_rows:
        values = [torch.cat([torch.arange(n), v[n:]]) for n, v in zip(rows, values)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    return torch.cat(values), offsets, torch.rand(BAGS, 1, generator=draw)


class Layers(nn.Module):
    """A layer of PyTorch for each table."""

    def __init__(self, rows: dict[str, Tensor], sparse: bool):
        super().__init__()
        options = {"sparse": sparse, "include_last_offset": True}
        self.bags = nn.ModuleDict({t.name + "_": nn.EmbeddingBag(*rows[t.name].shape, mode=t.pooling, **options) for t in TABLES})
        for name, weight in rows.items():
            self.bags[name + "_"].weight.data.copy_(weight)

    def forward(self, values, offsets):
        outs, feature = [], 0
        for table in TABLES:
            for _ in table.feature_names:
                own = offsets[feature * BAGS : (feature + 1) * BAGS + 1]
                outs.append(self.bags[table.name + "_"](values[own[0] : own[-1]], own - own[0]))
                feature += 1
        return torch.cat(outs, dim=1)


class Tables(nn.Module):
    def __init__(self, rule, fused: bool):
        super().__init__()
        self.tables = EmbeddingBagCollection(TABLES, rule, seed=SEED, fused=fused)

    def forward(self, values, offsets):
        return self.tables(KeyedJaggedTensor(FEATURES, values, offsets))


class Run:
    """kind: nn, nn dense, fused or apart. backend: of torch.compile, None for none."""

    def __init__(self, kind: str, rule: str, backend: str | None = None, weight_decay: float = 0.0):
        ours, theirs, rate = RULES[rule]
        rows = EmbeddingBagCollection(TABLES, seed=SEED)
        torch.manual_seed(SEED)
        self.net = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 1))
        if kind.startswith("nn"):
            dense = kind == "nn dense"
            self.tables = Layers({t.name: rows.weight(t.name) for t in TABLES}, sparse=not dense)
            options = {"weight_decay": weight_decay} if weight_decay else {}
            self.of_rows = theirs(self.tables.parameters(), lr=rate, **options)
        else:
            self.tables = Tables(ours(lr=rate, weight_decay=weight_decay), kind == "fused")
            self.of_rows = TableOptimizer(self.tables.tables)
        self.of_net = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.optimizers = [self.of_rows, self.of_net]
        self.backend = backend

    def compiled(self, function):
        """The function of a loop that goes from a batch to a loss."""
        if self.backend is None:
            return function
        torch._dynamo.reset()
        return torch.compile(function, backend=self.backend)

    def loss(self):
        def of_batch(values, offsets, targets):
            return (self.net(self.tables(values, offsets)) - targets).square().mean()

        return self.compiled(of_batch)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.tables.parameters(), *self.net.parameters()]

    def zero(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def train(self, loss, step: int, all_rows: bool = False) -> Tensor:
        self.zero()
        made = loss(*batch_of(step, all_rows))
        made.backward()
        self.step()
        return made.detach()


@dataclass
class Idiom:
    what: str
    loop: Callable
    rules: tuple[str, ...] = ("SGD", "Adagrad", "Adam")
    reference: str = "nn"
    weight_decay: float = 0.0
    bound: float = BOUND
    unlike: str = ""  # of a fused collection, whose losses differ: what the docs have of it


IDIOMS: list[Idiom] = []


def idiom(what, **options):
    def add(loop):
        IDIOMS.append(Idiom(what, loop, **options))
        return loop

    return add


@idiom("forward, backward, `step()`")
def plain(run):
    loss = run.loss()
    return [run.train(loss, step) for step in range(STEPS)]


@idiom("two lookups in a forward pass", rules=("SGD",))
def two_lookups(run):
    def of_batch(a, ends_of_a, targets, b, ends_of_b):
        return (run.net(run.tables(a, ends_of_a) + run.tables(b, ends_of_b)) - targets).square().mean()

    loss, losses = run.compiled(of_batch), []
    for step in range(STEPS):
        run.zero()
        losses.append(loss(*batch_of(step), *batch_of(step + 50)[:2]))
        losses[-1].backward()
        run.step()
    return losses


@idiom("a lookup in a loop of the model", rules=("SGD",))
def lookups_in_a_loop(run):
    def of_batch(values, offsets, targets):
        total = 0
        for turn in range(3):
            total = total + run.net(run.tables(values, offsets) * (turn + 1))
        return (total - targets).square().mean()

    loss = run.compiled(of_batch)
    return [run.train(loss, step) for step in range(STEPS)]


@idiom("gradients of several batches, then `step()`")
def accumulated(run):
    loss, losses = run.loss(), []
    for step in range(STEPS):
        run.zero()
        for part in range(3):
            losses.append(loss(*batch_of(step * 3 + part)) / 3)
            losses[-1].backward()
        run.step()
    return losses


@idiom("the losses of two batches, one backward pass", rules=("SGD",))
def two_batches(run):
    loss, losses = run.loss(), []
    for step in range(STEPS):
        run.zero()
        losses.append(loss(*batch_of(step)) + loss(*batch_of(step + 50)))
        losses[-1].backward()
        run.step()
    return losses


@idiom("two backward passes through one lookup (`retain_graph=True`)")
def two_passes(run):
    def of_batch(values, offsets, targets):
        out = run.net(run.tables(values, offsets))
        return (out - targets).square().mean(), out.abs().mean()

    both, losses = run.compiled(of_batch), []
    for step in range(STEPS):
        run.zero()
        first, second = both(*batch_of(step))
        first.backward(retain_graph=True)
        second.backward()
        run.step()
        losses += [first, second]
    return losses


@idiom("`torch.amp.GradScaler`")
def scaled(run):
    loss, losses = run.loss(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    for step in range(STEPS):
        run.zero()
        losses.append(loss(*batch_of(step)))
        scaler.scale(losses[-1]).backward()
        for optimizer in run.optimizers:
            scaler.step(optimizer)
        scaler.update()
    return losses


@idiom("`GradScaler`, a gradient that is not finite: no step")
def overflow(run):
    loss, losses = run.loss(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(STEPS):
        run.zero()
        losses.append(loss(*batch_of(step)))
        scaler.scale(losses[-1] * (float("inf") if step == 1 else 1.0)).backward()
        for optimizer in run.optimizers:
            scaler.step(optimizer)
        scaler.update()
    return losses


@idiom("`clip_grad_norm_` of all parameters")
def clipped(run):
    loss, losses = run.loss(), []
    for step in range(STEPS):
        run.zero()
        losses.append(loss(*batch_of(step)))
        losses[-1].backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.clip_grad_norm_(run.parameters(), 0.05)
        run.step()
    return losses


@idiom("`requires_grad_(False)` for a time")
def frozen(run):
    losses = []
    for step in range(STEPS):
        run.tables.requires_grad_(step % 2 == 0)
        losses.append(run.train(run.loss(), step))
    return losses


@idiom("schedules of rates (`LambdaLR`, `StepLR`)")
def scheduled(run):
    loss, losses = run.loss(), []
    schedules = [torch.optim.lr_scheduler.LambdaLR(run.of_rows, lambda turn: 1 / (1 + turn)), torch.optim.lr_scheduler.StepLR(run.of_net, 2, 0.5)]
    for step in range(STEPS):
        losses.append(run.train(loss, step))
        for schedule in schedules:
            schedule.step()
    return losses


@idiom("`weight_decay`, of the rows that a step uses", rules=("SGD", "Adagrad"), reference="nn dense", weight_decay=0.05)
def decayed(run):
    loss = run.loss()
    return [run.train(loss, step, all_rows=True) for step in range(STEPS)]


@idiom("`torch.utils.checkpoint` around a lookup", rules=("SGD",))
def checkpointed(run):
    def of_batch(values, offsets, targets):
        out = checkpoint(lambda v, o: run.net(run.tables(v, o)), values, offsets, use_reentrant=False)
        return (out - targets).square().mean()

    loss = run.compiled(of_batch)
    return [run.train(loss, step) for step in range(STEPS)]


@idiom("`torch.autocast` with bfloat16 (2e-3: a compiler rounds elsewhere)", rules=("SGD",), bound=2e-3)
def autocast(run):
    def of_batch(values, offsets, targets):
        pooled = run.tables(values, offsets)
        with torch.autocast("cpu", torch.bfloat16):
            out = run.net(pooled)
        return (out.float() - targets).square().mean()

    loss = run.compiled(of_batch)
    return [run.train(loss, step) for step in range(STEPS)]


@idiom("`no_grad` lookups between steps", rules=("SGD",))
def looked_up_between(run):
    loss, losses = run.loss(), []
    for step in range(STEPS):
        losses.append(run.train(loss, step))
        with torch.no_grad():
            losses.append(loss(*batch_of(step + 50)))
    return losses


@idiom("`AveragedModel`: losses of averaged rows", rules=("SGD",), unlike="not averaged; take `fused=False`")
def averaged(run):
    loss, losses = run.loss(), []
    average = AveragedModel(nn.ModuleList([run.tables, run.net]))
    for step in range(STEPS):
        run.train(loss, step)
        average.update_parameters(nn.ModuleList([run.tables, run.net]))
        values, offsets, targets = batch_of(step + 50)
        tables, net = average.module
        with torch.no_grad():
            losses.append((net(tables(values, offsets)) - targets).square().mean())
    return losses
