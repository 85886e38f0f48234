"""A request as the scheduler holds it, and the chunks that it is scheduled for."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Chunk, Status
from cowtail.models.scope import RequestSpec


@attrs.define(eq=False)
class Request:
    """Counts of one request. All lengths are in tokens.

    ``computed`` is optimistic: it advances when a chunk is scheduled. ``placeholders`` are
    tokens that will be sampled by steps whose output has not been processed. ``in_flight`` sums
    the chunks of such steps, stale ones included. ``preemptions`` tells the lives of a request
    apart, so that the output of an earlier one is recognized as stale. ``drafts`` are guessed
    tokens that a step in flight verifies. ``junction``: where, beyond its own hit, a sibling's
    ended; 0 if nowhere. ``arrival`` and ``admission`` number the submissions and the admissions
    of all requests, the last one of this. ``load_failed``: a connector could not load it, so it
    asks none again.
    """

    spec: RequestSpec
    status: Status = Status.NEW
    computed: int = 0
    outputs: int = 0
    placeholders: int = 0
    in_flight: int = 0
    preemptions: int = 0
    drafts: int = 0
    junction: int = 0
    arrival: int = 0
    admission: int = 0
    load_failed: bool = False
    tokens: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Keep the tokens: keys are made of their prefixes."""
        self.tokens = self.spec.tokens

    @property
    def name(self) -> str:
        """The request's name, unique in its scope."""
        return self.spec.name

    @property
    def prompt_length(self) -> int:
        """P: the number of prompt tokens."""
        return len(self.spec.prompt)

    @property
    def known(self) -> int:
        """N: prompt tokens and processed output tokens."""
        return len(self.spec.prompt) + self.outputs

    @property
    def prefill_end(self) -> int:
        """Where prefill ends; a request that was preempted prefills its known outputs too."""
        return max(self.prompt_length, self.known - 1)

    @property
    def processed(self) -> int:
        """Computed tokens whose step's output has been processed: the device is past them."""
        return max(0, self.computed - self.in_flight)

    @property
    def finished(self) -> bool:
        """Whether the request has ended, by itself or by an abort."""
        return self.status is Status.FINISHED

    def prefix(self, length: int) -> str:
        """Return the first ``length`` tokens; outputs are scripted, so later ones are defined."""
        return self.tokens[:length]

    def accepts(self, drafts: int) -> int:
        """Return how many of ``drafts`` a step scheduled now will accept, by the script."""
        script = self.spec.accepts
        if not script:
            return drafts
        return min(int(script[self.outputs % len(script)]), drafts)

    def has_tokens_to_schedule(self) -> bool:
        """Whether a further chunk makes sense: not all scheduled, not due to reach its limit.

        While drafts are being verified, nobody knows where to go on.
        """
        if self.drafts:
            return False
        due = self.outputs + self.placeholders >= self.spec.max_tokens
        return self.computed < self.known + self.placeholders and not (
            due and self.computed >= self.known
        )


@attrs.frozen(eq=False)
class ScheduledChunk:
    """A chunk of a request in one step, with the workers' tables that the step runs on.

    ``samples``: the chunk ends at the last token there is, so the step samples the next one.
    ``life``: the request's number of preemptions when it was scheduled. ``admitted``: the
    chunk is the first of that life. The last ``drafts`` tokens are guessed, of which the
    step will accept ``accepted``. ``checkpoint``: the token count whose state the device exports
    on the way, or None.
    """

    request: Request
    start: int
    end: int
    samples: bool
    admitted: bool
    life: int
    worker_tables: tuple[tuple[int, ...], ...]
    drafts: int = 0
    accepted: int = 0
    checkpoint: int | None = None

    @property
    def chunk(self) -> Chunk:
        """The chunk as it is observed."""
        return Chunk(self.request.name, self.start, self.end)

    @property
    def length(self) -> int:
        """Tokens in the chunk."""
        return self.end - self.start
