"""Workers that somebody got wrong: the order of device work, and what is put when."""

from __future__ import annotations

from typing import Any

from cowtail.impl.torch_engine.forward import StepInputs, forward
from cowtail.impl.torch_engine.store_protocol import StoreKey
from cowtail.impl.torch_engine.worker import Entry, QueuedJob, Worker
from cowtail.models.actions import JobOutcome
from cowtail.models.observations import StoreEntry


class ChecksStoreWhenQueued(Worker):
    """What the store has is looked up when a job is queued, not when it runs.

    A store that is in flight is not seen, and the same block is stored again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looked_up: dict[int, set[StoreKey]] = {}

    def enqueue(self, queued: QueuedJob) -> None:
        """Look everything up now."""
        entries = self.boundary_entries(queued) + self.normal_entries(queued)
        missing = super().missing(queued, entries)
        self._looked_up[queued.job] = {entry.key for entry in missing}
        super().enqueue(queued)

    def missing(self, queued: QueuedJob, entries: list[Entry]) -> list[Entry]:
        """Return what was missing when the job was queued."""
        return [entry for entry in entries if entry.key in self._looked_up[queued.job]]


class MovesOffsetOnFailure(Worker):
    """The durable offset moves with the job, whether or not its puts went well."""

    def put_failed(self, queued: QueuedJob) -> None:
        """Take the job's save for done."""
        if queued.save_to > 0:
            self.saved[queued.request] = queued.save_to


class SavesEveryGroupByPosition(Worker):
    """A normal save walks the tables of all groups, states and their nulls included."""

    def groups_saved(self) -> list[int]:
        """Return all groups."""
        return list(range(len(self.scope.groups)))

    def is_put(self, entry: Entry) -> bool:
        """Take the null block's bytes for a state."""
        return True


class CopiesAfterForward(Worker):
    """Copies-on-write run behind the forward pass, which has overwritten their sources."""

    def run_step(self, inputs: StepInputs) -> None:
        """Zero, move states, compute, and copy at last."""
        self.zero_new_blocks(inputs)
        if inputs.state_copies is not None:
            self.memory.copy(*inputs.state_copies)
        for wave in inputs.waves:
            forward(self.memory, wave, self.rank)
        self.settle_states(inputs)
        self.copy_blocks(inputs)


class ForgetsToZero(Worker):
    """New blocks keep the bytes of whoever had them last."""

    def zero_new_blocks(self, inputs: StepInputs) -> None:
        """Leave them."""


class TrustsDurableOffset(Worker):
    """What was stored once is taken to be there for ever; what was evicted is a hole."""

    def durable_offset(self, queued: QueuedJob, missing: list[Entry]) -> int:
        """Do not look at what is missing."""
        return self.saved.get(queued.request, 0)


class LosesJobsWhoseCheckFails(Worker):
    """An existence check that raises ends the job there and then; nobody reports it."""

    def run_job(self, outcome: JobOutcome) -> tuple[StoreEntry, ...]:
        """Leave the job out of what is to be reported."""
        puts = super().run_job(outcome)
        if outcome is JobOutcome.CHECK_FAILED:
            self.outbox.pop()
        return puts
