"""Why some branches of the rules are taken in no scope: the one table of reasons.

A place is named by function, by the text of its decision and by its outcome, never by a line
number, so that it survives edits elsewhere; ``*`` stands for every function, text or outcome.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import attrs

from cowtail.spec.probes import Branch


@attrs.frozen
class Place:
    """Which branches are meant. ``function`` may contain ``*``; ``text`` and ``outcome`` be it."""

    function: str
    text: str = "*"
    outcome: str = "*"

    def names(self, branch: Branch) -> bool:
        """Whether a branch is meant."""
        return (
            fnmatchcase(branch.function, self.function)
            and self.text in ("*", branch.text)
            and self.outcome in ("*", branch.outcome)
        )


@attrs.frozen
class Reason:
    """Why no scope reaches some branches."""

    sentence: str
    places: tuple[Place, ...]


REASONS: tuple[Reason, ...] = (
    Reason(
        "The explorer takes enabled actions only, and asks for them where they can be enabled; "
        "what a refused action says is for tests.",
        (
            Place("*", "if guard:", "true"),
            Place("*", "if isinstance(plan, Refusal):", "true"),
            Place("*", "if state.open_pass is None:", "true"),
            Place("*_guard", "if state.open_pass is not None:", "true"),
            Place("*", "if not 0 <= rank < len(state.ranks):", "true"),
            Place("lifecycle.step", "except NotEnabled as error:", "caught"),
            Place("lifecycle._step", "if state.open_pass is not None and not inside:", "true"),
            Place("errors.NotEnabled.__init__"),
            Place("workers.run_job_guard", "if outcome not in scope.put_failures:", "true"),
            Place("workers.report_guard", "if job not in state.ranks[rank].outbox:", "true"),
            Place(
                "loads.report_load_guard",
                "if not any(done == index for done, _ in state.ranks[rank].loaded):",
                "true",
            ),
            Place(
                "peers.finish_send_guard",
                "if (index, child) not in state.ranks[rank].sends:",
                "true",
            ),
            Place(
                "environment.evict_guard",
                "if state.spent.evictions >= scope.max_evictions:",
                "true",
            ),
            Place(
                "environment.evict_guard",
                "if not any((e.rank, e.group, e.prefix) == (rank, group, prefix) "
                "for e in state.store):",
                "true",
            ),
            Place(
                "environment.evict_guard",
                "if (group, prefix) in store_lookup.leased_keys(scope, state):",
                "true",
            ),
        ),
    ),
    Reason(
        "Asked for by observers and properties, by nothing that moves the state.",
        (
            Place("lifecycle.observe"),
            Place("lifecycle.observe_request"),
            Place("lifecycle.observe_rank"),
            Place("memories.agreed_memory"),
            Place("device.memory_ahead"),
            Place("observations.Key.__repr__"),
            Place("actions.Action.__repr__"),
        ),
    ),
    Reason(
        "Named scopes are valid, and name their requests rightly; unit tests refuse bad ones.",
        (
            Place("scope.Scope._require_*"),
            Place("scope._article"),
            Place("scope.Scope.index"),
        ),
    ),
    Reason(
        "An assertion: only a broken rule fails it, and then S0 reports it.",
        (
            Place("lifecycle._enabled", "if state.failure:", "true"),
            Place("lifecycle._step", "if state.failure:", "true"),
            Place("block_pool.allocate", "if count > len(pool.free):", "true"),
            Place("block_pool.allocate", "if ref_counts[block] != 0:", "true"),
            Place("block_pool.free", "if ref_counts[block] == 0:", "true"),
            Place("block_pool.add_key", "if block == NULL_BLOCK:", "true"),
            Place(
                "block_pool.promote_to_full",
                "if held and len(held[0].prefix) >= len(key.prefix):",
                "true",
            ),
            Place("block_pool.move_keys", "if pool.keys[destination]:", "true"),
            Place(
                "tables._allocate_states",
                "if result.pool.ref_counts[block] != 1 or result.pool.keys[block]:",
                "true",
            ),
            Place(
                "tables._copy_on_write",
                "if due.source == NULL_BLOCK or table.blocks[due.index] != due.source:",
                "true",
            ),
            Place("tables._producer_copy", "if table.marker.block != due.source:", "true"),
            Place("store_lookup._last_keys", "if end is None:", "true"),
            Place("connector.register_finished_tail", "if len(ends) != 1:", "true"),
        ),
    ),
    Reason(
        "Only a wrong read makes a step compute garbage; no correct rule lets one happen.",
        (
            Place("device._forward", "tokens[:chunk.checkpoint] if intact else GARBAGE", "false"),
            Place(
                "device.reads_its_prefix",
                "if chunk.start and pages[table[column]][0] != tokens[: chunk.start]:",
                "true",
            ),
            Place(
                "device.reads_its_prefix",
                "if pages[table[position // size]][position % size] != tokens[: position + 1]:",
                "true",
            ),
        ),
    ),
    Reason(
        "A finishing request of a producer has blocks, a tracker and tails of Mamba groups within "
        "its prefill: what R7 refuses beyond a connector that takes nothing is a second line of "
        "defence.",
        (
            Place(
                "connector.register_finished_tail",
                "if not any(table.blocks for table in tables):",
                "true",
            ),
            Place(
                "connector.register_finished_tail",
                "if tail.boundary > tracker.prefill_end or tail.block == NULL_BLOCK:",
                "true",
            ),
            Place(
                "connector.register_finished_tail",
                "if not scope.groups[tail.group].is_mamba:",
                "true",
            ),
        ),
    ),
    Reason(
        "A request that is preempted was admitted, and has had a tracker since.",
        (Place("connector.build_metadata", "if trackers[index] is not None:", "false"),),
    ),
    Reason(
        "A tail is stored when its prompt is computed, margin included, or at a boundary inside a "
        "block, which is computed when its state is.",
        (
            Place(
                "connector.tail_end",
                "boundary if through and boundary <= completed else 0",
                "false",
            ),
        ),
    ),
    Reason(
        "Every allocation past a registered tail copies it first, and the copy consumes the "
        "marker: R2's guard on the boundary is a second line of defence. A unit test takes it.",
        (Place("requests.finalize_tails", "elif request.computed != marker.boundary:", "true"),),
    ),
    Reason(
        "A copy becomes due for a request that runs when its tail gets a marker; they go together.",
        (Place("tables._producer_copy", "if table.marker is not None:", "false"),),
    ),
    Reason(
        "The column of a chunk's last state holds a real block.",
        (
            Place(
                "keys._register_tail",
                "if column >= len(table.blocks) or table.blocks[column] == NULL_BLOCK:",
                "true",
            ),
        ),
    ),
    Reason(
        "The column of an exported state is before the chunk's last, and after that of the state "
        "that the chunk begins with: it is new, and within what the chunk fills.",
        (
            Place(
                "tables._plan_columns",
                "if column >= oldest_scratch or table.blocks[column] == NULL_BLOCK:",
                "false",
            ),
        ),
    ),
    Reason(
        "A block gets a key once: callers ask before they add one, a copy takes the keys of a "
        "block that is written again, and nobody drops a key of a chunk of the same pass.",
        (
            Place("block_pool.add_key", "if key in pool.keys[block]:", "true"),
            Place("block_pool.drop_key", "if key not in pool.keys[block]:", "true"),
            Place(
                "block_pool.add_partial_key",
                "if held and key not in held and len(held[0].prefix) < len(key.prefix):",
                "true",
            ),
        ),
    ),
    Reason(
        "The alignment is a multiple of every window's blocks: their own size, or the LCM.",
        (Place("retention._window_block_is_retained", "if align % size:", "true"),),
    ),
    Reason(
        "Retiring has nulled every column before the state, the remembered one among them.",
        (
            Place(
                "tables._retire_states",
                "if last is not None and last < math.ceil(processed / size) - 1 "
                "and blocks[last] != NULL_BLOCK:",
                "true",
            ),
        ),
    ),
    Reason(
        "A boundary that drafts have passed is in another column than their state: the running "
        "column lies behind it, or the last draft ends it.",
        (Place("device._settle_drafts", "if source != target:", "false"),),
    ),
    Reason(
        "What is computed and not yet known has a placeholder, and the sampling chunk adds one: a "
        "running request whose drafts are settled always has a next token.",
        (
            Place(
                "chunking.has_tokens_to_schedule",
                "if request.computed >= known + request.placeholders:",
                "true",
            ),
        ),
    ),
    Reason(
        "What an engine does that differs from the page, with drafts, jobs or several steps in "
        "flight: the real scheduler is followed there, no scope is explored.",
        (
            Place(
                "deferred_frees.give_back_tables", "if not scope.defer_frees or not any(", "false"
            ),
            Place("reservation._missing", "1 + 2 * drafts if drafts else 0", "true"),
            Place("reservation._step_of_drafts", "if not drafts:", "false"),
            Place(
                "chunking.drafts_to_schedule",
                "if not scope.behaviours.drafts_proposed or not scope.speculative_tokens:",
                "true",
            ),
            Place(
                "output._key_what_is_known",
                "if scope.behaviours.keys_when_scheduled or scope.max_steps_in_flight == 1:",
                "false",
            ),
            Place(
                "output._key_what_is_known",
                "if chunk.stale or not chunk.samples or request.status is not Status.RUNNING:",
                "true",
            ),
            Place(
                "output._key_what_is_known",
                "if chunk.stale or not chunk.samples or request.status is not Status.RUNNING:",
                "false",
            ),
        ),
    ),
    Reason(
        "A rank reports the sends of a request once, after the last of them (S20).",
        (
            Place(
                "peers.consume_sends",
                "if held is None or rank not in held.ranks_owed:",
                "true",
            ),
        ),
    ),
)
"""Every reason, in the order of the page."""
