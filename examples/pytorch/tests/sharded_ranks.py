"""One rank of test_sharded.py: RANK RANKS STORE CASE... Each case is a function below, called by all ranks in one order."""

import os
import sys
import traceback
from datetime import timedelta

import torch
from torch import distributed, nn

import deeprec_torch
from deeprec_torch import EmbeddingBagCollection, KeyedJaggedTensor, ShardedEmbeddingBagCollection, TableConfig

RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
SEED, BAGS = 5, 23
PLACEMENTS = {"whole": 1, "mean_whole": 0}
EXACT = ["rows", "whole", "mean_whole", "one"]  # with gradients of integers: a mean divides them
OPTIMIZERS = [
    deeprec_torch.SGD(0.25),
    deeprec_torch.Adagrad(0.1, initial_accumulator_value=0.1),
    deeprec_torch.RowwiseAdagrad(0.1),
    deeprec_torch.Adam(0.01),
]


def configs(format="f32"):
    return [
        TableConfig("rows", 50, 16, feature_names=("a", "b"), format=format),
        TableConfig("whole", 30, 17, format=format),
        TableConfig("mean_rows", 7, 1, pooling="mean", format=format),
        TableConfig("mean_whole", 11, 5, pooling="mean", format=format),
        TableConfig("one", 1, 4, format=format),
    ]


def bags_of(rank, step):
    return 0 if rank == 1 and step % 2 == 1 else BAGS + rank


def batch_of(tables, rank, step, weighted=False):
    draw = torch.Generator().manual_seed(step * 100 + rank)
    keys = [name for t in tables for name in t.feature_names]
    lengths = torch.randint(0, 5, (len(keys), bags_of(rank, step)), generator=draw)
    rows = [t.num_embeddings for t in tables for _ in t.feature_names]
    values = torch.cat([torch.randint(n, (int(ones.sum()),), generator=draw) for n, ones in zip(rows, lengths)])
    weights = torch.rand(values.shape, generator=draw) + 0.5 if weighted else None
    return KeyedJaggedTensor.from_lengths(keys, values, lengths, weights)


def joined(batches):
    """The bags of all ranks, key by key, one rank behind the other."""
    keys = batches[0].keys()
    values, lengths, weights = [], [], []
    for key in range(len(keys)):
        for batch in batches:
            offsets = batch.offsets()[key * batch.stride() : (key + 1) * batch.stride() + 1]
            values.append(batch.values()[offsets[0] : offsets[-1]])
            lengths.append(offsets.diff())
            if batch.weights_or_none() is not None:
                weights.append(batch.weights_or_none()[offsets[0] : offsets[-1]])
    return KeyedJaggedTensor.from_lengths(keys, torch.cat(values), torch.cat(lengths), torch.cat(weights) if weights else None)


def gradient_of(rank, step, width, integers=False):
    draw = torch.Generator().manual_seed(1000 + step * 100 + rank)
    if integers:
        return torch.randint(-3, 4, (bags_of(rank, step), width), generator=draw).float()
    return torch.rand((bags_of(rank, step), width), generator=draw) - 0.5


def mine(out, step):
    first = sum(bags_of(rank, step) for rank in range(RANK))
    return out[first : first + bags_of(RANK, step)]


def pair(optimizer=OPTIMIZERS[0], format="f32", **options):
    """A collection of all ranks, and one of this process with the same tables."""
    tables = configs(format)
    ours = ShardedEmbeddingBagCollection(tables, optimizer, SEED, placements=PLACEMENTS, **options)
    return ours, EmbeddingBagCollection(tables, optimizer, SEED, process_local=True)


def step_both(ours, one, step, weighted=False, integers=False, lost=()):
    batches = [batch_of(one.tables, rank, step, weighted) for rank in range(RANKS)]
    width = sum(one.feature_widths)
    gradients = [gradient_of(rank, step, width, integers) * (rank not in lost) for rank in range(RANKS)]
    out, expected = ours(batches[RANK]), one(joined(batches))
    assert torch.equal(out, mine(expected, step)), f"step {step}: outputs differ"
    out.backward(gradients[RANK] if RANK not in lost else gradient_of(RANK, step, width, integers))
    expected.backward(torch.cat(gradients))


def parts_of(ours, one, name):
    rows = list(ours.part(name))
    yield ours.weight(name), one.weight(name)[rows]
    if ours.optimizer is not None:
        yield ours.optimizer_state(name), one.optimizer_state(name)[rows]


def equal_bits(ours, one, names):
    return all(torch.equal(part, whole) for name in names for part, whole in parts_of(ours, one, name))


def expect_raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def equal_to_one_process():
    names = [table.name for table in configs()]
    for optimizer in OPTIMIZERS:
        for weighted in (False, True):
            ours, one = pair(optimizer)
            assert equal_bits(ours, one, names)
            for step in range(3):
                gather(ours, one, names)
                before = [one.weight(name).clone() for name in names]
                step_both(ours, one, step, weighted)
                assert equal_bits(ours, one, PLACEMENTS), f"{optimizer}, step {step}: whole tables differ"
                for name in names:
                    for part, whole in parts_of(ours, one, name):
                        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-6)
                assert not any(torch.equal(was, one.weight(name)) for was, name in zip(before, names))


