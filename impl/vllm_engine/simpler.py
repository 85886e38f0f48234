"""Simpler configurations for a failing run: what a reader need not look at is taken out.

>>> a, b = RequestSpec("a", "tick"), RequestSpec("b", "ticket", max_tokens=2)
>>> [request.tokens for request in plain_texts((a, b))]
['xxxxx', 'xxxxyyyy']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.models.actions import Action
from cowtail.models.scope import RequestSpec

_LETTERS = "xyzwvutsrqponmlkjihgfedcba"
_SIZES = ("requests", "stored", "num_blocks", "num_ranks", "peer_requests")
"""Fields that have no default, or whose default is not their least."""
CUTS = (32, 16, 8, 4, 2, 1)
"""How many tokens are taken off at once, in this order."""


def weight(config: EngineConfig) -> tuple[int, ...]:
    """Return how much there is to look at, for comparison: less is simpler."""
    requests = _all_requests(config)
    features = sum(
        getattr(config, field.name) != field.default
        for field in attrs.fields(EngineConfig)
        if field.name not in _SIZES
    ) + bool(config.peer_requests)
    return (
        len(requests),
        features,
        sum(len(request.tokens) for request in requests),
        sum(bool(request.output) + (request.priority != 0) for request in requests),
        sum(len(set(request.prompt)) for request in requests),
        config.num_blocks != _default_of("num_blocks"),
        config.num_blocks,
        config.num_ranks,
        sum(ord(letter) != ord("x") for request in requests for letter in request.tokens),
    )


def simpler_configs(config: EngineConfig, actions: Sequence[Action]) -> Iterator[EngineConfig]:
    """Yield configurations that may be simpler, the boldest changes first."""
    for changes in _changes(config, actions):
        try:
            yield attrs.evolve(config, **changes)
        except ValueError:  # a change may leave sizes that do not fit
            continue


def _changes(config: EngineConfig, actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    named = {getattr(action, "request", None) for action in actions}
    used = tuple(request for request in config.requests if request.name in named)
    if used and used != config.requests:
        yield {"requests": used}
    if config.peer_requests:
        yield {"peer_requests": ()}
    theirs = tuple(request for request in config.peer_requests if request.name in named)
    if theirs and theirs != config.peer_requests:
        yield {"peer_requests": theirs}
    for request in config.stored:
        yield {"stored": tuple(other for other in config.stored if other != request)}
    for field in attrs.fields(EngineConfig):
        if field.name not in _SIZES and getattr(config, field.name) != field.default:
            yield {field.name: field.default}
    for num_ranks in range(1, config.num_ranks):
        yield {"num_ranks": num_ranks}
    default = _default_of("num_blocks")
    if config.num_blocks != default:
        yield {"num_blocks": default}
        yield from ({"num_blocks": config.num_blocks - less} for less in (8, 4, 2, 1))
    yield from _shorter(config)
    plain = plain_texts(_all_requests(config))
    yield _split(config, [attrs.evolve(request, output="") for request in plain])
    yield _split(config, plain)


def _default_of(name: str) -> int:
    default: Any = attrs.fields_dict(EngineConfig)[name].default
    return int(default)


def _split(config: EngineConfig, requests: Sequence[RequestSpec]) -> dict[str, Any]:
    count = len(config.requests)
    end = count + len(config.stored)
    return {
        "requests": tuple(requests[:count]),
        "stored": tuple(requests[count:end]),
        "peer_requests": tuple(requests[end:]),
    }


def _all_requests(config: EngineConfig) -> tuple[RequestSpec, ...]:
    return (*config.requests, *config.stored, *config.peer_requests)


def _shorter(config: EngineConfig) -> Iterator[dict[str, Any]]:
    """Yield changes that leave fewer tokens: of all, of those with one prompt, of one, at an end.

    Prompts that are equal are shortened together, too: a hit needs both.
    """
    requests = _all_requests(config)
    for cut in CUTS:
        if all(len(request.prompt) > cut for request in requests):
            yield _split(config, [_prompted(each, each.prompt[cut:]) for each in requests])
        for prompt in dict.fromkeys(request.prompt for request in requests):
            if len(prompt) > cut:
                shorter = [
                    _prompted(each, prompt[:-cut]) if each.prompt == prompt else each
                    for each in requests
                ]
                yield _split(config, shorter)
        for index, request in enumerate(requests):
            changed = []
            if len(request.prompt) > cut:
                changed.append(_prompted(request, request.prompt[:-cut]))
            if request.max_tokens > cut:
                changed.append(attrs.evolve(request, max_tokens=request.max_tokens - cut))
            for each in changed:
                yield _split(config, [*requests[:index], each, *requests[index + 1 :]])
    for index, request in enumerate(requests):
        for changes in ({"output": ""}, {"priority": 0}, {"accepts": ""}):
            plainer = attrs.evolve(request, **changes)
            if plainer != request:
                yield _split(config, [*requests[:index], plainer, *requests[index + 1 :]])


def _prompted(request: RequestSpec, prompt: str) -> RequestSpec:
    return attrs.evolve(request, prompt=prompt)


def plain_texts(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """Return the requests with tokens that are as plain as can be, prefixes shared as before.

    Only which prefixes two requests share matters to a block's life. Each request keeps the
    longest prefix that it shares with one before it, and goes on in a letter of its own.
    """
    plain: list[RequestSpec] = []
    texts: list[tuple[str, str]] = []
    for index, request in enumerate(requests):
        tokens = request.tokens
        shared, prefix = 0, ""
        for before, text in texts:
            pairs = zip(before, tokens, strict=False)
            common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if common > shared:
                shared, prefix = common, text[:common]
        text = prefix + _LETTERS[index % len(_LETTERS)] * (len(tokens) - shared)
        texts.append((tokens, text))
        length = len(request.prompt)
        plain.append(attrs.evolve(request, prompt=text[:length], output=text[length:]))
    return plain
