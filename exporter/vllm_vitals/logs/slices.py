"""Log work on the event loop, a slice at a time.

Input: work that yields wherever it may be interrupted. Output: the work done. Invariant: between two turns of the event
loop at most one slice of log work is done, however many sources and pushes have some, so that a scrape waits for one
slice and never for a log. (A thread would be no kinder: it takes the interpreter for 5 ms at each of our system calls.)
"""

import asyncio
import time
from collections.abc import Callable, Iterator

SLICE_S = 0.004


class Slices:
    """Shares the event loop among those who have work; first come, first served."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()

    async def run(self, work: Iterator[object]) -> None:
        """Do the work to its end. What it raises comes through."""
        while True:
            async with self._turn:
                end = self._clock() + SLICE_S
                for _ in work:
                    if self._clock() >= end:
                        break
                else:
                    return
                await asyncio.sleep(0)  # the turn of the loop belongs to the slice: nobody else has one in it
