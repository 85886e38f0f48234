"""The skeleton of a finding's page in docs/findings, and the index of all that are kept.

``python -m cowtail.harness.findings.page`` writes the index again, from the folders of kept
findings: what, which releases, consequence for a user, length of the shortest trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from cowtail.harness.findings.emitted_test import actions_text
from cowtail.harness.findings.other_releases import NOT_SHOWN, SHOWN
from cowtail.harness.findings.trace import VllmTrace, read_vllm_trace
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS, KnownFinding
from cowtail.spec.files import write_text
from cowtail.spec.traces import TraceError

KEPT = Path("tests/vllm/findings")
"""Where findings are kept, below the root of the repository."""
INDEX = Path("docs/findings/README.md")
"""The page with the index."""
BEGIN, END = "<!-- index: begin -->", "<!-- index: end -->"
"""What the generated table stands between."""


def facts_of(folder: Path) -> dict[str, Any]:
    """Return a folder's finding.json. Raises TraceError where there is none to be read."""
    path = folder / "finding.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; name the folder of a finding") from None
    except ValueError:
        raise TraceError(f"{path}: not JSON; write the finding again") from None
    return facts


def known_of(facts: Mapping[str, Any]) -> KnownFinding | None:
    """Return the known finding that a folder's facts name."""
    return next((known for known in KNOWN_FINDINGS if known.name == facts["known"]), None)


def skeleton(folder: Path) -> str:
    """Return a page for a finding, what only a person can say left to be written.

    Raises TraceError where the folder is not that of a finding.
    """
    facts, trace = facts_of(folder), read_vllm_trace(folder / "trace.jsonl")
    known = known_of(facts)
    title = known.name.capitalize() if known else "TO WRITE: what goes wrong, in one line"
    lines = [
        f"# {title}",
        "",
        f"**Releases** {releases_text(facts['releases'])}. **Property** {facts['property']} "
        f"({facts['sentence'].rstrip('.')}). **Consequence** {facts['consequence']}.",
        f"**Configuration** {', '.join(_settings(trace)) or 'all defaults'}.",
        "",
        "## Trace",
        "",
        f"`{actions_text(trace)}`" + (", then everything runs to rest." if trace.in_drain else "."),
        "",
        f"=> {facts['property']}: {facts['reason']}",
        "",
        *_section(folder, "## Step by step"),
        "",
        "## Why",
        "",
        known.sentence if known else "TO WRITE: which code does this, and why it is wrong.",
        "",
        *_section(folder, "## Where"),
        "",
        "## Not the adapter",
        "",
        "TO WRITE: which of the scheduler's own outputs show it, and what nearby run is right.",
        "",
        f"**Kept** `{KEPT}/{folder.name}`: the trace, and a test that needs pytest and vLLM only.",
        "",
    ]
    return "\n".join(lines)


def _settings(trace: VllmTrace) -> list[str]:
    return [
        f"{field.name}={getattr(value, 'value', value)}"
        for field in attrs.fields(type(trace.config))
        if field.name not in ("requests", "stored")
        and (value := getattr(trace.config, field.name)) != field.default
    ]


def _section(folder: Path, heading: str) -> list[str]:
    """Return the lines of a section of the folder's report, without its heading."""
    report = folder / "report.md"
    if not report.exists():
        return []
    found: list[str] = []
    inside = False
    for line in report.read_text("utf-8").splitlines():
        if line.startswith("## "):
            inside = line.startswith(heading)
        elif inside:
            found.append(line)
    return "\n".join(found).strip("\n").splitlines()


def releases_text(releases: Mapping[str, str]) -> str:
    """Return which releases show a finding, which do not, and what others do instead."""
    shown = [release for release, what in sorted(releases.items()) if what == SHOWN]
    fine = [release for release, what in sorted(releases.items()) if what == NOT_SHOWN]
    other = [
        f"; {release} {what.partition(':')[0]}"
        for release, what in sorted(releases.items())
        if release not in (*shown, *fine)
    ]
    text = ", ".join(shown) or "none"
    text += f"; not {', '.join(fine)}" if fine else ""
    return text + "".join(other)


def index(folders: Sequence[Path]) -> str:
    """Return the table of kept findings. Raises TraceError for a folder of something else."""
    rows = [
        "| finding | releases | consequence for a user | shortest trace | kept |",
        "|---|---|---|---|---|",
    ]
    for folder in sorted(folders):
        facts = facts_of(folder)
        known = known_of(facts)
        name = f"[{known.name.capitalize()}]({known.page}.md)" if known else f"new: {folder.name}"
        length = f"{len(facts['actions'])} actions"
        length += ", then to rest" if facts["fails"] != "at the last action" else ""
        kept = f"[{facts['property']}](../../{KEPT}/{folder.name}/test_finding.py)"
        row = (name, releases_text(facts["releases"]), facts["consequence"], length, kept)
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def with_index(page: str, table: str) -> str:
    """Return a page with the table in its place. Raises ValueError where it has none."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}; add them where the table goes")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def kept_folders(root: Path) -> list[Path]:
    """Return the folders of the kept findings, in order."""
    return sorted(path.parent for path in (root / KEPT).glob("*/finding.json"))


def _main() -> None:
    root = Path()
    page = root / INDEX
    table = index(kept_folders(root))
    write_text(page, with_index(page.read_text("utf-8"), table))
    print(f"wrote {page}")


if __name__ == "__main__":
    _main()
