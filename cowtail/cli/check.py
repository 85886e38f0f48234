"""``cowtail check``: what a log from the field says."""

from __future__ import annotations

from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.harness.check import STDIN, check_log
from cowtail.spec.monitor.reading import LogError

LogPath = Annotated[
    str, typer.Argument(help="Log (JSON Lines, also .gz), or - for standard input.", metavar="LOG")
]


def check(log: LogPath, quiet: common.Quiet = False) -> None:
    """Check a log that was recorded from a live vLLM.

    Prints the first line that breaks a property, and the last ones about the blocks, requests
    and jobs involved. Undetermined: the log was cut off, or ends before the engine is at rest.

    \b
    COWTAIL_LOG=/tmp/engine.jsonl vllm serve ...
    cowtail check /tmp/engine.jsonl
    """
    try:
        with common.progress("checking: lines", quiet) as update:
            checked = check_log(log, lambda lines: update(lines, None))
    except OSError as error:
        common.fail(f"{log}: cannot be read ({error.strerror or error})")
    except LogError as error:
        common.fail(f"{log}: {error}")
    if (violation := checked.violation) is not None:
        typer.echo(f"{violation.prop.identifier}, {violation.prop.name}: {violation.reason}")
        typer.echo(f"must hold: {violation.prop.sentence} ({violation.prop.source})")
        for line in checked.context:
            typer.echo(line)
        typer.echo(f"first violated at line {violation.line}")
    if checked.why:
        typer.echo(f"undetermined: {checked.why}")
    if log != STDIN:
        typer.echo(common.repeat_line("check", log))
    typer.echo(
        f"{log}: {checked.lines:,} lines, {checked.steps:,} steps, {checked.requests:,} requests: "
        f"{checked.verdict.value}"
    )
    common.exit_with(checked.verdict)
