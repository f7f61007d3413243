"""What TorchRec's users have: rows that are not pooled, its configurations and batches, names and widths of outputs."""

import enum
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import deeprec_torch
from deeprec_torch import (
    SGD,
    Adagrad,
    Adam,
    EmbeddingBagCollection,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    TableConfig,
    TableOptimizer,
    UnpooledEmbeddingCollection,
)

SEED = 5
TABLES = [TableConfig("u", 30, 6), TableConfig("v", 20, 5, feature_names=("a", "b"), pooling="mean")]
KEYS = ["a", "x", "u", "b"]


def batch_of(seed, bags=7, **options):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(KEYS), bags), generator=draw)
    return KeyedJaggedTensor.from_lengths(KEYS, torch.randint(20, (int(lengths.sum()),), generator=draw), lengths, **options)


def ids_of(batch, key):
    bags = batch.stride()
    own = batch.offsets()[batch.keys().index(key) * bags :][: bags + 1]
    return batch.values()[own[0] : own[-1]], own - own[0]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rule", [SGD(0.1), Adagrad(0.1), Adam(0.01)], ids=lambda rule: type(rule).__name__)
def test_rows_that_are_not_pooled(rule, fused):
    """Against a layer of PyTorch for each table."""
    ours = UnpooledEmbeddingCollection(TABLES, rule, seed=SEED, fused=fused)
    layers = {t.name: nn.Embedding(t.num_embeddings, t.embedding_dim, sparse=True) for t in TABLES}
    for name, layer in layers.items():
        layer.weight.data.copy_(ours.weight(name))
    theirs = {SGD: torch.optim.SGD, Adagrad: torch.optim.Adagrad, Adam: torch.optim.SparseAdam}[type(rule)]
    steps = [TableOptimizer(ours), theirs([layer.weight for layer in layers.values()], lr=rule.lr)]
    for seed in range(3):
        batch = batch_of(seed)
        out, wanted = ours(batch), {}
        for name, table in (("u", "u"), ("a", "v"), ("b", "v")):
            ids, offsets = ids_of(batch, name)
            wanted[name] = layers[table](ids)
            torch.testing.assert_close(out[name].values(), wanted[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(out[name].offsets(), offsets)
        for step, values in zip(steps, ([out[name].values() for name in wanted], wanted.values())):
            step.zero_grad()
            sum((value * value.detach().sign() * (1 + k)).sum() for k, value in enumerate(values)).backward()
            step.step()
        for name, layer in layers.items():
            torch.testing.assert_close(ours.weight(name), layer.weight.detach(), rtol=1e-5, atol=1e-6)
    assert list(out) == ["u", "a", "b"] and ours._tables.step() == 4
    with torch.no_grad():
        assert not ours(batch)["u"].values().requires_grad


def test_one_table_pooled_and_not():
    ours = EmbeddingBagCollection([TableConfig("u", 30, 6), TableConfig("g", None, 4)], SGD(1.0), seed=SEED)
    batch = KeyedJaggedTensor.from_lengths(["u", "g"], torch.tensor([1, 2, 1, -5, 10**15, 10**15]), torch.tensor([2, 1, 1, 2]))
    rows = ours.unpooled(batch)
    assert ours.size("g") == 2 and torch.equal(rows["u"].values(), ours.weight("u")[[1, 2, 1]])
    torch.testing.assert_close(rows["u"].values().view(3, 6)[:2].sum(0), ours(batch)[0, :6])
    before = ours.rows("g", torch.tensor([10**15]))
    rows["g"].values().sum().backward()
    torch.testing.assert_close(ours.rows("g", torch.tensor([10**15])), before - 2)
    ours.eval()
    assert ours.unpooled(KeyedJaggedTensor.one_hot(["u", "g"], torch.tensor([[0], [77]])))["g"].values().abs().sum() == 0 and ours.size("g") == 2


def test_a_second_backward_pass_of_rows_is_refused():
    ours = UnpooledEmbeddingCollection(TABLES, SGD(1.0), seed=SEED)
    loss = sum(each.values().square().sum() for each in ours(batch_of(1)).values())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()
    assert ours._tables.step() == 2


def test_faults_of_lookups_that_are_not_pooled():
    ours = UnpooledEmbeddingCollection(TABLES, SGD(1.0), seed=SEED)
    good = batch_of(1)
    with pytest.raises(IndexError, match="id out of range.*value 20"):
        ours(KeyedJaggedTensor.one_hot(["u", "a", "b"], torch.tensor([[1], [20], [2]])))
    with pytest.raises(NotImplementedError, match="must have no weights"):
        ours(KeyedJaggedTensor(KEYS, good.values(), good.offsets(), torch.rand(good.values().shape)))
    for offsets in (good.offsets() + 1, good.offsets().flip(0), good.offsets() - 1):
        with pytest.raises(ValueError, match="offsets must ascend"):
            ours(KeyedJaggedTensor(KEYS, good.values(), offsets))
    for values in (good.values().view(1, -1), good.values().float(), good.values() == 1):
        with pytest.raises(ValueError, match="values must be int64 or int32, of 1 dimension"):
            ours(KeyedJaggedTensor(KEYS, values, good.offsets()))
    with pytest.raises(ValueError, match="offsets must be int64 or int32"):
        ours(KeyedJaggedTensor(KEYS, good.values(), good.offsets().float()))
    with pytest.raises(NotImplementedError, match="values must be on the CPU .is on meta"):
        ours(KeyedJaggedTensor(KEYS, good.values().to("meta"), good.offsets()))


def test_jagged_rows():
    jagged = JaggedTensor(torch.arange(8.0).view(4, 2), torch.tensor([0, 3, 3, 4]))
    assert [bag.tolist() for bag in jagged.to_dense()] == [[[0, 1], [2, 3], [4, 5]], [], [[6, 7]]]
    assert jagged.to_padded_dense(2).tolist() == [[[0, 1], [2, 3]], [[0, 0], [0, 0]], [[6, 7], [0, 0]]]
    assert jagged.to_padded_dense().shape == (3, 3, 2) and jagged.lengths().tolist() == [3, 0, 1]
    assert JaggedTensor(torch.zeros(0, 2), torch.zeros(3, dtype=torch.int64)).to_padded_dense().shape == (2, 0, 2)


def test_names_and_widths_of_the_output():
    ours = EmbeddingBagCollection(TABLES, seed=SEED)
    out = ours(batch_of(2))
    keyed = ours.keyed(out)
    assert keyed.keys() == ["u", "a", "b"] and keyed.length_per_key() == [6, 5, 5] and keyed.offset_per_key() == [0, 6, 11, 16]
    assert all(torch.equal(part, ours.split(out)[name]) for name, part in keyed.to_dict().items())
    with pytest.raises(KeyError, match="no key 'none'"):
        keyed["none"]
    with pytest.raises(ValueError, match=r"values must be \(B, 5\), of 1 keys"):
        KeyedTensor(["a"], [5], out)


@pytest.mark.parametrize("fused", [True, False])
def test_keys_with_their_own_numbers_of_bags(fused):
    ours, plain = (EmbeddingBagCollection(TABLES, SGD(0.5), seed=SEED, fused=fused) for _ in range(2))
    strides, keys = [3, 1, 5, 2], KEYS
    lengths = torch.tensor([2, 0, 1, 4, 1, 1, 0, 2, 3, 1, 2])
    values = torch.randint(20, (int(lengths.sum()),))
    inverse = torch.stack([torch.randint(stride, (6,)) for stride in strides])
    varied = KeyedJaggedTensor.from_lengths(keys, values, lengths, strides=strides, inverse=inverse)
    assert varied.stride() == 5 and varied.variable_stride_per_key() and varied.stride_per_key() == strides
    by_feature = ours.by_feature(varied)
    assert {name: tuple(part.shape) for name, part in by_feature.items()} == {"u": (5, 6), "a": (3, 5), "b": (2, 5)}
    # The samples written out.
    whole_lengths, whole_values = [], []
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    first = 0
    for key, stride in enumerate(strides):
        for bag in inverse[key].tolist():
            whole_lengths.append(int(lengths[first + bag]))
            whole_values.append(values[ends[first + bag] : ends[first + bag + 1]])
        first += stride
    whole = KeyedJaggedTensor.from_lengths(keys, torch.cat(whole_values), torch.tensor(whole_lengths))
    outs = [ours(varied), plain(whole)]
    assert torch.equal(*outs)
    for collection, out in zip((ours, plain), outs):
        rows = TableOptimizer(collection)
        (out * torch.arange(1.0, 17.0)).square().sum().backward()
        rows.step()
    for name in "uv":
        torch.testing.assert_close(ours.weight(name), plain.weight(name))
    rows = ours.unpooled(varied)
    assert rows["b"].offsets().tolist() == [0, 1, 3] and rows["b"].values().shape == (3, 5)
    with pytest.raises(ValueError, match="or inverse indices; by_feature"):
        ours(KeyedJaggedTensor.from_lengths(keys, values, lengths, strides=strides))
    for wrong in ([3, 1, 5], [3, 1, 5, 3], [-1, 5, 5, 2]):
        with pytest.raises(ValueError, match="strides must be numbers of bags of 4 keys"):
            KeyedJaggedTensor.from_lengths(keys, values, lengths, strides=wrong)
    with pytest.raises(ValueError, match=r"inverse must be \(K, B\)"):
        KeyedJaggedTensor.from_lengths(keys, values, lengths, strides=strides, inverse=inverse[:2])


class PoolingType(enum.Enum):
    SUM = "SUM"
    MEAN = "MEAN"


class DataType(enum.Enum):
    FP32 = "FP32"
    BF16 = "BF16"
    UINT8 = "UINT8"


@dataclass
class EmbeddingConfig:
    """torchrec's, as far as it is read."""

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    pooling: PoolingType = PoolingType.SUM


def test_configurations_of_torchrec():
    ours = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(30, 6, "u", DataType.BF16, ["u"], 0.5, -0.5),
            EmbeddingBagConfig(20, 5, "v", feature_names=["a", "b"], pooling=PoolingType.MEAN),
            TableConfig("g", None, 4),
        ],
        SGD(),
    )
    assert ours.tables == (TableConfig("u", 30, 6, format="bf16", init_bound=0.5), TABLES[1], TableConfig("g", None, 4))
    assert UnpooledEmbeddingCollection([EmbeddingConfig(30, 6, "u", feature_names=["u"])]).tables == (TABLES[0],)
    with pytest.raises(ValueError, match="data_type of u must be one of FP32"):
        EmbeddingBagCollection([EmbeddingBagConfig(3, 4, "u", DataType.UINT8, ["u"])])
    with pytest.raises(ValueError, match=r"first weights of u must be in \[-b, b\)"):
        EmbeddingBagCollection([EmbeddingBagConfig(3, 4, "u", DataType.FP32, ["u"], 0.5, 0.0)])
    with pytest.raises(TypeError, match="tables must be TableConfigs, or torchrec's"):
        EmbeddingBagCollection([("u", 3, 4)])


