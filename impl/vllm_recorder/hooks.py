"""Wrapping methods of single objects, so that what is wrapped can be let go of again.

Another scheduler in the same process is another recorder's business, or nobody's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

Note = Callable[..., None]


class Changes(Protocol):
    """Counts what is done to one engine."""

    operations: int
    nothing: Any


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

    def after_changes(self, owner: Any, name: str, changes: Changes, note: Note) -> None:
        """Call ``note(result, *args)`` after those calls of ``owner.name`` that changed something.

        For a method that is called for every request of every pass, mostly for nothing: it is
        called with its own parameters, by position, without a wrapper in between. ``changes``
        counts; what a call that changes nothing returns is ``changes.nothing``, or None.
        """
        replaced = _replaced(type(owner), name, _watching)
        if id(owner) in replaced.by_owner:
            raise ValueError(f"{type(owner).__name__}.{name} is wrapped already: two recorders?")
        replaced.by_owner[id(owner)] = (changes, functools.partial(self.guarded, note))
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

    def __init__(self, owner: type, name: str, make: MakesMethod) -> None:
        self.original: Callable[..., Any] = getattr(owner, name)
        self.inherited = name not in vars(owner)
        self.by_owner: dict[int, Any] = {}
        method = make(self.original, self.by_owner)
        setattr(owner, name, functools.wraps(self.original)(method))


MakesMethod = Callable[[Callable[..., Any], dict[int, Any]], Callable[..., Any]]


def _calling(original: Callable[..., Any], by_owner: dict[int, Any]) -> Callable[..., Any]:
    """Return a method that calls what its object has in its place."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = by_owner.get(id(self))
        if wrapped is None:
            return original(self, *args, **kwargs)
        return wrapped(*args, **kwargs)

    return method


def _watching(original: Callable[..., Any], by_owner: dict[int, Any]) -> Callable[..., Any]:
    """Return a method that calls the original, and, if that changed something, a note.

    Its source is put together from the signature of the original: to gather arguments by name and
    to hand them on costs more than all else that is done here (measured: 5 % of the scheduler's
    time, against less than 1 %).
    """
    parameters = list(inspect.signature(original).parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(parameter.kind in variadic for parameter in parameters):
        raise TypeError(f"{original.__qualname__}{inspect.signature(original)}: not wrapped")
    known: dict[str, Any] = {"original": original, "by_owner": by_owner}
    declared, passed = [], []
    keyword_only = False
    for number, parameter in enumerate(parameters):
        name = parameter.name
        by_name = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if by_name and not keyword_only:
            keyword_only = True
            declared.append("*")
        default = parameter.default
        if default is not inspect.Parameter.empty:
            known[f"default_{number}"] = default
        declared.append(name if default is inspect.Parameter.empty else f"{name}=default_{number}")
        passed.append(f"{name}={name}" if by_name else name)
    owner, *rest = passed
    source = f"""
def method({", ".join(declared)}):
    watching = by_owner.get(id({owner}))
    if watching is None:
        return original({", ".join(passed)})
    changes = watching[0]
    operations = changes.operations
    result = original({", ".join(passed)})
    if changes.operations != operations or (result is not changes.nothing and result is not None):
        watching[1](result, {", ".join(rest)})
    return result
"""
    exec(source, known)
    method: Callable[..., Any] = known["method"]
    return method


_REPLACED: dict[tuple[type, str], _Replaced] = {}


def _replaced(owner: type, name: str, make: MakesMethod = _calling) -> _Replaced:
    if (owner, name) not in _REPLACED:
        _REPLACED[owner, name] = _Replaced(owner, name, make)
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
