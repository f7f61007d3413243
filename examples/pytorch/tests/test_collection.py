"""EmbeddingBagCollection: many tables against as many layers of PyTorch, its optimizers, formats and files."""

import copy
import random

import pytest
import torch
from torch import nn

import deeprec_torch
from deeprec_torch import EmbeddingBagCollection, KeyedJaggedTensor, TableConfig

SEED = 7
BAGS = 37


def configs(format="f32"):
    return [
        TableConfig("users", 100, 16, pooling="sum", format=format),
        TableConfig("items", 60, 7, feature_names=("bought", "seen"), pooling="mean", format=format),
        TableConfig("one", 1, 64, pooling="sum", format=format),
    ]


def batch_of(collection, seed, weighted=False, keys=None):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    rows = {name: t.num_embeddings for t in collection.tables for name in t.feature_names}
    keys = list(keys or collection.feature_names)
    lengths, values = [], []
    for key in keys:
        ones = [draw.choice([0, 1, 2, 6]) for _ in range(BAGS)]
        lengths += ones
        values.append(torch.randint(rows.get(key, 5), (sum(ones),)))
    values = torch.cat(values)
    weights = torch.rand(values.shape) if weighted else None
    return KeyedJaggedTensor.from_lengths(keys, values, torch.tensor(lengths), weights)


def layers_of(collection, sparse=True):
    """A layer of PyTorch for each table, with its rows."""
    made = {}
    for table in collection.tables:
        layer = nn.EmbeddingBag(
            table.num_embeddings, table.embedding_dim, mode=table.pooling, sparse=sparse, include_last_offset=True
        )
        layer.weight.data.copy_(collection.dequantized(table.name))
        made[table.name] = layer
    return made


def lookup_by(layers, collection, batch):
    outs = []
    for table in collection.tables:
        for name in table.feature_names:
            k = batch.keys().index(name)
            offsets = batch.offsets()[k * BAGS : (k + 1) * BAGS + 1]
            ids = batch.values()[offsets[0] : offsets[-1]]
            weights = batch.weights_or_none()
            if weights is not None:
                weights = weights[offsets[0] : offsets[-1]]
            outs.append(layers[table.name](ids, offsets - offsets[0], weights))
    return torch.cat(outs, dim=1)


