"""Reads requests from a file: when each arrived, how long its prompt and its answer were, which prefix it shared.

Input: a CSV or JSON Lines file, plain or gzip'd, in one of the shapes below. Output: `RequestRow`, in order of arrival.
Read as they are: the Azure LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), the Mooncake traces
(JSON Lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks), and our own columns
(docs/simulator.md). Invariants: the file is streamed, a row at a time; rows out of order are sorted within
`MOST_UNORDERED`; a row that cannot be read is left out and named with its line, `MOST_BAD_ROWS` at most.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush, heappushpop
from pathlib import Path
from typing import Any, BinaryIO, cast, get_args

import orjson

from vllm_vitals.simulator.request import FinishReason, PrefixBlock

MAX_LINE_BYTES = 1024 * 1024
MOST_TOKENS = 10_000_000
MOST_BAD_ROWS = 100
MOST_UNORDERED = 4096
# Mooncake's blocks (kvcache-ai/Mooncake, FAST25-release/traces).
PREFIX_BLOCK_TOKENS = 512
_GZIP_MAGIC = b"\x1f\x8b"
_REASONS = tuple(reason for reason in get_args(FinishReason) if reason in ("stop", "length", "error"))
# Names of a column: our own first, then Azure's, then Mooncake's.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "arrival": ("arrival", "TIMESTAMP", "timestamp"),
    "prompt": ("prompt_tokens", "ContextTokens", "input_length"),
    "output": ("output_tokens", "GeneratedTokens", "output_length"),
    "prefix": ("prefix_blocks", "hash_ids"),
    "max_tokens": ("max_tokens",),
    "finish_reason": ("finish_reason",),
    "stream": ("stream",),
}
_REQUIRED = ("arrival", "prompt", "output")
_MILLISECONDS = "timestamp"  # Mooncake's; every other arrival is in seconds, or a date and time
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

Fields = Mapping[str, Any]


class RequestFileError(Exception):
    """The file holds no requests that can be used. The text is one line for a person."""


@dataclass(frozen=True, slots=True, order=True)
class RequestRow:
    """One request. ``arrival`` is in seconds, of an epoch that only the file knows; lengths are in tokens.

    ``prefix`` names the prompt's leading blocks. What the file leaves open is None.
    """

    arrival: float
    line: int
    prompt: int
    output: int
    prefix: tuple[PrefixBlock, ...] = ()
    max_tokens: int | None = None
    finish_reason: FinishReason | None = None
    stream: bool | None = None


class RequestFile:
    """A file of requests. ``on_bad`` gets one line for each row that is left out."""

    def __init__(self, path: Path, on_bad: Callable[[str], object], block_tokens: int = PREFIX_BLOCK_TOKENS) -> None:
        self.path = path
        self.block_tokens = block_tokens
        self.bad = 0
        self._told = 0  # the last line that was complained of: a file that is read again is not complained of again
        self._on_bad = on_bad

    def rows(self) -> Iterator[RequestRow]:
        """Yield the requests in order of arrival. Raises `RequestFileError` for no request, or too many bad rows."""
        self.bad = 0
        nearest: list[RequestRow] = []
        last: RequestRow | None = None
        for row in self._in_file_order():
            if last is not None and row.arrival < last.arrival:
                early = last.arrival - row.arrival
                self._leave_out(row.line, f"arrived {early:g} s before line {last.line}: sort the file by arrival")
            elif len(nearest) < MOST_UNORDERED:
                heappush(nearest, row)
            else:
                last = heappushpop(nearest, row)
                yield last
        if last is None and not nearest:
            raise RequestFileError(f"{self.path}: no requests in it")
        while nearest:
            yield heappop(nearest)

    # ------------------------------------------------------------------ one row

    def _in_file_order(self) -> Iterator[RequestRow]:
        for line, fields in self._fields():
            try:
                if isinstance(fields, ValueError):
                    raise fields
                yield _row(line, fields, self.block_tokens)
            except ValueError as error:
                self._leave_out(line, str(error))

    def _leave_out(self, line: int, why: str) -> None:
        self.bad += 1
        text = f"{self.path}:{line}: {why}"
        if self.bad > MOST_BAD_ROWS:
            raise RequestFileError(f"{text} ({MOST_BAD_ROWS} rows before it were bad too: mend the file)")
        if line > self._told:
            self._on_bad(text)
            self._told = line

    # ------------------------------------------------------------------ the file

    def _fields(self) -> Iterator[tuple[int, Fields | ValueError]]:
        """Yield line number and fields by the file's own names, or what is wrong with the line."""
        try:
            with self.path.open("rb") as raw:
                lines = _lines(raw)
                first = next(((number, text) for number, text in lines if text.strip()), None)
                if first is None:
                    raise RequestFileError(f"{self.path}: it is empty")
                number, text = first
                if text.lstrip().startswith("{"):
                    yield number, _object(text)
                    yield from ((number, _object(text)) for number, text in lines if text.strip())
                else:
                    header = self._header(number, text)
                    yield from ((number, _cells(header, text)) for number, text in lines if text.strip())
        except (OSError, EOFError, zlib.error) as error:
            # gzip's own complaints are OSErrors too, without an errno
            why = getattr(error, "strerror", None) or error
            raise RequestFileError(f"{self.path}: {why}") from None
        except _LongLineError as error:
            raise RequestFileError(f"{self.path}:{error}") from None

    def _header(self, number: int, text: str) -> list[str]:
        header = [name.strip() for name in next(csv.reader([text]), [])]
        missing = [_NAMES[what] for what in _REQUIRED if not set(_NAMES[what]) & set(header)]
        if missing:
            wanted = ", ".join("/".join(names) for names in missing)
            raise RequestFileError(f"{self.path}:{number}: the first line names no column {wanted}: add it")
        return header


