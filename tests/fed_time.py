"""An event loop on which time passes only while nobody has anything to do: a test of sockets that no load can fail.

Input: a coroutine whose servers, clients and deadlines all live on this loop. Output: its result. Invariant: however
slow the machine is, work takes no time, so a deadline passes only where nothing would have come before it; and a test
that waits an hour takes as long as its work. Processes are outside: what waits for one needs a real loop.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from vllm_vitals.clock import Clock

T = TypeVar("T")
ON_ITS_WAY_S = 0.003  # what is written on loopback can be read at once; the kernel may take a moment under load
STUCK_S = 600.0  # of real time
EPOCH = 1_800_000_000.0


class _Patient(selectors.DefaultSelector):
    """Waits no real time for a timer: where nothing is ready and no thread works, the timer's moment is now."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.threads = 0.0, 0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.threads:
            return super().select(0.05)
        ready = super().select(ON_ITS_WAY_S)
        if not ready:
            self.now += timeout
        return ready


class FedLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is what has been fed so far."""

    def __init__(self) -> None:
        self._patient = _Patient()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """As ever; until the thread is done no time passes."""
        future = super().run_in_executor(executor, func, *args)
        self._patient.threads += 1
        future.add_done_callback(self._one_thread_less)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As ever, however long the threads take."""
        self._patient.threads += 1
        await super().shutdown_default_executor(*args)
        self._patient.threads -= 1

    def _one_thread_less(self, _: object) -> None:
        self._patient.threads -= 1


def run(story: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; cancelled where it hangs."""
    with asyncio.Runner(loop_factory=FedLoop) as runner:
        return runner.run(_bounded(story))


async def _bounded(story: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(story)
    guard = threading.Timer(STUCK_S, loop.call_soon_threadsafe, [task.cancel])
    guard.daemon = True
    guard.start()
    try:
        return await task
    finally:
        guard.cancel()


def clock() -> Clock:
    """The clock of the running loop: fed where the loop is, else the system's."""
    loop = asyncio.get_running_loop()
    return Clock(loop.time, lambda: EPOCH + loop.time()) if isinstance(loop, FedLoop) else Clock()
