"""A on vLLM 0.32.0: schedule_pass() raised TypeError in build_connector_meta
(vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py:383): 'NoneType'
object is not subscriptable

Needs pytest, vLLM, and vllm_driver.py beside it. Fails as long as vLLM does this, here or while
all runs to rest afterwards; passes where it is mended. It is known: reset forgets what is
resumed at once.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
submit(a) step() reset(True)
"""


def test_nothing_is_raised() -> None:
    engine = Engine(
        requests=[Request("a", "x" * 17)],
        token_budget=16,
        num_ranks=1,
    )
    engine.run(ACTIONS, watching="A")
