"""V6 on vLLM 0.32.0: c loads into [1], which a step that the device has not run yet copies or
writes

Needs pytest, vLLM, and vllm_driver.py beside it. Fails as long as vLLM does this, here or while
all runs to rest afterwards; passes where it is mended. It is known: producer load races the
device.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
submit(a) run_to_rest() submit(b) schedule_pass() submit(c) schedule_pass()
"""


def test_loads_do_not_race() -> None:
    engine = Engine(
        requests=[Request("a", "x" * 5), Request("b", "x" * 5), Request("c", "z" * 37)],
        num_blocks=8,
        role="producer",
        num_ranks=1,
        max_steps_in_flight=2,
        stored=[Request("stored_0", "z" * 37)],
    )
    engine.run(ACTIONS, watching="V6")
