"""A built wheel installs one top-level package and runs outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_holds_one_package_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        archive.extractall(site)
    for front in ("page.html", "page.css", "app.js"):
        assert (site / "cowtail/spec/page/front" / front).is_file()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cowtail"}
    environment = {**os.environ, "PYTHONPATH": str(site)}
    found = subprocess.run(
        [sys.executable, "-c", "import cowtail.models as m; print(m.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert found.stdout.startswith(str(site))
    explored = subprocess.run(
        [sys.executable, "-m", "cowtail", "explore", "lone_producer"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert explored.returncode == 0, explored.stderr
    assert "holds" in explored.stdout
