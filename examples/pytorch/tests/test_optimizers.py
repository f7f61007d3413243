"""TableOptimizer, rows as parameters, rules and their values."""

import copy
import io
import math

import pytest
import torch
from torch import nn

import deeprec_torch
from deeprec_torch import (
    SGD,
    Adagrad,
    Adam,
    Checkpoints,
    EmbeddingBagCollection,
    Follower,
    KeyedJaggedTensor,
    RowwiseAdagrad,
    TableConfig,
    TableOptimizer,
)

SEED = 7
RULES = [SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.01)]
TABLES = [TableConfig("u", 30, 6), TableConfig("v", 20, 5, feature_names=("a", "b"), pooling="mean")]


def made(rule, **options):
    return EmbeddingBagCollection(TABLES, rule, seed=SEED, **options)


def batch_of(seed, keys=("u", "a", "b"), bags=9, weighted=False):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(keys), bags), generator=draw)
    values = torch.randint(20, (int(lengths.sum()),), generator=draw)
    weights = torch.rand(values.shape, generator=draw) + 0.5 if weighted else None
    return KeyedJaggedTensor.from_lengths(keys, values, lengths, weights)


def rows_of(collection):
    return [part(t.name).clone() for t in collection.tables for part in (collection.weight, collection.optimizer_state)]


def train(collection, handle, seeds, **options):
    for seed in seeds:
        handle.zero_grad()
        collection(batch_of(seed, **options)).square().sum().backward()
        handle.step()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("options", [{}, {"keys": ("b", "x", "a", "u")}, {"bags": 0}, {"weighted": True}], ids=str)
