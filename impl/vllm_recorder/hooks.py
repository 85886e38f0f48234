"""Wrapping methods of single objects, so that what is wrapped can be let go of again.

Classes are left alone: another scheduler in the same process is another recorder's business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Note = Callable[..., None]


class Hooks:
    """The wrapped methods of the objects of one engine.

    ``fail`` is told of an exception out of a note; an engine never sees one.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        """Start without any."""
        self._fail = fail
        self._wrapped: list[tuple[Any, str]] = []
        self._undo: list[Callable[[], None]] = []
        self.active = True

    def before(self, owner: Any, name: str, note: Note) -> None:
        """Call ``note(*args)`` before ``owner.name(*args)``."""

        def wrap(original: Any) -> Any:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                self.guarded(note, *args, **kwargs)
                return original(*args, **kwargs)

            return wrapped

        self.wrap(owner, name, wrap)

    def after(self, owner: Any, name: str, note: Note) -> None:
        """Call ``note(result, *args)`` after ``owner.name(*args)``."""

        def wrap(original: Any) -> Any:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self.active:
                    try:
                        note(result, *args, **kwargs)
                    except Exception as error:
                        self._fail(error)
                return result

            return wrapped

        self.wrap(owner, name, wrap)

    def wrap(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Put ``wrap(original)`` in the place of ``owner.name``, on this object only."""
        original = getattr(owner, name)
        setattr(owner, name, functools.update_wrapper(wrap(original), original))
        self._wrapped.append((owner, name))

    def undo_with(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when everything is let go of."""
        self._undo.append(undo)

    def guarded(self, note: Note, *args: Any, **kwargs: Any) -> None:
        """Call a note; an exception ends the recording, and nothing else."""
        if not self.active:
            return
        try:
            note(*args, **kwargs)
        except Exception as error:
            self._fail(error)

    def let_go(self) -> None:
        """Put everything back as it was."""
        self.active = False
        for owner, name in reversed(self._wrapped):
            vars(owner).pop(name, None)
        self._wrapped.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()
