"""What the managers of the groups do: block tables, copies on write, markers."""

from __future__ import annotations

from typing import Any

from cowtail.impl.vllm_recorder.recorder import Recorder

_MARKERS = "_producer_partial_tail_reqs"


class TableHooks:
    """The hooks of a ``KVCacheManager``, through which every table changes, and of its groups'.

    One call allocates for one request in all groups. Its tables are compared only if blocks were
    taken or given back, or came out of it.
    """

    def __init__(self, recorder: Recorder, kv_cache_manager: Any, managers: Any) -> None:
        """Attach."""
        self._recorder = recorder
        recorder.nothing = kv_cache_manager.empty_kv_cache_blocks
        self._groups = [GroupHooks(recorder, manager) for manager in managers]
        recorder.hooks.after_changes(kv_cache_manager, "allocate_slots", recorder, self._allocated)
        recorder.hooks.after(kv_cache_manager, "remove_skipped_blocks", self._removed)

    def _allocated(self, _: Any, request: Any, *__: Any, **___: Any) -> None:
        self._changed(request.request_id)

    def _removed(self, _: None, request_id: str, *__: Any, **___: Any) -> None:
        self._changed(request_id)

    def _changed(self, request_id: str) -> None:
        for group in self._groups:
            group.changed(request_id)


class GroupHooks:
    """The hooks of one ``SingleTypeKVCacheManager``.

    ``_tables`` remembers each table as it was last written down, so that a line says what has
    changed.
    """

    def __init__(self, recorder: Recorder, manager: Any) -> None:
        """Attach."""
        self._recorder = recorder
        self._manager = manager
        self.group: int = manager.kv_cache_group_id
        self._tables: dict[str, list[Any]] = {}
        self._marked: dict[str, tuple[int, int]] = {}
        self._copies: list[Any] = []
        self._num_copies = 0
        recorder.hooks.after(manager, "pop_blocks_for_free", self._popped)
        if hasattr(manager, _MARKERS):
            setattr(manager, _MARKERS, _Markers(getattr(manager, _MARKERS), self))
            recorder.hooks.undo_with(
                lambda: setattr(manager, _MARKERS, dict(getattr(manager, _MARKERS)))
            )

    # Tables

    def changed(self, request_id: str) -> None:
        """Take down the copies that are new, and what has changed in a request's table."""
        copies = self._manager._pending_cow_copies
        if copies is not self._copies:  # those before have been taken: the list is a new one
            self._copies, self._num_copies = copies, 0
        if len(copies) != self._num_copies:
            for source, destination in copies[self._num_copies :]:
                self._copied(request_id, source, destination)
            self._num_copies = len(copies)
        table = self._manager.req_to_blocks.get(request_id)
        if table is not None:
            self._compare(request_id, table)

    def _copied(self, request_id: str, source: Any, destination: Any) -> None:
        table = self._manager.req_to_blocks[request_id]
        redirected = any(block is destination for block in table)
        self._recorder.line(
            f'{{"event":"copy","request":{self._recorder.number(request_id)},'
            f'"group":{self.group},"source":{source.block_id},'
            f'"destination":{destination.block_id},'
            f'"redirected":{"true" if redirected else "false"}}}'
        )
        self._recorder.used.update((source.block_id, destination.block_id))

    def _compare(self, request_id: str, table: list[Any]) -> None:
        before = self._tables.get(request_id)
        if before is None:
            before = self._tables[request_id] = []
        known = len(before)
        changed: list[list[int]] = []
        if before and table[:known] != before:
            changed = [
                [index, table[index].block_id]
                for index, old in enumerate(before)
                if table[index] is not old
            ]
            before[:] = table[:known]
        appended = [block.block_id for block in table[known:]]
        if changed or appended:
            before += table[known:]
            self._recorder.line(
                f'{{"event":"table","request":{self._recorder.number(request_id)},'
                f'"group":{self.group},"changed":{changed},"appended":{appended}}}'
            )

    def _popped(self, _: Any, request_id: str) -> None:
        if self._tables.pop(request_id, None):
            self._recorder.line(
                f'{{"event":"drop","request":{self._recorder.number(request_id)},'
                f'"group":{self.group}}}'
            )
            self._recorder.operations += 1

    # Markers

    def marked(self, request_id: str, marker: Any) -> None:
        """Take down a marker: a block and a boundary; older releases leave out the block."""
        if isinstance(marker, tuple):
            block, tokens = marker
        else:
            tokens = marker
            block = self._manager.req_to_blocks[request_id][tokens // self._manager.block_size]
        self._marked[request_id] = (block.block_id, tokens)
        self._marker("mark", request_id, block.block_id, tokens)

    def consumed(self, request_id: str) -> None:
        """Take down that a marker is gone."""
        block, tokens = self._marked.pop(request_id)
        self._marker("unmark", request_id, block, tokens)

    def _marker(self, event: str, request_id: str, block: int, tokens: int) -> None:
        self._recorder.line(
            f'{{"event":"{event}","request":{self._recorder.number(request_id)},'
            f'"group":{self.group},"block":{block},"tokens":{tokens}}}'
        )

    @property
    def recorder(self) -> Recorder:
        """The recorder that this belongs to."""
        return self._recorder


class _Markers(dict[str, Any]):
    """The manager's own dictionary of markers, which says what is done to it."""

    def __init__(self, markers: dict[str, Any], hooks: GroupHooks) -> None:
        super().__init__(markers)
        self._hooks = hooks
        self._guarded = hooks.recorder.hooks.guarded

    def __setitem__(self, request_id: str, marker: Any) -> None:
        super().__setitem__(request_id, marker)
        self._guarded(self._hooks.marked, request_id, marker)

    def __delitem__(self, request_id: str) -> None:
        super().__delitem__(request_id)
        self._guarded(self._hooks.consumed, request_id)

    def pop(self, request_id: str, *default: Any) -> Any:
        had = request_id in self
        marker = super().pop(request_id, *default)
        if had:
            self._guarded(self._hooks.consumed, request_id)
        return marker
