"""How far each file is counted, and the counts that belong to exactly that point, in one file.

Input and output: plain data. Invariant: the file on disk is always one whole checkpoint, the old or the new one
(written beside it, synced, renamed over it, the folder synced), so offsets, batch ids and counts can never part.
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from vllm_vitals.logs.batches import Batches
from vllm_vitals.logs.tally import Tally, from_plain, to_plain

VERSION = 1


class CheckpointError(Exception):
    """The checkpoint cannot be used; one line that says why."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """One file as it was last seen: identity, name, its first bytes' digest, and the bytes of it that are counted."""

    device: int
    inode: int
    path: str
    head_bytes: int
    head_digest: str
    offset: int


@dataclass(frozen=True, slots=True)
class Where:
    """The file, None for none, and how often it is written at least while something changes (s)."""

    path: Path | None
    every_s: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The marks of each source's files, and the tally and the ids of counted batches at those marks."""

    marks: Mapping[str, tuple[FileMark, ...]]
    tally: Tally
    batches: Batches


def encode(marks: Mapping[str, tuple[FileMark, ...]], tally: Tally, batches: Batches | None = None) -> bytes:
    """Write a checkpoint down."""
    ids = {} if batches is None else batches.plain()
    return orjson.dumps({"version": VERSION, "files": marks, "batches": ids, "tally": to_plain(tally)})


def decode(content: bytes) -> Checkpoint:
    """Read what `encode` wrote; an older one has no batches. Raises CheckpointError."""
    try:
        plain: dict[str, Any] = orjson.loads(content)
        if plain["version"] != VERSION:
            raise CheckpointError(f"version {plain['version']}, this program writes version {VERSION}")
        marks = {source: tuple(FileMark(**mark) for mark in some) for source, some in plain["files"].items()}
        return Checkpoint(marks, from_plain(plain["tally"]), Batches(plain.get("batches")))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {type(error).__name__}") from None


def save(path: Path, content: bytes) -> None:
    """Replace the checkpoint at ``path``. Raises OSError, and then the old one is still there."""
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename last: until the folder is synced, a power cut may bring the old file back."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


def load(path: Path) -> Checkpoint | None:
    """Read the checkpoint at ``path``; None where there is none yet. Raises CheckpointError, OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(content)
