"""The connector's lookup client without its socket: it answers at once, or when it is told to.

The real client sends a request's block hashes to rank 0, which asks the store, and with
``lookup_async`` says "not yet" until the answer has come. Here the driver decides when it comes;
the store is asked at that moment, with the hashes that the request had when it asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from cowtail.impl.vllm_engine.surface import surface

Ask = Callable[[int, Any], Any]
"""(tokens, block hashes) -> the worker's own answer."""


@attrs.frozen
class Question:
    """What was asked for a request: its number of tokens, and its block hashes."""

    num_tokens: int
    block_hashes: tuple[Any, ...]


class DirectLookup:
    """Takes the place of ``LookupKeyClient``.

    ``ask`` and ``remove_all`` are set once the workers and the store are there. ``used`` are the
    requests that took a late answer, in order, since somebody last cleared it.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Ask nobody yet."""
        self.ask: Ask | None = None
        self.remove_all: Callable[[], None] | None = None
        self.used: list[str] = []
        self._asked: dict[str, Question] = {}
        self._answers: dict[str, Any] = {}

    def lookup(
        self, request_id: str, num_tokens: int, block_hashes: Sequence[Any], non_block: bool = False
    ) -> Any:
        """Return the answer; None, for a lookup that does not block, until it has come."""
        question = Question(num_tokens, tuple(block_hashes))
        if not non_block:
            return self._answer_to(question)
        if request_id in self._answers:
            self.used.append(request_id)
            return self._answers.pop(request_id)
        self._asked.setdefault(request_id, question)
        return None

    def asked(self) -> dict[str, Question]:
        """Return the questions that have no answer yet, by request, in the order of asking."""
        return dict(self._asked)

    @property
    def has_lookups(self) -> bool:
        """Whether a question waits for its answer, or an answer for its request."""
        return bool(self._asked or self._answers)

    def answer(self, request_id: str, failed: bool) -> None:
        """Let the answer to a request's question come; a lookup that fails finds nothing."""
        question = self._asked.pop(request_id)
        nothing = surface().store_data.MooncakeLookupResult
        self._answers[request_id] = nothing(0) if failed else self._answer_to(question)

    def discard(self, request_id: str) -> None:
        """Drop what was asked for a request, or its answer."""
        self._asked.pop(request_id, None)
        self._answers.pop(request_id, None)

    def reset(self) -> bool:
        """Remove everything from the store; return that it is done.

        The real one waits until rank 0 has sent what it has queued: the driver asks for a reset
        only when that is so.
        """
        assert self.remove_all is not None, "a reset before the store was there"
        self.remove_all()
        return True

    def close(self) -> None:
        """Close the socket: there is none."""

    def _answer_to(self, question: Question) -> Any:
        assert self.ask is not None, "a lookup before the workers were built"
        return self.ask(question.num_tokens, list(question.block_hashes))