def test_the_rows_of_both_ways_to_step(rule, options):
    fused, apart = made(rule), made(rule, fused=False)
    for collection in (fused, apart):
        train(collection, TableOptimizer(collection), range(4), **options)
    for one, other in zip(rows_of(fused), rows_of(apart)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert fused._tables.step() == apart._tables.step() == 5
    assert options.get("bags") == 0 or not torch.equal(apart.weight("u"), made(rule).weight("u"))


def test_a_step_takes_dense_and_accumulated_gradients():
    dense, one = made(SGD(1.0), fused=False), made(SGD(1.0), fused=False)
    before = [dense.weight(name).clone() for name in "uv"]
    rows = TableOptimizer(dense)
    sum(p.sum() for p in dense.parameters()).backward()
    rows.step()
    for name, was in zip("uv", before):
        torch.testing.assert_close(dense.weight(name), was - 1)
    rows = TableOptimizer(one)
    for seed in (1, 2, 1):
        one(batch_of(seed)).sum().backward()
    for p in one.parameters():
        assert p.grad.is_sparse and p.grad.is_coalesced()  # a norm has each row once
    assert torch.equal(one.weight("u"), before[0])
    rows.step()
    assert not torch.equal(one.weight("u"), before[0])
    twice = made(SGD(1.0), fused=False)
    rows = TableOptimizer(twice)
    (2 * twice(batch_of(1)).sum() + twice(batch_of(2)).sum()).backward()
    rows.step()
    for name in "uv":
        torch.testing.assert_close(one.weight(name), twice.weight(name))


def test_a_gradient_of_other_ops_is_merged():
    ours = made(SGD(1.0), fused=False)
    rows, before, weight = TableOptimizer(ours), ours.weight("u").clone(), ours.embedding_bags.u.weight
    nn.functional.embedding(torch.tensor([4, 1, 4]), weight, sparse=True).sum().backward()
    assert weight.grad.is_coalesced() and weight.grad.indices().tolist() == [[1, 4]] and weight.grad.values()[:, 0].tolist() == [1, 2]
    rows.step()
    torch.testing.assert_close(ours.weight("u")[[0, 1, 4]], before[[0, 1, 4]] - torch.tensor([[0.0], [1.0], [2.0]]))


def test_rows_that_a_gradient_reads_must_not_change_before():
    ours = made(SGD(1.0), fused=False)
    rows, batch = TableOptimizer(ours), batch_of(3, weighted=True)
    weights = batch.weights_or_none().requires_grad_()
    pending = ours(KeyedJaggedTensor(batch.keys(), batch.values(), batch.offsets(), weights)).sum()
    ours(batch_of(4)).sum().backward()
    rows.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_nothing_is_stepped_without_gradients():
    ours = made(Adam(0.1), fused=False)
    before, rows = rows_of(ours), TableOptimizer(ours)
    rows.step()
    ours.requires_grad_(False)
    assert not ours(batch_of(1)).requires_grad
    rows.step()
    assert ours._tables.step() == 1 and all(map(torch.equal, before, rows_of(ours)))
    ours.embedding_bags.v.weight.requires_grad_(True)  # one table of two
    train(ours, rows, range(2))
    assert torch.equal(ours.weight("u"), before[0]) and not torch.equal(ours.weight("v"), before[2])


def test_pytorchs_optimizers_step_rows():
    ours = EmbeddingBagCollection(TABLES, seed=SEED, fused=False)
    layers = {t.name: nn.EmbeddingBag(t.num_embeddings, t.embedding_dim, mode=t.pooling, sparse=True, include_last_offset=True) for t in TABLES}
    for name, layer in layers.items():
        layer.weight.data.copy_(ours.weight(name))
    steps = [torch.optim.Adagrad(ours.parameters(), lr=0.1), torch.optim.Adagrad([layer.weight for layer in layers.values()], lr=0.1)]
    for seed in range(3):
        batch = batch_of(seed)
        outs = []
        for key, name in enumerate("uvv"):
            own = batch.offsets()[key * 9 : key * 9 + 10]
            outs.append(layers[name](batch.values()[own[0] : own[-1]], own - own[0]))
        for step, out in zip(steps, (ours(batch), torch.cat(outs, dim=1))):
            step.zero_grad()
            out.square().sum().backward()
            step.step()
        for name in "uv":
            torch.testing.assert_close(ours.weight(name), layers[name].weight.detach())


def test_gradients_of_a_batchs_weights():
    ours = made(SGD(0.1), fused=False)
    plain = batch_of(3, weighted=True)
    weights = plain.weights_or_none().clone().requires_grad_()
    ours(KeyedJaggedTensor(plain.keys(), plain.values(), plain.offsets(), weights)).square().sum().backward()
    for place in (0, 5, weights.numel() - 1):
        step = torch.zeros_like(weights)
        step[place] = 1e-3
        with torch.no_grad():
            sides = [ours(KeyedJaggedTensor(plain.keys(), plain.values(), plain.offsets(), weights + s)).double().square().sum() for s in (step, -step)]
        assert float(weights.grad[place]) == pytest.approx(float(sides[0] - sides[1]) / 2e-3, rel=5e-3, abs=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_groups_and_rates(fused):
    ours = made(Adagrad(0.1), fused=fused)
    rows = TableOptimizer(ours)
    (group,) = rows.param_groups
    assert isinstance(rows, torch.optim.Optimizer) and group["lr"] == 0.1 and group["eps"] == 1e-10
    schedule = torch.optim.lr_scheduler.ExponentialLR(rows, 0.5)
    train(ours, rows, [1])
    schedule.step()
    assert ours.learning_rate == 0.05 and rows.param_groups[0]["lr"] == 0.05
    ours.learning_rate = 0.02
    assert group["lr"] == 0.02
    group["lr"] = 0.0
    before = rows_of(ours)[0]
    train(ours, rows, [1])
    assert torch.equal(before, ours.weight("u"))
    with pytest.raises(ValueError, match="one parameter group"):
        rows.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match="weight_decay must not be 0 when"):
        group["weight_decay"] = 0.1
    with pytest.raises(ValueError, match="lr must be a number from 0 on"):
        group["lr"] = -0.1
    assert ours.learning_rate == 0.0


@pytest.mark.parametrize("fused", [True, False])
def test_state_dicts_of_handles(fused, tmp_path):
    ours, other = made(Adagrad(0.1, eps=1e-6), fused=fused), made(Adagrad(0.3), fused=fused)
    handles = [TableOptimizer(ours), TableOptimizer(other)]
    schedules = [torch.optim.lr_scheduler.StepLR(handle, 1, 0.5) for handle in handles]
    train(ours, handles[0], range(2))
    schedules[0].step()
    torch.save([ours.state_dict(), handles[0].state_dict(), schedules[0].state_dict()], tmp_path / "all.pt")
    for part, state in zip((other, handles[1], schedules[1]), torch.load(tmp_path / "all.pt")):
        part.load_state_dict(state)
    assert other.learning_rate == 0.05 and other.optimizer.eps == 1e-6
    for collection, handle, schedule in zip((ours, other), handles, schedules):
        train(collection, handle, range(2, 4))
        schedule.step()
    assert ours.learning_rate == other.learning_rate == 0.025 and all(map(torch.equal, rows_of(ours), rows_of(other)))
    adam = TableOptimizer(made(Adam(0.3), fused=fused))
    with pytest.raises(ValueError, match="must be that of a TableOptimizer of adam .is of adagrad"):
        adam.load_state_dict(handles[0].state_dict())
    with pytest.raises(ValueError, match="is of another optimizer"):
        adam.load_state_dict(torch.optim.Adam([nn.Parameter(torch.zeros(1))]).state_dict())
    assert adam.param_groups[0]["lr"] == 0.3


def test_a_checkpoint_has_the_states_that_it_is_given(tmp_path):
    def parts():
        ours = made(Adagrad(0.1), fused=False)
        rows = TableOptimizer(ours)
        net = torch.optim.Adam([nn.Parameter(torch.ones(3))])
        states = {
            "rows": rows,
            "net": net,
            "schedule": torch.optim.lr_scheduler.CosineAnnealingLR(rows, 10),
            "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
        }
        return ours, states

    ours, states = parts()
    train(ours, states["rows"], range(3))
    states["schedule"].step()
    states["scaler"].scale(torch.ones(1))
    states["scaler"].update(4.0)
    Checkpoints(tmp_path, ours, states).write_full(3)
    again, others = parts()
    assert Checkpoints(tmp_path, again, others).restore().step == 3
    assert again.learning_rate == ours.learning_rate < 0.1 and others["schedule"].last_epoch == 1
    assert others["scaler"].state_dict()["scale"] == states["scaler"].state_dict()["scale"]
    for collection, handle in ((ours, states["rows"]), (again, others["rows"])):
        train(collection, handle, range(3, 5))
    assert all(map(torch.equal, rows_of(ours), rows_of(again)))
    del others["net"]
    with pytest.raises(ValueError, match="must have the states of rows, schedule, scaler"):
        Checkpoints(tmp_path, again, others).restore()
    with pytest.raises(TypeError, match="a dict of what has a state dict"):
        Checkpoints(tmp_path, again, {"rows": 3})


@pytest.mark.parametrize("fused", [True, False])
def test_copies_of_a_model_and_its_handle(fused):
    model = nn.ModuleDict({"tables": made(Adagrad(0.1), fused=fused), "head": nn.Linear(16, 1)})
    rows = TableOptimizer(model["tables"])
    if not fused:
        model["tables"].embedding_bags.v.weight.requires_grad_(False)
    train(model["tables"], rows, [1])
    copied, of_copy = copy.deepcopy((model, rows))
    assert of_copy.collection is copied["tables"] and [n for n, _ in copied.named_parameters()] == [n for n, _ in model.named_parameters()]
    for one, other in zip(model.parameters(), copied.parameters()):
        assert one.requires_grad == other.requires_grad and one.data_ptr() != other.data_ptr()
    of_copy.param_groups[0]["lr"] = 0.2
    assert model["tables"].learning_rate == 0.1 and copied["tables"].learning_rate == 0.2
    of_copy.param_groups[0]["lr"] = 0.1
    for collection, handle in ((model["tables"], rows), (copied["tables"], of_copy)):
        train(collection, handle, [2, 3])
    assert all(map(torch.equal, rows_of(model["tables"]), rows_of(copied["tables"])))


def test_rows_as_parameters_of_a_module():
    ours = EmbeddingBagCollection([TableConfig("a.b", 4, 2), TableConfig("type", 4, 2), TableConfig("items", 4, 2)], SGD(), fused=False)
    assert [name for name, _ in ours.named_parameters()] == [f"embedding_bags.{name}.weight" for name in ("0", "1", "items")]
    assert {"a.b.weight", "type.state", "step"} <= ours.state_dict().keys() and not any("embedding_bags" in key for key in ours.state_dict())
    assert ours.to(torch.float64).embedding_bags.items.weight.dtype == torch.float32
    fused = EmbeddingBagCollection(ours.tables, SGD(), seed=3)
    fused.load_state_dict(ours.state_dict())
    ours.load_state_dict(fused.state_dict())
    assert torch.equal(fused.weight("items"), ours.embedding_bags.items.weight)
    for table in (TableConfig("g", None, 4), TableConfig("q", 4, 4, format="int8")):
        with pytest.raises(NotImplementedError, match=f"with fused=False table {table.name} must be dense"):
            EmbeddingBagCollection([table], fused=False)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_stochastic_rounding(format, fused):
    """200 steps of a fraction of what the nearest value keeps: right on average."""
    step = 1e-3 if format == "bf16" else 1e-4

    def trained(**options):
        tables = EmbeddingBagCollection([TableConfig("u", 500, 16, format=format)], SGD(step), seed=SEED, fused=fused, **options)
        tables.assign("u", torch.ones(500, 16))
        batch = KeyedJaggedTensor.one_hot(["u"], torch.arange(500).view(1, -1))
        rows = TableOptimizer(tables)
        for _ in range(200):
            rows.zero_grad()
            tables(batch).sum().backward()
            rows.step()
        return tables.dequantized("u")

    assert torch.equal(trained(), torch.ones(500, 16))
    moved = trained(stochastic_rounding=True)
    assert float(moved.mean()) == pytest.approx(1 - 200 * step, abs=0.02 * 200 * step)
    assert torch.equal(moved, trained(stochastic_rounding=True)) and moved.unique().numel() > 5


def test_what_rounds_is_asked_for():
    with pytest.raises(ValueError, match="must be with stochastic_rounding=True .tables u"):
        EmbeddingBagCollection([TableConfig("u", 5, 4, format="bf16")], SGD(weight_decay=0.1))
    with pytest.raises(ValueError, match="stochastic_rounding must be with an optimizer"):
        EmbeddingBagCollection([TableConfig("u", 5, 4)], stochastic_rounding=True)
    EmbeddingBagCollection([TableConfig("u", 5, 4, format="bf16")], SGD(weight_decay=0.1), stochastic_rounding=True)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rule", [type(rule) for rule in RULES])
def test_weight_decay(rule, fused):
    """As the gradient plus the rate times the row, of the rows that are used."""
    ours, plain = made(rule(0.1, weight_decay=0.2), fused=fused), made(rule(0.1), fused=False)
    handles = [TableOptimizer(ours), TableOptimizer(plain)]
    for seed in range(3):
        for handle, collection in zip(handles, (ours, plain)):
            handle.zero_grad()
            collection(batch_of(seed)).square().sum().backward()
        for p in plain.parameters():
            ids = p.grad._indices()[0]
            p.grad._values().add_(p.detach()[ids], alpha=0.2)
        for handle in handles:
            handle.step()
        for one, other in zip(rows_of(ours), rows_of(plain)):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    handles[0].param_groups[0]["weight_decay"] = 0.0
    assert ours.optimizer.weight_decay == 0
    handles[0].param_groups[0]["weight_decay"] = 0.1
    assert copy.deepcopy(ours).optimizer.weight_decay == 0.1


@pytest.mark.parametrize("rule", [type(rule) for rule in RULES])
def test_values_of_rules(rule):
    for value in (-0.1, math.nan, math.inf, "1", None, True):
        with pytest.raises(ValueError, match="lr must be a number from 0 on"):
            rule(lr=value)
        with pytest.raises(ValueError, match="weight_decay must be"):
            rule(weight_decay=value)
    ours = made(rule(0.1))
    for value in (-0.1, math.nan):
        with pytest.raises(ValueError, match="lr must be a number from 0 on"):
            ours.learning_rate = value
    assert ours.learning_rate == 0.1
    for betas in ((0.9,), (0.9, 1.0), (-0.1, 0.9), 0.9, (0.9, math.nan)):
        with pytest.raises(ValueError, match="betas must be two numbers in"):
            Adam(betas=betas)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_gradient_that_is_nan_stays_in_its_rows(rule, fused):
    ours = made(rule, fused=fused)
    rows, before = TableOptimizer(ours), ours.weight("u").clone()
    batch = KeyedJaggedTensor.one_hot(["u", "a", "b"], torch.tensor([[1, 2], [3, 4], [5, 6]]))
    gradient = torch.ones(2, 16)
    gradient[0, 2] = math.nan  # of row 1 of u
    ours(batch).backward(gradient)
    rows.step()
    after = ours.weight("u")
    hit = torch.zeros(30, dtype=torch.bool)
    hit[1] = True
    assert not torch.isfinite(after[1, 2]) and torch.isfinite(after[~hit]).all() and torch.isfinite(ours.weight("v")).all()
    assert torch.equal(after[hit.logical_not().nonzero().flatten()[2:]], before[hit.logical_not().nonzero().flatten()[2:]])
    assert not torch.equal(after[2], before[2])


def test_handles_are_of_collections():
    for wrong in (EmbeddingBagCollection(TABLES), nn.Linear(1, 1), None):
        with pytest.raises(TypeError, match="collection must be a collection with an optimizer"):
            TableOptimizer(wrong)


def test_state_of_another_optimizer_is_refused(tmp_path):
    """Also where it has as many numbers: a row of one element has one of both."""
    narrow = [TableConfig("u", 30, 1)]
    one, other = EmbeddingBagCollection(narrow, Adagrad(0.1), seed=1), EmbeddingBagCollection(narrow, RowwiseAdagrad(0.1), seed=2)
    before = other.weight("u").clone()
    with pytest.raises(RuntimeError, match="optimizer must be rowwise_adagrad, whose state it is .is adagrad"):
        other.load_state_dict(one.state_dict())
    one.save(tmp_path / "tables.drt")
    with pytest.raises(ValueError, match="must have state of rowwise_adagrad .has that of adagrad.*tables.drt"):
        other.load(tmp_path / "tables.drt")
    taller = EmbeddingBagCollection([TableConfig("t", 3, 1), TableConfig("u", 31, 1)], Adagrad(0.1), seed=2)
    kept = taller.weight("t").clone()
    shorter = EmbeddingBagCollection([TableConfig("t", 3, 1), TableConfig("u", 30, 1)], Adagrad(0.1), seed=1)
    with pytest.raises(RuntimeError, match=r"u.weight must be torch.float32 \(31, 1\) .is torch.float32 \(30, 1\)"):
        taller.load_state_dict(shorter.state_dict())
    assert torch.equal(taller.weight("t"), kept) and torch.equal(other.weight("u"), before)


def own_rows():
    ours = EmbeddingBagCollection([TableConfig("a", 10, 4), TableConfig("b", 8, 3)], seed=SEED, fused=False)
    return ours, ours.embedding_bags.b.weight, KeyedJaggedTensor.one_hot(["a", "b"], torch.tensor([[1, 2], [3, 4]]))


def by_vector(ours, parameter):
    nn.utils.vector_to_parameters(torch.zeros(64), ours.parameters())


def by_data(ours, parameter):
    parameter.data = torch.zeros(8, 3)


def by_a_parameter(ours, parameter):
    ours.embedding_bags.b.weight = nn.Parameter(torch.zeros(8, 3))


def by_a_layer(ours, parameter):
    ours.embedding_bags.b = nn.EmbeddingBag(8, 3)


def by_parametrization(ours, parameter):
    nn.utils.parametrize.register_parametrization(ours.embedding_bags.b, "weight", nn.Tanh())


LOOKUPS = {
    "trains": lambda ours, batch: ours(batch),
    "no_grad": torch.no_grad()(lambda ours, batch: ours(batch)),
    "unpooled": lambda ours, batch: ours.unpooled(batch),
    "compiled": lambda ours, batch: torch.compile(ours, backend="eager")(batch),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("change", [by_vector, by_data, by_a_parameter, by_a_layer, by_parametrization])
def test_lookups_refuse_parameters_that_are_not_the_rows(change, lookup):
    ours, parameter, batch = own_rows()
    torch._dynamo.reset()
    LOOKUPS[lookup](ours, batch)
    change(ours, parameter)
    with pytest.raises(RuntimeError, match=r"parameter embedding_bags.[ab].weight must be the rows of its table.*assign"):
        LOOKUPS[lookup](ours, batch)


def test_lookups_refuse_parameters_of_torch_func():
    ours, parameter, batch = own_rows()
    name, rows = "embedding_bags.b.weight", torch.zeros(8, 3)
    refused = pytest.raises(RuntimeError, match=r"parameter embedding_bags.b.weight must be the rows")

    def of_rows(given):
        return torch.func.functional_call(ours, {name: given}, (batch,)).sum()

    for given in (rows, parameter.detach()):
        for call in (lambda: torch.func.jvp(of_rows, (given,), (torch.ones(8, 3),)), lambda: torch.func.grad(of_rows)(given)):
            with refused:
                call()
    with refused:
        of_rows(rows)
    with torch.autograd.forward_ad.dual_level(), refused:
        of_rows(torch.autograd.forward_ad.make_dual(parameter, torch.ones(8, 3)))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(ours(batch), ours(batch))  # no tangent


def test_lookups_take_parameters_that_are_the_rows():
    ours, parameter, batch = own_rows()
    with torch.no_grad():
        parameter.copy_(torch.ones(8, 3))
        parameter.data.mul_(2)
    assert ours(batch)[:, 4:].eq(2).all()
    leaf = parameter.detach().requires_grad_()
    torch.func.functional_call(ours, {"embedding_bags.b.weight": leaf}, (batch,)).sum().backward()
    assert leaf.grad.coalesce().indices().tolist() == [[3, 4]]
    state = io.BytesIO()
    torch.save(ours, state)
    state.seek(0)
    for other in (copy.deepcopy(ours), torch.load(state, weights_only=False)):
        other.load_state_dict({name: value * 2 for name, value in ours.state_dict().items()})
        assert torch.equal(other(batch), 2 * ours(batch))
        other.to(torch.float64).share_memory()
        assert torch.equal(other(batch), 2 * ours(batch))
    by_data(ours, parameter)
    ours.embedding_bags.b.weight.data = ours.weight("b")
    assert ours(batch)[:, 4:].eq(2).all()


def loaded(ours, folder):
    ours.load_state_dict({name: value.clone() for name, value in ours.state_dict().items()})


def assigned(ours, folder):
    ours.assign("u", torch.zeros(30, 6))


def loaded_from_a_file(ours, folder):
    ours.save(folder / "tables.drt")
    ours.load(folder / "tables.drt")


def restored(ours, folder):
    saves = Checkpoints(folder, ours)
    saves.write_full(1)
    saves.restore()


def followed(ours, folder):
    Checkpoints(folder, made(SGD(0.1))).write_full(1)
    assert Follower(folder, ours).poll()


@pytest.mark.parametrize("change", [loaded, assigned, loaded_from_a_file, restored, followed])
def test_rows_that_a_gradient_reads_must_not_be_replaced_before(change, tmp_path):
    """As those of nn.EmbeddingBag: a weight's gradient would be that of the new rows."""
    ours, batch = made(SGD(0.1), fused=False), batch_of(1, weighted=True)
    batch.weights_or_none().requires_grad_()
    out = ours(batch)
    change(ours, tmp_path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    ours(batch).sum().backward()
    other = tmp_path / "other"
    other.mkdir()
    with torch.inference_mode():
        change(ours, other)


@pytest.mark.parametrize("names", [("1", "a.b"), ("a.b", "0", "0_"), ("", "0"), ("training", "x", "0")])
def test_tables_have_a_parameter_each_whatever_their_names(names):
    ours = EmbeddingBagCollection([TableConfig(name, 5, 2) for name in names], SGD(1.0), seed=SEED, fused=False)
    handle = TableOptimizer(ours)
    assert len(list(ours.parameters())) == len(handle.param_groups[0]["params"]) == len(names)
    before = [ours.weight(name).clone() for name in names]
    ours(KeyedJaggedTensor.one_hot(ours.feature_names, torch.full((len(names), 1), 2))).sum().backward()
    handle.step()
    for name, rows in zip(names, before):
        rows[2] -= 1
        torch.testing.assert_close(ours.weight(name), rows)


def test_a_handles_state_of_another_number_of_parameters():
    fused, apart = (TableOptimizer(made(SGD(rate), fused=fused)) for rate, fused in ((0.5, True), (0.1, False)))
    for handle, other, here, there in ((apart, fused, 2, 1), (fused, apart, 1, 2)):
        before = copy.deepcopy(handle.state_dict())
        with pytest.raises(ValueError, match=rf"must be that of {here} parameters.* .is of {there}\)"):
            handle.load_state_dict(other.state_dict())
        assert handle.state_dict() == before and handle.collection.learning_rate == handle.param_groups[0]["lr"]
    assert apart.collection.learning_rate == 0.1


def test_rates_are_floats():
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    rule = Adam(lr=np.float64(0.25), betas=(np.float32(0.5), 0), eps=np.int64(1))
    assert rule == Adam(0.25, (0.5, 0.0), 1.0) and {type(value) for value in (rule.lr, rule.eps, *rule.betas)} == {float}
    handle = TableOptimizer(made(rule))
    handle.param_groups[0]["lr"] = np.float64(0.125)
    assert type(handle.param_groups[0]["lr"]) is type(handle.collection.learning_rate) is float


def test_a_checkpoint_has_no_state_that_cannot_be_restored(tmp_path):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    ours, net = made(SGD(0.1)), nn.Linear(2, 1)
    adam = torch.optim.Adam(net.parameters(), lr=np.float64(1e-3))
    net(torch.ones(2)).backward()
    adam.step()
    saves = Checkpoints(tmp_path, ours, {"net": adam}, dense=net)
    with pytest.raises(TypeError, match=r"Checkpoints.cut: the state of optimizer .*\['net'\]\['param_groups'\]\[0\]\['lr'\] is numpy.float64"):
        saves.write_full(1)
    assert not list(tmp_path.iterdir()) and saves.position() == (0, 0)
    adam.param_groups[0]["lr"] = 1e-3
    saves.write_full(np.int64(1), {"count": np.int64(3), "auc": np.float32(0.5)})
    last = Checkpoints(tmp_path, ours, {"net": torch.optim.Adam(net.parameters())}, dense=net).restore()
    assert last.step == 1 and last.numbers == {"count": 3, "auc": 0.5}


def test_adam_counts_the_steps_of_the_collection():
    """Those of a table that was frozen too: its first step is corrected as the fourth."""
    ours = EmbeddingBagCollection([TableConfig("a", 4, 2), TableConfig("b", 4, 2)], Adam(lr=0.1), seed=SEED, fused=False)
    handle, before = TableOptimizer(ours), ours.weight("b").clone()
    for step in range(4):
        ours.embedding_bags.b.weight.requires_grad_(step == 3)
        handle.zero_grad()
        ours(KeyedJaggedTensor.one_hot(["a", "b"], torch.tensor([[0], [1]]))).sum().backward()
        handle.step()
    moments = 0.1 / (1 - 0.9**4), math.sqrt(0.001 / (1 - 0.999**4))  # of a gradient of 1
    before[1] -= 0.1 * moments[0] / moments[1]
    torch.testing.assert_close(ours.weight("b"), before)
