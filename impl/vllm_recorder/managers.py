"""What the managers of the groups do: block tables, copies on write, markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cowtail.impl.vllm_recorder.recorder import Recorder

_MARKERS = "_producer_partial_tail_reqs"


class ManagerHooks:
    """The hooks of one ``SingleTypeKVCacheManager``.

    ``_tables`` remembers each table as it was last written down, so that a line says what has
    changed; a table is compared only when its manager took or gave back blocks.
    """

    def __init__(self, recorder: Recorder, manager: Any) -> None:
        """Attach."""
        self._recorder = recorder
        self._manager = manager
        self.group: int = manager.kv_cache_group_id
        self._tables: dict[str, list[Any]] = {}
        self._marked: dict[str, tuple[int, int]] = {}
        hooks = recorder.hooks
        hooks.wrap(manager, "allocate_new_blocks", self._allocating)
        hooks.wrap(manager, "remove_skipped_blocks", self._removing)
        hooks.after(manager, "add_local_computed_blocks", self._changed)
        hooks.after(manager, "allocate_external_computed_blocks", self._changed)
        hooks.after(manager, "pop_blocks_for_free", self._popped)
        if hasattr(manager, _MARKERS):
            setattr(manager, _MARKERS, _Markers(getattr(manager, _MARKERS), self))
            hooks.undo_with(lambda: setattr(manager, _MARKERS, dict(getattr(manager, _MARKERS))))

    # Tables

    def _allocating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, manager = self._recorder, self._manager

        def allocate_new_blocks(request_id: str, *args: Any, **kwargs: Any) -> Any:
            operations = recorder.operations
            num_copies = len(manager._pending_cow_copies)
            num_blocks = len(manager.req_to_blocks[request_id])
            result = original(request_id, *args, **kwargs)
            if (
                operations != recorder.operations
                or num_blocks != len(manager.req_to_blocks[request_id])
                or num_copies != len(manager._pending_cow_copies)
            ):
                recorder.hooks.guarded(self._allocated, request_id, num_copies)
            return result

        return allocate_new_blocks

    def _removing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def remove_skipped_blocks(request_id: str, *args: Any, **kwargs: Any) -> Any:
            operations = recorder.operations
            result = original(request_id, *args, **kwargs)
            if operations != recorder.operations:
                recorder.hooks.guarded(self._changed, None, request_id)
            return result

        return remove_skipped_blocks

    def _allocated(self, request_id: str, num_copies: int) -> None:
        for source, destination in self._manager._pending_cow_copies[num_copies:]:
            table = self._manager.req_to_blocks[request_id]
            redirected = any(block is destination for block in table)
            self._recorder.line(
                f'{{"event":"copy","request":{self._recorder.number(request_id)},'
                f'"group":{self.group},"source":{source.block_id},'
                f'"destination":{destination.block_id},'
                f'"redirected":{"true" if redirected else "false"}}}'
            )
            self._recorder.used[source.block_id] = None
            self._recorder.used[destination.block_id] = None
        self._changed(None, request_id)

    def _changed(self, _: Any, request_id: str, *__: Any, **___: Any) -> None:
        table = self._manager.req_to_blocks.get(request_id)
        if table is None:
            return
        before = self._tables.get(request_id, [])
        changed: list[list[int]] = []
        if table[: len(before)] != before:
            changed = [
                [index, block.block_id]
                for index, (block, old) in enumerate(zip(table, before, strict=False))
                if block is not old
            ]
        appended = [block.block_id for block in table[len(before) :]]
        if changed or appended:
            self._recorder.line(
                f'{{"event":"table","request":{self._recorder.number(request_id)},'
                f'"group":{self.group},"changed":{changed},"appended":{appended}}}'
            )
            self._tables[request_id] = list(table)

    def _popped(self, _: Any, request_id: str) -> None:
        if self._tables.pop(request_id, None) is not None:
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

    def __init__(self, markers: dict[str, Any], hooks: ManagerHooks) -> None:
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