class RowwiseAdagrad(torch.optim.Optimizer):
    """The rule by hand: one sum a row, of the mean of its squared gradient."""

    def __init__(self, parameters, lr, eps):
        super().__init__(parameters, dict(lr=lr, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                gradient = p.grad.coalesce()
                sums = self.state[p].setdefault("sums", torch.zeros(p.shape[0]))
                rows, values = gradient.indices()[0], gradient.values()
                sums[rows] += values.square().mean(dim=1)
                p[rows] -= group["lr"] * values / (sums[rows].sqrt() + group["eps"]).unsqueeze(1)


OPTIMIZERS = {
    "sgd": (deeprec_torch.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "adagrad": (deeprec_torch.Adagrad(0.1, 1e-10), lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-10)),
    "adam": (deeprec_torch.Adam(0.01), lambda p: torch.optim.SparseAdam(p, 0.01)),
    "rowwise_adagrad": (deeprec_torch.RowwiseAdagrad(0.1), lambda p: RowwiseAdagrad(p, 0.1, 1e-8)),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_as_pytorch(name, weighted):
    tables = configs() if not weighted else [TableConfig("users", 100, 16), TableConfig("one", 1, 64)]
    ours = EmbeddingBagCollection(tables, OPTIMIZERS[name][0], seed=SEED)
    layers = layers_of(ours)
    step = OPTIMIZERS[name][1]([layer.weight for layer in layers.values()])
    for seed in range(6):
        batch = batch_of(ours, seed, weighted)
        wanted = lookup_by(layers, ours, batch)
        out = ours(batch)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
        # Gradients away from 0: the first step of Adam and Adagrad is the rate times their sign.
        target = 1 + torch.rand(out.shape)
        (out * target).sum().backward()
        step.zero_grad()
        (wanted * target).sum().backward()
        step.step()
        for table in ours.tables:
            torch.testing.assert_close(
                ours.weight(table.name), layers[table.name].weight.detach(), rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}, {seed}: {m}"
            )
    assert not torch.equal(ours.weight("users"), EmbeddingBagCollection(tables, OPTIMIZERS[name][0], seed=SEED).weight("users"))


@pytest.mark.parametrize("format", ["f32", "f16", "bf16", "int8", "int4"])
def test_formats(format):
    trained = EmbeddingBagCollection(configs(), seed=SEED)
    ours = trained if format == "f32" else trained.quantize(format)
    batch = batch_of(ours, 1)
    torch.testing.assert_close(ours(batch), lookup_by(layers_of(ours), ours, batch), rtol=1e-4, atol=1e-5)
    bound = {"f32": 0, "f16": 1e-3, "bf16": 1e-2, "int8": 2 / 255, "int4": 2 / 15}[format]
    for table in ours.tables:
        limit = 1 / table.num_embeddings**0.5
        exact, stored = trained.weight(table.name), ours.dequantized(table.name)
        assert float((exact - stored).abs().max()) <= bound * limit * 1.01
    assert trained.weight("users").dtype == torch.float32
    with pytest.raises(RuntimeError, match="does not require grad"):
        ours(batch).sum().backward()


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_rows_of_16_bits_are_trained(format):
    ours = EmbeddingBagCollection(configs(format), deeprec_torch.SGD(1.0), seed=SEED)
    exact = EmbeddingBagCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    for name in ("users", "items", "one"):
        exact.assign(name, ours.dequantized(name))
    batch = batch_of(ours, 3)
    for collection in (ours, exact):
        collection(batch).sum().backward()
    for name in ("users", "items", "one"):
        torch.testing.assert_close(ours.dequantized(name), exact.weight(name), rtol=1e-2, atol=1e-2)


def test_int8_rows_are_fbgemms():
    """Codes, then scale and bias in float32: torch's own op reads them."""
    trained = EmbeddingBagCollection([TableConfig("t", 50, 24)], seed=SEED)
    rows = trained.quantize("int8").weight("t")
    theirs = torch.ops.quantized.embedding_bag_byte_unpack(rows.contiguous())
    torch.testing.assert_close(theirs, trained.quantize("int8").dequantized("t"))


def test_keys_in_another_order_and_more_of_them():
    ours = EmbeddingBagCollection(configs(), seed=SEED)
    batch = batch_of(ours, 4, keys=["seen", "other", "one", "users", "bought"])
    torch.testing.assert_close(ours(batch), lookup_by(layers_of(ours), ours, batch))
    parts = ours.split(ours(batch))
    assert list(parts) == ["users", "bought", "seen", "one"] and parts["one"].shape == (BAGS, 64)


def test_one_hot():
    ours = EmbeddingBagCollection([TableConfig("a", 10, 4), TableConfig("b", 20, 8)], seed=SEED)
    ids = torch.stack([torch.randint(10, (5,)), torch.randint(20, (5,))])
    out = ours(KeyedJaggedTensor.one_hot(["a", "b"], ids))
    assert torch.equal(out, torch.cat([ours.weight("a")[ids[0]], ours.weight("b")[ids[1]]], dim=1))


def test_batches_of_one_size_share_no_offsets():
    """An evaluation before training, and writes to the offsets of a batch, are of no other batch's concern."""
    ours = EmbeddingBagCollection([TableConfig("a", 10, 4)], deeprec_torch.SGD(1.0), seed=SEED)
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        ours(KeyedJaggedTensor.one_hot(["a"], ids))
    written = KeyedJaggedTensor.one_hot(["a"], ids)
    written.offsets()[1] = 0
    out = ours(KeyedJaggedTensor.one_hot(["a"], ids))
    assert torch.equal(out, ours.weight("a")[ids[0]])
    out.sum().backward()


def test_torchrecs_batch_and_its_collection():
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=(ImportError, OSError))
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection as TorchrecCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor as TorchrecBatch

    ours = EmbeddingBagCollection(configs(), seed=SEED)
    theirs = TorchrecCollection(
        tables=[
            EmbeddingBagConfig(
                name="table_" + t.name,  # its own container has a member items
                embedding_dim=t.embedding_dim,
                num_embeddings=t.num_embeddings,
                feature_names=list(t.feature_names),
                pooling=PoolingType.SUM if t.pooling == "sum" else PoolingType.MEAN,
            )
            for t in ours.tables
        ]
    )
    for table in ours.tables:
        theirs.embedding_bags["table_" + table.name].weight.data.copy_(ours.weight(table.name))
    plain = batch_of(ours, 8, keys=["seen", "one", "users", "bought"])
    lengths = plain.offsets().diff()
    batch = TorchrecBatch.from_lengths_sync(keys=plain.keys(), values=plain.values(), lengths=lengths)
    wanted = theirs(batch)
    torch.testing.assert_close(ours(batch), torch.cat([wanted[name] for name in ours.feature_names], dim=1))
    print(f"torchrec {torchrec.__version__}")


def test_eval_and_no_grad_step_nothing():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    batch, before = batch_of(ours, 5), ours.weight("users").clone()
    with torch.no_grad():
        assert not ours(batch).requires_grad
    assert not ours.eval()(batch).requires_grad
    assert ours.train()(batch).requires_grad
    assert torch.equal(ours.weight("users"), before)


def test_learning_rate():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    before = ours.weight("users").clone()
    ours.learning_rate = 0.0
    ours(batch_of(ours, 5)).sum().backward()
    assert ours.learning_rate == 0.0 and torch.equal(ours.weight("users"), before)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    eager = EmbeddingBagCollection(configs(), deeprec_torch.RowwiseAdagrad(0.1), seed=SEED)
    traced = EmbeddingBagCollection(configs(), deeprec_torch.RowwiseAdagrad(0.1), seed=SEED)
    head = nn.Linear(94, 1)

    def loss_of(collection):
        def run(values, offsets):
            return head(collection(KeyedJaggedTensor(collection.feature_names, values, offsets))).square().sum()

        return run

    compiled = torch.compile(loss_of(traced), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seed in range(3):
        batch = batch_of(eager, seed)
        loss_of(eager)(batch.values(), batch.offsets()).backward()
        compiled(batch.values(), batch.offsets()).backward()
        assert torch.equal(traced.weight("users"), eager.weight("users"))


def test_opcheck():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(0.0), seed=SEED)
    batch = batch_of(ours, 1)
    torch.library.opcheck(
        torch.ops.deeprec.tables_lookup.default,
        (ours._hook, ours._rows_written, ours._number, ours._width, batch.values(), batch.offsets(), None, BAGS, 4, []),
    )
    torch.library.opcheck(
        torch.ops.deeprec.tables_update.default,
        (ours._rows_written, torch.zeros(BAGS, 94), ours._number, batch.values(), batch.offsets(), None, BAGS, 4, []),
    )


def test_autocast():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(0.1), seed=SEED)
    batch, linear = batch_of(ours, 2), nn.Linear(94, 3)
    before = ours.weight("users").clone()
    with torch.autocast("cpu", torch.bfloat16):
        pooled = ours(batch)
        out = linear(pooled)
    assert pooled.dtype == torch.float32 and out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert not torch.equal(ours.weight("users"), before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_what_was_saved(name, tmp_path):
    """By table file, state dict, pickle of the module and deepcopy: the same bits as without a stop."""
    whole = EmbeddingBagCollection(configs(), OPTIMIZERS[name][0], seed=SEED)

    def train(collection, seeds):
        for seed in seeds:
            collection(batch_of(collection, seed)).square().sum().backward()

    train(whole, range(2))
    whole.save(tmp_path / "tables.drt")
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    torch.save(whole, tmp_path / "module.pt")
    copied = copy.deepcopy(whole)
    from_file, from_state = (EmbeddingBagCollection(configs(), OPTIMIZERS[name][0], seed=1) for _ in range(2))
    from_file.load(tmp_path / "tables.drt")
    from_state.load_state_dict(torch.load(tmp_path / "state.pt"))
    pickled = torch.load(tmp_path / "module.pt", weights_only=False)
    train(whole, range(2, 5))
    for collection in (from_file, from_state, pickled, copied):
        assert not torch.equal(collection.weight("users"), whole.weight("users"))
        train(collection, range(2, 5))
        for table in whole.tables:
            assert torch.equal(collection.weight(table.name), whole.weight(table.name))
            assert torch.equal(collection.optimizer_state(table.name), whole.optimizer_state(table.name))


def test_views_outlive_the_collection():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.Adagrad(), seed=SEED)
    weight, state = ours.weight("users"), ours.optimizer_state("users")
    wanted = weight.clone()
    del ours
    assert torch.equal(weight, wanted) and torch.count_nonzero(state) == 0


