"""Follow files that grow, by glob: rotation by rename and by copytruncate, late files, vanishing files.

Input: patterns and the marks of an earlier run. Output: chunks of bytes in order, each with its place in its file.
Blocking: call it from a worker thread. Invariant: every byte of a followed file comes out once, whatever it is named
and wherever links point meanwhile; a poll looks at a bounded number of names and gives a bounded number of bytes.
"""

import glob
import hashlib
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_vitals.logs.checkpoint import FileMark

CHUNK = 64 * 1024
HEAD = 1024
POLL_BYTES = 4 << 20
NAMES_A_FILE = 20  # names that patterns may give for each file that may be open: links in circles give very many
# Polls without a new byte after which a file is taken as finished: one that has a successor under its old name, and
# one that was deleted. A file that was only renamed is followed on: a shell's redirect keeps writing to it.
GRACE_SUCCEEDED, GRACE_DELETED = 20, 600
COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4")
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")

Identity = tuple[int, int]
Names = dict[Identity, tuple[str, str]]  # the path of each file with its links resolved, and the name that led to it


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one file, up to ``mark.offset``. Chunks of one ``key`` are one stream; ``last`` ends it."""

    key: int
    data: bytes
    mark: FileMark
    last: bool = False


@dataclass(slots=True)
class _File:
    key: int
    descriptor: int
    identity: Identity
    path: str
    name: str
    head: bytes
    offset: int
    idle: int = 0
    told: bool = False

    def mark(self) -> FileMark:
        return FileMark(*self.identity, self.path, len(self.head), _digest(self.head), self.offset)


class FileFollower:
    """Follows the files of one source. ``notices`` collects one line for each thing that a person should know."""

    def __init__(
        self, patterns: Sequence[str], marks: Sequence[FileMark] = (), from_end: bool = False, max_files: int = 1000
    ) -> None:
        self.notices: list[str] = []
        self._patterns = patterns
        self._marks = {(mark.device, mark.inode): mark for mark in marks}
        self._from_end = from_end and not marks
        self._max_files = max_files
        self._open: dict[Identity, _File] = {}
        self._rests: dict[Identity, _File] = {}
        self._skipped: set[Identity] = set()
        self._keys = itertools.count()
        self._told_names = False

    def poll(self) -> list[Chunk]:
        """Read what is new, at most one chunk a file. An empty answer means that every file is read to its end."""
        names = self._names()
        self._skipped &= names.keys()
        for identity, (path, name) in names.items():
            if identity not in self._open and identity not in self._rests and identity not in self._skipped:
                self._begin(identity, path, name)
        self._find_renamed()
        self._from_end = False
        # What an old file still holds comes before what its successor says.
        chunks = self._advance_all(self._rests, names)
        return chunks if any(chunk.data for chunk in chunks) else chunks + self._advance_all(self._open, names)

    def _advance_all(self, files: dict[Identity, _File], names: Names) -> list[Chunk]:
        """Read on in files until there is enough for one poll; those that were read on go behind the others."""
        chunks: list[Chunk] = []
        room = POLL_BYTES
        for file in list(files.values()):
            some = self._advance(file, names)
            chunks += some
            room -= sum(len(chunk.data) for chunk in some)
            if some and files.get(file.identity) is file:
                files[file.identity] = files.pop(file.identity)
            if room <= 0:
                break
        return chunks

    def close(self) -> None:
        """Let go of every file."""
        for file in (*self._rests.values(), *self._open.values()):
            os.close(file.descriptor)
        self._open.clear()
        self._rests.clear()

    def _names(self) -> Names:
        """Find the files that the patterns name now, links resolved (a pod's log is a link to a file that rotates)."""
        found: Names = {}
        names = itertools.chain.from_iterable(glob.iglob(pattern, recursive=True) for pattern in self._patterns)
        most = self._max_files * NAMES_A_FILE
        for number, name in enumerate(itertools.islice(names, most + 1)):
            if number == most and not self._told_names:
                self._told_names = True
                self.notices.append(f"the patterns name more than {most} files: the rest is not read; narrow them")
            path = os.path.realpath(name)
            identity = None if path.endswith(COMPRESSED) else _identity(path)
            if identity is not None:
                found[identity] = path, name
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _begin(self, identity: Identity, path: str, name: str) -> None:
        if len(self._open) >= self._max_files:
            self._skip(identity, f"{path}: not read: {self._max_files} files are open; narrow the pattern")
            return
        file = self._opened(path, name)
        if file is None:
            self._skip(identity, f"{path}: cannot be read; check its permissions")
            return
        if file.identity != identity:  # the name was turned to another file just now: the next look finds it
            os.close(file.descriptor)
            return
        if file.head.startswith(_MAGIC) or self._is_copy(file):
            os.close(file.descriptor)
            self._skipped.add(identity)
            return
        mark = self._marks.pop(identity, None)
        if mark is None:
            file.offset = os.fstat(file.descriptor).st_size if self._from_end else 0
        elif _digest(file.head[: mark.head_bytes]) == mark.head_digest:
            file.offset, file.head = mark.offset, file.head[: mark.head_bytes]
        elif mark.path == path and mark.offset and not self._read_on(mark):
            self.notices.append(f"{path}: was truncated meanwhile; lines written before that may be gone")
        self._open[file.identity] = file

    def _opened(self, path: str, name: str) -> _File | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):  # it was one by name; what is open may be a pipe that took its place
                head = os.pread(descriptor, HEAD, 0)
                return _File(next(self._keys), descriptor, (status.st_dev, status.st_ino), path, name, head, 0)
        except OSError:
            pass
        os.close(descriptor)
        return None

    def _skip(self, identity: Identity, notice: str) -> None:
        self._skipped.add(identity)
        self.notices.append(notice)

    def _is_copy(self, new: _File) -> bool:
        """Recognise copytruncate's copy: the same beginning, a longer name, and its original is read already."""
        return any(
            file.head and new.path != file.path and new.path.startswith(file.path) and new.head.startswith(file.head)
            for file in self._open.values()
        )

    def _find_renamed(self) -> None:
        """Go through marks that no pattern names any more: the file was renamed while nobody watched."""
        for identity, mark in self._marks.items():
            if not any(_identity(path) == identity and self._read_on(mark, path) for path in _siblings(mark.path)):
                self.notices.append(f"{mark.path}: is gone; what it held beyond byte {mark.offset} was not read")
        self._marks.clear()

    def _read_on(self, mark: FileMark, path: str | None = None) -> bool:
        """Read the rest of a file in ``path``, or in whichever copy beside it begins alike and is long enough."""
        for candidate in [path] if path else [one for one in _siblings(mark.path) if one != mark.path]:
            file = None if candidate.endswith(COMPRESSED) else self._opened(candidate, candidate)
            if file is None:
                continue
            same = mark.head_bytes > 0 and _digest(file.head[: mark.head_bytes]) == mark.head_digest
            if same and os.fstat(file.descriptor).st_size >= mark.offset and file.identity not in self._open:
                file.offset, file.head = mark.offset, file.head[: mark.head_bytes]
                self._rests[file.identity] = file
                return True
            os.close(file.descriptor)
        return False

    def _advance(self, file: _File, names: Names) -> list[Chunk]:
        try:
            head = os.pread(file.descriptor, HEAD, 0)
            if os.fstat(file.descriptor).st_size < file.offset or not head.startswith(file.head):
                return self._truncated(file, names)
            data = os.pread(file.descriptor, CHUNK, file.offset)
        except OSError as error:
            self.notices.append(f"{file.path}: cannot be read any more: {error.strerror}")
            return [self._finish(file)]
        file.head = head
        if data or not file.told:  # the first chunk may be empty: its mark must be known before there are bytes
            file.offset += len(data)
            file.idle, file.told = 0, True
            return [Chunk(file.key, data, file.mark())]
        if file.identity in names:
            if self._rests.pop(file.identity, None) is not None:
                self._open[file.identity] = file
            (file.path, file.name), file.idle = names[file.identity], 0
            return []
        file.idle += 1
        return [self._finish(file)] if file.idle >= self._grace(file) else []

    def _grace(self, file: _File) -> float:
        if os.fstat(file.descriptor).st_nlink == 0:
            return GRACE_DELETED
        # By its own path (rotation), or by the link that led to it (a link that was turned to a new file).
        successors = {_identity(file.path), _identity(file.name)} - {None, file.identity}
        return GRACE_SUCCEEDED if successors else float("inf")

    def _truncated(self, file: _File, names: Names) -> list[Chunk]:
        mark = file.mark()
        ended = self._finish(file)
        if self._read_on(mark):
            rest = next(reversed(self._rests.values()))
            rest.key = file.key  # the copy goes on with the line that we are in
            return self._advance(rest, names)
        self.notices.append(f"{file.path}: was truncated; lines written since the last read may be lost")
        return [ended]

    def _finish(self, file: _File) -> Chunk:
        os.close(file.descriptor)
        self._rests.pop(file.identity, None)
        self._open.pop(file.identity, None)
        return Chunk(file.key, b"", file.mark(), last=True)


def _identity(path: str) -> Identity | None:
    """Give device and inode of a regular file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _siblings(path: str) -> Iterator[str]:
    """Find the files beside ``path`` whose names begin with its name: where rotation puts things."""
    parent, name = os.path.split(path)
    try:
        yield from sorted(entry.path for entry in os.scandir(parent or ".") if entry.name.startswith(name))
    except OSError:
        return


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=16).hexdigest()
