"""The page as one HTML file: its own scripts and styles, and the data, compressed.

The data is base64 of zlib-compressed JSON, so that no name in it can end the script element;
the page writes names as text, never as markup.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

from cowtail.models.scope import Scope
from cowtail.spec.exploration import Progress
from cowtail.spec.page.dataset import Json
from cowtail.spec.page.scoped import encode_scope
from cowtail.spec.page.traced import encode_trace
from cowtail.spec.traces import Trace

SCRIPTS = ("data.js", "diagram.js", "state.js", "app.js")
"""In the order in which they are run; each adds to the one global object, ``cowtail``."""


def page(
    scope: Scope,
    view: str,
    traces: Sequence[tuple[str, Trace]] = (),
    progress: Callable[[Progress], None] | None = None,
) -> str:
    """Return the page of a scope, opened at a view, with named traces beside it.

    Raises:
        Unfinished: the scope has too many states.
    """
    encoded, _, _ = encode_scope(scope, progress=progress)
    return document(encoded, view, [encode_trace(name, trace) for name, trace in traces])


def document(scope: Json, view: str, traces: Sequence[Json] = ()) -> str:
    """Return the HTML text for encoded data."""
    payload = json.dumps(
        {"view": view, "main": scope, "traces": list(traces)},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    data = base64.b64encode(zlib.compress(payload.encode(), 9)).decode()
    parts = {
        "title": escape(f"{scope['scope']['name']}: {len(scope['parents']):,} states"),
        "style": _front("page.css"),
        "data": data,
        "scripts": "\n".join(_front(name) for name in SCRIPTS),
    }
    text = _front("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def _front(name: str) -> str:
    return resources.files("cowtail.spec.page").joinpath("front", name).read_text(encoding="utf-8")
