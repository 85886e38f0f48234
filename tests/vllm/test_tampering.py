"""Every property catches something: real objects are tampered with, and it fires."""

from typing import Any

import attrs
import pytest

from cowtail.impl.vllm_engine.checks import QUIESCENCE, SAFETY, Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.device import MAMBA, NULL_BLOCK
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import (
    Abort,
    Execute,
    Report,
    Reset,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

STEP = (SchedulePass(), Execute(), UpdateFromOutput())
TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"


@pytest.fixture
def session() -> Session:
    """Return an engine with two requests of the same prompt, and one of another."""
    requests = (
        RequestSpec("a", TEXT[:44], max_tokens=3),
        RequestSpec("b", TEXT[:44], max_tokens=3),
        RequestSpec("c", "x" * 45),
    )
    return Session(EngineConfig(requests=requests))


def connector(session: Session) -> Any:
    return session.scheduler.connector.connector_scheduler


def pool(session: Session) -> Any:
    return session.scheduler.kv_cache_manager.block_pool


def mamba_manager(session: Session) -> Any:
    return session.scheduler.kv_cache_manager.coordinator.single_type_managers[MAMBA]


def wrap(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, tamper: Any) -> None:
    """Replace ``owner.name(...)`` by ``tamper(its result)``."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kw: tamper(original(*args, **kw)))


def submit_and_drain_each(session: Session) -> None:
    for request in session.config.requests:
        session.do(Submit(request.name))
        session.drain()


def expect(identifier: str, session: Session, match: str = "") -> None:
    """Submit the requests one after another and drain; ``identifier`` must be violated."""
    with pytest.raises(Violation, match=f"^{identifier}: .*{match}"):
        submit_and_drain_each(session)


def test_untampered_everything_holds(session: Session) -> None:
    submit_and_drain_each(session)
    assert session.statistics["tails handed off by CoW"] == 2
    assert session.device.num_copies == 4


def test_s1_fires_when_the_connector_takes_no_reference(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTouch:
        def touch(self, blocks: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(pool(session), name)

    monkeypatch.setattr(connector(session), "_gpu_block_pool", NoTouch())
    expect("S1", session, "references, and .* owners")


def test_s2_fires_when_a_key_is_dropped_on_one_side_only(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.do_all(Submit("a"), *STEP)
    cache = pool(session).cached_block_hash_to_block._cache
    del cache[next(iter(cache))]
    with pytest.raises(Violation, match=r"S2: block .* is found under 0 keys"):
        session.do(SchedulePass())


def test_s3_fires_when_a_cached_block_is_overwritten(session: Session) -> None:
    session.do_all(Submit("a"), *STEP)
    session.memories[1].write_slot(session.view.tables("a")[0][0], 5, "somebody else")
    with pytest.raises(Violation, match=r"S3: .* on rank 1: slot 5 of block"):
        session.do(Submit("b"))


def test_v5_fires_when_a_running_state_is_overwritten(session: Session) -> None:
    session.do_all(Submit("a"), *STEP, *STEP, *STEP)
    state = session.view.tables("a")[MAMBA][-1]
    session.do(SchedulePass())
    session.memories[0].write_state(state, "somebody else")
    with pytest.raises(Violation, match="V5: a reads wrong KV on rank 0"):
        session.do(Execute())


def test_v5_fires_when_a_hit_inside_a_block_goes_on_without_its_copy(session: Session) -> None:
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass())
    assert session.steps[0].scheduled.kv_cache_block_copies
    session.steps[0].scheduled.kv_cache_block_copies = None
    with pytest.raises(Violation, match="V5: b reads wrong KV"):
        session.do(Execute())


def test_v6_fires_when_freed_blocks_do_not_wait_for_the_steps_in_flight() -> None:
    requests = (
        RequestSpec("a", TEXT[:30]),
        RequestSpec("b", TEXT[:30]),
        RequestSpec("c", "x" * 40),
    )
    config = EngineConfig(
        requests=requests,
        stored=(RequestSpec("stored", "x" * 40),),
        num_blocks=8,
        max_steps_in_flight=2,
    )
    for defer in (True, False):
        session = Session(config)
        assert session.scheduler.defer_block_free
        session.scheduler.defer_block_free = defer
        session.do(Submit("a"))
        session.drain()
        session.do_all(Submit("b"), SchedulePass(), Submit("c"))
        if defer:
            session.do(SchedulePass())
            continue
        with pytest.raises(Violation, match="V6: c loads into"):
            session.do(SchedulePass())


def test_s7_fires_when_a_handoff_names_the_block_at_the_tables_position(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect that R30 is about: the table's block is overwritten, the copy is the state."""
    size = session.config.mamba_block_size

    def by_position(offers: dict[str, list[tuple[int, int, int]]]) -> Any:
        return {
            name: [
                (group, session.view.tables(name)[group][(boundary - 1) // size], boundary)
                for group, _, boundary in entries
            ]
            for name, entries in offers.items()
        }

    manager = session.scheduler.kv_cache_manager
    wrap(monkeypatch, manager, "take_boundary_state_offloads", by_position)
    expect("S7", session, "not the state after")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"block_id": NULL_BLOCK}, "is the null block"),
        ({"num_tokens": 48}, "is past the end of prefill, 44"),
    ],
)
def test_s7_fires_on_a_null_block_and_past_the_end_of_prefill(
    session: Session, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], match: str
) -> None:
    def tamper(metadata: Any) -> Any:
        for request in metadata.requests:
            request.boundary_puts = [
                put._replace(**change) if put.num_tokens == 40 and put.group_id == MAMBA else put
                for put in request.boundary_puts or []
            ]
        return metadata

    wrap(monkeypatch, session.scheduler.connector, "build_connector_meta", tamper)
    expect("S7", session, match)


