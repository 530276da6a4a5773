"""What the daemon asks of its process: file descriptors, the collector's patience, a loop that is watched.

Input: nothing, or an `Impairment` that is told what is met. Output: side effects on this process, undone where that
matters. Invariant: what goes wrong below every task is told once a minute, without a traceback.
"""

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from vllm_vitals.impairment import Impairment, is_ours
from vllm_vitals.log import Logger

REPEAT_S = 60.0
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h
SWITCH_S = 0.001  # how long a thread that reads a costly body keeps the event loop waiting


def spare_the_collector() -> None:
    """Look for reference cycles among young objects only, nearly always.

    What we keep of a thousand targets is a million objects without cycles; walking them all takes the better part of a
    second, in which no scrape is on time. A poll's results live until the next one, so that the usual 700 objects make
    every young object be walked in vain: a tenth of all CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10_000)


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets us: the usual soft limit of 1,024 is below a big fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))


def return_memory() -> None:
    """Ask the C library to give large buffers back when they are freed, as it does before it has seen one.

    After the first body of megabytes glibc keeps room for more, in an arena a thread. Elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
        mallopt(_M_ARENA_MAX, 2)


@contextlib.contextmanager
def watched_loop(impairment: Impairment, log: Logger) -> Iterator[None]:
    """Measure the running event loop, and tell of what breaks below it, within this block."""
    loop, faults = asyncio.get_running_loop(), LoopFaults(impairment, log)
    loop.set_exception_handler(faults.handle)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    watching = loop.create_task(impairment.watch(), name="watch the loop")
    try:
        yield
    finally:
        watching.cancel()
        sys.setswitchinterval(before)
        loop.set_exception_handler(None)


class LoopFaults:
    """Tells of faults that no task catches, each kind once in `REPEAT_S`: accept() fails 100 times a second."""

    def __init__(self, impairment: Impairment, log: Logger) -> None:
        self._impairment, self._log = impairment, log
        self._told_at: dict[str, float] = {}
        self._untold = Counter[str]()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take one fault, as `asyncio.loop.set_exception_handler` gives it."""
        error = context.get("exception")
        what = str(context.get("message", ""))[:80]
        if is_ours(error):
            why = f"vllm-vitals has reached a limit of its own ({error.strerror}): raise the limit of open files"
            self._impairment.meet("file_descriptors", why)
        kind = f"{type(error).__name__} {what}"[:120]
        if loop.time() - self._told_at.get(kind, float("-inf")) < REPEAT_S or len(self._told_at) > 1_000:
            self._untold[kind] += 1
            return
        self._told_at[kind] = loop.time()
        self._log.error("loop_fault", what=what, error=type(error).__name__, more=self._untold.pop(kind, 0))
