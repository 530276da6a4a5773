"""One line to one result and its events. Input: a framed line and when it was read. Output: `Decoded`.

Looks through what stands between vLLM and us: process prefixes and ANSI codes (vLLM 0.8 to 0.30 put them before JSON
too), container wrappers (Docker json-file, CRI, Fluent Bit, Vector), several records on one line, text among JSON,
broken UTF-8. Invariant: any bytes give exactly one result and never an exception.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any

import orjson
from jmespath.exceptions import JMESPathError

from vllm_vitals.logs import values
from vllm_vitals.logs.events import Decoded, LogEvent, Result
from vllm_vitals.logs.framer import Line, TooLong
from vllm_vitals.logs.schema import Schema
from vllm_vitals.logs.vllm_lines import VllmLines

MAX_NESTING = 4
MAX_SHAPES = 512
_BLANK, _TEXT, _IGNORED, _TOO_LONG = Decoded("blank"), Decoded("text"), Decoded("ignored"), Decoded("too_long")
_HELD, _NO_SCHEMA, _INVALID, _MALFORMED = Decoded(None), Decoded("no_schema"), Decoded("invalid"), Decoded("malformed")

_PREFIX = re.compile(rb"(?:\x1b\[[0-9;]*m)*\([A-Za-z_][\w ={}-]{0,60}? pid=\d+\)(?:\x1b\[[0-9;]*m)* ?")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:?\d\d) (stdout|stderr) ([PF])(?::\S*)? ?")
_HEADER = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) (\d\d-\d\d \d\d:\d\d:\d\d) \[?([^\]\s:]{1,200}:\d+)\] ?"
)
_UVICORN = re.compile(r"(INFO|WARNING|ERROR): {3,5}")
_GLUE = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[^\]\s:]{1,200}:\d+\]")
_JSON = json.JSONDecoder()

# On a line with several records the one that says most names the line's result.
_BY_WEIGHT: tuple[Result, ...] = (
    "blank", "text", "ignored", "no_schema", "malformed", "invalid", "request", "stats", "setting", "aborted", "failed",
    "response", "error",
)  # fmt: skip
_WEIGHT = {result: weight for weight, result in enumerate(_BY_WEIGHT)}


@dataclass(slots=True)
class _Held:
    """Pieces of a line whose rest has not come; over the limit only their count and size are kept."""

    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    size: int = 0


class LineDecoder:
    """Decodes the lines of one log, in order; holds pieces of split lines and the requests that are open.

    ``zone`` is that of times without one. ``schemas`` are tried in order.
    """

    def __init__(self, schemas: Sequence[Schema], zone: tzinfo = UTC, max_line_bytes: int = 1 << 20) -> None:
        self._responses = [schema for schema in schemas if schema.kind == "response"]
        self._envelope = next((schema.envelope for schema in schemas if schema.kind == "vllm"), None)
        self._zone = zone
        self._max = max_line_bytes
        self._vllm = VllmLines(zone)
        self._shapes: dict[tuple[str, ...], Schema | None] = {}
        self._pieces: dict[str, _Held] = {}

    @property
    def holding(self) -> bool:
        """Whether pieces of a split line wait for the rest: a restart must then read them again."""
        return bool(self._pieces)

    def drain(self, read_at: float) -> list[Decoded]:
        """The end of the input: lines whose last piece never came are decoded from what is there."""
        streams = list(self._pieces)
        return [self._piece(stream, b"", False, read_at, 0) for stream in streams]

    def decode(self, line: Line, read_at: float) -> Decoded:
        """What became of the line."""
        if isinstance(line, TooLong):
            return _TOO_LONG
        try:
            return self._line(line, read_at, 0)
        except RecursionError:
            return _MALFORMED
        except Exception:  # whatever a line holds, it must not stop the lines after it
            return _INVALID

    def _line(self, line: bytes, read_at: float, depth: int) -> Decoded:
        first = line[:1]
        if first == b"{":
            return self._json(line, read_at, depth)
        line = line.rstrip(b"\r")
        if not line or line.isspace():
            return _BLANK
        if first.isdigit() and (match := _CRI.match(line)):
            return self._piece(match[1].decode(), line[match.end() :], match[2] == b"P", read_at, depth)
        if first in (b"(", b"\x1b") and (match := _PREFIX.match(line)):
            rest = line[match.end() :]
            return self._line(rest, read_at, depth + 1) if rest and depth < MAX_NESTING else _TEXT
        return self._text(line.decode("utf-8", "replace"), read_at)

    def _json(self, line: bytes, read_at: float, depth: int) -> Decoded:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return self._broken(line.decode("utf-8", "replace").rstrip("\r"), read_at, depth)
        return self._record(record, read_at, depth)

    def _broken(self, line: str, read_at: float, depth: int) -> Decoded:
        """A line that is not one clean JSON value: several records, broken UTF-8, or not JSON at all."""
        parts: list[Decoded] = []
        at = 0
        while at < len(line):
            try:
                record, at = _JSON.raw_decode(line, at)
            except (ValueError, RecursionError):
                rest = line[at:]
                parts.append(
                    _MALFORMED if rest[:1] == "{" else self._line(rest.encode("utf-8", "replace"), read_at, depth + 1)
                )
                break
            parts.append(self._record(record, read_at, depth + 1) if isinstance(record, dict) else _NO_SCHEMA)
            while line[at : at + 1].isspace():
                at += 1
            if depth >= MAX_NESTING:
                break
        return _together(parts)

    def _record(self, record: dict[str, Any], read_at: float, depth: int) -> Decoded:
        inner = record.get("log")
        if isinstance(inner, str) and depth < MAX_NESTING:
            return self._wrapped(record, inner, read_at, depth)
        shape = tuple(record)
        if shape not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = next((one for one in self._responses if one.keys and one.keys <= record.keys()), None)
        schema = self._shapes[shape]
        if schema is not None:
            return self._response(schema, record, read_at)
        return self._message(record, read_at, depth)

    def _response(self, schema: Schema, record: dict[str, Any], read_at: float) -> Decoded:
        try:
            event = schema.response(record, self._zone, read_at)
        except (values.ImpossibleError, JMESPathError, TypeError):
            return _INVALID
        if event is None:
            return _IGNORED
        match event.finish_reason:
            case "error":
                return Decoded("failed", (event,))
            case "abort":
                return Decoded("aborted", (event,))
        return Decoded("response", (event,))

    def _message(self, record: dict[str, Any], read_at: float, depth: int) -> Decoded:
        if self._envelope is None:
            return _NO_SCHEMA
        message = self._envelope[0](record)
        if not isinstance(message, str):
            return _NO_SCHEMA
        # a shipper put the whole line into its own record
        if message[:1] in ("{", "(", "\x1b") and depth < MAX_NESTING:
            return self._line(message.encode("utf-8", "replace"), read_at, depth + 1)
        level = self._envelope[2](record)
        return self._vllm.read(message, level if type(level) is str else "", self._envelope[1](record), read_at)

    def _text(self, line: str, read_at: float) -> Decoded:
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if match := _UVICORN.match(line):
            decoded = self._vllm.read(line[match.end() :], match[1], None, read_at)
            return _TEXT if decoded.result in ("ignored", "error") else decoded
        if _HEADER.match(line) is None:
            return _TEXT
        starts = [0, *(match.start() for match in _GLUE.finditer(line, 1))]
        return _together([self._headed(line[a:b], read_at) for a, b in zip(starts, [*starts[1:], None], strict=True)])

    def _headed(self, line: str, read_at: float) -> Decoded:
        match = _HEADER.match(line)
        if match is None:
            return _TEXT
        return self._vllm.read(line[match.end() :], match[1], match[2], read_at, (match[2], match[3]))

    def _wrapped(self, record: dict[str, Any], inner: str, read_at: float, depth: int) -> Decoded:
        """Docker json-file ends a whole line with a newline and splits long ones; shippers only say so by CRI's tag."""
        docker = len(record) <= 4 and "stream" in record and "time" in record
        partial = record.get("logtag") == "P" or (docker and not inner.endswith("\n"))
        stream = "stderr" if record.get("stream") == "stderr" else "stdout"
        return self._piece(stream, inner.removesuffix("\n").encode("utf-8", "replace"), partial, read_at, depth)

    def _piece(self, stream: str, piece: bytes, partial: bool, read_at: float, depth: int) -> Decoded:
        if depth > 0:  # inside another wrapper it is all that will come
            return self._line(piece, read_at, depth + 1)
        held = self._pieces.pop(stream, None)
        if partial:
            held = held or _Held()
            held.count += 1
            held.size += len(piece)
            if held.size <= self._max:
                held.parts.append(piece)
            else:
                held.parts.clear()
            self._pieces[stream] = held
            return _HELD
        if held is None:
            return self._line(piece, read_at, depth + 1)
        if held.size + len(piece) > self._max:
            return Decoded("too_long", (), held.count)
        decoded = self._line(b"".join((*held.parts, piece)), read_at, depth + 1)
        return Decoded(decoded.result, decoded.events, held.count)


def _together(parts: Sequence[Decoded]) -> Decoded:
    if len(parts) == 1:
        return parts[0]
    events: tuple[LogEvent, ...] = tuple(event for part in parts for event in part.events)
    heaviest = max(
        parts, key=lambda part: -1 if part.result is None else _WEIGHT.get(part.result, -1), default=_MALFORMED
    )
    return Decoded(heaviest.result or "partial", events, sum(part.held for part in parts))
