"""Standard output and standard error, whatever their encoding, and also when a pipe is closed.

Invariant: no character and no closed pipe breaks a command off; what an encoding lacks becomes the nearest plain sign.
"""

import codecs
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_NEAREST = {"•": "*", "–": "-", "…": "...", "·": ".", "─": "-", "━": "-"}


def prepare() -> None:
    """Let standard output and error write every text in the encoding that they have."""
    codecs.register_error("nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="nearest")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_NEAREST.get(each, "?") for each in error.object[error.start : error.end]), error.end


def console() -> "Console":
    """Colour on a terminal; in a pipe plain text, and lines that are never wrapped."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, soft_wrap=True, width=10_000)


@contextmanager
def progress(what: str, console: "Console") -> Iterator[Callable[[float, str], None]]:
    """Show a bar while something lasts, nothing in a pipe; it is told how much is done (0 to 1), and of what."""
    if not console.is_terminal:
        yield lambda done, of: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn(what), BarColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as shown:
        bar = shown.add_task("", total=1.0)
        yield lambda done, of: shown.update(bar, completed=done, description=of)