def test_faults_name_the_place_and_nothing_is_stepped():
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    good, before = batch_of(ours, 6), ours.weight("users").clone()
    values = good.values().clone()
    first = int(good.offsets()[BAGS])  # of "bought"
    values[first] = 60
    with pytest.raises(IndexError, match=rf"feature 1 of table items, bag \d+, position {first}, value 60"):
        ours(KeyedJaggedTensor(good.keys(), values, good.offsets()))
    with pytest.raises(ValueError, match="offset"):
        ours(KeyedJaggedTensor(good.keys(), good.values()[:-1], good.offsets()))
    with pytest.raises(ValueError, match="must have the keys seen"):
        ours(batch_of(ours, 6, keys=["users", "bought", "one"]))
    with pytest.raises(ValueError, match="must have the shape of values"):
        ours(KeyedJaggedTensor(good.keys(), good.values(), good.offsets(), torch.rand(3)))
    with pytest.raises(NotImplementedError, match="no gradient"):
        ours(KeyedJaggedTensor(good.keys(), good.values(), good.offsets(), torch.rand(good.values().shape).requires_grad_()))
    with pytest.raises(KeyError, match="no table 'none'"):
        ours.weight("none")
    with pytest.raises(ValueError, match="must be f32, f16 or bf16"):
        EmbeddingBagCollection([TableConfig("a", 5, 4, format="int8")], deeprec_torch.SGD())
    with pytest.raises(ValueError, match="names of tables must differ"):
        EmbeddingBagCollection([TableConfig("a", 5, 4), TableConfig("a", 6, 4)])
    with pytest.raises(ValueError, match="optimizer must be"):
        EmbeddingBagCollection(configs(), torch.optim.SGD)
    with pytest.raises(torch.OutOfMemoryError):
        EmbeddingBagCollection([TableConfig("a", 2**45, 1024)])
    assert torch.equal(ours.weight("users"), before)
    ours(good).sum().backward()
    assert not torch.equal(ours.weight("users"), before)


