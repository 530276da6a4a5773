"""Work beside the event loop: one thread in which costly targets wait for each other and for nobody else.

Input: work, and how many bytes it holds on to. Output: its result. Invariant: what waits holds a bounded number of
bytes, whoever sends how much.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_BYTES = 32 * 1024**2

T = TypeVar("T")


class Beside:
    """One per fleet."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._held = 0

    def has_room(self, size: int) -> bool:
        """Whether work that holds so many bytes may wait now."""
        return not self._held or self._held + size <= MAX_BYTES

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Do the work when its turn comes."""
        self._held += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._held -= size

    def close(self) -> None:
        """End; what is under way is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)