def gather(ours, one, names):
    """Sets the rows and the state of one process to those of all ranks, whose rounding may differ."""
    for name in names:
        sent = [None] * RANKS
        parts = [list(ours.part(name)), ours.weight(name).clone(), ours.optimizer_state(name).clone()]
        distributed.all_gather_object(sent, parts)
        for rows, weight, state in sent:
            one.weight(name)[rows] = weight
            one.optimizer_state(name)[rows] = state


def integers_are_exact():
    """Sums of integers have no order: all bits are those of one process. A rank's gradient that is lost is seen."""
    for lost in ((), (0,)):
        ours, one = pair(OPTIMIZERS[0])
        step_both(ours, one, 0, integers=True, lost=lost)
        seen = [None] * RANKS
        distributed.all_gather_object(seen, equal_bits(ours, one, EXACT))
        assert all(seen) == (not lost)


def as_embedding_bag():
    tables = [TableConfig("t", 40, 8, pooling="mean"), TableConfig("u", 40, 8)]
    ours = ShardedEmbeddingBagCollection(tables, deeprec_torch.SGD(0.5), SEED, placements={"u": RANKS - 1})
    one = EmbeddingBagCollection(tables, seed=SEED)
    layers = [nn.EmbeddingBag(40, 8, mode=table.pooling, include_last_offset=True) for table in tables]
    for layer, table in zip(layers, tables):
        layer.weight.data.copy_(one.weight(table.name))
    sgd = torch.optim.SGD([layer.weight for layer in layers], 0.5)
    for step in range(3):
        batches = [batch_of(tables, rank, step) for rank in range(RANKS)]
        all_bags = joined(batches)
        count = all_bags.stride()
        outs = []
        for key, layer in enumerate(layers):
            offsets = all_bags.offsets()[key * count : (key + 1) * count + 1]
            outs.append(layer(all_bags.values()[offsets[0] : offsets[-1]], offsets - offsets[0]))
        expected = torch.cat(outs, dim=1)
        out = ours(batches[RANK])
        torch.testing.assert_close(out, mine(expected, step), rtol=1e-5, atol=1e-6)
        sgd.zero_grad()
        (expected.square().sum() / count).backward()
        sgd.step()
        (out.square().sum() / count).backward()
    for layer, table in zip(layers, tables):
        torch.testing.assert_close(ours.weight(table.name), layer.weight.data[list(ours.part(table.name))], rtol=1e-5, atol=1e-6)


def formats():
    for format in ("f16", "bf16"):
        ours, one = pair(OPTIMIZERS[0], format)
        step_both(ours, one, 0, integers=True)
        assert equal_bits(ours, one, PLACEMENTS)
    for format in ("f32", "int8", "int4"):
        ours, one = pair(None, format)
        batches = [batch_of(one.tables, rank, 0) for rank in range(RANKS)]
        out, expected = ours.split(ours(batches[RANK])), one.split(mine(one(joined(batches)), 0))
        for name in out:
            if format == "f32" or name in PLACEMENTS:
                assert torch.equal(out[name], expected[name]), f"{format}: outputs of {name} differ"
            else:  # one process adds what is 8 bits or 4, these add floats
                torch.testing.assert_close(out[name], expected[name], rtol=1e-6, atol=1e-6)


def faults():
    ours, one = pair()
    bad = batch_of(one.tables, RANK, 0)
    last = RANKS - 1
    if RANK == last:
        bad.values()[3] = 10**6
    expect_raises(IndexError, ["feature 0 of table ", "value 1000000", *([f"rank {last}"] if RANK != last else [])], lambda: ours(bad))
    few = batch_of(one.tables[:2], RANK, 0) if RANK == 1 else batch_of(one.tables, RANK, 0)
    expect_raises(ValueError, ["must have the keys" if RANK == 1 else "rank 1"], lambda: ours(few))
    typed = batch_of(one.tables, RANK, 0)
    if RANK == 0:
        typed._values = typed._values.float()
    expect_raises(ValueError, ["int64 or int32" if RANK == 0 else "rank 0"], lambda: ours(typed))
    wrong = batch_of(one.tables, RANK, 0)
    if RANK == 0:
        wrong._offsets = wrong._offsets.flip(0)
    expect_raises((ValueError, NotImplementedError), ["offset" if RANK == 0 else "rank 0"], lambda: ours(wrong))
    step_both(ours, one, 0, integers=True)
    assert equal_bits(ours, one, EXACT)


