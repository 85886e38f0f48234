"""Telling causes apart: forty failures of one defect are one finding.

Failures are sorted twice. While exploring, by their signature, which costs nothing. At the end
the shortest few of each signature are reduced, and what comes to the same shape is one finding:
the same property, failing at the same kind of action and with the same message up to what a rank
holds, after the same events of the environment, with the same features of the configuration
needed. One that needs more than another, in a configuration that shows the other too, is the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.failures import Failure, Signature, attempt
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS
from cowtail.impl.vllm_engine.reduction import MAX_CARRIED_OUT, Reduced, reduce_failure
from cowtail.models.actions import Abort, Action, JobOutcome

MAX_KEPT = 2
"""How many failures of one signature are kept to be reduced: the shortest."""
MAX_REDUCED = 24
"""How many failures are reduced at the end of a run; what is left over is given as it was found."""


@attrs.frozen
class Sighting:
    """All failures of one signature: how many, and the shortest of them, shortest first."""

    signature: Signature
    times: int
    kept: tuple[Failure, ...]


class Sightings:
    """Failures by signature, in the order in which each was first seen."""

    def __init__(self) -> None:
        """Start with none."""
        self._times: dict[Signature, int] = {}
        self._kept: dict[Signature, list[Failure]] = {}

    def add(self, failure: Failure) -> None:
        """Count a failure; keep it if it is one of the shortest of its signature."""
        signature = failure.signature
        self._times[signature] = self._times.get(signature, 0) + 1
        kept = self._kept.setdefault(signature, [])
        kept.append(failure)
        kept.sort(key=lambda each: len(each.actions))
        del kept[MAX_KEPT:]

    def all(self) -> tuple[Sighting, ...]:
        """Return what was seen."""
        return tuple(
            Sighting(signature, times, tuple(self._kept[signature]))
            for signature, times in self._times.items()
        )


_CONSEQUENCES = {
    "A": "crash",
    "L2": "leak: something is never given back",
    "S1": "leak, or a block used twice",
    "S2": "lost cache, or a wrong hit",
    "S3": "wrong output, once it is hit",
    "S7": "wrong bytes in the store",
    "S8": "wrong bytes in the store",
    "S9": "a block is reused while it is read, or leaks",
    "S10": "stored twice, or a stale tail",
    "V5": "wrong output, silently",
    "V6": "wrong output, silently",
}
"""What a violation of each property can mean, until somebody has looked at the finding."""


@attrs.frozen
class Finding:
    """One cause: its reduced failure, and how often it was seen.

    ``times`` counts episodes. ``found`` is the failure as the run found it, ``minimal`` whether
    no action of ``failure`` can be left out, ``why_not_minimal`` what came first.
    """

    release: str
    failure: Failure
    found: Failure
    times: int
    minimal: bool
    why_not_minimal: str = ""
    carried_out: int = 0

    @property
    def known(self) -> str | None:
        """The name of the known finding that it is, if any."""
        return self.failure.known

    @property
    def consequence(self) -> str:
        """What it means for a user."""
        for known in KNOWN_FINDINGS:
            if known.name == self.known:
                return known.consequence
        if self.failure.identifier == "L2" and "not quiescent" in self.failure.reason:
            return "hang"
        return _CONSEQUENCES.get(self.failure.identifier, "unclear")


@attrs.frozen
class Shape:
    """What reduced failures of one cause have in common."""

    signature: Signature
    fails_at: str
    submitted: int
    events: frozenset[str]
    features: frozenset[str]

    def is_less_than(self, other: Shape) -> bool:
        """Whether it takes less than another shape to fail in the same way at the same place."""
        return (
            self != other
            and (self.signature, self.fails_at) == (other.signature, other.fails_at)
            and self.submitted <= other.submitted
            and self.events <= other.events
            and self.features <= other.features
        )


def shape_of(failure: Failure) -> Shape:
    """Return the canonical shape of a reduced failure.

    Of a known finding only its name counts: its recognizer has looked at the engine's state.
    Passes, reports and the like are left out, since how many of them it takes is incidental.
    """
    if failure.known is not None:
        return Shape(failure.signature, "", 0, frozenset(), frozenset())
    return Shape(
        signature=_coarse(failure.signature),
        fails_at=failure.failed_at,
        submitted=sum(action.name == "submit" for action in failure.actions),
        events=frozenset(filter(None, map(_event, failure.actions))),
        features=features_of(failure.config),
    )


def _coarse(signature: Signature) -> Signature:
    """Return a signature without what is wrong on a rank: one cause spoils blocks of any kind."""
    place = re.sub(r"\brank N: .*", "rank N", signature.place)
    return attrs.evolve(signature, place=re.sub(r"group N at '…'", "group N", place))


_PROGRESS = {
    "submit",
    "schedule_pass",
    "execute",
    "update_from_output",
    "update_connector_output",
    "run_job",
    "run_load",
    "report",
    "step",
    "run_to_rest",
}
"""Kinds of action that every run has."""


def _event(action: Action) -> str:
    """Return what is special about an action; "" for one that every run has."""
    if getattr(action, "failed", False):
        return f"failed {action.name}"
    outcome = getattr(action, "outcome", JobOutcome.OK)
    if outcome != JobOutcome.OK:
        return f"failed {action.name}"
    return "" if action.name in _PROGRESS and not isinstance(action, Abort) else action.name


_INCIDENTAL = (
    "requests",
    "stored",
    "peer_requests",
    "num_blocks",
    "num_ranks",
    "token_budget",
    "failure_code",
    "attention_block_size",
    "mamba_block_size",
    "hash_unit",
)
"""Fields in which two failures of one cause may differ."""


def features_of(config: EngineConfig) -> frozenset[str]:
    """Return the features that a configuration has beyond the default, as words."""
    features = {
        f"{field.name}={getattr(config, field.name)}"
        for field in attrs.fields(EngineConfig)
        if field.name not in _INCIDENTAL and getattr(config, field.name) != field.default
    }
    if config.stored:
        features.add("stored")
    return frozenset(features)


def findings_of(
    release: str,
    sightings: Iterable[Sighting],
    *,
    reduce: bool = True,
    max_carried_out: int = MAX_CARRIED_OUT,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[Finding, ...]:
    """Reduce the shortest failures of each signature, and merge what comes to the same shape.

    New ones come first. ``progress`` is told which failure is being reduced, and its number of
    actions. Interrupted (KeyboardInterrupt), it goes on without reducing: nothing that was found
    is lost.
    """
    findings: dict[Shape, Finding] = {}
    left = MAX_REDUCED if reduce else 0
    for sighting in sightings:
        reductions: list[tuple[Failure, Reduced]] = []
        for failure in sighting.kept[: 1 if sighting.signature.is_known else MAX_KEPT]:
            if reductions and not left:
                break
            try:
                reduced = _reduced(failure, left, max_carried_out, progress)
            except KeyboardInterrupt:
                left = 0
                reduced = Reduced(failure, False, 0, "interrupted before it was reduced")
            left = max(left - 1, 0)
            reductions.append((failure, reduced))
        for number, (failure, reduced) in enumerate(reductions):
            # Each failure beyond the first counts itself; the first counts all the others.
            times = 1 if number else sighting.times - len(reductions) + 1
            shape = shape_of(reduced.failure)
            finding = _finding(release, failure, reduced, times)
            findings[shape] = _merged(findings.get(shape), finding)
    explained = _explained(findings)
    return tuple(sorted(explained, key=lambda finding: finding.known is not None))


def _explained(findings: dict[Shape, Finding]) -> tuple[Finding, ...]:
    """Merge a finding into a simpler one of the same message that its configuration shows too."""
    left = dict(findings)
    for shape, finding in findings.items():
        for simpler, other in list(left.items()):
            if simpler.is_less_than(shape) and _shows(other.failure, finding.failure.config):
                left[simpler] = _merged(other, finding)
                del left[shape]
                break
    return tuple(left.values())


def _shows(failure: Failure, config: EngineConfig) -> bool:
    """Whether a failure's actions, on its own requests, fail alike with the features of another."""
    changed = {
        field.name: getattr(config, field.name)
        for field in attrs.fields(EngineConfig)
        if field.name not in ("requests", "stored", "peer_requests", "num_blocks", "num_ranks")
    }
    try:
        with_features = attrs.evolve(failure.config, **changed)
    except ValueError:
        return False
    found = attempt(with_features, failure.actions).failure
    return found is not None and _coarse(found.signature) == _coarse(failure.signature)


def finding_of(
    release: str, failure: Failure, *, progress: Callable[[int], None] | None = None
) -> Finding:
    """Return one failure, reduced, as a finding."""
    return _finding(release, failure, reduce_failure(failure, progress=progress), 1)


def _reduced(
    failure: Failure,
    left: int,
    max_carried_out: int,
    progress: Callable[[str, int], None] | None,
) -> Reduced:
    if not left:
        return Reduced(failure, False, 0, "not reduced")
    what = failure.known or failure.identifier
    return reduce_failure(
        failure,
        max_carried_out=max_carried_out,
        progress=None if progress is None else lambda length: progress(what, length),
    )


def _finding(release: str, found: Failure, reduced: Reduced, times: int) -> Finding:
    return Finding(
        release=release,
        failure=reduced.failure,
        found=found,
        times=times,
        minimal=reduced.minimal,
        why_not_minimal=reduced.why,
        carried_out=reduced.carried_out,
    )


def _merged(before: Finding | None, finding: Finding) -> Finding:
    """Return two findings of one cause as one: the shorter, seen as often as both."""
    if before is None:
        return finding
    best = min(before, finding, key=lambda each: (not each.minimal, len(each.failure.actions)))
    return attrs.evolve(best, times=before.times + finding.times)
