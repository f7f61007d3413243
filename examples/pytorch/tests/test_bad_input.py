"""What every lookup refuses by name, and what is as before afterwards: tensors elsewhere and of other types, shapes that are turned, keys,
tables, and checkpoints that are cut."""

import math
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import deeprec_torch
from deeprec_torch import (
    SGD,
    Checkpoints,
    CriteoDataset,
    EmbeddingBag,
    EmbeddingBagCollection,
    KeyedJaggedTensor,
    TableConfig,
    TableOptimizer,
    UnpooledEmbeddingCollection,
)

KEYS = ["u", "v"]
VALUES, OFFSETS = torch.tensor([1, 2, 3, 4, 5, 6]), torch.arange(7)


def collection(kind):
    sizes = (None, None) if kind == "growing" else (9, 9)
    made = UnpooledEmbeddingCollection if kind == "unpooled" else EmbeddingBagCollection
    return made([TableConfig(key, size, 4) for key, size in zip(KEYS, sizes)], SGD(0.1), seed=1, fused=kind != "apart")


def bag_lookup():
    layer = EmbeddingBag(9, 4, mode="sum")
    return layer, lambda values, offsets, weights=None: layer(values, offsets, weights)


def collection_lookup(kind):
    tables = collection(kind)
    return tables, lambda values, offsets, weights=None: tables(KeyedJaggedTensor(KEYS, values, offsets, weights))


LOOKUPS = {"EmbeddingBag": bag_lookup, **{kind: lambda kind=kind: collection_lookup(kind) for kind in ("fused", "apart", "growing", "unpooled")}}


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def expect_refused(module, call, error, text):
    before = state_of(module)
    with pytest.raises(error, match=text):
        call()
    after = state_of(module)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


WRONG_IDS = [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64, torch.int16, torch.uint8]


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("dtype", WRONG_IDS, ids=str)
def test_ids_of_another_type(name, dtype):
    module, look_up = LOOKUPS[name]()
    expect_refused(module, lambda: look_up(VALUES.to(dtype), OFFSETS), ValueError, "(input|values) must be int64")


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("dtype", WRONG_IDS, ids=str)
def test_offsets_of_another_type(name, dtype):
    module, look_up = LOOKUPS[name]()
    expect_refused(module, lambda: look_up(VALUES, OFFSETS.to(dtype)), ValueError, "offsets must be int64 or int32")


@pytest.mark.parametrize("name", LOOKUPS)
def test_offsets_of_32_bits_beside_ids_of_64(name):
    """PyTorch refuses these; both are counted, and neither is converted before it is checked."""
    module, look_up = LOOKUPS[name]()
    outs = [look_up(VALUES.to(ids), OFFSETS.to(ends)) for ids in (torch.int64, torch.int32) for ends in (torch.int64, torch.int32)]
    for out in outs[1:]:
        for one, other in zip(parts_of(out), parts_of(outs[0])):
            assert torch.equal(one, other)


def parts_of(out):
    return [jagged.values() for jagged in out.values()] if isinstance(out, dict) else [out]


def expect_device_refused(name, place, device):
    module, look_up = LOOKUPS[name]()
    given = {"values": VALUES, "offsets": OFFSETS}
    text = rf"{place} must be on the CPU \(is on {device}"
    if name == "EmbeddingBag":  # its weight may be on meta too
        text = rf"{'input' if place == 'values' else place} must be on the device of the weight, cpu \(is on {device}"

    def call():
        with FakeTensorMode(allow_non_fake_inputs=True) if device == "cuda" else nullcontext():  # a device that need not be there
            given[place] = torch.zeros(given[place].shape, dtype=torch.int64, device=device)
            return look_up(**given)

    expect_refused(module, call, NotImplementedError, text)


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("place", ["values", "offsets"])
def test_tensors_on_meta(name, place):
    expect_device_refused(name, place, "meta")


def test_tensors_on_cuda():
    """In a process of its own: after tensors of a device, real or not, PyTorch runs no backward pass in forked processes."""
    program = "import test_bad_input as t\nfor name in t.LOOKUPS:\n  for place in ('values', 'offsets'):\n    t.expect_device_refused(name, place, 'cuda')"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)


@pytest.mark.parametrize("ids", [VALUES.view(3, 2), VALUES[:2], VALUES.view(1, 3, 2)], ids=lambda ids: str(tuple(ids.shape)))
def test_samples_first_where_keys_are_meant(ids):
    for make in (KeyedJaggedTensor.one_hot, lambda keys, given: KeyedJaggedTensor.from_lengths(keys, VALUES, given.view(ids.shape))):
        if make == KeyedJaggedTensor.one_hot or ids.dim() > 1:
            with pytest.raises(ValueError, match=r"(ids|lengths) must be \(K, B\), a row for each of 2 keys"):
                make(KEYS, ids)


