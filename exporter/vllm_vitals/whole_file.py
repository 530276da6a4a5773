"""Files as a whole: read within a bound, or replaced at once.

Input: a path. Output: its bytes, or the file. Invariant: no more than the bound is ever held, a reader meets the old
content or the new, and a write that fails leaves the old and nothing beside it.
"""

import contextlib
import os
from pathlib import Path


def read(path: Path, most: int, error: type[Exception]) -> bytes:
    """Return the content of a file of at most ``most`` bytes. Raises ``error``, one line that names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as why:
        raise error(f"{path}: {why.strerror}") from None
    if len(content) > most:
        raise error(f"{path}: larger than {most} bytes")
    return content


def replace(path: Path, content: bytes) -> None:
    """Put ``content`` in a file's place. Raises `OSError`."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
