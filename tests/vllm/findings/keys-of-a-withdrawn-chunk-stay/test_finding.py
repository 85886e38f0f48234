"""S3 on vLLM 0.32.0: the key of group 1 at '…yyyyyy' (36 tokens) is wrong on rank 0: block 9 holds
nothing, not the state after '…yyyyyy' (36 tokens)

Needs pytest, vLLM, and vllm_driver.py beside it. Fails as long as vLLM does this, here or while
all runs to rest afterwards; passes where it is mended. It is known: keys of a withdrawn chunk
stay.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
submit(a) submit(b) step() submit(c)
"""


def test_keyed_contents_are_true() -> None:
    engine = Engine(
        requests=[
            Request("a", "x", max_tokens=3),
            Request("b", "y" * 37, priority=2),
            Request("c", "z" * 5),
        ],
        num_blocks=10,
        token_budget=32,
        num_ranks=1,
        priority=True,
    )
    engine.run(ACTIONS, watching="S3")
