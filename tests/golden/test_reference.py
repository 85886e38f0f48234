"""The committed reference is what the code says, and every number that code cites is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cowtail.impl.torch_engine.faults import FAULTS
from cowtail.models.actions import Report
from cowtail.models.phase import BlockPhase
from cowtail.spec.broken_rules import BROKEN_RULES
from cowtail.spec.checks import check_scope
from cowtail.spec.exploration import Verdict
from cowtail.spec.reference import PHASES, measured_row, page
from cowtail.spec.scopes import SCOPES, scope_named

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOW_TO = tuple(sorted((ROOT / "docs" / "how-to").glob("*.md")))
CODE = tuple(
    path
    for folder in ("models", "spec", "impl", "cowtail/harness", "cowtail/cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
)
MEASURED = re.compile(r"^\| `(\w+)` \| [\d,]+ \| [\d,]+ \| \d+ \| \w+ \|$", re.MULTILINE)


def committed_rows() -> dict[str, str]:
    """Return the measured rows of the committed page, by scope."""
    text = (REFERENCE / "spec.md").read_text()
    return {match[1]: match[0] for match in MEASURED.finditer(text)}


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_reaches_as_much_as_the_page_says(name: str) -> None:
    report = check_scope(scope_named(name), max_seconds=None)
    assert measured_row(report) == committed_rows().get(name), "run `make docs` and see why"


def test_all_but_the_measured_rows_is_generated_and_up_to_date() -> None:
    rows = committed_rows()
    assert list(rows) == list(SCOPES)
    assert page(rows) == (REFERENCE / "spec.md").read_text(), "run `make docs`"


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
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"^```python\n(.*?)^```$", how_to.read_text(), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"__name__": how_to.stem}
    exec("\n".join(blocks), names)
    if how_to.stem == "add-a-target":
        assert names["report"].finding.divergence.action == Report(0, 0)
        assert names["found"].verdict is Verdict.VIOLATED
