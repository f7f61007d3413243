"""One of two processes of torch_suite.py: a dense_step beside PyTorch's all-reduce, on the same gradients and one gloo group.
RANK STORE BENCHMARK RESULT LIBRARY, the last one compiled from dense_ranks.cpp."""

import sys

sys.dont_write_bytecode = True  # no __pycache__ among the sources
from two_ranks import RANKS, begin, check_equal, compare, run_rank  # noqa: E402

import torch  # noqa: E402
from torch import distributed  # noqa: E402

TENSORS, LEAST, MOST, RATE = 60, 1 << 10, 64 << 10, 0.05  # bytes of a tensor


def sizes():
    """Floats of the tensors: of each size between the least and the most one as many, in no order."""
    torch.manual_seed(1)
    steps = torch.randperm(TENSORS) / (TENSORS - 1)
    return [int(LEAST * (MOST / LEAST) ** float(step)) // 4 for step in steps]


def main():
    rank, group = begin()
    torch.ops.load_library(sys.argv[5])
    floats = sizes()
    torch.manual_seed(2)
    first = [torch.empty(count).uniform_(-1, 1) for count in floats]
    torch.manual_seed(3 + rank)
    drawn = [torch.empty(count).uniform_(-0.1, 0.1) for count in floats]
    names = ("ours", "each", "queued", "joined")
    parameters = {side: [p.clone() for p in first] for side in names}
    gradients = {side: [g.clone() for g in drawn] for side in names}
    # The mean over the ranks, as the other sides make it behind their sums: then gradients stay what they are.
    torch._foreach_mul_(gradients["ours"], 1 / RANKS)
    dense = torch.classes.deeprec_bench.DenseStep(group.group_name, parameters["ours"], gradients["ours"], RATE)
    others = distributed.new_group()

    def apply(side):
        torch._foreach_mul_(gradients[side], 1 / RANKS)
        torch._foreach_add_(parameters[side], gradients[side], alpha=-RATE)

    def each():
        for gradient in gradients["each"]:
            distributed.all_reduce(gradient, group=others)
        apply("each")

    def queued():
        for work in [distributed.all_reduce(gradient, group=others, async_op=True) for gradient in gradients["queued"]]:
            work.wait()
        apply("queued")

    def joined():
        all_of_them = torch.cat(gradients["joined"])
        distributed.all_reduce(all_of_them, group=others)
        torch._foreach_copy_(gradients["joined"], list(all_of_them.split(floats)))
        apply("joined")

    steps = {"ours": dense.step, "each": each, "queued": queued, "joined": joined}
    for count in range(1, 4):
        for step in steps.values():
            step()
        now = {side: torch.cat(tensors) for side, tensors in parameters.items()}
        check_equal(now.pop("ours"), now, f"after {count} steps")
    compare(steps, {"tensors": float(TENSORS), "bytes": 4.0 * sum(floats), "buckets": float(dense.buckets())})


if __name__ == "__main__":
    run_rank(main)
