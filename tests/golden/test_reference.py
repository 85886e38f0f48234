"""The committed reference is what the code says, and every number that code cites is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from cowtail.impl.torch_engine.faults import FAULTS
from cowtail.models.actions import ACTIONS, Report
from cowtail.models.phase import BlockPhase
from cowtail.spec import earned
from cowtail.spec.broken_rules import BROKEN_RULES
from cowtail.spec.exploration import Verdict
from cowtail.spec.guards import GUARDS, refusals
from cowtail.spec.measured import dump, load
from cowtail.spec.reference import CONSTANTS, PHASES, SECTIONS, STATE, page
from cowtail.spec.requirements import names_of_tests, with_holders

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOW_TO = tuple(
    path
    for path in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    if "```python" in path.read_text() and path.stem != "run-against-mooncake"
)
CODE = tuple(
    path
    for folder in ("models", "spec", "impl", "cowtail/harness", "cowtail/cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
)
FIGURES = load(REFERENCE / "measured.json")


def test_the_pages_are_what_code_and_figures_make_of_them() -> None:
    assert dump(FIGURES) == (REFERENCE / "measured.json").read_text(), "run `make docs`"
    assert page(FIGURES) == (REFERENCE / "spec.md").read_text(), "run `make docs`"
    assert earned.page(FIGURES) == (REFERENCE / "properties.md").read_text(), "run `make docs`"


def test_every_action_links_to_sections_that_exist_and_names_its_guards() -> None:
    headings = re.findall(r"^## (.*)$", (REFERENCE / "semantics.md").read_text(), re.M)
    existing = {heading.replace("`", "") for heading in headings}
    assert set(SECTIONS) == {action.name for action in ACTIONS}
    assert {title for titles in SECTIONS.values() for title in titles} <= existing
    assert set(GUARDS) == set(ACTIONS)
    silent = [action.name for action in ACTIONS if not refusals(action)]
    assert silent == ["schedule_pass"]


def test_the_state_is_described_to_its_last_part() -> None:
    described = {each.__name__ for each in (*STATE, *CONSTANTS)}
    mentioned = {
        name
        for each in STATE
        for field in attrs.fields(each)
        for name in re.findall(r"[A-Z][a-z]\w+", each.__annotations__[field.name])
    }
    assert mentioned - described <= {"Status", "Key", "Memory", "LoadOutcome", "None"}


def test_every_phase_of_a_block_is_described() -> None:
    assert set(PHASES) == set(BlockPhase)


@pytest.mark.parametrize(
    ("page_name", "number"), [("requirements.md", r"R\d{1,2}"), ("cases.md", r"K\d\d")]
)
def test_every_number_that_the_code_cites_is_explained(page_name: str, number: str) -> None:
    explained = re.findall(rf"^\| ({number}) \|", (REFERENCE / page_name).read_text(), re.M)
    assert len(explained) == len(set(explained))
    cited = {
        (cited, str(path.relative_to(ROOT)))
        for path in CODE
        for cited in re.findall(rf"\b{number}\b", path.read_text())
    }
    assert {each for each, _ in cited} >= {explained[0]}, "the search finds nothing"
    unexplained = sorted(f"{each} in {path}" for each, path in cited if each not in explained)
    assert not unexplained


def test_what_holds_a_requirement_is_what_cites_it_and_is_named_for_it() -> None:
    page = (REFERENCE / "requirements.md").read_text()
    assert page == with_holders(page, names_of_tests(ROOT))
    assert not re.search(r"not yet|in part", page)


def test_every_section_of_the_domain_that_the_code_cites_is_explained() -> None:
    explained = re.findall(r"^\| ([a-i]|A\d+) \|", (REFERENCE / "spec.md").read_text(), re.M)
    cited = {
        letter
        for path in CODE
        for letter in re.findall(r"\bdomain(?:\.md)? ([a-i]|A\d+)\b", path.read_text())
    }
    assert cited
    assert cited <= set(explained)


def test_the_status_of_a_case_is_what_exists() -> None:
    stated = {
        row[0]: row[-1]
        for line in (REFERENCE / "cases.md").read_text().splitlines()
        if (row := [cell.strip() for cell in line.strip("|").split("|")])[0][:1] == "K"
    }
    assert list(stated) == [f"K{number:02}" for number in range(1, 46)]
    for case, status in stated.items():
        rules = {rule.name for rule in BROKEN_RULES.values() if rule.case == case}
        assert ("torch" in status) == (case in FAULTS or bool(rules & set(FAULTS))), case
        assert set(re.findall(r"`(\w+)`", status)) == rules, case
        assert ("not yet" in status) == (case not in FAULTS and not rules), case


@pytest.mark.parametrize("how_to", HOW_TO, ids=lambda path: path.stem)
def test_the_examples_of_a_how_to_run(how_to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how_to.stem == "drive-a-release":
        pytest.importorskip("vllm", reason="needs vLLM; make test-vllm runs it")
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"^```python\n(.*?)^```$", how_to.read_text(), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"__name__": how_to.stem}
    exec("\n".join(blocks), names)
    if how_to.stem == "add-a-target":
        assert names["report"].finding.divergence.action == Report(0, 0)
        assert names["found"].verdict is Verdict.VIOLATED
