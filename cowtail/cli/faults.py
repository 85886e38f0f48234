"""``cowtail faults``: run the harness against every fault, and print the kill matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.harness.kill import Kill, KillMatrix, kill_matrix
from cowtail.spec.broken_rules import BROKEN_RULES
from cowtail.spec.files import write_text
from cowtail.spec.names import unknown
from cowtail.spec.traces import dump_trace


def faults(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Only this fault or broken rule; may be given several times."),
    ] = None,
    device: common.Device = "cpu",
    out: common.Out = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Catch every fault of the torch engine and every broken rule of the model.

    Each is looked for by tours of small scopes and then by fuzzing, or by the explorer; what is
    found is reduced. Exit code 0 if all are killed, 1 if one survives.

    \b
    cowtail faults --out out
    cowtail faults --only K03 --json
    """
    common.open_target("torch", None, device)
    from cowtail.impl.torch_engine.faults import FAULTS

    common.writable(out)
    known = [*FAULTS, *BROKEN_RULES]
    wanted = list(only or known)
    for name in wanted:
        if name not in known:
            common.fail(unknown(name, "fault", known))
    chosen = [FAULTS[name] for name in FAULTS if name in wanted]
    rules = [BROKEN_RULES[name] for name in BROKEN_RULES if name in wanted]
    kills: list[Kill] = []
    with common.progress("faults tried", quiet) as update:

        def report(kill: Kill) -> None:
            kills.append(kill)
            update(len(kills), len(chosen) + len(rules))

        matrix = kill_matrix(chosen, rules, device=device, progress=report)
    _write(matrix, out)
    if as_json:
        typer.echo(json.dumps(matrix.as_json(), indent=2))
    else:
        typer.echo(_table(matrix))
        only_words = [word for name in only or () for word in ("--only", name)]
        typer.echo(common.repeat_line("faults", *only_words, "--out", out))
        typer.echo(_last_line(matrix, complete=only is None))
    unearned = matrix.unearned if only is None else ()
    raise typer.Exit(common.VIOLATED if matrix.survivors or unearned else common.HOLDS)


def _last_line(matrix: KillMatrix, complete: bool) -> str:
    killed = len(matrix.kills) - len(matrix.survivors)
    line = f"{killed} of {len(matrix.kills)} faults killed"
    if matrix.survivors:
        line += f"; alive: {', '.join(matrix.survivors)}"
    if complete:
        unearned = ", ".join(matrix.unearned)
        line += f"; properties that killed nothing: {unearned}" if unearned else ""
    return line


def _table(matrix: KillMatrix) -> str:
    rows = [("fault", "case", "killed by", "where", "actions", "shortest trace", "seconds")]
    for kill in matrix.kills:
        by = kill.by if len(kill.by) <= 72 else kill.by[:69] + "..."
        rows.append(
            (
                kill.name,
                kill.case or "-",
                by if kill.killed else "ALIVE",
                kill.where or "-",
                f"{kill.actions:,}",
                str(kill.trace_length or "-"),
                f"{kill.seconds:.1f}",
            )
        )
    return common.table(rows)


def _write(matrix: KillMatrix, out: Path) -> None:
    with common.complaining(OSError):
        write_text(out / "faults.json", json.dumps(matrix.as_json(), indent=2) + "\n")
        for kill in matrix.kills:
            if kill.trace is not None:
                name = f"{kill.trace.target}-{kill.name}.jsonl"
                write_text(out / "traces" / name, dump_trace(kill.trace))
