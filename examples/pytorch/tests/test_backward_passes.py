"""What a backward pass of a collection steps, and what it refuses: weights that learn, outputs that no loss uses, tables that are frozen
in between, penalties over all parameters; and the place that a fault has."""

import pytest
import torch
from torch import nn

from deeprec_torch import (
    SGD,
    Adam,
    EmbeddingBagCollection,
    KeyedJaggedTensor,
    RowwiseAdagrad,
    TableConfig,
    TableOptimizer,
)

SEED = 5
A, B = TableConfig("a", 10, 2, init_bound=1.0), TableConfig("b", 10, 2, init_bound=1.0)


def one_hot(**ids):
    return KeyedJaggedTensor.one_hot(list(ids), torch.tensor(list(ids.values())))


# --- weights of a batch ------------------------------------------------------------------------------


def frozen():
    return EmbeddingBagCollection([A], SGD(1.0), seed=SEED).requires_grad_(False)


@pytest.mark.parametrize(
    "made",
    [
        lambda: EmbeddingBagCollection([A], SGD(1.0), seed=SEED),
        lambda: EmbeddingBagCollection([A], SGD(1.0), seed=SEED).eval(),
        frozen,
        lambda: EmbeddingBagCollection([A], seed=SEED),
        lambda: EmbeddingBagCollection([TableConfig("a", None, 2)], SGD(1.0), seed=SEED),
        lambda: EmbeddingBagCollection([TableConfig("a", None, 2)], SGD(1.0), seed=SEED).eval(),
        lambda: frozen().quantize("int8"),
    ],
    ids=["training", "eval", "frozen", "no optimizer", "growing", "growing, eval", "int8"],
)
def test_weights_that_learn_are_refused(made):
    """Their gradient would be 0."""
    tables, weights = made(), torch.ones(2, requires_grad=True)

    def lookup(by):
        return tables(KeyedJaggedTensor(["a"], torch.tensor([1, 2]), torch.tensor([0, 2]), by))

    with pytest.raises(NotImplementedError, match="weights of a batch must not require a gradient"):
        lookup(weights)
    with torch.no_grad():
        wanted = lookup(weights)
    with torch.inference_mode():
        assert torch.equal(lookup(weights), wanted)
    if not any(table.grows for table in tables.tables):  # that lookup inserts
        assert torch.equal(lookup(weights.detach()).detach(), wanted)


@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_learn_beside_rows_that_do_not(kept):
    tables = EmbeddingBagCollection([A], SGD(1.0), seed=SEED, fused=False)
    tables.requires_grad_(kept)
    weights = torch.ones(2, requires_grad=True)
    tables(KeyedJaggedTensor(["a"], torch.tensor([1, 2]), torch.tensor([0, 2]), weights)).sum().backward()
    torch.testing.assert_close(weights.grad, tables.weight("a")[1:3].sum(1))


# --- rows that are not pooled ------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["bf16", "f16"])
@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_one_row_are_summed_in_float32(format, fused):
    tables = EmbeddingBagCollection([TableConfig("a", 10, 4, format=format)], SGD(1.0), seed=SEED, fused=fused)
    tables.assign("a", torch.zeros(10, 4))
    handle = TableOptimizer(tables)
    times = 3008  # which both types hold, and not each sum before
    batch = KeyedJaggedTensor.from_lengths(["a"], torch.zeros(times, dtype=torch.int64), torch.tensor([times]))
    tables.unpooled(batch)["a"].values().sum().backward()
    if not fused:
        gradient = tables.embedding_bags.a.weight.grad
        assert gradient.is_coalesced() and gradient._indices().tolist() == [[0]] and gradient.dtype == tables.weight("a").dtype
        assert gradient._values().tolist() == [[times] * 4]
    handle.step()
    assert tables.weight("a")[0].tolist() == [-times] * 4 and torch.count_nonzero(tables.weight("a")[1:]) == 0


