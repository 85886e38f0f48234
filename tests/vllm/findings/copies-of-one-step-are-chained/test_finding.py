"""V5 on vLLM 0.32.0: c reads wrong KV on rank 0: slot 0 of block 5 holds a Mamba state after
'xxxxx', not 'x'

Needs pytest, vLLM, and vllm_driver.py beside it. Fails as long as vLLM does this, here or while
all runs to rest afterwards; passes where it is mended. It is known: copies of one step are
chained.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
submit(a) submit(b) submit(c)
"""


def test_reads_are_true() -> None:
    engine = Engine(
        requests=[
            Request("a", "x" * 5),
            Request("b", "x" * 5 + "y" * 28),
            Request("c", "x" * 5 + "y" * 12),
        ],
        num_ranks=1,
    )
    engine.run(ACTIONS, watching="V5")
