"""The table of releases and scenarios: which release has which historical defect."""

from __future__ import annotations

import json

from cowtail.impl.vllm_engine.launch import output_in_release, runnable_releases
from cowtail.impl.vllm_engine.releases import VllmNotInstalled
from cowtail.impl.vllm_engine.scenarios import SCENARIOS

Found = dict[str, dict[str, int]]
"""Tokens that a later request finds, by release and scenario."""


def tokens_found() -> Found:
    """Run every scenario on every release at hand, each in a process of its own.

    Raises VllmNotInstalled if there is none, RuntimeError if one breaks down.
    """
    releases = runnable_releases()
    if not releases:
        raise VllmNotInstalled("no release of vLLM is at hand: run `cowtail vllm fetch`")
    words = ("-m", "cowtail.impl.vllm_engine.scenarios")
    found: Found = {}
    for release in releases:
        printed = output_in_release(release, words, timeout=300).strip().splitlines()
        found[release] = json.loads(printed[-1])
    return found


def shown(found: Found) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows: tokens found, and what a release that finds fewer has."""
    header = ["release", *(scenario.name for scenario in SCENARIOS), "historical defects"]
    rows = []
    for release, by_name in found.items():
        cells, defects = [], []
        for scenario in SCENARIOS:
            tokens = by_name[scenario.name]
            lacks = tokens < scenario.due
            cells.append(f"{tokens} of {scenario.due}" if lacks else str(tokens))
            defects += [scenario.defect] if lacks else []
        rows.append([release, *cells, ", ".join(dict.fromkeys(defects)) or "none"])
    return header, rows


def as_markdown(found: Found) -> str:
    """Return the table as Markdown."""
    header, rows = shown(found)
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"
