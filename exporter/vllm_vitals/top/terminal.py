"""The terminal of the live view: keys in, lines out, and everything as it was before when it ends.

Input: a `Source`. Output: the alternate screen of a terminal. Invariant: drawn only when something changed; however it
ends, the terminal's settings and screen are put back.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.control import Control
from rich.text import Text

from vllm_vitals.top.draw import Canvas, draw
from vllm_vitals.top.memory import Book
from vllm_vitals.top.sources import Source
from vllm_vitals.top.view import View, keys

READ_BYTES = 1024


class Screen:
    """One person's live view, which begins as ``view``."""

    def __init__(self, source: Source, console: Console, view: View | None = None) -> None:
        self._source, self._console = source, console
        self._book, self._view = Book(), view or View()
        self._shown = self._view.ordered([])
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Show it until q or Ctrl-C. Raises what ends the source."""
        loop = asyncio.get_running_loop()
        filling = asyncio.create_task(self._source.run(self._book, self._changed))
        loop.add_signal_handler(signal.SIGWINCH, self._due.set)
        with _raw(sys.stdin.fileno()) as keyboard, self._console.screen(hide_cursor=True):
            loop.add_reader(keyboard, self._typed, keyboard)
            try:
                self._due.set()
                while not self._view.done:
                    await self._next(filling)
                    self._due.clear()
                    self._draw()
            finally:
                loop.remove_reader(keyboard)
                loop.remove_signal_handler(signal.SIGWINCH)
                filling.cancel()

    async def _next(self, filling: "asyncio.Task[None]") -> None:
        """Wait until something is to be drawn; a source that broke ends the view."""
        waiting = asyncio.create_task(self._due.wait())
        await asyncio.wait({waiting} if filling.done() else {waiting, filling}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if filling.done() and not filling.cancelled() and (error := filling.exception()) is not None:
            raise error

    def _changed(self) -> None:
        if not self._view.paused:
            self._due.set()

    def _typed(self, keyboard: int) -> None:
        pressed = os.read(keyboard, READ_BYTES)
        self._view.done = self._view.done or not pressed  # the terminal is gone
        for key in keys(pressed):
            self._view.press(key, self._shown)
            self._order()
        self._wish()
        self._due.set()

    def _wish(self) -> None:
        """Pass on what only the source can do."""
        view = self._view
        if view.seek:
            view.note, view.seek = self._source.seek(view.seek), 0.0
        if view.save and view.chosen is not None:
            view.note = self._source.save(view.chosen[0])
        view.save = False

    def _order(self) -> None:
        self._shown = self._view.ordered(self._book.entries.values())

    def _draw(self) -> None:
        self._order()
        width, height = self._console.size
        blocks = "utf" in (self._console.encoding or "").lower()
        source, size = self._source, Canvas(width, height, blocks)
        lines = draw(self._book, self._shown, self._view, source.title, size, source.story)
        whole = Text("\n").join(_filled(line, width) for line in lines)
        self._console.control(Control.home())
        self._console.print(whole, end="", no_wrap=True, overflow="crop", crop=False)


def _filled(line: Text, width: int) -> Text:
    """Return the line with spaces up to the edge: what stood there is overwritten, and nothing flickers."""
    line.pad_right(max(0, width - line.cell_len))
    return line


@contextmanager
def _raw(keyboard: int) -> Iterator[int]:
    """Let every key arrive at once, unechoed; put the settings back."""
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
