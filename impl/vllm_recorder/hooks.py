"""Wrapping methods of single objects, so that what is wrapped can be let go of again.

Another scheduler in the same process is another recorder's business, or nobody's.
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
        replaced = _replaced(type(owner), name)
        if id(owner) in replaced.by_owner:
            raise ValueError(f"{type(owner).__name__}.{name} is wrapped already: two recorders?")
        bound = functools.partial(replaced.original, owner)
        replaced.by_owner[id(owner)] = wrap(bound)
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
        for owner, name in self._wrapped:
            _give_back(owner, name)
        self._wrapped.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()


class _Replaced:
    """A method of a class that calls what some of its objects have in its place.

    An attribute of the object would do, or a class of its own; but then Python no longer looks
    up any of its attributes the fast way (measured: a tenth of the scheduler's time).
    """

    def __init__(self, owner: type, name: str) -> None:
        self.original: Callable[..., Any] = getattr(owner, name)
        self.inherited = name not in vars(owner)
        self.by_owner: dict[int, Callable[..., Any]] = {}
        original, by_owner = self.original, self.by_owner

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            wrapped = by_owner.get(id(self))
            if wrapped is None:
                return original(self, *args, **kwargs)
            return wrapped(*args, **kwargs)

        setattr(owner, name, method)


_REPLACED: dict[tuple[type, str], _Replaced] = {}


def _replaced(owner: type, name: str) -> _Replaced:
    if (owner, name) not in _REPLACED:
        _REPLACED[owner, name] = _Replaced(owner, name)
    return _REPLACED[owner, name]


def _give_back(owner: Any, name: str) -> None:
    """Let an object have its method again, and its class, if no other object needs it."""
    kind = type(owner)
    replaced = _REPLACED[kind, name]
    del replaced.by_owner[id(owner)]
    if replaced.by_owner:
        return
    del _REPLACED[kind, name]
    if replaced.inherited:
        delattr(kind, name)
    else:
        setattr(kind, name, replaced.original)
