"""Each idiom of training loops against nn.EmbeddingBag and torch.optim: the same losses, or a refusal that has the way out. The table
of docs/pytorch.md is made here: python test_idioms.py prints it."""

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from idioms import IDIOMS, Run

BACKENDS = ["eager", "aot_eager", "inductor"]
KINDS = ["fused", "apart"]
SAME = "same losses"


@lru_cache
def wanted(number: int, rule: str) -> list[float] | None:
    """Losses of layers of PyTorch, without a compiler; None where this PyTorch refuses the loop."""
    one = IDIOMS[number]
    try:
        return [float(loss.detach()) for loss in one.loop(Run(one.reference, rule, weight_decay=one.weight_decay))]
    except NotImplementedError as refused:
        print(f"{one.what}: PyTorch {torch.__version__} refuses it: {refused}")
        return None


@lru_cache
def outcome(number: int, kind: str, backend: str) -> str:
    one, found = IDIOMS[number], set()
    for rule in one.rules:
        if wanted(number, rule) is None:
            return SAME
        try:
            losses = one.loop(Run(kind, rule, None if backend == "eager" else backend, one.weight_decay))
        except RuntimeError as refused:
            # aot_eager copies what backward passes write, and PyTorch itself refuses a graph that saved it before.
            by_pytorch = backend == "aot_eager" and "modified by an inplace operation" in str(refused)
            assert by_pytorch or "fused=False" in str(refused) or "add the losses" in str(refused), refused
            found.add("refused")
        else:
            given, close = [float(loss.detach()) for loss in losses], wanted(number, rule)
            if kind == "fused" and one.unlike:
                assert not torch.allclose(torch.tensor(given), torch.tensor(close), rtol=one.bound, atol=0)
                found.add(one.unlike)
                continue
            torch.testing.assert_close(given, close, rtol=one.bound, atol=0)
            found.add(SAME)
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(IDIOMS)), ids=[one.loop.__name__ for one in IDIOMS])
def test_an_idiom(number, kind, backend):
    made = outcome(number, kind, backend)
    assert made == SAME or kind == "fused"


def cell(number: int, kind: str) -> str:
    made = {backend: outcome(number, kind, backend) for backend in BACKENDS}
    if len(set(made.values())) == 1:
        return made["eager"]
    return f"{SAME}; refused with {', '.join(f'`{b}`' for b, what in made.items() if what != SAME)}"


def table() -> str:
    rows = [f"| {one.what} | {cell(number, 'fused')} | {cell(number, 'apart')} |" for number, one in enumerate(IDIOMS)]
    return "\n".join(["| the loop | fused | `fused=False` |", "|---|---|---|", *rows])


def test_the_table_of_the_docs():
    page = (Path(__file__).resolve().parents[3] / "docs" / "pytorch.md").read_text()
    assert table() in page, table()


if __name__ == "__main__":
    print(table())
