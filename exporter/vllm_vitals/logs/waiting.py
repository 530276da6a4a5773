"""Waiting on the event loop, and errors in one line."""

import asyncio
import contextlib


async def until(stop: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for an event, for so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await stop.wait()


def why_of(error: BaseException) -> str:
    """Say what an error says, in one short line."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.split())[:200]
