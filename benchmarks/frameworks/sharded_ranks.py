"""One of two processes of torch_suite.py: a ShardedEmbeddingBagCollection beside TorchRec's tables, on the same batches and
one gloo group. RANK STORE BENCHMARK RESULT PLACEMENT.
"""

import itertools
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
from two_ranks import RANKS, Unavailable, begin, check_equal, compare, run_rank  # noqa: E402

import torch  # noqa: E402

TABLES, WIDTH, BATCH, RATE, SEED = 26, 16, 2048, 0.05, 1
DATA = "criteo/criteo_kaggle_merged_24k.tsv"
ROWS = min(10**6, int(os.environ.get("DEEPREC_BENCH_ROWS") or 10**6))
NAMES = [f"t{number}" for number in range(TABLES)]


def rank_of(table):
    return table % RANKS


def our_tables(placement, group):
    import deeprec_torch

    tables = [deeprec_torch.TableConfig(name, ROWS, WIDTH) for name in NAMES]
    whole = {name: rank_of(number) for number, name in enumerate(NAMES)}
    made = deeprec_torch.ShardedEmbeddingBagCollection(
        tables, deeprec_torch.SGD(RATE), SEED, placements=whole if placement == "whole" else None, group=group
    )
    return made, lambda ids: deeprec_torch.KeyedJaggedTensor.one_hot(NAMES, ids)


def torchrec_tables(placement, group):
    try:
        import torchrec
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed import comm_ops
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
        from torchrec.distributed.types import ShardingEnv, ShardingPlan
    except (ImportError, OSError) as problem:
        raise Unavailable(f"torchrec and fbgemm_gpu are not installed: {problem}") from problem
    comm_ops.set_gradient_division(False)  # gradients of the processes are added, as ours
    device = torch.device("cpu")
    tables = [
        torchrec.EmbeddingBagConfig(num_embeddings=ROWS, embedding_dim=WIDTH, name=name, feature_names=[name]) for name in NAMES
    ]
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE})
    whole = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    plan = construct_module_sharding_plan(
        whole,
        {name: table_wise(rank=rank_of(number), compute_kernel="fused") if placement == "whole" else row_wise(compute_kernel="fused") for number, name in enumerate(NAMES)},
        sharder=sharder,
        local_size=RANKS,
        world_size=RANKS,
        device_type="cpu",
    )
    made = DistributedModelParallel(
        Model(whole),
        env=ShardingEnv.from_process_group(group),
        device=device,
        plan=ShardingPlan({"tables": plan}),
        sharders=[sharder],
        init_data_parallel=False,
    )

    def prepare(ids):
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        return torchrec.KeyedJaggedTensor(NAMES, ids.reshape(-1), lengths=lengths)

    return made, prepare


class Model(torch.nn.Module):
    """The pooled rows of all tables, in whichever order of tables they come: `names` of the last call."""

    def __init__(self, tables):
        super().__init__()
        self.tables = tables
        self.names = []

    def forward(self, batch):
        pooled = self.tables(batch)
        self.names = pooled.keys()
        return pooled.values()


def set_equal(theirs):
    """TorchRec's rows to those that ours begins with."""
    import deeprec_torch

    states = {name.split(".")[-2]: value for name, value in theirs.state_dict().items()}
    for number, name in enumerate(NAMES):
        whole = deeprec_torch.EmbeddingBagCollection([deeprec_torch.TableConfig(name, ROWS, WIDTH)], seed=SEED + number).weight(name)
        for shard in states[name].local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(whole[row : row + rows, column : column + columns])


def batches_of(rank):
    """(26, BATCH) ids: every second batch of Criteo's sample."""
    import deeprec_torch

    data = Path(os.environ.get("DEEPREC_DATA_DIR") or ".", DATA)
    if not data.exists():
        raise Unavailable(f"no {DATA} in DEEPREC_DATA_DIR")
    made = []
    for _, _, ids in deeprec_torch.CriteoDataset([str(data)], rows=ROWS, batch_size=BATCH):
        ids = ids if ids.shape[0] == TABLES else ids.t()
        if ids.shape[1] == BATCH:
            made.append(ids.clone().contiguous())
    return made[rank : len(made) // RANKS * RANKS : RANKS]


def main():
    rank, group = begin()
    placement = sys.argv[5]
    columns = batches_of(rank)
    collection, prepare = our_tables(placement, group)
    theirs, prepare_theirs = torchrec_tables(placement, group)
    set_equal(theirs)
    calls = {"ours": collection, "torchrec": theirs}
    with torch.no_grad():
        theirs(prepare_theirs(columns[0]))
    order_of = [NAMES.index(name) for name in theirs.module.names]
    ahead = {
        "ours": itertools.cycle([prepare(ids) for ids in columns]),
        "torchrec": itertools.cycle([prepare_theirs(ids) for ids in columns]),
    }
    gradient = torch.empty(BATCH, TABLES, WIDTH).uniform_(-0.1, 0.1)
    gradients = {"ours": gradient.view(BATCH, -1), "torchrec": gradient[:, order_of].reshape(BATCH, -1)}

    def step_of(side):
        def step():
            out = calls[side](next(ahead[side]))
            out.backward(gradients[side])
            return out.detach().view(BATCH, TABLES, WIDTH)

        return step

    steps = {side: step_of(side) for side in calls}
    for count in range(3):  # the same rows after a step
        outs = {side: step() for side, step in steps.items()}
        check_equal(outs["ours"][:, order_of], {"TorchRec": outs["torchrec"]}, f"after {count} steps")
    distinct = sum(len(torch.unique(ids)) for batch in columns for ids in batch) / (len(columns) * TABLES * BATCH)
    compare(steps, {"rows": float(ROWS), "distinct": distinct})


if __name__ == "__main__":
    run_rank(main)
