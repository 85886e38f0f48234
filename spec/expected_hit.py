"""What a lookup is expected to find, from lengths alone, and why (R31).

A first request runs alone, leaves keys, and a second one looks them up: the same prompt again, a
longer sibling, or a continuation. All arithmetic on integers: it calls no rule of the model, so
that it is a third opinion beside model and engine (docs/how-to/expected-hits.md).

>>> from cowtail.models.scope import full_attention, mamba
>>> layout = Layout((full_attention(1792, eagle=True), mamba(1792)), hash_unit=128)
>>> [expected_hit(layout, prompt, Resend()).length for prompt in (7449, 23196, 41300)]
[7296, 23040, 41088]
>>> print(expected_hit(layout, 7449, Resend()).why[0])
7296 is the replay boundary of 7449 tokens: floor(7449/128)*128 - 128
"""

from __future__ import annotations

import attrs

from cowtail.models.scope import GroupKind
from cowtail.spec.hits.layout import Layout, LookupSet, floor_to, label
from cowtail.spec.hits.left_behind import Keys, LeftBehind, left_behind
from cowtail.spec.hits.search import Demand, Found, common_keys, demands, lacking, search

__all__ = ["Continuation", "ExpectedHit", "Layout", "Resend", "Sibling", "expected_hit"]


@attrs.frozen
class Resend:
    """The second request has the same prompt."""


@attrs.frozen
class Sibling:
    """The second prompt has ``length`` tokens, the first ``shared`` of them the same."""

    length: int
    shared: int


@attrs.frozen
class Continuation:
    """The second prompt is the first, all that was sampled after it, and ``added`` tokens more."""

    added: int


Second = Resend | Sibling | Continuation


@attrs.frozen
class Missing:
    """A longer hit of ``length`` tokens, and the keys that it lacked."""

    length: int
    demands: tuple[Demand, ...]


@attrs.frozen
class Proof:
    """The key that proves the hit in one lookup set, the last of those that it needs."""

    members: LookupSet
    key: int
    keys: int


@attrs.frozen
class ExpectedHit:
    """What the second request finds: ``length`` tokens, the proofs, and what a longer hit lacked.

    ``known`` and ``shared`` are the second's prompt length and what it shares with the first;
    ``keys`` are those it may see, per group. ``why`` are sentences for people.
    """

    prompt: int
    known: int
    shared: int
    local: bool
    left: LeftBehind
    keys: Keys
    length: int
    junction: int
    proofs: tuple[Proof, ...]
    missing: tuple[Missing, ...]
    why: tuple[str, ...]


def expected_hit(
    layout: Layout, prompt: int, second: Second, *, local: bool = False, max_tokens: int = 1
) -> ExpectedHit:
    """Return what ``second`` finds after a prompt of ``prompt`` tokens that sampled ``max_tokens``.

    In the store, after the local cache was reset; with ``local``, in the local cache, without a
    store. Raises ValueError, naming the value, the rule and the fix, for impossible lengths.
    """
    known, shared = _lengths(prompt, second, max_tokens)
    left = left_behind(layout, prompt, max_tokens)
    keys = visible(left.local if local else left.store, shared)
    found = search(layout, keys, known) if local or known >= layout.alignment else Found(0)
    proofs = tuple(_proofs(layout, keys, found.length))
    missing = tuple(_missing(layout, keys, found.length, known))
    hit = ExpectedHit(
        prompt, known, shared, local, left, keys, found.length, found.junction, proofs, missing, ()
    )
    return attrs.evolve(hit, why=tuple(_why(layout, hit)))


def visible(keys: Keys, shared: int) -> Keys:
    """Return the keys of prefixes that the second request shares."""
    return tuple(frozenset(key for key in group if key <= shared) for group in keys)


