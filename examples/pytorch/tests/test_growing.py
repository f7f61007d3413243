"""Tables that grow: as dense tables over small ids, any key, admission, capacity, eviction, copies and files."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import deeprec_torch
from deeprec_torch import (
    CountingBloom,
    EmbeddingBagCollection,
    KeyedJaggedTensor,
    L2Below,
    LeastFrequent,
    LeastRecent,
    Probabilistic,
    StepTTL,
    TableConfig,
)

SEED, BAGS, ROWS = 11, 23, 90
LEAST, MOST = -(2**63), 2**63 - 1
ANY_KEYS = [0, -1, 5, -2, LEAST, MOST, LEAST + 1, MOST - 1, 2**32, -(2**31), 2**31 - 1, 1234567890123456789]

OPTIMIZERS = {
    "sgd": deeprec_torch.SGD(0.1),
    "adagrad": deeprec_torch.Adagrad(0.1, initial_accumulator_value=0.1),
    "rowwise_adagrad": deeprec_torch.RowwiseAdagrad(0.1),
    "adam": deeprec_torch.Adam(0.01),
}


def grown(name="u", dim=8, **options):
    return TableConfig(name, None, dim, **options)


def made(*tables, optimizer=deeprec_torch.SGD(0.5), seed=SEED):
    return EmbeddingBagCollection(tables or [grown()], optimizer, seed=seed)


def batch_of(keys, name="u"):
    """A bag for each key."""
    keys = torch.as_tensor(keys)
    return KeyedJaggedTensor([name], keys, torch.arange(len(keys) + 1))


def step(collection, batch, slope=1.0):
    out = collection(batch)
    (out * slope).sum().backward()
    return out.detach()


def drawn(keys, seed, weighted=False, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (len(keys) * BAGS,), generator=generator)
    values = torch.randint(rows, (int(lengths.sum()),), generator=generator)
    weights = torch.rand(values.shape, generator=generator) if weighted else None
    return KeyedJaggedTensor.from_lengths(keys, values, lengths, weights)


def held(collection, name="u"):
    """What a table holds, by key."""
    parts = zip(collection.keys(name).tolist(), collection.weight(name), collection.optimizer_state(name))
    return {key: (row.tolist(), state.tolist()) for key, row, state in parts}


# --- as a dense table --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_of_a_dense_table(name, pooling, format):
    """Two features of one table and a second table, with equal first values."""
    options = dict(pooling=pooling, format=format, init_bound=0.05)
    tables = lambda rows: [
        TableConfig("u", rows, 17, feature_names=("a", "b"), **options),
        TableConfig("v", rows, 8, **options),
    ]
    dense, ours = (EmbeddingBagCollection(tables(rows), OPTIMIZERS[name], seed=SEED) for rows in (ROWS, None))
    for seed in range(5):
        batch = drawn(["v", "a", "b"], seed, weighted=seed % 2 == 1)
        wanted, out = dense(batch), ours(batch)
        assert torch.equal(out, wanted)
        slope = torch.rand(out.shape, generator=torch.Generator().manual_seed(seed)) - 0.3
        wanted.backward(slope)
        out.backward(slope)
    used = torch.cat([drawn(["v", "a", "b"], seed).values() for seed in range(5)]).unique()
    for table in ("u", "v"):
        keys = ours.keys(table)
        assert 0 < len(keys) <= ours.size(table) and set(keys.tolist()) <= set(used.tolist())
        assert torch.equal(ours.weight(table), dense.weight(table)[keys])
        assert torch.equal(ours.optimizer_state(table), dense.optimizer_state(table)[keys])
        assert torch.equal(ours.rows(table, keys.flip(0)), dense.dequantized(table)[keys.flip(0)])
    assert not torch.equal(ours.weight("u"), EmbeddingBagCollection(tables(ROWS), OPTIMIZERS[name], seed=SEED).weight("u")[ours.keys("u")])


def test_the_same_bits_for_any_number_of_threads():
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            ours = made(grown(dim=16, capacity=400, when_full="evict_least_recent"), optimizer=OPTIMIZERS["adagrad"])
            for seed in range(6):
                step(ours, drawn(["u"], seed, rows=10**12))
                step(ours, batch_of(torch.arange(seed * 100, seed * 100 + 150).flip(0)))
            results.append(held(ours))
    finally:
        torch.set_num_threads(threads)
    assert results[0] == results[1] == results[2] and 150 <= len(results[0]) <= 400


def test_mixed_with_dense_tables():
    tables = [TableConfig("d", 50, 4), grown("u", 6, feature_names=("bought", "seen")), TableConfig("e", 7, 3, pooling="mean")]
    ours = made(*tables, optimizer=OPTIMIZERS["adam"])
    alone = made(tables[0], tables[2], optimizer=OPTIMIZERS["adam"])
    for name in ("d", "e"):
        alone.assign(name, ours.dequantized(name))
    for seed in range(3):
        batch = drawn(["d", "seen", "e", "bought"], seed, rows=7)
        out = step(ours, batch)
        wanted = step(alone, batch)
        assert torch.equal(torch.cat([out[:, :4], out[:, 16:]], 1), wanted)
    assert list(ours.split(out)) == ["d", "bought", "seen", "e"] and ours.size("u") == 7
    for name in ("d", "e"):
        assert torch.equal(ours.weight(name), alone.weight(name))
    values = drawn(["d", "seen", "e", "bought"], 1, rows=7).values().clone()
    values[-1] = 10**15  # of a table that grows: any key; of a dense one an id out of range
    batch = KeyedJaggedTensor(["d", "seen", "e", "bought"], values, drawn(["d", "seen", "e", "bought"], 1, rows=7).offsets())
    step(ours, batch)
    assert ours.size("u") == 8
    values[0] = 50
    before = ours.weight("d").clone()
    with pytest.raises(IndexError, match=r"feature 0 of table d, bag \d+, position 0, value 50"):
        ours(KeyedJaggedTensor(batch.keys(), values, batch.offsets()))
    assert torch.equal(ours.weight("d"), before)


# --- keys --------------------------------------------------------------------------------------------


def test_any_integer_is_a_key():
    ours = made()
    out = step(ours, batch_of(ANY_KEYS))
    assert ours.keys("u").tolist() == sorted(ANY_KEYS) and ours.size("u") == len(ANY_KEYS)
    rows = ours.rows("u", torch.tensor(ANY_KEYS))
    assert torch.equal(rows, out - 0.5) and len(rows.unique(dim=0)) == len(ANY_KEYS)
    assert torch.equal(ours.eval()(batch_of(ANY_KEYS)), rows)
    # Numbers of 32 bits are extended by their sign; 64 bits without sign are the same bits.
    narrow = torch.tensor([-1, 5, -(2**31)], dtype=torch.int32)
    for given in (ours(batch_of(narrow)), ours.rows("u", narrow)):
        assert torch.equal(given, ours.rows("u", narrow.long()))
    wide = torch.tensor([-1, 5, LEAST]).view(torch.uint64)
    assert wide.tolist() == [2**64 - 1, 5, 2**63]
    for given in (ours(batch_of(wide)), ours.rows("u", wide)):
        assert torch.equal(given, ours.rows("u", torch.tensor([-1, 5, LEAST])))
    assert ours.erase("u", wide) == 3 and -1 not in ours.keys("u").tolist()


def test_no_order_of_keys_changes_a_row():
    keys = torch.tensor(ANY_KEYS)
    one, other = made(), made()
    step(one, batch_of(keys))
    for part in keys.flip(0).split(5):
        step(other, batch_of(part))
    assert held(one) == held(other)


def test_empty_batches():
    ours = made(grown(), grown("v", 3, pooling="mean"))
    none = torch.zeros(0, dtype=torch.int64)
    out = step(ours, KeyedJaggedTensor(["u", "v"], none, torch.zeros(1, dtype=torch.int64)))
    assert out.shape == (0, 11)
    out = step(ours, KeyedJaggedTensor(["u", "v"], none, torch.zeros(9, dtype=torch.int64)))
    assert torch.equal(out, torch.zeros(4, 11)) and ours.size("u") == ours.size("v") == 0
    assert ours.keys("u").shape == (0,) and ours.weight("u").shape == (0, 8) and ours.rows("u", none).shape == (0, 8)
    assert ours.erase("u", none) == 0 and ours.evict("u", LeastRecent(0)) == 0
    ours.assign("u", torch.zeros(0, 8), none)
    again = made(grown(), grown("v", 3, pooling="mean"), seed=1)
    again.load_state_dict(ours.state_dict())
    assert again.size("u") == 0


def test_lookups_that_train_nothing_insert_nothing():
    ours = made(grown(default_row=2.5), optimizer=OPTIMIZERS["adagrad"])
    with torch.no_grad():
        ours(batch_of([1, 2]))
    ours.requires_grad_(False)
    ours(batch_of([1, 2]))
    ours.requires_grad_(True)
    out = ours.eval()(batch_of([1, 2]))
    assert ours.size("u") == 0 and torch.equal(out, torch.full((2, 8), 2.5))
    trained = ours.train()(batch_of([1, 2]))
    assert ours.size("u") == 2 and float(trained.detach().abs().max()) < 0.01 and trained.requires_grad
    assert ours._tables.step() == 1
    trained.sum().backward()
    assert ours._tables.step() == 2


def test_default_rows():
    row = [float(i) for i in range(8)]
    ours = made(grown(default_row=row))
    step(ours, batch_of([3]))
    assert torch.equal(ours.rows("u", torch.tensor([3, 4]))[1], torch.tensor(row))
    pooled = made(grown(pooling="mean", default_row=row)).eval()
    assert torch.equal(pooled(KeyedJaggedTensor(["u"], torch.tensor([1, 2]), torch.tensor([0, 2, 2])))[0], torch.tensor(row))
    assert torch.equal(made().eval()(batch_of([1])), torch.zeros(1, 8))


# --- admission and capacity --------------------------------------------------------------------------


def test_admission_counts():
    ours = made(grown(admission=3))
    step(ours, batch_of([7, 7, 8]))
    assert ours.size("u") == 0 and ours.statistics("u")["candidates"] == 2
    ours.eval()(batch_of([7, 7]))  # counts nothing
    ours.train()
    out = step(ours, batch_of([7, 9]))  # the third 7: every position of this batch reads its row
    assert ours.keys("u").tolist() == [7] and out[0].any() and not out[1].any()
    assert ours.erase("u", torch.tensor([7, 8, 9])) == 1 and ours.statistics("u")["candidates"] == 0
    step(ours, batch_of([7, 7]))
    assert ours.size("u") == 0
    step(ours, batch_of([10, 10, 10, 7]))
    assert ours.keys("u").tolist() == [7, 10]


def test_keys_that_wait_are_not_trained():
    ours = made(grown(admission=2, default_row=1.0))
    for _ in range(2):
        step(ours, batch_of([5]), slope=100.0)
    assert torch.equal(ours.rows("u", torch.tensor([6])), torch.ones(1, 8))
    fresh = made(grown(admission=1))
    fresh(batch_of([5]))
    assert torch.equal(ours.rows("u", torch.tensor([5])), fresh.rows("u", torch.tensor([5])) - 50.0)


def test_counting_bloom():
    ours = made(grown(admission=CountingBloom(2, keys=1000, false_share=1e-6)))
    step(ours, batch_of(range(100)))
    assert ours.size("u") == 0 and ours.statistics("u")["filter_bytes"] > 0
    step(ours, batch_of(range(50)))
    assert ours.keys("u").tolist() == list(range(50))


def test_probabilistic():
    sizes = []
    for seed in (1, 1, 2):
        ours = made(grown(admission=Probabilistic(0.25, seed=seed)))
        step(ours, batch_of(range(4000)))
        sizes.append(ours.keys("u").tolist())
    assert sizes[0] == sizes[1] != sizes[2] and 850 < len(sizes[0]) < 1150
    step(ours, batch_of(range(4000)))  # another step, other draws
    assert 1550 < ours.size("u") < 1950


def test_a_full_table_refuses():
    ours = made(grown(capacity=3))
    out = step(ours, batch_of([1, 2, 3, 4, 5]))
    assert ours.keys("u").tolist() == [1, 2, 3] and not out[3:].any() and out[:3].any(dim=1).all()
    assert ours.statistics("u")["refused"] == 2
    ours.erase("u", torch.tensor([2]))
    step(ours, batch_of([5]))
    assert ours.keys("u").tolist() == [1, 3, 5]


@pytest.mark.parametrize("when_full, left", [("evict_least_recent", [1, 3, 4]), ("evict_least_frequent", [1, 2, 4])])
def test_a_full_table_evicts(when_full, left):
    ours = made(grown(capacity=3, when_full=when_full))
    for keys in ([1, 2, 2, 2, 3], [1], [3]):
        step(ours, batch_of(keys))
    assert ours.keys("u").tolist() == [1, 2, 3]
    step(ours, batch_of([1]))  # 1: 3 times; 2: 3 times, longest ago; 3: twice
    step(ours, batch_of([4]))
    assert ours.keys("u").tolist() == left and ours.statistics("u")["evicted"] == 1


# --- erase and evict ---------------------------------------------------------------------------------


def test_an_erased_key_begins_anew():
    ours, fresh = (made(optimizer=OPTIMIZERS["adagrad"]) for _ in range(2))
    step(ours, batch_of([1, 2, 3]))
    assert ours.erase("u", torch.tensor([2, 2, 9])) == 1 and ours.keys("u").tolist() == [1, 3]
    assert not ours.eval()(batch_of([2])).any()
    ours.train()
    step(fresh, batch_of([2]))
    step(ours, batch_of([2]))
    assert held(ours)[2] == held(fresh)[2]


def test_a_row_that_is_erased_before_the_backward_pass_is_not_stepped():
    ours = made()
    out = ours(batch_of([1, 2]))
    ours.erase("u", torch.tensor([1]))
    out.sum().backward()
    assert ours.keys("u").tolist() == [2] and ours._tables.step() == 2


def test_evict_by_steps():
    ours = made()
    for key in (1, 2, 3):
        step(ours, batch_of([key]))
    assert ours.evict("u", StepTTL(3)) == 0 and ours.evict("u", StepTTL(1)) == 2 and ours.keys("u").tolist() == [3]
    ours(batch_of([4]))  # made by a lookup whose backward pass is not there yet: it stays
    assert ours.evict("u", StepTTL(0)) == 1 and ours.keys("u").tolist() == [4]
    assert ours.statistics("u")["evicted"] == 3


def test_evict_least():
    for policy, left in ((LeastRecent(2), [1, 3]), (LeastFrequent(2), [1, 2]), (LeastRecent(9), [1, 2, 3]), (LeastFrequent(0), [])):
        ours = made()
        for keys in ([2, 2, 2, 1, 1], [3], [1]):
            step(ours, batch_of(keys))
        assert ours.evict("u", policy) == 3 - len(left) and ours.keys("u").tolist() == left


def test_evict_small_rows():
    ours = made(grown(dim=2))
    ours.assign("u", torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), torch.tensor([1, 2, 3]))
    step(ours, batch_of([9]))
    assert ours.evict("u", L2Below(12.5)) == 3 and ours.keys("u").tolist() == [1]


def test_assign():
    ours = made(grown(admission=5, format="bf16"))
    keys, values = torch.tensor([MOST, -3, 4]), torch.arange(24.0).view(3, 8)
    ours.assign("u", values, keys)
    assert ours.keys("u").tolist() == [-3, 4, MOST] and torch.equal(ours.rows("u", keys), values)
    ours.assign("u", -values[:1], keys[:1].to(torch.int64))
    assert torch.equal(ours.rows("u", keys)[0], -values[0]) and ours.size("u") == 3
    with pytest.raises(ValueError, match=r"weights of table u must be \(3, 8\)"):
        ours.assign("u", values[:, :7], keys)
    with pytest.raises(ValueError, match="quantize"):
        ours.assign("u", values * float("nan"), torch.tensor([100, 101, 102]))
    assert ours.size("u") == 3
    small = made(grown(capacity=2))
    with pytest.raises(ValueError, match="capacity of table u must be enough"):
        small.assign("u", values, keys)


# --- copies and files --------------------------------------------------------------------------------

MIXED = [
    TableConfig("d", 30, 5),
    grown("u", 8, feature_names=("a", "b"), format="bf16", capacity=60, when_full="evict_least_frequent"),
    grown("w", 3, admission=CountingBloom(2, keys=500), default_row=(1.0, 2.0, 3.0)),
]


def train(collection, seeds):
    keys = ["d", "a", "b", "w"]
    return [step(collection, drawn(keys, seed, rows=30)) for seed in seeds]


def all_held(collection):
    state = collection.state_dict()
    return {name: value.clone() for name, value in state.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_what_was_saved(name, tmp_path):
    """By table file, state dict, pickle and deepcopy, of tables of another size: steps, frequencies, filters and first
    values as without a stop."""
    whole = EmbeddingBagCollection(MIXED, OPTIMIZERS[name], seed=SEED)
    train(whole, range(3))
    whole.save(tmp_path / "tables.drt")
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    torch.save(whole, tmp_path / "module.pt")
    copied = copy.deepcopy(whole)
    from_file, from_state = (EmbeddingBagCollection(MIXED, OPTIMIZERS[name], seed=1) for _ in range(2))
    train(from_file, range(7, 9))
    from_file.load(tmp_path / "tables.drt")
    from_state.load_state_dict(torch.load(tmp_path / "state.pt"))
    pickled = torch.load(tmp_path / "module.pt", weights_only=False)
    others, saved = (from_file, from_state, pickled, copied), all_held(whole)
    assert all(same(all_held(each), saved) for each in others)
    outs = train(whole, range(3, 6))
    assert not same(all_held(whole), saved)
    for each in others:
        assert all(map(torch.equal, train(each, range(3, 6)), outs))
        assert same(all_held(each), all_held(whole))
        assert each.evict("u", LeastRecent(5)) == copy.deepcopy(whole).evict("u", LeastRecent(5)) > 0
    before = all_held(copied)
    train(whole, [99])
    assert same(all_held(copied), before)  # they share nothing


def test_what_the_state_dict_has():
    ours = made(*MIXED, optimizer=OPTIMIZERS["adagrad"])
    train(ours, [1])
    state = ours.state_dict()
    rows = ours.size("u")
    assert {name: tuple(value.shape) for name, value in state.items() if name.startswith("u.")} == {
        "u.keys": (rows,),
        "u.weight": (rows, 8),
        "u.state": (rows, 8),
        "u.steps": (rows,),
        "u.frequencies": (rows,),
        "u.seed": (),
    }
    assert state["u.weight"].dtype == torch.bfloat16 and state["w.filter"].dtype == torch.uint8 and "d.keys" not in state
    batch = drawn(["d", "a", "b", "w"], 1, rows=30)
    ends = batch.offsets()[[BAGS, 3 * BAGS]]
    keys, counts = batch.values()[ends[0] : ends[1]].unique(return_counts=True)
    assert torch.equal(state["u.keys"], keys) and torch.equal(state["u.frequencies"], counts) and state["u.steps"].unique().tolist() == [1]
    state["u.keys"].fill_(0)
    assert ours.keys("u").tolist() == keys.tolist()  # a copy


def test_contents_that_do_not_fit_are_refused():
    ours = made(grown(capacity=4))
    step(ours, batch_of([1, 2, 3]))
    state, before = ours.state_dict(), held(ours)

    def refused(match, **changed):
        with pytest.raises(RuntimeError, match=match):
            ours.load_state_dict({**state, **{f"u.{name}": value for name, value in changed.items()}})
        assert held(ours) == before

    refused("keys of table u must differ", keys=torch.tensor([1, 1, 2]))
    refused("keys must be int64 or int32", keys=torch.tensor([1.0, 2.0, 3.0]))
    refused(r"weight of table u must be Byte \[3, 32\]", weight=torch.zeros(2, 8))
    refused("u.weight must be torch.float32", weight=torch.zeros(3, 8, dtype=torch.bfloat16))
    refused("steps of table u must not be negative", steps=torch.tensor([1, -1, 1]))
    refused("frequencies of table u must be from 0 to", frequencies=torch.tensor([1, 1, 2**24]))
    refused("state of table u must be", state=torch.zeros(3, 1))
    refused("weight of table u must be", weight=torch.tensor(1.0))
    refused("u.steps, u.seed must be tensors", steps=[1, 1, 1], seed=1)
    refused("u: ", seed=torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="Missing.*u.keys"):
        ours.load_state_dict({name: value for name, value in state.items() if name != "u.keys"})
    with pytest.raises(RuntimeError, match="capacity of table u must be at least 3"):
        made(grown(capacity=2)).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected.*u.keys"):
        made(TableConfig("u", 3, 8)).load_state_dict(state)


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "tables.drt"
    ours = made(grown(admission=CountingBloom(1)), optimizer=OPTIMIZERS["adagrad"])
    step(ours, batch_of([1, 2, 3]))
    ours.save(path)
    for other, match in (
        (made(grown(capacity=2), optimizer=OPTIMIZERS["adagrad"]), "capacity of table u"),
        (made(grown("v"), optimizer=OPTIMIZERS["adagrad"]), "v, keys"),
        (made(grown(dim=9), optimizer=OPTIMIZERS["adagrad"]), "u"),
        (made(optimizer=OPTIMIZERS["adagrad"]), "u, filter"),
        (made(TableConfig("u", 3, 8), optimizer=OPTIMIZERS["adagrad"]), "u"),
    ):
        with pytest.raises(ValueError, match=match):
            other.load(path)
        assert other.tables[0].num_embeddings == 3 or other.size(other.tables[0].name) == 0
    narrow = [grown(dim=1)]  # a float of state, of either optimizer
    made(*narrow, optimizer=OPTIMIZERS["adagrad"]).save(tmp_path / "narrow.drt")
    with pytest.raises(ValueError, match="must have state of rowwise_adagrad .has that of adagrad"):
        made(*narrow, optimizer=OPTIMIZERS["rowwise_adagrad"]).load(tmp_path / "narrow.drt")
    broken = tmp_path / "broken.drt"
    broken.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="broken.drt"):
        ours.load(broken)
    assert ours.size("u") == 3


def test_another_process_loads_the_file(tmp_path):
    ours = made(grown(), grown("v", 4, admission=2), optimizer=OPTIMIZERS["adam"])
    batch = KeyedJaggedTensor(["u", "v"], torch.tensor(ANY_KEYS * 2 + [3, 3]), torch.tensor([0, 12, 24, 25, 26]))
    step(ours, batch)
    ours.save(tmp_path / "tables.drt")
    program = (
        "import sys, torch\n"
        "from deeprec_torch import Adam, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig\n"
        "tables = [TableConfig('u', None, 8), TableConfig('v', None, 4, admission=2)]\n"
        "theirs = EmbeddingBagCollection(tables, Adam(0.01), seed=99)\n"
        "theirs.load(sys.argv[1] + '/tables.drt')\n"
        "values, offsets = torch.load(sys.argv[1] + '/batch.pt')\n"
        "theirs(KeyedJaggedTensor(['u', 'v'], values, offsets)).sum().backward()\n"
        "torch.save(theirs.state_dict(), sys.argv[1] + '/state.pt')\n"
    )
    more = torch.cat([batch.values(), torch.tensor([77, 78])])  # new keys have the first values of this seed
    offsets = torch.tensor([0, 12, 24, 25, 28])
    torch.save((more, offsets), tmp_path / "batch.pt")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    step(ours, KeyedJaggedTensor(["u", "v"], more, offsets))
    assert same(torch.load(tmp_path / "state.pt"), ours.state_dict())


def test_quantize():
    ours = made(grown(dim=16, default_row=0.5), TableConfig("d", 20, 4))
    batch = KeyedJaggedTensor.one_hot(["u", "d"], torch.tensor([[5, -9, MOST], [1, 2, 3]]))
    step(ours, batch)
    for format, bound in (("f32", 0.0), ("f16", 1e-3), ("int8", 3e-3), ("int4", 5e-2)):
        small = ours.quantize(format)
        assert small.keys("u").tolist() == [-9, 5, MOST] and torch.allclose(small(batch), ours.eval()(batch), rtol=0, atol=bound)
        assert torch.equal(small.rows("u", torch.tensor([1])), torch.full((1, 16), 0.5))
        small.train()(KeyedJaggedTensor.one_hot(["u", "d"], torch.tensor([[6], [1]])))
        assert small.size("u") == 3  # it is not trained
        again = ours.quantize(format)
        again.erase("u", torch.tensor([5]))
        again.load_state_dict(small.state_dict())
        assert torch.equal(again(batch), small(batch))


def in_child(collection, keys, queue):
    step(collection, batch_of(keys))
    queue.put((collection.keys("u").tolist(), collection.rows("u", torch.tensor(keys)).tolist()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_another_process(method):
    """After use here; a forked process has a table of its own, as one that was started."""
    ours = made(grown(admission=1), optimizer=OPTIMIZERS["adagrad"])
    step(ours, batch_of([1, 2, 3]))
    context = torch.multiprocessing.get_context(method)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process has no OpenMP threads of its parent
    try:
        queue = context.Queue()
        process = context.Process(target=in_child, args=(ours, [3, 4], queue))
        process.start()
        keys, rows = queue.get(timeout=240)
        process.join(60)
    finally:
        torch.set_num_threads(threads)
    assert keys == [1, 2, 3, 4] and ours.keys("u").tolist() == [1, 2, 3]
    step(ours, batch_of([3, 4]))
    assert ours.rows("u", torch.tensor([3, 4])).tolist() == rows


def test_two_collections_share_nothing():
    one, other = made(), made()
    step(one, batch_of([1, 2]))
    assert one.size("u") == 2 and other.size("u") == 0
    step(other, batch_of([2, 3]))
    one.erase("u", torch.tensor([2]))
    assert one.keys("u").tolist() == [1] and other.keys("u").tolist() == [2, 3]


# --- threads, compilers, errors ----------------------------------------------------------------------


def test_lookups_beside_erasures_and_insertions():
    """Kept keys read their rows while others come and go."""
    ours = made(optimizer=OPTIMIZERS["sgd"])
    kept = torch.arange(200)
    ours(batch_of(kept))
    wanted, wrong, end = ours.rows("u", kept), [], threading.Event()

    def read():
        while not end.is_set():
            with torch.no_grad():
                if not torch.equal(ours(batch_of(kept)), wanted):
                    wrong.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(40):
        others = torch.arange(1000, 1500) * (turn + 1)
        ours(batch_of(others))
        ours.erase("u", others)
    end.set()
    for reader in readers:
        reader.join()
    assert not wrong and ours.keys("u").tolist() == kept.tolist()


def test_insertions_by_several_threads():
    ours, alone = made(), made()
    parts = [torch.arange(first, first + 3000) for first in (0, 1500, 3000)]
    outs = [None] * len(parts)

    def insert(number):
        outs[number] = [ours(batch_of(part)).detach() for part in parts[number].split(100)]

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone(batch_of(torch.arange(6000)))
    assert held(ours) == held(alone)
    for part, out in zip(parts, outs):
        assert torch.equal(torch.cat(out), alone.rows("u", part))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend):
    torch._dynamo.reset()
    head = nn.Linear(12, 1)
    collections = [made(grown(), TableConfig("d", 40, 4), optimizer=OPTIMIZERS["adagrad"]) for _ in range(2)]

    def loss_of(collection):
        return lambda values, offsets: head(collection(KeyedJaggedTensor(["u", "d"], values, offsets))).square().sum()

    losses = [loss_of(collections[0]), torch.compile(loss_of(collections[1]), fullgraph=True, backend=backend)]
    for seed in range(3):
        batch = drawn(["u", "d"], seed, rows=40)
        results = [loss(batch.values(), batch.offsets()) for loss in losses]
        torch.testing.assert_close(*results)
        for result in results:
            result.backward()
        assert collections[0].keys("u").tolist() == collections[1].keys("u").tolist()
        torch.testing.assert_close(collections[0].weight("u"), collections[1].weight("u"))
    assert collections[0]._tables.step() == collections[1]._tables.step() == 4


def test_opcheck():
    ours = made(optimizer=deeprec_torch.SGD(0.0))
    torch.library.opcheck(
        torch.ops.deeprec.tables_lookup_or_insert.default,
        (ours._hook, ours._rows_written, ours._number, ours._width, torch.arange(5), torch.arange(6), None, 5, 1, []),
    )


def test_types_are_refused_by_name():
    ours = made()
    step(ours, batch_of([1]))
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([1j]), torch.tensor([1], dtype=torch.int16)):
        with pytest.raises(ValueError, match="values must be int64 or int32"):
            ours(batch_of(wrong))
        for call in (ours.rows, ours.erase):
            with pytest.raises(ValueError, match="keys must be int64 or int32"):
                call("u", wrong)
        with pytest.raises(ValueError, match="keys must be int64 or int32"):
            ours.assign("u", torch.zeros(1, 8), wrong)
    elsewhere = torch.zeros(1, dtype=torch.int64, device="meta")
    for call in (ours.rows, ours.erase):
        with pytest.raises(NotImplementedError, match=r"keys must be on the CPU \(is on meta\)"):
            call("u", elsewhere)
        with pytest.raises(ValueError, match="keys must have 1 dimension"):
            call("u", torch.zeros(1, 1, dtype=torch.int64))
        with pytest.raises(TypeError, match="keys must be a tensor"):
            call("u", [1])
    dense = made(TableConfig("u", 5, 8))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert dense(batch_of(torch.zeros(1, dtype=torch.int64))).shape == (1, 8)
    for collection in (ours, dense):
        with pytest.raises(NotImplementedError, match=r"values must be on the CPU \(is on meta\)"):
            collection(KeyedJaggedTensor(["u"], elsewhere, torch.arange(2)))
        with pytest.raises(NotImplementedError, match=r"offsets must be on the CPU \(is on meta\)"):
            collection(KeyedJaggedTensor(["u"], torch.tensor([1]), torch.zeros(2, dtype=torch.int64, device="meta")))
    with pytest.raises(ValueError, match="values must be int64 or int32"):
        dense(batch_of(torch.tensor([1]).view(torch.uint64)))
    assert ours.keys("u").tolist() == [1]


def test_arguments_are_named():
    for match, options in (
        ("TableConfig: admission must be", dict(admission=0)),
        ("TableConfig: admission must be", dict(admission=True)),
        ("TableConfig: admission must be", dict(admission=2**24)),
        ("TableConfig: admission must be", dict(admission="counter")),
        ("CountingBloom: occurrences", dict(admission=CountingBloom(2**16))),
        ("CountingBloom: keys", dict(admission=CountingBloom(2, keys=0))),
        ("CountingBloom: false_share", dict(admission=CountingBloom(2, false_share=1.0))),
        ("Probabilistic: share", dict(admission=Probabilistic(0.0))),
        ("Probabilistic: seed", dict(admission=Probabilistic(0.5, seed=-1))),
        ("TableConfig: capacity", dict(capacity=0)),
        ("TableConfig: capacity", dict(capacity=1.5)),
        ("TableConfig: when_full", dict(when_full="evict")),
        ("TableConfig: default_row", dict(default_row="zeros")),
        (r"TableConfig: default_row must be a number or embedding_dim \(8\)", dict(default_row=[1.0, 2.0])),
    ):
        with pytest.raises(ValueError, match=match):
            grown(**options)
    for name, value in (("admission", 3), ("capacity", 5), ("when_full", "evict_least_recent"), ("default_row", 1.0)):
        with pytest.raises(ValueError, match=f"TableConfig: {name} must be of a table that grows"):
            TableConfig("d", 5, 8, **{name: value})
    ours = made(grown(), TableConfig("d", 5, 8))
    keys = torch.tensor([1])
    for method, *given in (("size",), ("keys",), ("rows", keys), ("erase", keys), ("evict", StepTTL(1)), ("statistics",)):
        with pytest.raises(ValueError, match=f"EmbeddingBagCollection.{method}: table d must be one that grows"):
            getattr(ours, method)("d", *given)
        with pytest.raises(KeyError, match="no table 'none'"):
            getattr(ours, method)("none", *given)
    with pytest.raises(ValueError, match="keys must be given for table u"):
        ours.assign("u", torch.zeros(1, 8))
    with pytest.raises(ValueError, match="keys must be absent for table d"):
        ours.assign("d", torch.zeros(5, 8), torch.arange(5))
    for policy, match in (
        (StepTTL(-1), "StepTTL: steps"),
        (LeastRecent(1.5), "LeastRecent: rows_left"),
        (LeastFrequent(None), "LeastFrequent: rows_left"),
        (L2Below("1"), "L2Below: threshold"),
        (5, "EmbeddingBagCollection.evict: policy must be"),
    ):
        with pytest.raises(ValueError, match=match):
            ours.evict("u", policy)
    with pytest.raises(ValueError, match="must be f32, f16 or bf16"):
        made(grown(format="int8"))
    with pytest.raises(ValueError, match="embedding_dim must be an integer from 1 on"):
        made(grown(dim=0))
    assert "u: (grows, 8)" in repr(ours)