@pytest.mark.parametrize("fused", [True, False])
def test_rows_of_an_output_that_no_loss_uses(fused):
    """Adam would move them by what it knows of earlier steps."""
    tables = EmbeddingBagCollection([A, TableConfig("b", 10, 3, ("b", "c"))], Adam(0.1), seed=SEED, fused=fused)
    handle = TableOptimizer(tables)
    ids = {"a": [0, 1, 1], "b": [2, 2, 3], "c": [4, 5, 2]}
    parts = {name: torch.nn.Embedding.from_pretrained(tables.weight(name).clone(), freeze=False, sparse=True) for name in "ab"}
    of = {"a": parts["a"], "b": parts["b"], "c": parts["b"]}
    theirs = torch.optim.SparseAdam([one.weight for one in parts.values()], lr=0.1)
    for used in ("abc", "a", "ac", "c", "abc"):
        rows = tables.unpooled(one_hot(**ids))
        sum(rows[name].values().square().sum() for name in used).backward()
        handle.step()
        handle.zero_grad()
        sum(of[name](torch.tensor(ids[name])).square().sum() for name in used).backward()
        for one in parts.values():
            if one.weight.grad is None:  # of no rows: a step of the collection is one of all its tables
                none = torch.empty(1, 0, dtype=torch.int64), torch.empty(0, one.weight.shape[1])
                one.weight.grad = torch.sparse_coo_tensor(*none, one.weight.shape, check_invariants=True)
        theirs.step()
        theirs.zero_grad()
        for name, one in parts.items():
            torch.testing.assert_close(tables.weight(name), one.weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_no_output_is_used(fused):
    tables = EmbeddingBagCollection([A, B], Adam(0.1), seed=SEED, fused=fused)
    before, other = tables.weight("a").clone(), torch.ones(1, requires_grad=True)
    rows = tables.unpooled(one_hot(a=[1, 2], b=[3, 4]))
    assert set(rows) == {"a", "b"}
    other.sum().backward()
    assert torch.equal(tables.weight("a"), before) and tables._tables.step() == 1


# --- frozen between a lookup and its backward pass ---------------------------------------------------


@pytest.mark.parametrize("handle", [False, True])
@pytest.mark.parametrize("unpooled", [False, True])
@pytest.mark.parametrize("fused", [True, False])
def test_tables_are_frozen_before_the_backward_pass(handle, unpooled, fused):
    tables = EmbeddingBagCollection([A], SGD(1.0), seed=SEED, fused=fused)
    before, head = tables.weight("a").clone(), nn.Linear(2, 1)
    made = TableOptimizer(tables) if handle else None
    batch = one_hot(a=[1, 2, 3])

    def lookup():
        return tables.unpooled(batch)["a"].values() if unpooled else tables(batch)

    loss = head(lookup()).sum()
    tables.requires_grad_(False)
    loss.backward()
    if made:
        made.step()
    assert head.weight.grad is not None and all(parameter.grad is None for parameter in tables.parameters())
    assert torch.equal(tables.weight("a"), before) and tables._tables.step() == 1
    tables.requires_grad_(True)
    head(lookup()).sum().backward()
    if not fused:
        made = made or TableOptimizer(tables)
        made.step()
    assert not torch.equal(tables.weight("a"), before) and tables._tables.step() == 2


# --- penalties over all parameters -------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["square", "abs"])
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adam(p, 0.1), lambda p: torch.optim.AdamW(p, 0.1)])
@pytest.mark.parametrize("first, backend", [(False, None), (True, None), (False, "aot_eager")])
def test_a_penalty_over_all_parameters(penalty, make, first, backend):
    """Rows are no parameters of a fused collection: it penalizes the others."""
    results = []
    for with_tables in (True, False):
        torch.manual_seed(SEED)
        head = nn.Linear(2, 1)
        tables = EmbeddingBagCollection([A], SGD(0.1), seed=SEED)
        parameters = [*(tables.parameters() if with_tables else ()), *head.parameters()]
        optimizer = make(parameters)
        torch._dynamo.reset()
        lookup = torch.compile(tables, backend=backend, fullgraph=True) if backend else tables
        for _ in range(4):
            if first:
                cost = sum(getattr(p, penalty)().sum() for p in parameters)
            loss = head(lookup(one_hot(a=[1, 2, 3]))).square().mean()
            if not first:
                cost = sum(getattr(p, penalty)().sum() for p in parameters)
            optimizer.zero_grad()
            (loss + 1e-2 * cost).backward()
            optimizer.step()
        results.append((head.weight.detach().clone(), tables.weight("a").clone()))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("long", [False, True])
def test_a_fault_names_the_feature_and_its_table(fused, long):
    configs = [TableConfig("users", 100, 2, ("x", "y", "z")), TableConfig("items", 5, 2)]
    tables = EmbeddingBagCollection(configs, RowwiseAdagrad(1.0), seed=SEED, fused=fused)
    bags = 40 if long else 2
    ids = torch.zeros(4, bags, dtype=torch.int64)
    for feature, table, bad in ((2, "users", 100), (3, "items", -1), (0, "users", 2**40)):
        wrong = ids.clone()
        wrong[feature, 1] = bad
        batch = KeyedJaggedTensor.one_hot(["x", "y", "z", "items"], wrong)
        with pytest.raises(IndexError, match=rf"feature {feature} of table {table}, bag 1, position {feature * bags + 1}, value {bad}"):
            tables(batch)
        with pytest.raises(IndexError, match=rf"feature {feature} of table {table}, bag 1, position 1, value {bad}"):
            tables.unpooled(batch)
    good = KeyedJaggedTensor.one_hot(["x", "y", "z", "items"], ids)
    with pytest.raises(ValueError, match="feature 1 of table users"):
        tables(KeyedJaggedTensor(good.keys(), good.values(), good.offsets().index_fill(0, torch.tensor([bags + 1]), -3)))
    assert tables(good).shape == (bags, 8)