def what_a_loop_does():
    ours, one = pair()
    names = [table.name for table in one.tables]
    batch = batch_of(one.tables, RANK, 0)
    first = ours(batch)
    second = ours(batch)
    expect_raises(RuntimeError, ["before its next lookup"], lambda: first.sum().backward())
    second.sum().backward(retain_graph=True)
    expect_raises(RuntimeError, ["and once"], lambda: second.sum().backward())
    ours, one = pair()
    ours.eval()
    assert not ours(batch).requires_grad
    ours.train()
    with torch.no_grad():
        ours(batch)
    ours.requires_grad_(False)
    assert not ours(batch).requires_grad
    assert equal_bits(ours, one, names)
    ours.requires_grad_(True)
    step_both(ours, one, 0, integers=True)
    assert equal_bits(ours, one, EXACT)
    assert ours.split(ours(batch))["whole"].shape == (bags_of(RANK, 0), 17)
    expect_raises(NotImplementedError, ["of one process"], lambda: ours.quantize("int8"))
    weighted = batch_of(one.tables, RANK, 0, weighted=True)
    weighted._weights.requires_grad_()
    expect_raises(NotImplementedError, ["no gradient"], lambda: ours(weighted))


def state_of_the_part():
    ours, one = pair(OPTIMIZERS[3])
    for step in range(2):
        out = ours(batch_of(one.tables, RANK, step))
        out.backward(gradient_of(RANK, step, out.shape[1]))
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    assert state["whole.weight"].shape == (30 if RANK == 1 else 0, 17)
    assert state["rows.weight"].shape == (len(range(RANK, 50, RANKS)), 16)
    again = ShardedEmbeddingBagCollection(configs(), OPTIMIZERS[3], SEED + 1, placements=PLACEMENTS)
    assert not torch.equal(again.weight("rows"), ours.weight("rows"))
    again.load_state_dict(state)
    path = f"{sys.argv[3]}.{RANK}.drt"
    ours.save(path)
    read = ShardedEmbeddingBagCollection(configs(), OPTIMIZERS[3], SEED + 2, placements=PLACEMENTS)
    read.load(path)
    batch = batch_of(one.tables, RANK, 9)
    gradient = gradient_of(RANK, 9, sum(one.feature_widths))
    outs = []
    for collection in (ours, again, read):
        outs.append(collection(batch))
        outs[-1].backward(gradient)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
    for name, value in ours.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]) and torch.equal(value, read.state_dict()[name]), name


def what_is_refused():
    tables = configs()
    group = distributed.new_group()

    def make(**options):
        return lambda: ShardedEmbeddingBagCollection(tables, group=group, **options)

    expect_raises(ValueError, ["placement of table rows", "'columns'"], make(placements={"rows": "columns"}))
    expect_raises(ValueError, ["placement of table rows", f"below {RANKS}"], make(placements={"rows": RANKS}))
    expect_raises(ValueError, ["other is none"], make(placements={"other": 0}))
    expect_raises(ValueError, ["patience must be positive"], make(patience=timedelta(0)))
    tables = [TableConfig("grows", None, 4)]
    expect_raises(NotImplementedError, ["must not grow"], make())
    tables = [TableConfig("none", 0, 4)]
    expect_raises(ValueError, ["must have rows and columns"], make(seed=1))


def configurations_of_torchrec():
    from test_torchrec_forms import EmbeddingBagConfig, PoolingType

    ours = ShardedEmbeddingBagCollection([EmbeddingBagConfig(7, 4, "t", feature_names=["a"], pooling=PoolingType.MEAN)], seed=1, placements={"t": 0})
    assert ours.tables == (TableConfig("t", 7, 4, ("a",), "mean"),)
    assert ours(KeyedJaggedTensor.one_hot(["a"], torch.tensor([[RANK]]))).shape == (1, 4)
    expect_raises(ValueError, ["seed must be None or an integer"], lambda: ShardedEmbeddingBagCollection(ours.tables, seed=1.5))
    later = KeyedJaggedTensor(["a"], torch.tensor([1, 2]), torch.tensor([1 if RANK == 0 else 0, 2]))
    expect_raises((ValueError, RuntimeError), ["ascend from 0"] if RANK == 0 else ["rank 0"], lambda: ours(later))


def other_tables():
    """Ranks that disagree about the model: all raise."""
    tables = configs()[: 2 if RANK == 0 else 3]
    ours = ShardedEmbeddingBagCollection(tables, seed=1)
    expect_raises((ValueError, RuntimeError), ["rank"], lambda: ours(batch_of(tables, RANK, 0)))


def silent():
    ours, one = pair(patience=timedelta(seconds=1))
    if RANK == 1:
        distributed.barrier()
        return
    expect_raises(RuntimeError, ["timed out", "rank 1"] if RANKS == 2 else ["timed out"], lambda: ours(batch_of(one.tables, RANK, 0)))
    expect_raises(RuntimeError, ["closed"], lambda: ours(batch_of(one.tables, RANK, 0)))
    distributed.barrier()


if __name__ == "__main__":
    store = distributed.FileStore(sys.argv[3], RANKS)
    distributed.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS, timeout=timedelta(seconds=120))
    try:
        for case in sys.argv[4:]:
            print(case, flush=True)
            globals()[case]()
        distributed.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # groups of collections that have ended would wait for what is in flight
