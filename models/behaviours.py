"""How a release deliberately differs from the page: one name for each difference, in one table.

The rules ask for a behaviour by name; the default is what the page says. A difference that breaks a
property is no behaviour but a finding, unless following it is the only way to see what comes of it:
then its name says so here.

>>> PAGE.failed_loads_final, VLLM.failed_loads_final
(True, False)
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Behaviours:
    """What an engine does where it is free to choose. True is the page's choice everywhere.

    ``drafts_proposed``: a drafter that is there proposes tokens; if not, only its scratch blocks
    and the block that lookups drop are left of it.
    ``every_role_defers``: where a request may load while steps are in flight, frees wait for them,
    whatever the role. If not, a producer's do not, and a load can overwrite what a step still
    reads: a finding.
    ``chained_copies_refused``: a request whose copy would read a block that the same pass writes
    waits. If not, it copies what was in that block before: a finding.
    ``withdrawn_keys_dropped``: a chunk that is withdrawn takes the keys back that it registered. If
    not, they stay on blocks that nothing computes: a finding.
    ``exact_allocation``: attention gets blocks for what a chunk computes; if not, for as many
    tokens more as may be drafted.
    ``passes_need_work``: a pass that would schedule and tell nothing does not take place; if not,
    it does, and its empty step carries reports.
    ``reports_sorted``: reports that arrive together are consumed in the order of their jobs; if
    not, in the order in which the first of the ranks to report each did so.
    ``every_free_waits``: while steps are in flight, every block that is given back waits for them
    (where frees are deferred at all). If not, only those of a request that has a step in flight
    wait, for the last step that computes anything, and those of its last group come first.
    ``keys_when_scheduled``: what a request computes is keyed when its chunk is scheduled. If not,
    an engine that runs ahead keys once more when an output has been processed, since what that
    sampled was not known before.
    ``failed_extension_keeps``: a request that does not fit into a pass keeps everything; if not, it
    gives back the blocks that it has left behind, by ``shed``.
    ``returning_blocks_spare``: nobody is preempted for want of blocks that deferred frees will
    return (K41); if not, somebody is.
    ``jobs_as_scheduled``: a pass numbers its store jobs in the order in which it scheduled their
    requests; if not, requests that are new to the workers come first.
    ``jobs_queued_by_device``: ranks hear of a step's jobs, and of requests that ended, when the
    step is executed; if not, when it is dispatched, and a job waits in the queue for its step.
    ``loads_settle_when_reported``: a load that failed gives its blocks back with the last report,
    and one that went well is keyed when its request is admitted; if not, both happen when a pass
    first comes to the request, by ``promote``.
    ``failed_loads_final``: a request whose load failed computes everything; if not, it is looked up
    again.
    ``answers_kept``: the answer of a lookup waits until its request is admitted. If not, a pass
    that comes to the request and does not admit it uses the answer up, by ``spend_answer``.
    ``store_reset_in_any_case``: resetting the store does not depend on what becomes of the prefix
    cache. If not, a reset that was to preempt what runs, and still finds blocks held, stops there.
    ``loads_reserve_for_themselves``: a load begins only if what it and the other loads still need
    afterwards is free as well, a copy of a loaded tail included. If not, only if what other loads,
    prompts that are being computed, and requests whose load failed still need is free: loads can
    wait for each other for ever, and a failed one for itself: two findings.
    ``offsets_checked``: a save first looks whether what it takes for stored still is. If not, what
    the store has evicted is stored again by later requests only.
    ``junctions_without_eagle``: with shared-prefix checkpoints, chunks end where a sibling's hit
    ended whatever the groups are; if not, only where one of them is a drafter's.
    ``pressure_ends_with_a_save``: a full store is tried again once a prefix save has gone well, if
    only because all of it existed; if not, once something was really put.
    ``tail_without_companion``: attention is stored through a boundary inside a block whose EAGLE
    companion is not computed yet (R26); if not, nothing is.
    """

    drafts_proposed: bool = True
    every_role_defers: bool = True
    chained_copies_refused: bool = True
    withdrawn_keys_dropped: bool = True
    exact_allocation: bool = True
    passes_need_work: bool = True
    reports_sorted: bool = True
    every_free_waits: bool = True
    keys_when_scheduled: bool = True
    failed_extension_keeps: bool = True
    returning_blocks_spare: bool = True
    jobs_as_scheduled: bool = True
    jobs_queued_by_device: bool = True
    loads_settle_when_reported: bool = True
    failed_loads_final: bool = True
    answers_kept: bool = True
    store_reset_in_any_case: bool = True
    loads_reserve_for_themselves: bool = True
    offsets_checked: bool = True
    junctions_without_eagle: bool = True
    pressure_ends_with_a_save: bool = True
    tail_without_companion: bool = True


PAGE = Behaviours()
"""What the page says."""

VLLM = Behaviours(
    every_role_defers=False,
    chained_copies_refused=False,
    withdrawn_keys_dropped=False,
    exact_allocation=False,
    passes_need_work=False,
    reports_sorted=False,
    every_free_waits=False,
    keys_when_scheduled=False,
    failed_extension_keeps=False,
    returning_blocks_spare=False,
    jobs_as_scheduled=False,
    jobs_queued_by_device=False,
    loads_settle_when_reported=False,
    failed_loads_final=False,
    answers_kept=False,
    store_reset_in_any_case=False,
    loads_reserve_for_themselves=False,
    offsets_checked=False,
    junctions_without_eagle=False,
    pressure_ends_with_a_save=False,
    tail_without_companion=False,
)
"""Real vLLM, releases 0.32.0 and 0.33.0."""
