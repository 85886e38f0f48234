"""``cowtail hit``: how many cached tokens a second request is expected to find, and why."""

from __future__ import annotations

import json
import math
import re
import textwrap
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cowtail.cli import common
from cowtail.models.scope import Group, full_attention, mamba, sliding_window
from cowtail.spec.expected_hit import (
    Continuation,
    ExpectedHit,
    Resend,
    Second,
    Sibling,
    expected_hit,
)
from cowtail.spec.hits.layout import DEFAULT_TOKEN_BUDGET, Layout, label
from cowtail.spec.hits.search import common_keys
from cowtail.spec.names import unknown

DEFAULT_HASH_UNIT = 128
ASSUMED_UNITS = 238
"""Hash units in a block where none is given: the size for which R28's third loss is 30464."""

FORMULAS = {"0.32": True, "0.31": False}
"""Which releases keep the replay boundary below the prompt's length, without a drop."""

WIDTH = 100
_COLUMNS = 8
_GROUP = "write full:SIZE, swa:SIZE:window=TOKENS or mamba:SIZE, the first two also with :eagle"


def hit(
    prompt: Annotated[list[int], typer.Option("--prompt", help="Tokens of the first prompt.")],
    hash_unit: Annotated[
        int | None, typer.Option("--hash-unit", help="Default: gcd of block sizes, or 128.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="full:1792, swa:16:window=64, mamba:1024.")
    ] = None,
    eagle: Annotated[
        bool, typer.Option("--eagle", help="Attention groups hold a drafter's layers.")
    ] = False,
    sibling: Annotated[
        int | None, typer.Option("--sibling", help="Then a prompt of so many tokens.")
    ] = None,
    shares: Annotated[
        int | None, typer.Option("--shares", help="Of these, so many are the same.")
    ] = None,
    continuation: Annotated[
        int | None, typer.Option("--continuation", help="Then prompt, output, so many more.")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="In the local cache, not the store after a reset.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Tokens that the first request samples.")] = 1,
    token_budget: Annotated[int, typer.Option(help="Tokens of one pass.")] = DEFAULT_TOKEN_BUDGET,
    retention_interval: Annotated[
        int | None, typer.Option(help="Keep one state in so many tokens; all by default.")
    ] = None,
    internal_checkpoints: Annotated[
        bool, typer.Option("--internal-checkpoints", help="States from within a chunk.")
    ] = False,
    store_at_boundary_only: Annotated[
        bool, typer.Option("--store-at-boundary-only", help="Attention at B, not B + margin.")
    ] = False,
    formula: Annotated[str, typer.Option(help="Replay boundary of release 0.32 or 0.31.")] = "0.32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how many cached tokens a second request finds, and why: from lengths alone.

    A first request leaves keys; the same prompt again (or a sibling, or a continuation) looks.

    \b
    cowtail hit --prompt 7449 --hash-unit 128 --eagle
    cowtail hit --prompt 32 --group full:16 --group mamba:16
    cowtail hit --prompt 41300 --hash-unit 128 --eagle --store-at-boundary-only
    """
    if formula not in FORMULAS:
        common.fail(unknown(formula, "formula", list(FORMULAS)))
    if store_at_boundary_only and local:
        common.fail("--store-at-boundary-only and --local: the first is about the store; drop one")
    with common.complaining(ValueError):
        groups, unit, assumed = _groups(group, hash_unit, eagle)
        layout = Layout(
            groups,
            unit,
            token_budget,
            retention_interval,
            internal_checkpoints,
            companions=not store_at_boundary_only,
            capped=FORMULAS[formula],
        )
        hits = [
            expected_hit(
                layout,
                length,
                _second(length, sibling, shares, continuation),
                local=local,
                max_tokens=max_tokens,
            )
            for length in prompt
        ]
    if as_json:
        typer.echo(json.dumps([_as_json(layout, each, assumed) for each in hits], indent=2))
        return
    console = Console(width=WIDTH, highlight=False)
    console.print(f"hash unit {unit}, groups {', '.join(map(label, groups))}", soft_wrap=True)
    for line in assumed:
        console.print(f"assumed: {line}")
    for each in hits:
        console.print()
        _show(console, layout, each)


def _groups(
    words: list[str] | None, hash_unit: int | None, eagle: bool
) -> tuple[tuple[Group, ...], int, list[str]]:
    """Return groups and hash unit, and what had to be assumed. Raises ValueError."""
    assumed = []
    if not words:
        unit = DEFAULT_HASH_UNIT if hash_unit is None else hash_unit
        if hash_unit is None:
            assumed.append(f"a hash unit of {unit}")
        size = ASSUMED_UNITS * max(unit, 1)
        assumed.append(
            f"full attention and Mamba, in blocks of {size} tokens each: {ASSUMED_UNITS} hash units"
        )
        return (full_attention(size, eagle=eagle), mamba(size)), unit, assumed
    groups = tuple(_group(word, eagle) for word in words)
    unit = math.gcd(*(group.block_size for group in groups)) if hash_unit is None else hash_unit
    if hash_unit is None:
        assumed.append(f"a hash unit of {unit}, the greatest common divisor of the block sizes")
    return groups, unit, assumed


def _group(word: str, eagle: bool) -> Group:
    """Return the group that ``word`` describes. Raises ValueError."""
    match = re.fullmatch(r"(full|swa|mamba):(\d+)((?::[a-z]+(?:=\d+)?)*)", word)
    if match is None:
        raise ValueError(f"group {word!r}: not a group; {_GROUP}")
    kind, size = match[1], int(match[2])
    options = match[3].split(":")[1:]
    window = [option for option in options if re.fullmatch(r"window=\d+", option)]
    others = [option for option in options if option not in (*window, "eagle")]
    if others or len(window) != (kind == "swa") or (kind == "mamba" and options):
        raise ValueError(f"group {word!r}: {kind} does not go with that; {_GROUP}")
    if size < 1:
        raise ValueError(f"group {word!r}: a block has at least one token; raise it")
    flagged = eagle or "eagle" in options
    if kind == "mamba":
        return mamba(size)
    if kind == "swa":
        return sliding_window(size, int(window[0].removeprefix("window=")), eagle=flagged)
    return full_attention(size, eagle=flagged)


def _second(
    prompt: int, sibling: int | None, shares: int | None, continuation: int | None
) -> Second:
    """Return the second request. Raises ValueError for options at odds."""
    if sibling is not None and continuation is not None:
        raise ValueError("--sibling and --continuation: there is one second request; give one")
    if shares is not None and sibling is None:
        raise ValueError(f"--shares {shares}: goes with --sibling; add it or drop this")
    if sibling is not None:
        return Sibling(sibling, min(prompt, sibling) if shares is None else shares)
    return Resend() if continuation is None else Continuation(continuation)


def _show(console: Console, layout: Layout, each: ExpectedHit) -> None:
    """Print one result: the length, why, and the keys around it."""
    place = "in the local cache" if each.local else "in the store"
    second = f"then {each.known}, of which {each.shared} the same"
    if (each.known, each.shared) == (each.prompt, each.prompt):
        second = "sent again"
    console.print(
        f"prompt {each.prompt}, {second}: [bold]{each.length}[/bold] cached tokens {place}"
    )
    for line in each.why:
        console.print(
            textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    "),
            soft_wrap=True,
        )
    if lengths := _interesting(layout, each):
        console.print(_keys(layout, each, lengths))


def _interesting(layout: Layout, each: ExpectedHit) -> list[int]:
    """Return the lengths worth a column: the hit, its proofs, and what a longer one lacked."""
    ranked = [each.length, *(proof.key for proof in each.proofs)]
    for missing in each.missing:
        ranked += [missing.length, *(demand.lengths[0] for demand in missing.demands[-2:])]
    ranked += [layout.replay_boundary(each.prompt), each.length - layout.alignment]
    ranked += [chunk.end for chunk in reversed(each.left.chunks)]
    kept = list(dict.fromkeys(length for length in ranked if length > 0))[:_COLUMNS]
    return sorted(kept)


def _keys(layout: Layout, each: ExpectedHit, lengths: list[int]) -> Table:
    """Return a small ruler: which groups have keys at the lengths that matter."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("    tokens", no_wrap=True)
    for length in lengths:
        table.add_column(str(length), justify="center", style="bold" * (length == each.length))
    notes = {each.known: "end", each.length: "hit"}
    notes |= {p.key: "proof" for p in each.proofs if p.key > each.length}
    ends = {chunk.end for chunk in each.left.chunks}
    table.add_row("", *(notes.get(length, "") for length in lengths))
    table.add_row("    chunk ends", *("|" if length in ends else "" for length in lengths))
    for group_set in layout.sets:
        present = common_keys(group_set, each.keys)
        for index in group_set.members:
            table.add_row(
                f"    {label(layout.groups[index])}",
                *("●" if length in present else "·" for length in lengths),
            )
    return table


def _as_json(layout: Layout, each: ExpectedHit, assumed: list[str]) -> dict[str, object]:
    """Return a result with everything that it rests on, as JSON values."""
    return {
        "prompt": each.prompt,
        "second": {"prompt": each.known, "shared": each.shared},
        "place": "local" if each.local else "store",
        "expected": each.length,
        "replay_boundary": layout.replay_boundary(each.prompt),
        "alignment": layout.alignment,
        "hash_unit": layout.hash_unit,
        "assumed": assumed,
        "chunks": [chunk.end for chunk in each.left.chunks],
        "proofs": [
            {"groups": [label(layout.groups[i]) for i in proof.members.members], "key": proof.key}
            for proof in each.proofs
        ],
        "missing": [
            {
                "length": missing.length,
                "keys": [
                    {
                        "groups": [label(layout.groups[i]) for i in demand.members.members],
                        "any_of": [demand.lengths[0], demand.lengths[-1]],
                    }
                    for demand in missing.demands
                ],
            }
            for missing in each.missing
        ],
        "keys": [
            {"group": label(group), "lengths": sorted(lengths)}
            for group, lengths in zip(layout.groups, each.keys, strict=True)
        ],
        "why": list(each.why),
    }