def test_files_that_do_not_fit(tmp_path):
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(), seed=SEED)
    ours.save(tmp_path / "tables.drt")
    other = EmbeddingBagCollection([TableConfig("users", 99, 16)], deeprec_torch.SGD())
    before = other.weight("users").clone()
    with pytest.raises(ValueError, match="users"):
        other.load(tmp_path / "tables.drt")
    with pytest.raises(RuntimeError, match="none.drt"):
        other.load(tmp_path / "none.drt")
    (tmp_path / "broken.drt").write_bytes((tmp_path / "tables.drt").read_bytes()[:-100])
    with pytest.raises(ValueError, match="broken.drt"):
        ours.load(tmp_path / "broken.drt")
    assert torch.equal(other.weight("users"), before)
    with pytest.raises(RuntimeError, match="users.weight must be"):
        other.load_state_dict(ours.state_dict())


def rows_and_step(collection):
    return [*(collection.weight(t.name).clone() for t in collection.tables), torch.tensor(collection._tables.step())]


CALLS = {
    "one": lambda look, a, b: look(a),
    "two": lambda look, a, b: look(a) * look(b),
    "two of the same ids": lambda look, a, b: look(a) + look(a),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("calls", CALLS)
def test_t01_a_compiled_model_steps_for_each_call(calls, backend):
    """A compiler knew of no effect, and dropped updates whose empty results were added."""
    torch._dynamo.reset()
    head, ends = nn.Linear(8, 1), torch.arange(17)
    made = [EmbeddingBagCollection([TableConfig("a", 50, 8)], deeprec_torch.Adagrad(0.1), seed=SEED) for _ in range(2)]

    def model_of(collection):
        def look(values):
            return collection(KeyedJaggedTensor(["a"], values, ends))

        return lambda a, b: head(CALLS[calls](look, a, b)).square().sum()

    models = [model_of(made[0]), torch.compile(model_of(made[1]), fullgraph=True, backend=backend)]
    for seed in range(2):
        torch.manual_seed(seed)
        a, b = torch.randint(50, (16,)), torch.randint(50, (16,))
        losses = [model(a, b) for model in models]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
        for one, other in zip(*map(rows_and_step, made)):
            torch.testing.assert_close(one, other)
    if backend == "aot_eager":  # it copies what was written, and PyTorch refuses what was written since it was saved
        assert made[0]._tables.step() == 1 + 2 * (1 if calls == "one" else 2)
        return
    # Two batches before one backward pass.
    losses = [model(a, b) + model(b, a) for model in models]
    for loss in losses:
        loss.backward()
    for one, other in zip(*map(rows_and_step, made)):
        torch.testing.assert_close(one, other)
    assert made[0]._tables.step() == 1 + 4 * (1 if calls == "one" else 2)


def test_b03_types_are_checked_before_they_are_converted():
    most = 2**24
    ours = EmbeddingBagCollection([TableConfig("a", most + 8, 1)], seed=SEED)
    ours.weight("a")[most:] = torch.arange(8.0).view(8, 1)
    ends = torch.tensor([0, 1])
    assert ours(KeyedJaggedTensor(["a"], torch.tensor([most + 1], dtype=torch.int32), ends.int())).item() == 1
    for wrong in (torch.tensor([most + 1.0]), torch.tensor([1.9], dtype=torch.float64), torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(ValueError, match="values must be int64 or int32"):
            ours(KeyedJaggedTensor(["a"], wrong, ends))
    with pytest.raises(ValueError, match="offsets must be int64 or int32"):
        ours(KeyedJaggedTensor(["a"], torch.tensor([1]), torch.tensor([0, 1.9])))
    with pytest.raises(ValueError, match="weights must be of floating point"):
        ours(KeyedJaggedTensor(["a"], torch.tensor([1]), ends, torch.tensor([1j])))
    with pytest.raises(ValueError, match="weights must be of floating point"):
        ours.assign("a", torch.zeros(most + 8, 1, dtype=torch.complex64))
    with pytest.raises(ValueError, match="lengths must be integers"):
        KeyedJaggedTensor.from_lengths(["a"], torch.tensor([1]), torch.tensor([1.9]))
    with pytest.raises(RuntimeError, match="step must be an integer"):
        ours.load_state_dict({**ours.state_dict(), "step": torch.tensor(1.7)})


def test_b04_tensors_without_values_are_refused_as_those_with_values_are():
    from torch._subclasses import FakeTensorMode

    ours = EmbeddingBagCollection([TableConfig("a", 10, 4)], seed=SEED)

    def refused(values, offsets, weights=None):
        with pytest.raises(ValueError) as caught:
            torch.ops.deeprec.tables_lookup(
                ours._hook.detach(), ours._rows_written, ours._number, 4, values, offsets, weights, 2, 1, []
            )
        return str(caught.value).splitlines()[0]

    def all_refused():
        ids, ends = torch.zeros(6, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        return [
            refused(ids.view(2, 3), ends),
            refused(ids, ends.view(1, 3)),
            refused(ids.float(), ends),
            refused(ids, ends.float()),
            refused(ids, ends, torch.zeros(5)),
            refused(ids, ends, ids),
        ]

    wanted = all_refused()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert all_refused() == wanted


class VaryingBatch:
    """torchrec's KeyedJaggedTensor with another number of bags for each key, as far as a collection reads it."""

    def __init__(self, keys, values, bags):
        self.keys, self.values, self.bags = lambda: keys, lambda: values, bags
        self.weights_or_none, self.stride = lambda: None, lambda: max(bags)

    def offsets(self):
        return torch.arange(sum(self.bags) + 1)


def test_t05_batches_of_another_shape_are_refused():
    ours = EmbeddingBagCollection([TableConfig("a", 10, 1), TableConfig("b", 10, 1)], seed=SEED)
    # As many offsets as two keys of three bags would have.
    with pytest.raises(ValueError, match="the same number of bags for each key"):
        ours(VaryingBatch(["a", "b", "c"], torch.arange(1, 7), [2, 1, 3]))
    varying = VaryingBatch(["a", "b"], torch.arange(6), [3, 3])
    varying.variable_stride_per_key = lambda: True
    with pytest.raises(ValueError, match="the same number of bags for each key .varies., or inverse indices"):
        ours(varying)
    samples_first = torch.tensor([[1, 4], [2, 5], [3, 6]])
    for ids in (samples_first, samples_first[0], samples_first.view(1, 3, 2)):
        with pytest.raises(ValueError, match=r"ids must be \(K, B\)"):
            KeyedJaggedTensor.one_hot(["a", "b"], ids)
    with pytest.raises(ValueError, match=r"lengths must be \(K, B\)"):
        KeyedJaggedTensor.from_lengths(["a", "b"], torch.arange(6), torch.ones(3, 2, dtype=torch.int64))
    values, lengths = torch.arange(6), torch.tensor([[1, 0, 2], [2, 1, 0]])
    flat, square = (KeyedJaggedTensor.from_lengths(["a", "b"], values, given) for given in (lengths.flatten(), lengths))
    assert torch.equal(ours(flat), ours(square)) and ours(flat).shape == (3, 2)
    with pytest.raises(ValueError, match="keys must differ"):
        ours(KeyedJaggedTensor(["a", "b", "a"], torch.arange(6), torch.arange(7)))
    twice = EmbeddingBagCollection([TableConfig("a", 10, 1), TableConfig("b", 10, 1, feature_names=("a",))], seed=SEED)
    with pytest.raises(ValueError, match="features must differ"):
        twice.split(twice(KeyedJaggedTensor(["a"], torch.arange(3), torch.arange(4))))


def model_with_a_collection(optimizer=deeprec_torch.SGD(0.1), **options):
    torch.manual_seed(SEED)
    tables = EmbeddingBagCollection([TableConfig("u", 50, 8)], optimizer, seed=SEED, **options)
    return nn.ModuleDict({"tables": tables, "head": nn.Linear(8, 1)})


def loss_of(model):
    return model["head"](model["tables"](KeyedJaggedTensor.one_hot(["u"], torch.arange(16).view(1, -1)))).square().mean()


def test_t02_frozen_tables_are_not_stepped():
    for freeze in (lambda model: model.requires_grad_(False), lambda model: model["tables"].requires_grad_(False)):
        model = model_with_a_collection()
        before = model["tables"].weight("u").clone()
        freeze(model)
        model["head"].requires_grad_(True)
        loss_of(model).backward()
        assert torch.equal(model["tables"].weight("u"), before) and model["tables"]._tables.step() == 1
        frozen = copy.deepcopy(model)
        for each in (frozen, model):
            loss_of(each).backward()
            assert torch.equal(each["tables"].weight("u"), before)
            each.requires_grad_(True)
            loss_of(each).backward()
            assert not torch.equal(each["tables"].weight("u"), before)
    model = model_with_a_collection(None).requires_grad_(True)
    loss_of(model).backward()  # for lookups only: there is nothing to step


def test_t02_a_second_backward_pass_is_refused():
    for both in (
        lambda pooled: (pooled.square().sum().backward(retain_graph=True), pooled.abs().sum().backward()),
        lambda pooled: (pooled.square().sum().backward(create_graph=True), pooled.abs().sum().backward()),
    ):
        model = model_with_a_collection(deeprec_torch.Adagrad(0.1))
        pooled = model["tables"](KeyedJaggedTensor.one_hot(["u"], torch.arange(16).view(1, -1)))
        with pytest.raises(RuntimeError, match="one backward pass"):
            both(pooled)
        assert model["tables"]._tables.step() == 2


def train_step(model, optimizer, scaler=None, norm=None):
    optimizer.zero_grad()
    loss = loss_of(model)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, lambda p: torch.optim.Adam(p, fused=True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_t02_scaled_gradients_are_refused(make, compiled):
    def prepared():
        model = model_with_a_collection()
        optimizer = make(model.parameters())
        if compiled:
            torch._dynamo.reset()
            model["tables"].compile(backend="aot_eager")
        return model, optimizer

    # What scales nothing is let through: steps, zeros instead of no gradient, none of both.
    model, optimizer = prepared()
    for _ in range(2):
        train_step(model, optimizer)
        train_step(model, optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False))
        optimizer.zero_grad(set_to_none=False)
        loss_of(model).backward()
        loss_of(model).backward()
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    assert norm == float(nn.utils.get_total_norm([p.grad for p in model["head"].parameters()]))

    model, optimizer = prepared()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with pytest.raises(RuntimeError, match="gradients must not be scaled"):
        for _ in range(2):
            scaler.scale(loss_of(model)).backward()
            scaler.unscale_(optimizer)
    model, optimizer = prepared()
    with pytest.raises(RuntimeError, match="gradients must not be scaled"):
        for _ in range(2):
            loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    # As the message says: the others only.
    model, optimizer = prepared()
    for _ in range(2):
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model["head"].parameters(), 1e-4)


def test_t02_a_graph_of_gradients_steps_once():
    """A gradient of the inputs with create_graph steps nothing; the backward pass of the whole loss does, as without."""
    model = model_with_a_collection(deeprec_torch.SGD(1.0))
    before = model["tables"].weight("u").clone()
    pooled = model["tables"](KeyedJaggedTensor.one_hot(["u"], torch.arange(16).view(1, -1)))
    (gradient,) = torch.autograd.grad(pooled.pow(3).sum(), pooled, create_graph=True)
    assert torch.equal(model["tables"].weight("u"), before)
    gradient.sum().backward()
    torch.testing.assert_close(model["tables"].weight("u")[:16], before[:16] - 6 * before[:16])


def test_t03_several_processes_are_refused(monkeypatch):
    model, local = model_with_a_collection(), model_with_a_collection(process_local=True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match="process_local=True"):
        loss_of(model)
    loss_of(local).backward()
    copied = copy.deepcopy(local)
    loss_of(copied).backward()
    with torch.no_grad():
        loss_of(model)
    loss_of(model.eval())
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    loss_of(model.train()).backward()


def send(collection, batch, queue):
    rows = deeprec_torch.TableOptimizer(collection)
    collection(batch).sum().backward()
    rows.step()
    queue.put((type(collection).__name__, collection.weight("u").tolist(), collection.learning_rate))


class Doubled(EmbeddingBagCollection):
    """A subclass with parameters and a module of its own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.shift = nn.Linear(1, 1)

    def forward(self, features):
        return self.scale * super().forward(features)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_t04_a_collection_is_sent_to_another_process(method, fused):
    context = torch.multiprocessing.get_context(method)
    ours = Doubled([TableConfig("u", 50, 8)], deeprec_torch.Adagrad(0.1), seed=SEED, fused=fused)
    ours.learning_rate = 0.05
    batch = KeyedJaggedTensor.one_hot(["u"], torch.arange(16).view(1, -1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process has no OpenMP threads of its parent
    try:
        queue = context.Queue()
        process = context.Process(target=send, args=(ours, batch, queue))
        process.start()
        name, rows, rate = queue.get(timeout=240)
        process.join(60)
    finally:
        torch.set_num_threads(threads)
    step = deeprec_torch.TableOptimizer(ours)
    ours(batch).sum().backward()
    step.step()
    assert name == "Doubled" and rate == 0.05 and torch.equal(torch.tensor(rows), ours.weight("u"))


def test_t10_the_learning_rate_is_saved(tmp_path):
    ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(0.5), seed=SEED)
    ours.learning_rate = 0.05
    ours.save(tmp_path / "tables.drt")
    torch.save(ours, tmp_path / "module.pt")
    from_file, from_state, from_old = (EmbeddingBagCollection(configs(), deeprec_torch.SGD(0.5), seed=1) for _ in range(3))
    from_file.load(tmp_path / "tables.drt")
    from_state.load_state_dict(ours.state_dict())
    others = [from_file, from_state, torch.load(tmp_path / "module.pt", weights_only=False), copy.deepcopy(ours)]
    for collection in (ours, *others):
        collection(batch_of(ours, 3)).sum().backward()
    for collection in others:
        assert collection.learning_rate == 0.05 and torch.equal(collection.weight("users"), ours.weight("users"))
    # A state dict of before has none.
    old = ours.state_dict()
    del old["learning_rate"]
    with pytest.raises(RuntimeError, match="Missing.*learning_rate"):
        from_old.load_state_dict(old)
    old._metadata[""]["version"] = 1
    from_old.load_state_dict(old)
    assert from_old.learning_rate == 0.5
    lookups = ours.quantize("int8")
    assert lookups.learning_rate is None
    with pytest.raises(ValueError, match="must have an optimizer"):
        lookups.learning_rate = 0.1


def test_t10_copies_of_a_subclass():
    ours = Doubled([TableConfig("u", 50, 8)], deeprec_torch.SGD(0.5), seed=SEED)
    batch = KeyedJaggedTensor.one_hot(["u"], torch.arange(4).view(1, -1))
    calls = []
    for copied in (copy.deepcopy(ours), copy.deepcopy(nn.ModuleList([ours]))[0]):
        assert type(copied) is Doubled and torch.equal(copied(batch), ours(batch))
        copied.register_forward_hook(lambda *_: calls.append(1))
        ours(batch)
        assert not calls
        copied.scale.data.fill_(3.0)
        assert ours.scale.item() == 2.0 and copied.learning_rate == 0.5
    other = Doubled([TableConfig("u", 50, 8)], deeprec_torch.SGD(0.5), seed=1)
    copied.shift.weight.data.fill_(9.0)
    other.load_state_dict(copied.state_dict())
    assert other.scale.item() == 3.0 and other.shift.weight.item() == 9.0 and torch.equal(other(batch), copied(batch))
    with pytest.raises(RuntimeError, match="Unexpected.*none"):
        other.load_state_dict({**ours.state_dict(), "none": torch.zeros(1)})
    assert [name for name, _ in other.named_parameters()] == ["_hook", "scale", "shift.weight", "shift.bias"]
    assert other.to(torch.float64)._hook.dtype == torch.float32 and other.scale.dtype == torch.float64
    assert [name for name, _ in other.named_parameters()] == ["_hook", "scale", "shift.weight", "shift.bias"]


def test_t10_first_weights_follow_the_seed_of_torch():
    def made(of_torch, **options):
        torch.manual_seed(of_torch)
        return [EmbeddingBagCollection([TableConfig("u", 50, 8)], **options).weight("u").clone() for _ in range(2)]

    assert not torch.equal(*made(1)) and not torch.equal(made(1)[0], made(2)[0])
    assert all(map(torch.equal, made(1), made(1)))
    assert torch.equal(*made(1, seed=3))


@pytest.mark.parametrize("format", ["f32", "int8"])
def test_t11_what_cannot_save_a_collection_is_refused_by_name(format):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = EmbeddingBagCollection([TableConfig("u", 50, 8)], seed=SEED)
            self.tables = self.tables if format == "f32" else self.tables.quantize(format)

        def forward(self, values, offsets):
            return self.tables(KeyedJaggedTensor(["u"], values, offsets))

    given = (torch.arange(20), torch.arange(0, 21, 2))
    for save in (
        torch.fx.symbolic_trace,
        torch.jit.script,
        lambda model: torch.jit.trace(model, given),
        lambda model: torch.export.export(model, given),
        lambda model: torch.export.export(model, given, strict=True),
    ):
        with pytest.raises(Exception, match="EmbeddingBagCollection: torch"):
            save(Model().eval())
    assert Model()(*given).shape == (10, 8)


def test_t11_a_compiled_collection_under_another_default_type():
    torch._dynamo.reset()
    torch.set_default_dtype(torch.bfloat16)
    try:
        ours = EmbeddingBagCollection(configs(), deeprec_torch.SGD(0.1), seed=SEED)
        batch = batch_of(ours, 1)
        compiled = torch.compile(lambda v, o: ours(KeyedJaggedTensor(ours.feature_names, v, o)).float() * 2, backend="aot_eager")
        out, wanted = compiled(batch.values(), batch.offsets()), ours(batch) * 2
        assert out.dtype == torch.float32 and torch.equal(out, wanted)
        out.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)


def test_b06_adam_steps_as_sparse_adam():
    """Small gradients show where epsilon is added: before the bias correction."""
    for scale in (1.0, 1e-4, 1e-6, 1e-8):
        torch.manual_seed(SEED)
        ours = EmbeddingBagCollection([TableConfig("u", 6, 4)], deeprec_torch.Adam(0.1), seed=SEED)
        before, rows = ours.weight("u").clone(), ours.weight("u").clone().requires_grad_()
        theirs = torch.optim.SparseAdam([rows], lr=0.1)
        ids, gradient = torch.arange(6), torch.randn(6, 4) * scale
        for _ in range(3):
            ours(KeyedJaggedTensor.one_hot(["u"], ids.view(1, -1))).backward(gradient)
            theirs.zero_grad()
            nn.functional.embedding_bag(ids, rows, ids, mode="sum", sparse=True).backward(gradient)
            theirs.step()
        moved = float((rows.detach() - before).abs().max())
        assert float((ours.weight("u") - rows.detach()).abs().max()) <= 1e-5 * moved + 1e-7
