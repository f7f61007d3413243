"""EmbeddingCollection: many tables against as many layers of PyTorch, its optimizers, formats and files."""

import copy
import random

import pytest
import torch
from torch import nn

import deeprec_torch
from deeprec_torch import EmbeddingCollection, KeyedJaggedTensor, TableConfig

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
    ours = EmbeddingCollection(tables, OPTIMIZERS[name][0], seed=SEED)
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
    assert not torch.equal(ours.weight("users"), EmbeddingCollection(tables, OPTIMIZERS[name][0], seed=SEED).weight("users"))


@pytest.mark.parametrize("format", ["f32", "f16", "bf16", "int8", "int4"])
def test_formats(format):
    trained = EmbeddingCollection(configs(), seed=SEED)
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
    ours = EmbeddingCollection(configs(format), deeprec_torch.SGD(1.0), seed=SEED)
    exact = EmbeddingCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    for name in ("users", "items", "one"):
        exact.assign(name, ours.dequantized(name))
    batch = batch_of(ours, 3)
    for collection in (ours, exact):
        collection(batch).sum().backward()
    for name in ("users", "items", "one"):
        torch.testing.assert_close(ours.dequantized(name), exact.weight(name), rtol=1e-2, atol=1e-2)


def test_int8_rows_are_fbgemms():
    """Codes, then scale and bias in float32: torch's own op reads them."""
    trained = EmbeddingCollection([TableConfig("t", 50, 24)], seed=SEED)
    rows = trained.quantize("int8").weight("t")
    theirs = torch.ops.quantized.embedding_bag_byte_unpack(rows.contiguous())
    torch.testing.assert_close(theirs, trained.quantize("int8").dequantized("t"))


def test_keys_in_another_order_and_more_of_them():
    ours = EmbeddingCollection(configs(), seed=SEED)
    batch = batch_of(ours, 4, keys=["seen", "other", "one", "users", "bought"])
    torch.testing.assert_close(ours(batch), lookup_by(layers_of(ours), ours, batch))
    parts = ours.split(ours(batch))
    assert list(parts) == ["users", "bought", "seen", "one"] and parts["one"].shape == (BAGS, 64)


def test_one_hot():
    ours = EmbeddingCollection([TableConfig("a", 10, 4), TableConfig("b", 20, 8)], seed=SEED)
    ids = torch.stack([torch.randint(10, (5,)), torch.randint(20, (5,))])
    out = ours(KeyedJaggedTensor.one_hot(["a", "b"], ids))
    assert torch.equal(out, torch.cat([ours.weight("a")[ids[0]], ours.weight("b")[ids[1]]], dim=1))


def test_torchrecs_batch_and_its_collection():
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=(ImportError, OSError))
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor as TorchrecBatch

    ours = EmbeddingCollection(configs(), seed=SEED)
    theirs = EmbeddingBagCollection(
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
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    batch, before = batch_of(ours, 5), ours.weight("users").clone()
    with torch.no_grad():
        assert not ours(batch).requires_grad
    assert not ours.eval()(batch).requires_grad
    assert ours.train()(batch).requires_grad
    assert torch.equal(ours.weight("users"), before)


def test_learning_rate():
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    before = ours.weight("users").clone()
    ours.learning_rate = 0.0
    ours(batch_of(ours, 5)).sum().backward()
    assert ours.learning_rate == 0.0 and torch.equal(ours.weight("users"), before)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    eager = EmbeddingCollection(configs(), deeprec_torch.RowwiseAdagrad(0.1), seed=SEED)
    traced = EmbeddingCollection(configs(), deeprec_torch.RowwiseAdagrad(0.1), seed=SEED)
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
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(0.0), seed=SEED)
    batch = batch_of(ours, 1)
    torch.library.opcheck(
        torch.ops.deeprec.tables_lookup.default,
        (ours._hook, ours._number, ours._width, batch.values(), batch.offsets(), None, BAGS, []),
    )


def test_autocast():
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(0.1), seed=SEED)
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
    whole = EmbeddingCollection(configs(), OPTIMIZERS[name][0], seed=SEED)

    def train(collection, seeds):
        for seed in seeds:
            collection(batch_of(collection, seed)).square().sum().backward()

    train(whole, range(2))
    whole.save(tmp_path / "tables.drt")
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    torch.save(whole, tmp_path / "module.pt")
    copied = copy.deepcopy(whole)
    from_file, from_state = (EmbeddingCollection(configs(), OPTIMIZERS[name][0], seed=1) for _ in range(2))
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
    ours = EmbeddingCollection(configs(), deeprec_torch.Adagrad(), seed=SEED)
    weight, state = ours.weight("users"), ours.optimizer_state("users")
    wanted = weight.clone()
    del ours
    assert torch.equal(weight, wanted) and torch.count_nonzero(state) == 0


def test_faults_name_the_place_and_nothing_is_stepped():
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(1.0), seed=SEED)
    good, before = batch_of(ours, 6), ours.weight("users").clone()
    values = good.values().clone()
    first = int(good.offsets()[BAGS])  # of "bought"
    values[first] = 60
    with pytest.raises(IndexError, match=rf"table 1, bag \d+, position {first}, value 60"):
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
        EmbeddingCollection([TableConfig("a", 5, 4, format="int8")], deeprec_torch.SGD())
    with pytest.raises(ValueError, match="names of tables must differ"):
        EmbeddingCollection([TableConfig("a", 5, 4), TableConfig("a", 6, 4)])
    with pytest.raises(ValueError, match="optimizer must be"):
        EmbeddingCollection(configs(), torch.optim.SGD)
    with pytest.raises(torch.OutOfMemoryError):
        EmbeddingCollection([TableConfig("a", 2**45, 1024)])
    assert torch.equal(ours.weight("users"), before)
    ours(good).sum().backward()
    assert not torch.equal(ours.weight("users"), before)


def test_files_that_do_not_fit(tmp_path):
    ours = EmbeddingCollection(configs(), deeprec_torch.SGD(), seed=SEED)
    ours.save(tmp_path / "tables.drt")
    other = EmbeddingCollection([TableConfig("users", 99, 16)], deeprec_torch.SGD())
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