def test_s7_fires_on_a_block_without_a_reference(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = session.view.free_list()[-1]

    def tamper(metadata: Any) -> Any:
        for request in metadata.requests:
            request.boundary_puts = [
                put._replace(block_id=free) for put in request.boundary_puts or []
            ]
        return metadata

    wrap(monkeypatch, session.scheduler.connector, "build_connector_meta", tamper)
    expect("S7", session, "without a reference")


def test_s8_fires_when_a_rank_stores_another_block(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = session.ranks[1].worker.token_dbs[MAMBA]
    monkeypatch.setattr(database, "prepare_value_for_block", lambda block: ([1], [1]))
    expect("S8", session, "is stored wrong")


def test_s9_fires_when_a_pin_is_released_after_the_first_rank(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a report that came twice would do: completions are counted, not told apart."""
    original = connector(session).update_connector_output

    def twice(output: Any) -> None:
        saves = output.kv_connector_worker_meta.completed_saves
        saves.update(dict.fromkeys(saves, 2))
        original(output)

    monkeypatch.setattr(connector(session), "update_connector_output", twice)
    session.do_all(Submit("a"), SchedulePass(), Execute(), RunJob(0), Report(0, 0))
    with pytest.raises(Violation, match=r"S9: job 0 lost its pin on .* rank 1 not reported"):
        session.do(UpdateConnectorOutput())


def test_s9_fires_when_a_pin_is_never_released(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector(session), "update_connector_output", lambda output: None)
    expect("S9", session)


def test_s9_fires_when_a_pin_leaves_a_block_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connector(session)._reference_save_blocks

    def leave_out(metadata: Any) -> None:
        original(metadata)
        for job, (blocks, ranks) in connector(session)._pinned_saves.items():
            pool(session).free_blocks([pool(session).blocks[blocks[-1]]])
            connector(session)._pinned_saves[job] = (blocks[:-1], ranks)

    monkeypatch.setattr(connector(session), "_reference_save_blocks", leave_out)
    expect("S9", session, "but reads")


def test_s10_fires_when_a_tail_is_handed_off_twice(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier: dict[str, Any] = {}

    def repeat(offers: dict[str, Any]) -> dict[str, Any]:
        again = {**earlier, **offers}
        earlier.update(offers)
        return {name: again[name] for name in again if name in session.scheduler.requests}

    manager = session.scheduler.kv_cache_manager
    wrap(monkeypatch, manager, "take_boundary_state_offloads", repeat)
    expect("S10", session, "a second time")


def test_s10_fires_when_a_marker_outlives_its_tail(session: Session) -> None:
    session.do(Submit("c"))
    while not session.view.markers():
        session.do_all(*STEP)
    markers = mamba_manager(session)._producer_partial_tail_reqs
    kept = dict(markers)
    session.do(Abort("c"))
    assert session.statistics["pins outliving requests"] > 0
    markers.update(kept)
    with pytest.raises(Violation, match="S10: the tail of c at 44 marks block"):
        session.do(SchedulePass())


def test_l2_fires_when_a_manager_remembers_a_finished_request(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = mamba_manager(session)
    original = manager.pop_blocks_for_free

    def remember(request: str) -> Any:
        blocks = original(request)
        manager.num_cached_block[request] = 0
        return blocks

    monkeypatch.setattr(manager, "pop_blocks_for_free", remember)
    expect("L2", session, "MambaManager.num_cached_block still has a")


def test_s13_fires_when_a_reset_keeps_a_key(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.config = attrs.evolve(session.config, max_resets=1)
    submit_and_drain_each(session)
    monkeypatch.setattr(session.scheduler.kv_cache_manager, "reset_prefix_cache", lambda: True)
    with pytest.raises(Violation, match=r"S13: the cache was reset, but blocks .* have keys"):
        session.do(Reset())


def test_s13_fires_when_a_reset_store_keeps_an_entry(session: Session) -> None:
    session.config = attrs.evolve(session.config, max_resets=1)
    submit_and_drain_each(session)
    session.lookup.remove_all = lambda: None
    with pytest.raises(Violation, match=r"S13: the store was reset, but still has"):
        session.do(Reset(store=True))


def test_l2_fires_when_a_lookup_is_left(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(session.lookup), "has_lookups", True)
    expect("L2", session, "questions or answers left")


def test_l2_names_the_bound_when_a_drain_does_not_end(session: Session) -> None:
    session.do(Submit("a"))
    with pytest.raises(Violation, match=r"L2: not quiescent after 4 actions \(bound 4\)"):
        session.drain(bound=4)


def test_an_assertion_of_vllm_itself_is_a_violation_with_its_place(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connector(session).update_connector_output

    def thrice(output: Any) -> None:
        saves = output.kv_connector_worker_meta.completed_saves
        saves.update(dict.fromkeys(saves, 3))
        original(output)

    monkeypatch.setattr(connector(session), "update_connector_output", thrice)
    expect("A", session, r"update_connector_output \(vllm/.*too many ranks")


def test_s12_fires_when_a_lookup_asks_for_another_number_of_ranks(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = session.ranks[0].worker
    session.do_all(Submit("a"), *STEP, RunJob(0))
    monkeypatch.setattr(
        worker, "_lookup_key_prefixes", tuple(each[:1] for each in worker._lookup_key_prefixes)
    )
    with pytest.raises(Violation, match=r"S12: .* finds 32, but the store has 0 of them"):
        session.do_all(Submit("b"), SchedulePass())


def test_every_property_is_fired_by_a_test_of_this_file() -> None:
    fired = {name.split("_")[1].upper() for name in globals() if "_fires_when" in name}
    assert {prop.identifier for prop in (*SAFETY, QUIESCENCE)} <= fired
