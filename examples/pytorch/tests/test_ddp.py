"""DistributedDataParallel around a collection: what the ranks do is in ddp_ranks.py."""

import pytest
from ranks import needs_gloo, run_ranks


@needs_gloo
@pytest.mark.parametrize("case", ["equal_to_one_process", "no_sync_accumulates", "a_fused_collection_is_refused"])
def test_two_processes(case):
    run_ranks("ddp_ranks.py", 2, case)
