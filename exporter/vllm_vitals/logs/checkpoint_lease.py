"""One checkpoint, one owner: a lock that the kernel takes back when its owner is gone, also after kill -9.

Input: the checkpoint's path. Output: whether it is ours now. Invariant: two processes never write one checkpoint; the
lock file stays, and nothing but the lock on it means anything.
"""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

_HELD = (errno.EACCES, errno.EAGAIN)
_MAX_OWNER = 200


class Lease:
    """A lock beside the checkpoint (``<checkpoint>.lock``, flock)."""

    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint.with_name(checkpoint.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock if nobody has it. Raises OSError where there can be no lock (no folder, no support)."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HELD:
                return False
            raise
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: the lock counts, not what is written in it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}"[:_MAX_OWNER].encode(), 0)
        return True

    def owner(self) -> str:
        """Say who took the lock last, for people."""
        try:
            with self._path.open("rb") as file:
                text = file.read(_MAX_OWNER).decode("ascii", "replace")
        except OSError:
            text = ""
        return text if text.isprintable() and text else "another process"

    def release(self) -> None:
        """Let go of the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
