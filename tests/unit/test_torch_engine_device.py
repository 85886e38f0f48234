"""The torch engine's device side: digests, forward pass, streams, ranks and the store."""

from __future__ import annotations

import pytest
import torch

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import DeviceNotAvailable, EngineError, StreamKind, TorchEngine
from cowtail.impl.torch_engine.digests import PRIME, DigestTable, payload_of
from cowtail.impl.torch_engine.store import (
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    TRANSFER_FAILED,
    InMemoryStore,
    StoreKey,
    Value,
)
from cowtail.impl.torch_engine.streams import DeferredStream, ImmediateStream
from cowtail.models.actions import RunJob
from cowtail.models.observations import GARBAGE
from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba

HYBRID = Scope(
    name="hybrid",
    groups=(full_attention(2), full_attention(4), mamba(4)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "abcdefgh", max_tokens=2), RequestSpec("b", "xbcdefgh")),
)
FIRST_STEP = "submit(a) begin_pass() admit(a) end_pass() execute() update_from_output()"
NEXT_STEP = "begin_pass() extend(a) end_pass() execute() update_from_output()"

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")


def play(engine: TorchEngine, text: str) -> TorchEngine:
    for action in parse_actions(text):
        engine.perform(action)
    return engine


def written_by_next_step(engine: TorchEngine) -> list[str]:
    """Play the second chunk and return what stands in the slots of its tokens."""
    play(engine, NEXT_STEP)
    view, memory = engine.observe().requests[0], engine.observe().memory
    small, large, states = view.tables
    return [
        *(memory[small[t // 2]][t % 2] for t in range(4, view.computed)),
        *(memory[large[t // 4]][t % 4] for t in range(4, view.computed)),
        memory[states[-1]][0],
    ]


def test_right_reads_give_the_digests_of_the_prefixes() -> None:
    engine = play(TorchEngine(HYBRID), FIRST_STEP)
    assert engine.observe().requests[0].computed == 4
    tokens = ["abcde", "abcdef", "abcdefg"]
    assert written_by_next_step(engine) == [*tokens, *tokens, "abcdefg"]


PLACES = [*((group, token) for group in (0, 1) for token in range(4)), (2, 3)]


@pytest.mark.parametrize(("group", "token"), PLACES)
@pytest.mark.parametrize("wrong", ["zero", "neighbour", "other request"])
def test_one_wrong_read_makes_everything_written_garbage(
    group: int, token: int, wrong: str
) -> None:
    engine = play(TorchEngine(HYBRID), FIRST_STEP)
    table = engine.observe().requests[0].tables[group]
    size = HYBRID.groups[group].block_size
    block, slot = (table[-1], 0) if group == 2 else (table[token // size], token % size)
    other = play(TorchEngine(HYBRID), FIRST_STEP.replace("(a)", "(b)"))
    for worker, elsewhere in zip(engine.workers, other.workers, strict=True):
        digests = worker.memory.digests
        value = {
            "zero": torch.tensor(0),
            "neighbour": digests[table[0], (slot + 1) % 2 if group < 2 else 1],
            "other request": elsewhere.memory.digests[block, slot],
        }[wrong].clone()
        assert value != digests[block, slot]
        digests[block, slot] = value
        worker.memory.payload[block, slot] = payload_of(value, worker.memory.width)
    # Only one request's reads are wrong, and only one of them.
    assert set(written_by_next_step(engine)) == {GARBAGE}


def test_swapped_slots_are_noticed() -> None:
    engine = play(TorchEngine(HYBRID), FIRST_STEP)
    block = engine.observe().requests[0].tables[0][0]
    for worker in engine.workers:
        worker.memory.digests[block] = worker.memory.digests[block].flip(0)
    assert set(written_by_next_step(engine)) == {GARBAGE}


def test_a_payload_that_does_not_match_its_digest_is_garbage() -> None:
    engine = play(TorchEngine(HYBRID), FIRST_STEP)
    block = engine.observe().requests[0].tables[0][0]
    worker = engine.workers[0]
    before = worker.digests.decode(worker.memory.digests, worker.memory.payload)[block]
    worker.memory.payload[block, 1, -1] += 1
    after = worker.digests.decode(worker.memory.digests, worker.memory.payload)[block]
    assert before[:2] == ["a", "ab"]
    assert after[:2] == ["a", GARBAGE]


def test_a_chunk_may_attend_to_what_its_own_step_writes() -> None:
    scope = Scope(
        name="attention",
        groups=(full_attention(2),),
        hash_unit=1,
        num_blocks=9,
        requests=(RequestSpec("a", "abcd"), RequestSpec("b", "abcde")),
    )
    text = "submit(a) submit(b) begin_pass() admit(a) admit(b) end_pass() execute()"
    engine = play(TorchEngine(scope), text)
    observed = engine.observe()
    last = observed.requests[1].tables[0][-1]
    assert observed.requests[1].tables[0][:2] == observed.requests[0].tables[0]
    assert observed.memory[last] == ("abcde", "")


def test_a_chunk_longer_than_one_segment_of_the_recurrence() -> None:
    prompt = "".join(chr(0x4E00 + index) for index in range(300))
    scope = Scope(
        name="long",
        groups=(full_attention(100),),
        hash_unit=100,
        num_blocks=6,
        requests=(RequestSpec("a", prompt),),
        token_budget=300,
    )
    engine = play(TorchEngine(scope), "submit(a) begin_pass() admit(a) end_pass() execute()")
    slots = [slot for page in engine.observe().memory[1:4] for slot in page]
    assert slots == [prompt[: end + 1] for end in range(300)]


def test_ranks_have_memory_and_bytes_of_their_own() -> None:
    engine = play(TorchEngine(HYBRID), FIRST_STEP)
    first, second = (worker.memory for worker in engine.workers)
    written = first.digests != 0
    assert written.any()
    assert torch.equal(written, second.digests != 0)
    assert not (first.digests == second.digests)[written].any()
    block = engine.observe().requests[0].tables[0][0]
    assert engine.observe().memory[block][0] == "a"
    second.digests[block, 0] = first.digests[block, 0]
    second.writes += 1
    assert engine.observe().memory[block][0] == GARBAGE


def test_prefixes_with_one_digest_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cowtail.impl.torch_engine.digests.PRIME", 7)
    with pytest.raises(ValueError, match="both have digest"):
        DigestTable(HYBRID, 0, 4)
    assert PRIME == 2**31 - 1


def test_a_deferred_operation_waits_for_what_it_depends_on() -> None:
    done: list[str] = []
    compute, offload = DeferredStream(), DeferredStream()
    first = compute.submit(lambda: done.append("computed"))
    second = offload.submit(lambda: done.append("read"), after=(first,))
    assert done == []
    second.wait()
    second.wait()
    assert done == ["computed", "read"]
    with pytest.raises(EngineError, match="empty"):
        compute.run_oldest()


def test_an_immediate_operation_has_happened_when_it_is_submitted() -> None:
    done: list[str] = []
    ImmediateStream().submit(lambda: done.append("computed")).wait()
    assert done == ["computed"]


TO_A_STORE_AND_BACK = (
    f"{FIRST_STEP} {NEXT_STEP} submit(b) begin_pass() extend(a) admit(b) end_pass() execute() "
    "update_from_output() run_job(0) run_job(1, failed) run_job(0) run_job(1) run_job(0) "
    "run_job(1) report(0, 0) report(1, 0) report(1, 1) report(0, 1) update_connector_output() "
    "abort(a) abort(b) begin_pass() end_pass() execute() update_from_output()"
)


def test_immediate_and_deferred_streams_end_in_the_same_state() -> None:
    deferred = TorchEngine(HYBRID, streams=StreamKind.DEFERRED)
    immediate = TorchEngine(HYBRID, streams=StreamKind.IMMEDIATE)
    differed = False
    for action in parse_actions(TO_A_STORE_AND_BACK):
        deferred.perform(action)
        immediate.perform(action)
        differed |= deferred.observe() != immediate.observe()
    assert differed, "nothing was deferred"
    assert deferred.observe() == immediate.observe()
    assert deferred.observe().store


@needs_gpu
@pytest.mark.parametrize("streams", [StreamKind.CUDA, StreamKind.DEFERRED])
def test_a_gpu_ends_in_the_same_state(streams: StreamKind) -> None:
    gpu = play(TorchEngine(HYBRID, device="cuda", streams=streams), TO_A_STORE_AND_BACK)
    cpu = play(TorchEngine(HYBRID), TO_A_STORE_AND_BACK)
    assert gpu.observe() == cpu.observe()


def test_a_block_reused_before_its_job_ran_is_stored_with_wrong_bytes() -> None:
    scope = Scope(
        name="reuse",
        groups=(full_attention(2), mamba(2)),
        hash_unit=1,
        num_blocks=7,
        requests=(RequestSpec("a", "ab"), RequestSpec("b", "wxyz")),
    )
    text = (
        "submit(a) begin_pass() admit(a) end_pass() execute() update_from_output() abort(a) "
        "begin_pass() end_pass() execute() update_from_output() "
        "run_job(0) report(0, 0) update_connector_output() "
        "submit(b) begin_pass() admit(b) end_pass() execute() update_from_output() "
        "begin_pass() extend(b) end_pass() execute() update_from_output() "
    )
    reuse = "begin_pass() extend(b) end_pass() execute() update_from_output()"
    pinned = play(TorchEngine(scope), text)
    with pytest.raises(EngineError, match="only 0 are free"):
        play(pinned, reuse)
    puts = pinned.perform(RunJob(1)).puts
    assert [entry.content for entry in puts] == [("a",), ("a",)]
    unpinned = play(TorchEngine(scope, faults=["pin_released_after_first_rank"]), text + reuse)
    puts = unpinned.perform(RunJob(1)).puts
    assert [(entry.prefix, entry.content) for entry in puts] == [("a", ("a",)), ("a", ("wxy",))]


def value(number: int) -> Value:
    return Value(torch.tensor([number]), torch.full((1, 2), float(number)))


def test_the_first_write_of_a_key_wins_and_the_store_keeps_its_own_bytes() -> None:
    store, key, first = InMemoryStore(), StoreKey(0, 0, "a"), value(7)
    assert store.batch_put_from([key], [first]) == [0]
    assert store.batch_put_from([key], [value(8)]) == [0]
    first.digests[0] = 9
    read = value(0)
    assert store.batch_get_into([key], [read]) == [16]
    assert read.digests.tolist() == [7]
    assert read.payload.tolist() == [[7.0, 7.0]]


def test_the_store_answers_with_codes() -> None:
    store, key = InMemoryStore(), StoreKey(0, 0, "a")
    with store.failing():
        assert store.batch_put_from([key, key], [value(1), value(1)]) == [TRANSFER_FAILED] * 2
    assert store.batch_is_exist([key]) == [0]
    assert store.batch_put_from([key], []) == [INVALID_PARAMS]
    assert store.batch_get_into([key], [value(0)]) == [OBJECT_NOT_FOUND]
    assert store.batch_put_from([key], [value(1)]) == [0]
    two = Value(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2))
    assert store.batch_get_into([key], [two]) == [TRANSFER_FAILED]


def test_cuda_without_a_gpu_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceNotAvailable, match="sees no CUDA GPU here; use cpu"):
        TorchEngine(HYBRID, device="cuda")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, "device 'tpu': no such device"),
        ({"payload_width": 0}, "payload_width=0: must be 1 or more"),
        ({"streams": StreamKind.CUDA}, "use device cuda"),
        ({"faults": ["K99"]}, "fault 'K99': no such fault"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchEngine(HYBRID, **arguments)  # type: ignore[arg-type]