@pytest.mark.parametrize("kind", ["fused", "apart", "growing", "unpooled"])
def test_keys_that_are_missing_or_twice(kind):
    tables = collection(kind)

    def look_up(keys):
        return tables(KeyedJaggedTensor(keys, torch.arange(3 * len(keys)) % 9, torch.arange(3 * len(keys) + 1)))

    expect_refused(tables, lambda: look_up(["u"]), ValueError, "the batch must have the keys v .has u")
    expect_refused(tables, lambda: look_up(["x"]), ValueError, "the batch must have the keys u, v .has x")
    expect_refused(tables, lambda: look_up(["u", "v", "u"]), ValueError, "the batch's keys must differ .are u, v, u")
    with pytest.raises(ValueError, match="offsets must have a multiple of 0 elements and one"):
        KeyedJaggedTensor([], VALUES, torch.zeros(1, dtype=torch.int64))


def test_collections_without_tables_and_rows():
    for made in (EmbeddingBagCollection, UnpooledEmbeddingCollection):
        with pytest.raises(ValueError, match="tables must not be empty"):
            made([], SGD())
    for size, text in ((0, "must have rows and columns .has 0 rows"), (-3, "has -3 rows")):
        with pytest.raises(ValueError, match=text):
            EmbeddingBagCollection([TableConfig("u", size, 4)])
    for width in (0, -1):
        with pytest.raises(ValueError):
            EmbeddingBagCollection([TableConfig("u", 3, width)])


@pytest.mark.parametrize("rule", [deeprec_torch.SGD, deeprec_torch.Adagrad, deeprec_torch.RowwiseAdagrad, deeprec_torch.Adam])
@pytest.mark.parametrize("rate", [-0.1, -math.inf, math.nan])
def test_rates_below_zero(rule, rate):
    with pytest.raises(ValueError, match="lr must be a number from 0 on"):
        rule(lr=rate)
    tables = EmbeddingBagCollection([TableConfig("u", 3, 4)], rule(lr=0.1))
    handle = TableOptimizer(tables)
    for change in (lambda: setattr(tables, "learning_rate", rate), lambda: handle.param_groups[0].update(lr=rate)):
        with pytest.raises(ValueError, match="lr must be a number from 0 on"):
            change()
    assert tables.learning_rate == handle.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("rule", [deeprec_torch.SGD, deeprec_torch.Adagrad, deeprec_torch.RowwiseAdagrad, deeprec_torch.Adam])
@pytest.mark.parametrize("rows", [9, None])
def test_gradients_that_are_nan(rule, rows):
    """Are in the rows that they are of, and in no other."""
    tables = EmbeddingBagCollection([TableConfig("u", rows, 4)], rule(lr=0.1), seed=1)
    batch = KeyedJaggedTensor.one_hot(["u"], torch.tensor([[1, 2, 3]]))
    tables(batch).sum().backward()
    gradient = torch.ones(3, 4)
    gradient[1] = math.nan
    tables(batch).backward(gradient)
    after = tables(batch).detach()
    assert after[1].isnan().all() and torch.isfinite(after[[0, 2]]).all()


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_a_checkpoint_that_is_cut(tmp_path, kept):
    """At any place: the file before it is restored, and with none before it nothing is changed."""
    tables, net = collection("growing"), nn.Linear(8, 1)
    saves = Checkpoints(tmp_path, tables, dense=net)

    def train():
        net(tables(KeyedJaggedTensor(KEYS, VALUES, OFFSETS))).sum().backward()

    train()
    saves.write_full(1)
    good = state_of(tables)
    train()
    last = Path(saves.write_full(2).path)
    whole = last.read_bytes()
    last.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    other = collection("growing")
    restored = Checkpoints(tmp_path, other, dense=nn.Linear(8, 1)).restore()
    assert restored.step == 1 and len(restored.passed_over) == 1 and last.name in restored.passed_over[0]
    after = state_of(other)
    assert all(torch.equal(good[name], after[name]) for name in good)
    for path in tmp_path.iterdir():
        if path != last:
            path.unlink()
    empty = collection("growing")
    fresh = Checkpoints(tmp_path, empty, dense=nn.Linear(8, 1))
    expect_refused(empty, fresh.restore, ValueError, last.name)