def test_configurations_of_the_torchrec_that_is_here():
    pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=(ImportError, OSError))
    from torchrec.modules import embedding_configs as theirs

    config = theirs.EmbeddingBagConfig(num_embeddings=20, embedding_dim=5, name="v", feature_names=["a", "b"], pooling=theirs.PoolingType.MEAN)
    assert EmbeddingBagCollection([config]).tables == (TABLES[1],)


def test_the_names_of_before():
    for old, new in (("EmbeddingCollection", "EmbeddingBagCollection"), ("ShardedEmbeddingCollection", "ShardedEmbeddingBagCollection")):
        with pytest.warns(DeprecationWarning, match=f"deeprec_torch.{old} is now {new}"):
            assert getattr(deeprec_torch, old) is getattr(deeprec_torch, new)
    with pytest.raises(AttributeError, match="no attribute 'none'"):
        deeprec_torch.none


@pytest.mark.parametrize("inverse", [[[0, -1], [0, 0]], [[0, 2], [0, 0]], [[0, 1], [1, 0]]])
def test_inverse_indices_are_of_bags_that_are_there(inverse):
    """Of each key by its own number of bags: the second has one."""
    ours = EmbeddingBagCollection([TableConfig("u", 9, 2), TableConfig("v", 9, 2)], SGD(0.1), seed=SEED)

    def look_up(inverse):
        return ours(KeyedJaggedTensor(["u", "v"], torch.arange(3), torch.arange(4), None, [2, 1], torch.tensor(inverse)))

    with pytest.raises(IndexError, match=r"inverse must be numbers of the \d bags of key [uv], from 0 on .has (-1|2|1)\)"):
        look_up(inverse)
    with pytest.raises(ValueError, match="inverse must be int64 or int32 .is torch.bool"):
        look_up([[True, False], [True, False]])
    assert look_up([[1, 0], [0, 0]]).shape == (2, 4)


def test_inverse_indices_are_with_strides():
    with pytest.raises(ValueError, match="inverse must be with strides"):
        KeyedJaggedTensor(["u"], torch.arange(3), torch.arange(4), None, None, torch.tensor([[2, 0]]))


class Batch(KeyedJaggedTensor):
    """As torchrec's, with inverse indices of other keys in another order."""

    def inverse_indices_or_none(self):
        keys, inverse = super().inverse_indices_or_none()
        return (keys[::-1], inverse.flip(0)) if self.whole else (keys[:1], inverse)


def test_inverse_indices_of_keys_in_another_order():
    ours = EmbeddingBagCollection([TableConfig("u", 9, 2), TableConfig("v", 9, 2)], seed=SEED)
    batch = Batch(["u", "v"], torch.arange(3), torch.arange(4), None, [2, 1], torch.tensor([[1, 0], [0, 0]]))
    batch.whole = True
    assert torch.equal(ours(batch), torch.cat([ours.weight("u")[[1, 0]], ours.weight("v")[[2, 2]]], dim=1))
    batch.whole = False
    with pytest.raises(ValueError, match="inverse must be of the batch's keys .has none of v"):
        ours(batch)
