"""What the block pool does: blocks taken, touched and freed; keys that come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cowtail.impl.vllm_recorder.recorder import Recorder, real


class PoolHooks:
    """The hooks of one ``BlockPool``."""

    def __init__(self, recorder: Recorder, pool: Any) -> None:
        """Attach."""
        self._recorder = recorder
        self.pool = pool
        hooks = recorder.hooks
        hooks.after(pool, "get_new_blocks", self._allocated)
        hooks.after(pool, "touch", self._touched)
        hooks.wrap(pool, "free_blocks", self._freeing)
        hooks.after(pool, "reset_prefix_cache", self._reset)
        self._follow_keys()

    def _follow_keys(self) -> None:
        """Hook the map that lookups read; a reset puts a new one in its place."""
        index = self.pool.cached_block_hash_to_block
        self._recorder.hooks.after(index, "insert", self._keyed)
        self._recorder.hooks.after(index, "pop", self._unkeyed)

    def _allocated(self, blocks: list[Any], *_: Any, **__: Any) -> None:
        self._recorder.blocks("allocate", [block.block_id for block in blocks])

    def _touched(self, _: None, blocks: Iterable[Any]) -> None:
        self._recorder.blocks("touch", real(blocks))

    def _freeing(self, original: Any) -> Any:
        """Blocks to free may come as an iterator, which has to last for both."""

        def free_blocks(ordered_blocks: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            blocks = list(ordered_blocks)
            result = original(blocks, *args, **kwargs)
            self._recorder.hooks.guarded(self._freed, blocks)
            return result

        return free_blocks

    def _freed(self, blocks: list[Any]) -> None:
        self._recorder.blocks("free", real(blocks))

    def _keyed(self, _: None, key: bytes, block: Any) -> None:
        self._recorder.key_entry("key", key, block.block_id)

    def _unkeyed(self, found: Any, key: bytes, block_id: int) -> None:
        if found is not None:
            self._recorder.key_entry("unkey", key, block_id)

    def _reset(self, succeeded: bool) -> None:
        recorder = self._recorder
        recorder.line(f'{{"event":"reset","succeeded":{"true" if succeeded else "false"}}}')
        if succeeded:
            recorder.rekeyed.clear()
            recorder.operations += 1
            self._follow_keys()

    def free_count(self) -> int:
        """Return the length of the free list."""
        return int(self.pool.free_block_queue.num_free_blocks)

    def references(self) -> str:
        """Return the reference counts of the blocks that the call has used, as JSON."""
        blocks = self.pool.blocks
        return str([[number, blocks[number].ref_cnt] for number in self._recorder.used])

    def keys(self) -> str:
        """Return what the blocks whose keys have changed say that they have, as JSON."""
        extra = self.pool.cached_block_hashes_by_block
        entries = []
        for number in self._recorder.rekeyed:
            block = self.pool.blocks[number]
            keys = [] if block.block_hash is None else [block.block_hash]
            keys += extra.get(number, ())
            said = ",".join(f'"{(key[:8] + key[-4:]).hex()}"' for key in keys)
            entries.append(f"[{number},[{said}]]")
        return f"[{','.join(entries)}]"
