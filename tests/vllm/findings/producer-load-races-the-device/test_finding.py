"""V6 on vLLM 0.32.0: b loads into [1, 2], which a step that the device has not run yet copies or
writes

Needs pytest, vLLM, and vllm_driver.py beside it. Fails as long as vLLM does this, here or while
all runs to rest afterwards; passes where it is mended. Found by `cowtail fuzz --target vllm`,
seed 1, episode 1525. It is known: producer load races the device.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
submit(a) schedule_pass() abort(a) submit(b) step()
"""


def test_loads_do_not_race() -> None:
    engine = Engine(
        requests=[Request("a", "x"), Request("b", "x" * 5)],
        role="producer",
        num_ranks=1,
        max_steps_in_flight=2,
        stored=[Request("stored_0", "x" * 5)],
    )
    engine.run(ACTIONS, watching="V6")
