"""The command line: one module a command, thin over the harness and the spec."""

from __future__ import annotations

import typer

from cowtail.cli import common
from cowtail.cli.check import check
from cowtail.cli.diff import diff
from cowtail.cli.doctor import doctor
from cowtail.cli.draw import draw
from cowtail.cli.explore import explore
from cowtail.cli.faults import faults
from cowtail.cli.finding import finding
from cowtail.cli.fuzz import fuzz
from cowtail.cli.hit import hit
from cowtail.cli.replay import reduce, replay
from cowtail.cli.vllm import vllm

app = typer.Typer(
    name="cowtail",
    help="Hold KV-cache implementations to an executable specification of the block lifecycle.",
    epilog=common.EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for each in (fuzz, explore, draw, diff, replay, reduce, check, finding, faults, hit, doctor):
    app.command(epilog=common.EXITS)(each)
app.add_typer(vllm, name="vllm")
