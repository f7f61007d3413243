"""A model with tables of several kinds, whose n-th turn of training is the same in every process: for tests of checkpoints."""

import sys

import torch
from torch import nn

import deeprec_torch
from deeprec_torch import (
    Checkpoints,
    CountingBloom,
    EmbeddingBagCollection,
    KeyedJaggedTensor,
    LeastFrequent,
    Probabilistic,
    StepTTL,
    TableConfig,
)

OPTIMIZERS = {
    "rowwise_adagrad": deeprec_torch.RowwiseAdagrad(0.1),
    "adagrad": deeprec_torch.Adagrad(0.1, initial_accumulator_value=0.1),
    "adam": deeprec_torch.Adam(0.01),
}
BAGS, KEYS = 40, 500


class Trained:
    def __init__(self, optimizer="adam", seed=3):
        tables = [
            TableConfig("u", None, 8, admission=2),
            TableConfig("v", None, 5, format="bf16", admission=CountingBloom(2, 1000), capacity=200, when_full="evict_least_frequent"),
            TableConfig("w", None, 3, admission=Probabilistic(0.5)),
            TableConfig("d", KEYS, 4, pooling="mean"),
        ]
        torch.manual_seed(seed)
        self.tables = EmbeddingBagCollection(tables, OPTIMIZERS[optimizer], seed=seed)
        self.net = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.turns = 0

    def saved_in(self, folder, **options):
        return Checkpoints(folder, self.tables, self.adam, dense=self.net, **options)

    def turn(self, count=1):
        for _ in range(count):
            self.turns += 1
            self._turn(torch.Generator().manual_seed(self.turns))
        return self

    def _turn(self, draws):
        keys = list("uvwd")
        ids = torch.randint(KEYS, (len(keys), BAGS), generator=draws)
        ids[:3] = ids[:3] * 10**15 - 10**17
        out = self.net(self.tables(KeyedJaggedTensor.one_hot(keys, ids)))
        self.adam.zero_grad()
        (out - torch.rand(out.shape, generator=draws)).square().mean().backward()
        self.adam.step()
        what = self.turns % 8
        if what == 2:
            self.tables.erase("u", ids[0, :9])
        elif what == 4:
            self.tables.evict("u", StepTTL(20))
        elif what == 5:
            self.tables.evict("w", LeastFrequent(100))
        elif what == 6:
            self.tables.assign("w", torch.rand(7, 3, generator=draws), ids[2, :7])
        elif what == 7:
            self.tables.learning_rate *= 0.9

    def content(self):
        parts = {**self.tables.state_dict(), **{f"net.{name}": value for name, value in self.net.state_dict().items()}}
        for number, state in self.adam.state_dict()["state"].items():
            parts.update({f"adam.{number}.{name}": value for name, value in state.items()})
        return {name: value.clone() for name, value in parts.items()}


def differ(one, other, full=True):
    """The names of the parts that do. Deltas, and so files that are not full, have no admission counters."""
    names = (one.keys() | other.keys()) - (set() if full else {"v.filter"})
    return sorted(n for n in names if n not in one or n not in other or not torch.equal(one[n], other[n]))


if __name__ == "__main__":
    # trained.py FOLDER TURNS WRITES: writes a file after each turn, every third a full one, and prints its turn. Of WRITES
    # "waits" a line of standard input lets it go on.
    folder, turns, writes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    model = Trained()
    saves = model.saved_in(folder)
    for turn in range(turns):
        model.turn()
        (saves.write_full if turn % 3 == 0 else saves.write_delta)(model.turns)
        print(model.turns, flush=True)
        if writes == "waits":
            sys.stdin.readline()
