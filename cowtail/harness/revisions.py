"""Where a recorded model comes from: a file, a git revision, the model at hand, a broken rule."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from cowtail.spec.broken_rules import broken_rule
from cowtail.spec.comparison import recorder

SPARE_SECONDS = 120.0
"""What a revision's process may take beyond the bounds of its scopes, before it is ended."""


def record_of(source: str, scopes: list[str], max_states: int, max_seconds: float) -> Any:
    """Return the record of ``.``, ``rule:NAME``, ``git:REVISION`` or a file.

    Raises ValueError: the source is not there, cannot be read or run, or lacks a scope.
    """
    if source == ".":
        return _through_json(recorder.record(scopes, max_states, max_seconds))
    if source.startswith("rule:"):
        with broken_rule(source.removeprefix("rule:")):
            return _through_json(recorder.record(scopes, max_states, max_seconds))
    if source.startswith("git:"):
        return _record_of_revision(source.removeprefix("git:"), scopes, max_states, max_seconds)
    return read(Path(source), scopes)


def _through_json(record: dict[str, Any]) -> Any:
    return json.loads(json.dumps(record))


def read(path: Path, scopes: list[str]) -> Any:
    """Return the record in a file, of these scopes only. Raises ValueError in one sentence."""
    try:
        data = path.read_bytes()
        record = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path}: no graph can be read ({error}); give a file that `cowtail diff --save` wrote,"
            " '.', rule:NAME or git:REVISION"
        ) from None
    if not isinstance(record, dict) or record.get("cowtail_graph") != recorder.FORMAT:
        raise ValueError(
            f"{path}: not a graph of format {recorder.FORMAT}; record it again with --save"
        )
    for name in scopes:
        if name not in record["scopes"]:
            raise ValueError(
                f"{path}: has no scope {name!r}, but {', '.join(record['scopes'])}; use one of them"
            )
    return record | {"scopes": {name: record["scopes"][name] for name in scopes}}


def write(path: Path, record: Any) -> None:
    """Write a record, the same bytes for the same record; compressed if the name ends in .gz."""
    data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _record_of_revision(
    revision: str, scopes: list[str], max_states: int, max_seconds: float
) -> Any:
    """Run today's recorder on the package of a revision, unpacked in a temporary folder."""
    resolved = _git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if resolved.returncode:
        raise ValueError(f"git:{revision}: no such revision of the repository here; check its name")
    archive = _git("archive", resolved.stdout.decode().strip(), cwd=_top())
    with tempfile.TemporaryDirectory(prefix="cowtail-diff-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as unpacked:
            unpacked.extractall(folder, filter="data")
        words = [folder, str(max_states), str(max_seconds), *scopes]
        try:
            run = subprocess.run(
                [sys.executable, "-P", recorder.__file__, *words],
                env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                timeout=max_seconds * len(scopes) + SPARE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise ValueError(
                f"git:{revision}: not recorded within {expired.timeout:g} s; fewer scopes"
            ) from None
    if run.returncode:
        last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"git:{revision}: its model cannot be recorded: {' '.join(last)}")
    return json.loads(run.stdout)


def _top() -> str:
    return _git("rev-parse", "--show-toplevel").stdout.decode().strip()


def _git(*words: str, cwd: str | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], capture_output=True, cwd=cwd, check=False)