class _LongLineError(Exception):
    """A line that no request fills."""


def _lines(raw: BinaryIO) -> Iterator[tuple[int, str]]:
    magic = raw.read(2)
    raw.seek(0)
    stream = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if magic == _GZIP_MAGIC else raw
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > MAX_LINE_BYTES:
            raise _LongLineError(f"{number}: the line is longer than {MAX_LINE_BYTES} bytes: write one request a line")
        yield number, line.decode("utf-8-sig" if number == 1 else "utf-8", "replace")


def _object(text: str) -> Fields | ValueError:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ValueError("not JSON: write one object a line")
    return found if isinstance(found, dict) else ValueError("not a JSON object: write one object a line")


def _cells(header: list[str], text: str) -> Fields | ValueError:
    try:
        cells = next(csv.reader(io.StringIO(text)), [])
    except csv.Error as error:
        return ValueError(f"not CSV ({error}): write one request a line")
    if len(cells) != len(header):
        return ValueError(f"{len(cells)} fields where the header names {len(header)}: write one of each")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


# ---------------------------------------------------------------------- one value


def _row(line: int, fields: Fields, block_tokens: int) -> RequestRow:
    prompt = _whole(fields, "prompt")
    output = _whole(fields, "output")
    if prompt is None or output is None:
        name = "/".join(_NAMES["prompt" if prompt is None else "output"])
        raise ValueError(f"{name} is missing: give the number of tokens")
    return RequestRow(
        _arrival(fields),
        line,
        prompt,
        output,
        _prefix(fields, prompt, block_tokens),
        _whole(fields, "max_tokens"),
        cast("FinishReason | None", _one_of(fields, "finish_reason", {reason: reason for reason in _REASONS})),
        cast("bool | None", _one_of(fields, "stream", _TRUTH)),
    )


def _find(fields: Fields, what: str) -> tuple[str, Any]:
    """Return the name that the file gives to a column, and its value; None where it is absent or empty."""
    for name in _NAMES[what]:
        if fields.get(name) not in (None, ""):
            return name, fields[name]
    return _NAMES[what][0], None


def _arrival(fields: Fields) -> float:
    name, value = _find(fields, "arrival")
    seconds = _seconds(value)
    if seconds is None:
        said = "missing" if value is None else f"{value!r}"
        raise ValueError(f"{name} is {said}: write a number, or a date and time as in 2023-11-16 18:17:03.98")
    return seconds / 1000 if name == _MILLISECONDS else seconds


def _seconds(value: Any) -> float | None:
    try:
        number = float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return number if number is not None and abs(number) < 1e15 else None


def _whole(fields: Fields, what: str) -> int | None:
    name, value = _find(fields, what)
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)) else 0
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_TOKENS:
        raise ValueError(f"{name} is {value!r}: write a whole number from 1 to {MOST_TOKENS}")
    return number


def _one_of(fields: Fields, what: str, choices: Mapping[str, Any]) -> Any:
    name, value = _find(fields, what)
    if value is None:
        return None
    found = choices.get(str(value).lower())
    if found is None:
        raise ValueError(f"{name} is {value!r}: write one of {', '.join(choices)}, or nothing")
    return found


def _prefix(fields: Fields, prompt: int, block_tokens: int) -> tuple[PrefixBlock, ...]:
    name, value = _find(fields, "prefix")
    if value is None:
        return ()
    blocks = value.split() if isinstance(value, str) else value
    if not isinstance(blocks, list) or any(type(block) not in (int, str) for block in blocks):
        raise ValueError(f"{name} is no list of block names: write [1, 2, 3], or 1 2 3 in CSV")
    most = -(-prompt // block_tokens)
    if len(blocks) > most:
        raise ValueError(
            f"{name} names {len(blocks)} blocks of {block_tokens} tokens, and a prompt of {prompt} tokens has {most}: "
            "give the blocks' size with --prefix-block-tokens, or fewer of them"
        )
    return tuple(blocks)