@pytest.mark.parametrize("kept", [0, 100, 0.5, -1])
@pytest.mark.parametrize("kind", ["fused", "growing"])
def test_a_table_file_that_is_cut(tmp_path, kind, kept):
    tables, path = collection(kind), tmp_path / "tables.drt"
    tables(KeyedJaggedTensor(KEYS, VALUES, OFFSETS)).sum().backward()
    tables.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    expect_refused(tables, lambda: tables.load(path), ValueError, "tables.drt")


@pytest.mark.parametrize("kind", ["fused", "apart", "growing", "unpooled"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("compiled", [False, True])
def test_offsets_that_begin_later(kind, dtype, compiled):
    """The ids before are in no bag."""
    tables = collection(kind)
    torch._dynamo.reset()
    lookup = torch.compile(tables, backend="aot_eager") if compiled else tables
    batch = KeyedJaggedTensor(KEYS, VALUES, torch.arange(1, 6, dtype=dtype))
    expect_refused(tables, lambda: lookup(batch), ValueError, "offsets must ascend from 0")
    if kind != "growing" and not compiled:
        expect_refused(tables, lambda: tables.served()(VALUES, batch.offsets()), ValueError, "offsets must ascend from 0")


def test_a_feature_of_two_tables_is_one_key():
    tables = EmbeddingBagCollection([TableConfig("u", 9, 4, ("x",)), TableConfig("v", 9, 4, ("x",))], SGD(0.1), seed=1)
    assert tables(KeyedJaggedTensor.one_hot(["x"], torch.tensor([[3]]))).shape == (1, 8)
    for _ in range(2):
        expect_refused(tables, lambda: tables(KeyedJaggedTensor.one_hot(["x", "x"], torch.tensor([[3], [4]]))), ValueError, "keys must differ .are x, x")


@pytest.mark.parametrize(
    "name, value",
    [
        ("name", None),
        ("name", 3),
        ("num_embeddings", 4.0),
        ("num_embeddings", True),
        ("num_embeddings", "4"),
        ("embedding_dim", 2.5),
        ("embedding_dim", 0),
        ("feature_names", "bought"),
        ("feature_names", 3),
        ("feature_names", ["a", None]),
        ("init_bound", math.nan),
        ("init_bound", math.inf),
        ("init_bound", -0.1),
        ("init_bound", "x"),
    ],
)
def test_values_of_tables(name, value):
    given = {"name": "u", "num_embeddings": 4, "embedding_dim": 2, name: value}
    with pytest.raises(ValueError, match=f"TableConfig: {name} must be .*{value!r}"):
        TableConfig(**given)


@pytest.mark.parametrize("seed", [1.5, "1", True, 2**63])
def test_seeds(seed):
    with pytest.raises(ValueError, match="EmbeddingBagCollection: seed must be None or an integer of 64 bits"):
        EmbeddingBagCollection([TableConfig("u", 4, 2)], seed=seed)
    for fits in (-(2**63), 2**63 - 1):
        made = EmbeddingBagCollection([TableConfig("u", 4, 2), TableConfig("v", 4, 2)], seed=fits)
        assert not torch.equal(made.weight("u"), made.weight("v"))


@pytest.mark.parametrize(
    "name, value",
    [("rows", 2.5), ("rows", [2.5] * 26), ("batch_size", 4.0), ("threads", 1.5), ("prefetch", "2"), ("max_bytes", 1e9), ("missing_dense", "0")],
)
def test_values_of_a_dataset(name, value):
    with pytest.raises(ValueError, match=f"CriteoDataset: {name} must be an? (integer|number) .is "):
        CriteoDataset([], **{"rows": 2, "batch_size": 4, name: value})


def test_numbers_of_numpy():
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    dense = TableConfig("u", np.int64(5), np.int32(2), init_bound=np.float32(0.5))
    growing = TableConfig("g", None, np.int64(2), capacity=np.int64(2), admission=np.int64(1))
    assert dense == TableConfig("u", 5, 2, init_bound=0.5)
    tables = EmbeddingBagCollection([dense, growing], SGD(lr=np.float32(0.5)), seed=np.int64(3))
    plain = EmbeddingBagCollection([TableConfig("u", 5, 2, init_bound=0.5), TableConfig("g", None, 2)], SGD(0.5), seed=3)
    assert torch.equal(tables.weight("u"), plain.weight("u"))
    tables(KeyedJaggedTensor.one_hot(["u", "g"], torch.tensor([[1], [7]]))).sum().backward()
    assert tables.evict("g", deeprec_torch.StepTTL(np.int64(3))) == 0 and tables.evict("g", deeprec_torch.LeastRecent(np.int32(0))) == 1
    CriteoDataset([], rows=np.int64(2), batch_size=np.int64(4), threads=np.int64(1), prefetch=np.int64(0))
