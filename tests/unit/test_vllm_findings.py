"""Traces, tests and causes of findings in vLLM, as far as they go without vLLM."""

import ast
from pathlib import Path

import attrs
import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.harness.findings.emitted_test import (
    NotEmitted,
    actions_text,
    driver_settings,
    emitted_test,
    text_expression,
)
from cowtail.harness.findings.trace import (
    VllmTrace,
    dump_vllm_trace,
    is_vllm_trace,
    parse_vllm_trace,
)
from cowtail.impl.vllm_engine.causes import MAX_KEPT, Sightings, features_of, shape_of
from cowtail.impl.vllm_engine.composite import RunToRest, WholeStep, fold
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.failures import Failure, abstract
from cowtail.impl.vllm_engine.fuzz import traits_of
from cowtail.impl.vllm_engine.simpler import plain_texts, simpler_configs, weight
from cowtail.models.actions import (
    Abort,
    Action,
    Execute,
    JobOutcome,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role
from cowtail.spec.traces import TraceError, read_trace

CONFIG = EngineConfig(
    requests=(RequestSpec("a", "abcde", max_tokens=3), RequestSpec("b", "abcdf", priority=1)),
    stored=(RequestSpec("s", "abcde"),),
    role=Role.PRODUCER,
    num_blocks=8,
)
ACTIONS: tuple[Action, ...] = (
    Submit("a"),
    WholeStep(),
    RunToRest(),
    Abort("a"),
    RunLoad(1, failed=True),
    RunJob(0, JobOutcome.FAILED),
    Report(0, 1),
)
TRACE = VllmTrace(
    CONFIG, ACTIONS, "0.32.0", "S9", "job 1 lost", known="k", seed=3, episode=4, in_drain=True
)


def failure(reason: str = "block 1 is wrong", **changes: object) -> Failure:
    made = Failure("S1", reason, CONFIG, ACTIONS, 1, 2)
    return attrs.evolve(made, **changes)


def test_a_trace_is_read_back_as_it_was_written() -> None:
    text = dump_vllm_trace(TRACE)
    assert parse_vllm_trace(text) == TRACE
    assert is_vllm_trace(text)
    assert not is_vllm_trace('{"cowtail_trace": 1}\n')


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"cowtail_vllm_trace": 1', '"cowtail_vllm_trace": 2', "t:1: cowtail_vllm_trace=2: this"),
        ('"num_blocks": 8', '"num_blocks": 1', "t:1: num_blocks=1: request 'a' alone can need"),
        ('"num_blocks": 8', '"num_blocks": "x"', "t:1: 'x': must be a whole number"),
        ('"seed": 3', '"sead": 3', "t:1: 'sead': not a header field"),
        ('"submit", "request": "a"', '"submit", "request": "q"', "t:2: request 'q': not in this"),
        ('"rank": 1', '"rank": 7', "t:6: rank=7: there are ranks 0 to 1"),
        ('"run_to_rest"', '"run_to_west"', "t:4: action 'run_to_west': no such action; did you"),
        ('{"action": "step"}', "{", "t:3: '{': not JSON"),
    ],
)
def test_a_bad_trace_is_one_line_with_the_place_the_rule_and_the_fix(
    old: str, new: str, complaint: str
) -> None:
    text = dump_vllm_trace(TRACE)
    assert old in text
    with pytest.raises(TraceError) as caught:
        parse_vllm_trace(text.replace(old, new), source="t")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_trace_of_vllm_is_for_no_other_target(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(dump_vllm_trace(TRACE))
    for words in (["--target", "torch"], ["--fault", "K03"], ["--device", "cuda"]):
        for command in ("replay", "reduce"):
            result = typer.testing.CliRunner().invoke(app, [command, str(path), *words])
            assert result.exit_code == common.USAGE, result.output
            assert result.stderr.count("\n") == 1
            assert words[0] in result.stderr
    golden = Path(__file__).parents[1] / "golden" / "tail_by_copy.jsonl"
    assert read_trace(golden).actions
    result = typer.testing.CliRunner().invoke(app, ["replay", str(golden), "--target", "vllm"])
    assert result.exit_code == common.USAGE
    assert "is a trace of the model" in result.stderr


@pytest.mark.parametrize("actions", [(), (RunLoad(0),), ACTIONS])
def test_an_emitted_test_is_python_whatever_the_reason_and_short(
    actions: tuple[Action, ...],
) -> None:
    reason = 'KeyError("C:\\new"): """\nand more'
    source = emitted_test(attrs.evolve(TRACE, actions=actions, reason=reason))
    tree = ast.parse(source)
    assert len(source.splitlines()) <= 60
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert test.name == "test_pins_last_until_all_reported"
    assert "cowtail" not in "".join(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert 'watching="S9"' in source


def test_actions_read_as_a_person_would_write_them() -> None:
    assert actions_text(TRACE) == (
        "submit(a) step() run_to_rest() abort(a) run_load(1, True) run_job(0, failed) report(0, 1)"
    )


def test_what_the_driver_lacks_is_not_emitted() -> None:
    class Strange(Action):
        name = "strange"

    with pytest.raises(NotEmitted, match="the driver of tests has no such action"):
        driver_settings(attrs.evolve(TRACE, actions=(Strange(),)))


@pytest.mark.parametrize(
    ("text", "source"), [("", '""'), ("ab", '"ab"'), ("xxxx", '"x" * 4'), ("axxxxb", None)]
)
def test_a_text_is_written_shortly_and_evaluates_to_itself(text: str, source: str | None) -> None:
    assert ast.literal_eval(text_expression("abc")) == "abc"
    assert eval(text_expression(text)) == text
    assert source is None or text_expression(text) == source


def test_messages_of_one_cause_differ_in_names_numbers_and_contents_only() -> None:
    messages = (
        "b reads wrong KV on rank 0: slot 3 of block 6 holds 'ab', not 'xy'",
        "a reads wrong KV on rank 1: slot 0 of block 12 holds a Mamba state after 'x', not 'y'",
    )
    assert len({abstract(message, ["a", "b"]) for message in messages}) == 1
    lost = ("job 0 lost its pin on [1, 2]: rank 1", "job 3 lost its pin on [4]: rank 0, 2")
    assert len({abstract(message, ["a"]) for message in lost}) == 1
    assert abstract("block 1 has 2 references, and 1 owners", ["a"]) != abstract(lost[0], ["a"])


def test_sightings_count_all_and_keep_the_shortest() -> None:
    sightings = Sightings()
    for length in (6, 4, 2, 5):
        sightings.add(failure(actions=ACTIONS[:length], episode=length))
    sightings.add(failure(reason="something else"))
    first, second = sightings.all()
    assert (first.times, second.times) == (4, 1)
    assert [len(each.actions) for each in first.kept] == [2, 4][:MAX_KEPT]


def test_shapes_leave_out_how_many_passes_it_takes() -> None:
    one = failure(actions=(Submit("a"), SchedulePass(), Abort("a")))
    two = failure(actions=(Submit("b"), WholeStep(), WholeStep(), Abort("b")))
    assert shape_of(one) == shape_of(two)
    failed_put = failure(actions=(Submit("a"), RunJob(0, JobOutcome.FAILED), Abort("a")))
    assert shape_of(failed_put) != shape_of(one)
    assert shape_of(one).is_less_than(shape_of(failed_put))
    assert not shape_of(failed_put).is_less_than(shape_of(one))
    assert not shape_of(one).is_less_than(shape_of(two))


def test_one_cause_spoils_blocks_of_any_kind_and_length() -> None:
    reasons = (
        "the key of group 1 at '…xxxxxx' (16 tokens) is wrong on rank 0: block 2 holds 'y', not",
        "the key of group 0 at 'zzzz' is wrong on rank 1: slot 0 of block 5 holds 'x', not 'z'",
    )
    shapes = {shape_of(failure(reason=reason, identifier="S3")) for reason in reasons}
    assert len(shapes) == 1
    at_another = failure(reason=reasons[0], identifier="S3", failed_at="execute")
    assert shape_of(at_another) not in shapes
    assert not shapes.pop().is_less_than(shape_of(at_another))


def test_a_known_finding_has_one_shape_whatever_fails_first() -> None:
    shapes = {shape_of(failure(identifier=each, known="k")) for each in ("S3", "V5")}
    assert len(shapes) == 1


def test_features_are_what_is_not_at_its_default() -> None:
    assert features_of(CONFIG) == {"role=producer", "stored"}


def test_a_pass_that_is_executed_and_processed_at_once_is_one_step() -> None:
    parts = (SchedulePass(), Execute(), UpdateFromOutput())
    assert fold((*parts, Submit("a"), *parts[:2])) == (WholeStep(), Submit("a"), *parts[:2])


def test_traits_say_whether_a_pool_is_tight() -> None:
    assert "pool=tight" in traits_of(CONFIG)
    assert "pool=ample" in traits_of(attrs.evolve(CONFIG, num_blocks=100))
    assert "role=producer" in traits_of(CONFIG)


def test_simpler_configurations_fit_together_and_lead_to_the_plainest() -> None:
    config = attrs.evolve(CONFIG, recompute_failed_loads=True)
    while True:
        lighter = [c for c in simpler_configs(config, [Submit("b")]) if weight(c) < weight(config)]
        if not lighter:
            break
        config = lighter[0]
    assert config == EngineConfig(requests=(RequestSpec("b", "x"),), num_ranks=1)


def test_plain_texts_share_what_was_shared_and_nothing_else() -> None:
    requests = [
        RequestSpec("a", "ticket", output="s"),
        RequestSpec("b", "tick"),
        RequestSpec("c", "time"),
    ]
    plain = plain_texts(requests)
    for i, one in enumerate(requests):
        for j, two in enumerate(requests):
            for length in range(8):
                shared = one.tokens[:length] == two.tokens[:length]
                assert (plain[i].tokens[:length] == plain[j].tokens[:length]) is shared
    assert [len(request.prompt) for request in plain] == [6, 4, 4]
