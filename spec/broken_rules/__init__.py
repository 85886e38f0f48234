"""Deliberately broken rules of the model: what each property is there to catch.

A broken rule replaces one function of the model while a ``with`` block lasts. Exploring the
scope that it names must find the violation that it names; a property that no broken rule and
no fault of an engine violates is not yet earned.

>>> with broken_rule("pin_released_after_first_rank"):
...     from cowtail.models import connector
...     connector.strike_off.__name__
'_forget_every_rank'
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from unittest import mock

from cowtail.spec.broken_rules import blocks, caches, jobs, loads, stores, tails
from cowtail.spec.broken_rules.rule import BrokenRule
from cowtail.spec.names import unknown

__all__ = [
    "BROKEN_RULES",
    "BrokenRule",
    "broken_rule",
    "broken_rule_named",
    "broken_rules_named",
]

BROKEN_RULES: dict[str, BrokenRule] = {
    rule.name: rule
    for theme in (tails, jobs, blocks, caches, stores, loads)
    for rule in theme.RULES
}
"""Every broken rule by name."""


def broken_rule_named(name: str) -> BrokenRule:
    """Return a broken rule. Raises ValueError with the nearest known name."""
    if name in BROKEN_RULES:
        return BROKEN_RULES[name]
    raise ValueError(unknown(name, "broken rule", BROKEN_RULES))


def broken_rules_named(names: Sequence[str]) -> tuple[BrokenRule, ...]:
    """Return broken rules that can be in force together.

    Raises ValueError for an unknown name, and for two rules that replace one function.
    """
    rules = tuple(broken_rule_named(name) for name in names)
    replaced: dict[tuple[str, str], str] = {}
    for rule in rules:
        place = (rule.module.__name__, rule.function)
        other = replaced.setdefault(place, rule.name)
        if other != rule.name:
            raise ValueError(
                f"broken rules {other!r} and {rule.name!r}: both replace {rule.function}, so only "
                "one would be in force; choose one"
            )
    return rules


@contextlib.contextmanager
def broken_rule(name: str) -> Iterator[BrokenRule]:
    """Break one rule of the model for as long as the block lasts. Not safe for threads."""
    rule = broken_rule_named(name)
    _forget_what_rules_remember()
    try:
        with mock.patch.object(rule.module, rule.function, rule.replacement):
            yield rule
    finally:
        _forget_what_rules_remember()


def _forget_what_rules_remember() -> None:
    """Empty the caches of the rules: what they keep depends on rules that change here."""
    for name in sorted(sys.modules):
        if name.startswith("cowtail.models."):
            for value in vars(sys.modules[name]).values():
                forget = getattr(value, "cache_clear", None)
                if forget is not None:
                    forget()
