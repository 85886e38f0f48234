"""What a broken rule is: one function of the model, and the mistake that replaces it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs


@attrs.frozen
class BrokenRule:
    """A rule of the model, replaced by a mistake that a developer could make.

    ``case`` names the public report it abstracts, if any; ``violates`` the property that must
    catch it in ``scope``.
    """

    name: str
    case: str
    sentence: str
    scope: str
    violates: str
    module: ModuleType
    function: str
    replacement: Callable[..., Any]


def broken(
    name: str,
    case: str,
    sentence: str,
    scope: str,
    violates: str,
    target: tuple[ModuleType, str, Callable[..., Any]],
) -> BrokenRule:
    """Return a broken rule; ``target`` is the module, its function, and what replaces it."""
    return BrokenRule(name, case, sentence, scope, violates, *target)
