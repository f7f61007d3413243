"""One rank of test_ddp.py: RANK RANKS STORE CASE... Each case is a function below, called by all ranks in one order."""

import sys
import traceback

import torch
from idioms import BAGS, FEATURES, RULES, TABLES, Tables, batch_of
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from deeprec_torch import KeyedJaggedTensor, TableOptimizer

RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
STEPS = 100


class Model(nn.Module):
    def __init__(self, rule, fused=False):
        super().__init__()
        torch.manual_seed(RANK)  # DistributedDataParallel sends those of rank 0
        self.tables = Tables(rule, fused)
        self.net = nn.Linear(24, 1)

    def forward(self, values, offsets):
        return self.net(self.tables(values, offsets))


def joined(batches):
    """The batches of all ranks as one."""
    values, lengths = [], []
    for feature in range(len(FEATURES)):
        for of_values, offsets, _ in batches:
            own = offsets[feature * BAGS : (feature + 1) * BAGS + 1]
            values.append(of_values[own[0] : own[-1]])
            lengths.append(own.diff())
    batch = KeyedJaggedTensor.from_lengths(FEATURES, torch.cat(values), torch.cat(lengths))
    return batch.values(), batch.offsets(), torch.cat([targets for _, _, targets in batches])


def trained(model, batch_at):
    """The rows and their state after STEPS steps."""
    own = getattr(model, "module", model)
    tables = own.tables.tables
    optimizers = [TableOptimizer(tables), torch.optim.SGD(own.net.parameters(), lr=0.05)]
    for step in range(STEPS):
        values, offsets, targets = batch_at(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(values, offsets) - targets).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [part(table.name).clone() for table in TABLES for part in (tables.weight, tables.optimizer_state)]


def equal_to_one_process():
    for name, (ours, _, rate) in RULES.items():
        rule = ours(lr=rate)
        model = DistributedDataParallel(Model(rule))
        before = [model.module.tables.tables.weight(table.name).clone() for table in TABLES]
        first = {key: value.clone() for key, value in model.module.state_dict().items()}
        here = trained(model, lambda step: batch_of(step * RANKS + RANK))
        for part in here:
            parts = [torch.empty_like(part) for _ in range(RANKS)]
            distributed.all_gather(parts, part)
            assert all(torch.equal(part, other) for other in parts), name
        alone = Model(rule)
        alone.load_state_dict(first)
        whole = trained(alone, lambda step: joined([batch_of(step * RANKS + rank) for rank in range(RANKS)]))
        for part, other in zip(here, whole):
            torch.testing.assert_close(part, other, rtol=2e-4, atol=2e-5, msg=lambda m: f"{name}: {m}")
        assert not any(torch.equal(part, other) for part, other in zip(here[::2], before))


def no_sync_accumulates():
    ours, _, rate = RULES["SGD"]
    model = DistributedDataParallel(Model(ours(lr=rate)))
    tables = model.module.tables.tables
    rows = TableOptimizer(tables)
    with model.no_sync():
        model(*batch_of(RANK)[:2]).sum().backward()
    model(*batch_of(10 + RANK)[:2]).sum().backward()
    rows.step()
    for table in TABLES:
        parts = [torch.empty_like(tables.weight(table.name)) for _ in range(RANKS)]
        distributed.all_gather(parts, tables.weight(table.name).contiguous())
        assert torch.equal(*parts)


def a_fused_collection_is_refused():
    ours, _, rate = RULES["SGD"]
    model = DistributedDataParallel(Model(ours(lr=rate), fused=True))
    try:
        model(*batch_of(0)[:2])
    except RuntimeError as refused:
        assert "Take fused=False" in str(refused)
    else:
        raise AssertionError("not refused")


if __name__ == "__main__":
    store = distributed.FileStore(sys.argv[3], RANKS)
    distributed.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
    try:
        for case in sys.argv[4:]:
            globals()[case]()
            distributed.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        raise
    distributed.destroy_process_group()
