"""What the commands share: exit codes, one-line complaints, targets, progress, the repeat line."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cowtail.harness.target import ModelTarget, Target, TorchTarget, load_torch
from cowtail.spec.broken_rules import broken_rules_named
from cowtail.spec.exploration import Verdict
from cowtail.spec.names import unknown
from cowtail.spec.scopes import SCOPES

HOLDS, VIOLATED, USAGE, UNDETERMINED = 0, 1, 2, 3

EXIT_CODES = {
    Verdict.HOLDS: HOLDS,
    Verdict.VIOLATED: VIOLATED,
    Verdict.UNDETERMINED: UNDETERMINED,
}

EXITS = "Exit codes: 0 holds, 1 violated, 2 usage, 3 undetermined."

Update = Callable[[float, float | None], None]
"""Tells a progress bar how much is done, and of how much."""

Out = Annotated[Path, typer.Option("--out", help="Folder for everything that is written.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Device = Annotated[str, typer.Option("--device", help="Where the torch engine runs: cpu or cuda.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", help="Start the target with this fault; may be given several times."),
]


def fail(message: object) -> NoReturn:
    """Say on one line of stderr what was wrong with the input, and exit with the usage code."""
    typer.echo(f"cowtail: {' '.join(str(message).split())}", err=True)
    raise typer.Exit(USAGE)


@contextlib.contextmanager
def complaining(*kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these kinds, which are the user's to mend, into one line."""
    try:
        yield
    except kinds as error:
        fail(error)


def exit_with(verdict: Verdict) -> NoReturn:
    """Exit with the code of a verdict."""
    raise typer.Exit(EXIT_CODES[verdict])


def open_target(name: str, faults: list[str] | None, device: str = "cpu") -> Target:
    """Return the target of that name, tried once, so that bad input is complained of now."""
    names = tuple(faults or ())
    target: Target
    match name:
        case "model":
            with complaining(ValueError):
                broken_rules_named(names)
            return ModelTarget(names)
        case "torch":
            target = TorchTarget(names, device)
        case "vllm":
            fail("--target vllm: vLLM schedules by itself; use `cowtail fuzz --target vllm`")
        case _:
            fail(unknown(name, "target", ["torch", "model", "vllm"]))
    load_torch()
    from cowtail.impl.torch_engine import DeviceNotAvailable
    from cowtail.impl.torch_engine.faults import FAULTS

    for fault in names:
        if fault not in FAULTS:
            fail(unknown(fault, "fault", list(FAULTS)))
    if device not in ("cpu", "cuda"):
        fail(unknown(device, "device", ["cpu", "cuda"]))
    with complaining(DeviceNotAvailable):
        target.open(SCOPES["lone_producer"]).close()
    return target


def writable(out: Path) -> Path:
    """Return the folder if it can be written to, now or once it is created; else complain.

    A folder that is not there yet is created and removed again, since permissions alone do not
    say whether a file system takes one.
    """
    if out == Path():
        fail("--out '': no folder is named; use . for this one")
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    existing = missing[-1].parent if missing else out
    if not existing.is_dir():
        fail(f"--out {out}: {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK):
        fail(f"--out {out}: {existing} cannot be written to; choose another")
    if missing:
        try:
            out.mkdir(parents=True)
        except OSError as error:
            fail(f"--out {out}: cannot be created ({error.strerror}); choose another")
        for folder in missing:
            folder.rmdir()
    return out


@contextlib.contextmanager
def progress(description: str, quiet: bool) -> Iterator[Update]:
    """Show a progress bar on stderr while the block lasts, if somebody is looking."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def repeat_line(*words: object) -> str:
    """Return the line with the command that repeats a run."""
    return f"again: {command(*words)}"


def command(*words: object) -> str:
    """Return a cowtail command as one would type it."""
    return shlex.join(["cowtail", *map(str, words)])


def fault_options(faults: tuple[str, ...]) -> list[str]:
    """Return the options that give these faults again."""
    return [word for fault in faults for word in ("--fault", fault)]


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as text in aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
