"""Where the state of a collection goes: torch.distributed.checkpoint, and pickles and copies of modules with hooks."""

import copy
import io

import pytest
import torch
from torch import distributed, nn

from deeprec_torch import Adagrad, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig, TableOptimizer

needs_distributed = pytest.mark.skipif(not distributed.is_available(), reason="this PyTorch has no torch.distributed")


class Model(nn.Module):
    def __init__(self, fused, seed, rows=30):
        super().__init__()
        torch.manual_seed(seed)
        self.tables = EmbeddingBagCollection([TableConfig("u", rows, 6), TableConfig("v", 20, 5, format="bf16")], Adagrad(0.1), seed=seed, fused=fused)
        self.net = nn.Linear(11, 1)

    def forward(self, ids):
        return self.net(self.tables(KeyedJaggedTensor.one_hot(["u", "v"], ids)))


def optimizers_of(model):
    return {"rows": TableOptimizer(model.tables), "net": torch.optim.Adam(model.net.parameters(), lr=0.01)}


def train(model, optimizers, steps):
    for step in steps:
        for one in optimizers.values():
            one.zero_grad()
        ids = torch.randint(20, (2, 8), generator=torch.Generator().manual_seed(step))
        model(ids).square().mean().backward()
        for one in optimizers.values():
            one.step()


def content(model):
    return {**model.state_dict(), "rate": torch.tensor(model.tables.learning_rate)}


@needs_distributed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fused", [True, False])
def test_a_distributed_checkpoint(fused, tmp_path):
    """Loaded in place, into the tables' own memory, and then taken by load_state_dict: training goes on with the same bits."""
    from torch.distributed import checkpoint

    model, other = Model(fused, 1), Model(fused, 2)
    optimizers, others = optimizers_of(model), optimizers_of(other)
    train(model, optimizers, range(3))
    optimizers["rows"].param_groups[0]["lr"] = 0.05
    train(other, others, range(1))  # Adam of the net has state to load into
    checkpoint.save({"model": model.state_dict(), **{name: one.state_dict() for name, one in optimizers.items()}}, checkpoint_id=tmp_path)
    loaded = {"model": other.state_dict(), **{name: one.state_dict() for name, one in others.items()}}
    checkpoint.load(loaded, checkpoint_id=tmp_path)
    other.load_state_dict(loaded["model"])
    for name, one in others.items():
        one.load_state_dict(loaded[name])
    assert other.tables.learning_rate == 0.05
    train(model, optimizers, range(3, 6))
    train(other, others, range(3, 6))
    assert all(torch.equal(value, content(other)[name]) for name, value in content(model).items())


@needs_distributed
@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_of_other_tables(tmp_path):
    from torch.distributed import checkpoint

    checkpoint.save(Model(True, 1).state_dict(), checkpoint_id=tmp_path)
    taller = Model(True, 2, rows=31)
    before = taller.tables.weight("v").clone()
    with pytest.raises(checkpoint.CheckpointException, match="Size mismatch .* for tables.u"):
        checkpoint.load(taller.state_dict(), checkpoint_id=tmp_path)
    assert torch.equal(taller.tables.weight("v"), before)


def twice(module, args, out):
    return 2 * out


def counted(module, args):
    module.calls = getattr(module, "calls", 0) + 1


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded], ids=["deepcopy", "pickle"])
def test_hooks_of_a_collection_are_copied(copied, fused):
    model = Model(fused, 1)
    model.tables.register_forward_hook(twice)
    model.tables.register_forward_pre_hook(counted)
    model.tables.register_buffer("mark", torch.tensor([3.0]))
    ids = torch.randint(20, (2, 4))
    other = copied(model)
    wanted = model(ids)
    assert torch.equal(other(ids), wanted) and model.tables.calls == other.tables.calls == 1
    assert other.tables.mark.item() == 3.0 and other.tables.mark is not model.tables.mark
    (model(ids).sum() * 1).backward()
    assert not fused or not torch.equal(other.tables.weight("u"), model.tables.weight("u"))


def test_a_table_that_grows_takes_another_number_of_rows():
    made = [EmbeddingBagCollection([TableConfig("g", None, 4)], Adagrad(0.1), seed=seed) for seed in (1, 2)]
    for tables, count in zip(made, (5, 9)):
        tables(KeyedJaggedTensor.one_hot(["g"], torch.arange(count).view(1, -1))).sum().backward()
    for one, other in (made, made[::-1]):
        other.load_state_dict(one.state_dict())
        assert other.size("g") == 5 and torch.equal(other.weight("g"), one.weight("g"))


@pytest.fixture
def other_defaults():
    """Of types and devices, in one turn each: what a collection makes is of neither."""

    def call(make):
        made = []
        torch.set_default_dtype(torch.float64)
        try:
            made.append(make())
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.device("meta"):
            made.append(make())
        return made

    return call


@pytest.mark.parametrize("optimizer", [None, Adagrad(0.1)])
def test_copies_and_states_under_other_defaults(optimizer, other_defaults):
    configs = [TableConfig("g", None, 2), TableConfig("d", 5, 2)]
    ours = EmbeddingBagCollection(configs, optimizer, seed=1)
    ours.assign("g", torch.ones(3, 2), torch.tensor([5, -1, 8]))
    wanted = ours.state_dict()

    def other():
        made = EmbeddingBagCollection(configs, optimizer)
        made.load_state_dict(ours.state_dict())
        return made

    for make in (lambda: copy.deepcopy(ours), lambda: saved_and_loaded(ours), other):
        for made in other_defaults(make):
            given = made.state_dict()
            assert given.keys() == wanted.keys()
            assert all(torch.equal(given[name], value) and given[name].dtype == value.dtype for name, value in wanted.items())
    for made in other_defaults(ours.state_dict):
        assert all(made[name].device.type == "cpu" and made[name].dtype == value.dtype for name, value in wanted.items())


@pytest.mark.parametrize("fused, dense", [(True, False), (False, False), (False, True)])
def test_steps_under_other_defaults(fused, dense, other_defaults):
    ids, values, lengths = torch.tensor([[1, 2], [3, 3]]), torch.tensor([1, 2, 3]), torch.tensor([1, 2, 0])
    targets = torch.ones(2, 11)
    plain, ours = Model(fused, 1).tables, Model(fused, 1).tables
    list(ours.parameters())[-1].requires_grad_(fused)  # a table without a gradient
    list(plain.parameters())[-1].requires_grad_(fused)

    def step(tables):
        handle = TableOptimizer(tables)
        tables(KeyedJaggedTensor.one_hot(["u", "v"], ids)).backward(targets)
        if dense:
            tables.embedding_bags.u.weight.grad = tables.embedding_bags.u.weight.grad.to_dense()
        handle.step(), handle.zero_grad()
        varied = KeyedJaggedTensor.from_lengths(["u", "v"], values, lengths, strides=[2, 1])
        with torch.no_grad():
            return tables.by_feature(varied)["u"], tables.unpooled(varied)["u"].to_padded_dense()

    for made in other_defaults(lambda: step(ours)):
        for value, wanted in zip(made, step(plain)):
            assert torch.equal(value, wanted)
    assert torch.equal(ours.weight("u"), plain.weight("u"))
