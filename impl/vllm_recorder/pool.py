"""What the block pool does: blocks taken, touched and freed; keys that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        """Hook the map that lookups read; a reset puts a new one in its place.

        A key is written down as Python's hash of it, which its object has at hand: a number that
        stands for it in this process only, and from which nobody gets back to the tokens.
        """
        index = self.pool.cached_block_hash_to_block
        recorder = self._recorder

        def inserting(original: Callable[..., None]) -> Callable[..., None]:
            def insert(key: bytes, block: Any) -> None:
                original(key, block)
                try:
                    keys, blocks = recorder.keys("key")
                    keys.append(hash(key))
                    blocks.append(block.block_id)
                except Exception as error:
                    recorder.fail(error)

            return insert

        def popping(original: Callable[..., Any]) -> Callable[..., Any]:
            def pop(key: bytes, block_id: int) -> Any:
                found = original(key, block_id)
                if found is not None:
                    try:
                        keys, blocks = recorder.keys("unkey")
                        keys.append(hash(key))
                        blocks.append(block_id)
                    except Exception as error:
                        recorder.fail(error)
                return found

            return pop

        recorder.hooks.wrap(index, "insert", inserting)
        recorder.hooks.wrap(index, "pop", popping)

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
        """Return the blocks that the call has used and their reference counts, as JSON fields."""
        blocks = self.pool.blocks
        used = sorted(self._recorder.used)
        counts = [blocks[number].ref_cnt for number in used]
        return f'"blocks":{used},"references":{counts}'

    def keys(self) -> str:
        """Return what the blocks whose keys have changed say that they have, as JSON fields."""
        extra = self.pool.cached_block_hashes_by_block
        blocks = self.pool.blocks
        keyed, keys, keyless = [], [], []
        for number in sorted(self._recorder.rekeyed):
            key = blocks[number].block_hash
            if key is None:
                keyless.append(number)
            else:
                keyed.append(number)
                keys.append(hash(key))
            if number in extra:
                for more in extra[number]:
                    keyed.append(number)
                    keys.append(hash(more))
        return f'"keyed":{keyed},"keys":{keys},"keyless":{keyless}'
