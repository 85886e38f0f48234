"""How Hypothesis draws for us: uniformly, and from nothing but its seed.

By default Hypothesis sprinkles in constants that it finds in the source of whatever modules
happen to be loaded, so the same seed would give another run under pytest than on the command
line. Uniform draws give the same run everywhere, and waste nothing on novelty bookkeeping,
which long runs of a state machine have no use for. The rejected alternative, a fixed offset
that no constant can hit, would have hidden the same dependency instead of removing it.
"""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND = "cowtail"
"""The value for ``hypothesis.settings(backend=...)`` after ``register_backend``."""


class UniformProvider(HypothesisProvider):
    """Hypothesis's own source of choices, with plain uniform integers."""

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """Return an integer between two bounds, each as likely: the weights are not looked at.

        Without both bounds there is no uniform choice, and none is ever asked for here.
        """
        del weights, shrink_towards
        assert min_value is not None, "an integer without a lower bound"
        assert max_value is not None, "an integer without an upper bound"
        assert self._random is not None
        return self._random.randint(min_value, max_value)


def register_backend() -> None:
    """Make ``BACKEND`` known to Hypothesis."""
    AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{UniformProvider.__name__}"
