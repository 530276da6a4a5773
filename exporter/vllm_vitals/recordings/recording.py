"""Recordings of scrapes: gzip'd JSON Lines, one scrape a line.

A line is ``{"t": epoch_s, "status": 200 | "error text", "dur": s, "text": exposition}``. Plain JSON Lines are read as
well. Invariant: `read` yields every whole line before it raises `RecordingError` for what follows, so a file that was
cut off by a crash still replays up to the cut.
"""

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import orjson

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape import reasons

MAX_LINE_BYTES = 64 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


class RecordingError(Exception):
    """The rest of a recording cannot be read. The text is one line for a person."""


# The path that stands for a pipe: standard input to read, standard output to write.
STANDARD = Path("-")


def target_name(path: Path) -> str:
    """Return the name of a recording's target: its file name, or its folder where the file is called ``metrics``."""
    if path == STANDARD:
        return "standard-input"
    stem = path.name
    for suffix in (".gz", ".jsonl", ".json"):
        stem = stem.removesuffix(suffix)
    return path.resolve().parent.name if stem == "metrics" else stem


def read(path: Path) -> Iterator[Scrape]:
    """Yield the scrapes of a recording in order; raise `RecordingError` at the first line that cannot be one.

    Read standard input where the path is `STANDARD`.
    """
    name = "standard input" if path == STANDARD else str(path)
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == STANDARD else path.open("rb") as raw:
            yield from _scrapes(name, _decompressed(raw))
    except OSError as error:
        # gzip's own complaints are OSErrors too, without an errno
        raise RecordingError(f"{path}: {error.strerror or error}") from None


def _decompressed(raw: BinaryIO) -> BinaryIO:
    peekable = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", raw))
    packed = peekable.peek(2)[:2] == _GZIP_MAGIC  # a pipe cannot be read twice
    return cast("BinaryIO", gzip.GzipFile(fileobj=peekable) if packed else peekable)


def _scrapes(name: str, lines: BinaryIO) -> Iterator[Scrape]:
    number, read = 0, 0
    while True:
        try:
            line = lines.readline(MAX_LINE_BYTES + 1)
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"line {number} is longer than {MAX_LINE_BYTES} bytes")
            scrape = _scrape(f"line {number}", line) if line.strip() else None
        except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else f"cut off or damaged after line {number} ({error})"
            raise RecordingError(f"{name}: {why}{'; read up to there' if read else ''}") from None
        if scrape is not None:
            yield scrape
            read += 1
        if not line:
            return


def _scrape(where: str, line: bytes) -> Scrape:
    """Return one line as a scrape. Raises ValueError in words."""
    try:
        fields: dict[str, Any] = orjson.loads(line)
        at, duration = float(fields["t"]), float(fields.get("dur", 0.0))
        status, text = fields["status"], fields.get("text") or ""
        if not isinstance(text, str):
            raise TypeError
    except (orjson.JSONDecodeError, TypeError, ValueError, KeyError, AttributeError):
        fields_wanted = '{"t", "status", "dur", "text"}'
        raise ValueError(f"{where} is not a scrape: expected {fields_wanted}") from None
    if status == 200:
        return Scrape(at, duration, text.encode())
    if isinstance(status, int):
        return Scrape(at, duration, None, reasons.of_status(status), f"HTTP {status}")
    return Scrape(at, duration, None, *reasons.of_text(str(status)))


class Writer:
    """Appends scrapes to a recording. Every scrape is flushed: a crash loses nothing that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gzip = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
        self.scrapes = 0

    def write(self, scrape: Scrape) -> None:
        """Append one scrape."""
        self._gzip.write(encode(scrape))
        self._gzip.flush()
        self._file.flush()
        self.scrapes += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._gzip.close()


def encode(scrape: Scrape) -> bytes:
    """Return a scrape as a line. A body that is not UTF-8 keeps its readable part, with an ``encoding`` error."""
    status: int | str = 200 if scrape.body is not None else f"{scrape.reason}: {scrape.detail}"
    text = ""
    if scrape.body is not None:
        try:
            text = scrape.body.decode()
        except UnicodeDecodeError as error:
            status, text = f"encoding: not UTF-8 at byte {error.start}", scrape.body.decode(errors="replace")
    fields = {"t": scrape.at, "status": status, "dur": round(scrape.duration_s, 6), "text": text}
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def to_bytes(scrapes: Iterator[Scrape]) -> bytes:
    """Return a whole recording in memory."""
    buffer = io.BytesIO()
    with Writer(buffer) as writer:
        for scrape in scrapes:
            writer.write(scrape)
    return buffer.getvalue()