def _lengths(prompt: int, second: Second, max_tokens: int) -> tuple[int, int]:
    """Return the second prompt's length, and how much of it the first request knew."""
    for name, value in (("prompt", prompt), ("max_tokens", max_tokens)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be 1 or more; raise it")
    match second:
        case Sibling(length=length, shared=shared):
            if length < 1 or not 0 <= shared <= min(prompt, length):
                raise ValueError(
                    f"sibling of {length} tokens that shares {shared}: it can share at most the "
                    f"shorter prompt, {max(min(prompt, length), 0)} tokens; change one of them"
                )
            return length, shared
        case Continuation(added=added):
            if added < 0:
                raise ValueError(f"continuation={added}: must not be negative; raise it")
            return prompt + max_tokens + added, prompt + max_tokens
        case Resend():
            return prompt, prompt


def _proofs(layout: Layout, keys: Keys, length: int) -> list[Proof]:
    """Return, for each set, the last key that the hit rests on."""
    if not length:
        return []
    proofs = []
    for each in layout.sets:
        wanted = [demand for demand in demands(layout, length) if demand.members == each]
        present = common_keys(each, keys)
        key = next(key for key in wanted[-1].lengths if key in present)
        proofs.append(Proof(each, key, len(wanted)))
    return proofs


def _missing(layout: Layout, keys: Keys, length: int, known: int) -> list[Missing]:
    """Return what the next longer hit lacked, and what the next one with a state lacked."""
    step = layout.alignment
    states = [common_keys(e, keys) for e in layout.sets if e.kind is GroupKind.MAMBA]
    kept = frozenset.intersection(*states) if states else frozenset()
    candidates = {end for end in kept if length < end < known and end % step == 0}
    nearest = {max(candidates)} if candidates else set()
    if length + step < known and (length or not nearest):
        nearest.add(length + step)
    return [Missing(end, lacking(layout, keys, end, known)) for end in sorted(nearest)]


def set_label(layout: Layout, each: LookupSet) -> str:
    """Return the labels of a set's groups."""
    return " + ".join(label(layout.groups[index]) for index in each.members)


def _why(layout: Layout, hit: ExpectedHit) -> list[str]:
    lines = [_boundary(layout, hit)]
    lines += [_proof(layout, hit, proof) for proof in hit.proofs]
    lines += [line for missing in hit.missing for line in _lack(layout, hit, missing)]
    if hit.length + layout.alignment >= hit.known:
        lines.append(
            f"{hit.length + layout.alignment} would be too long: the last of {hit.known} tokens is "
            "always computed"
        )
    if not layout.companions and not hit.local and layout.drops:
        lines.append(
            f"attention was stored at {layout.replay_boundary(hit.prompt)} only, so that what is "
            "found depends on the block sizes and on where chunks ended"
        )
    return lines


def _boundary(layout: Layout, hit: ExpectedHit) -> str:
    """Say which boundary a hit ends on."""
    length, unit = hit.length, layout.hash_unit
    if not length:
        return "nothing is found: the search met no boundary that every group has keys for"
    if layout.partial and length == layout.replay_boundary(hit.prompt):
        whole = hit.prompt if layout.drops or not layout.capped else f"({hit.prompt} - 1)"
        drop = f" - {unit}" if layout.drops else ""
        return (
            f"{length} is the replay boundary of {hit.prompt} tokens: "
            f"floor({whole}/{unit})*{unit}{drop}"
        )
    ends = [chunk.end for chunk in hit.left.chunks] + [c.checkpoint for c in hit.left.chunks]
    block = layout.state_block
    if block is None:
        return f"{length} is a multiple of {layout.alignment}, as every hit is"
    where = "the first request's chunk ended there" if length in ends else "decoding passed it"
    name = f"{length // block} x {block}, a block boundary" if length % block == 0 else "a boundary"
    return f"{length} is {name} with a state: {where}"


def _proof(layout: Layout, hit: ExpectedHit, proof: Proof) -> str:
    name = set_label(layout, proof.members)
    if proof.members.kind is GroupKind.MAMBA:
        return f"{name}: the state after exactly {proof.key} tokens"
    margin = layout.margin_of(proof.members)
    beyond = f" = {hit.length} + {margin}, and drops {margin}" if margin else ""
    if proof.key != hit.length + margin:
        beyond = f", which covers {hit.length}" + (f" + {margin}" if margin else "")
    rest = f" (and {proof.keys - 1} before it)" if proof.keys > 1 else ""
    return f"{name}: the key at {proof.key}{beyond}{rest}"


def _lack(layout: Layout, hit: ExpectedHit, missing: Missing) -> list[str]:
    """Say what a longer hit lacked, set by set."""
    if not missing.demands:
        return [
            f"{missing.length} lacks nothing: the search passes it by when it shortens a hit for "
            "another group, and does not come back"
        ]
    lines = []
    for each in layout.sets:
        lacking_here = [demand for demand in missing.demands if demand.members == each]
        if lacking_here:
            keys = _listed([demand.lengths[0] for demand in lacking_here])
            lines.append(
                f"{missing.length} lacks, of {set_label(layout, each)}, "
                + _absent(layout, hit, each, lacking_here[0].lengths[0], keys)
            )
    return lines


def _absent(layout: Layout, hit: ExpectedHit, each: LookupSet, first: int, keys: str) -> str:
    if first > floor_to(hit.known, layout.hash_unit):
        return f"the key at {keys}: beyond the last whole hash unit of {hit.known} tokens"
    what = "state" if each.kind is GroupKind.MAMBA else "key"
    margin = layout.margin_of(each)
    proof = f" ({margin} more, to be dropped)" if margin else ""
    return f"the {what} at {keys}{proof}, which was not {'cached' if hit.local else 'stored'}"


def _listed(keys: list[int]) -> str:
    shown = ", ".join(map(str, keys[:3]))
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
