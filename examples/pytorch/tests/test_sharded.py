"""ShardedEmbeddingBagCollection against one process; what the ranks do is in sharded_ranks.py."""

import os
import subprocess
import sys
import textwrap

import pytest
from ranks import HERE, needs_gloo, run_ranks

CASES = [
    "equal_to_one_process",
    "integers_are_exact",
    "as_embedding_bag",
    "formats",
    "faults",
    "what_a_loop_does",
    "state_of_the_part",
    "what_is_refused",
    "configurations_of_torchrec",
    "other_tables",
    "silent",
]


@needs_gloo
@pytest.mark.parametrize("case", CASES)
def test_two_processes(case):
    run_ranks("sharded_ranks.py", 2, case)


@needs_gloo
def test_three_processes():
    run_ranks("sharded_ranks.py", 3, "integers_are_exact", "faults", "state_of_the_part", "silent")


@needs_gloo
def test_the_program_of_the_docs(tmp_path):
    page = (HERE.parents[2] / "docs" / "pytorch.md").read_text().split("## Tables of many processes\n")[1]
    program = tmp_path / "train.py"
    program.write_text(page.split("```python\n")[1].split("```")[0])
    printed = textwrap.dedent(page.split("```")[2].split("\n|")[0]).strip()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*launcher, program], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == printed
