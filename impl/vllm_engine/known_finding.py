"""What is written down of a defect of real releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session


@attrs.frozen
class KnownFinding:
    """A defect of listed releases: what goes wrong, where, and how it is recognized.

    ``place`` names functions of vLLM; ``see`` is the public change that it is next to. ``page``
    is its page in docs/findings, ``consequence`` what it means for a user.
    """

    name: str
    page: str
    consequence: str
    identifier: str
    releases: tuple[str, ...]
    sentence: str
    place: str
    see: str
    recognizes: Callable[[Session], bool]
