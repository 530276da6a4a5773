"""One line to one result and its events. Input: a framed line and when it was read. Output: `Decoded`.

Looks through what stands between vLLM and us: process prefixes and colours (vLLM 0.8 to 0.30 put them before JSON
too), whatever a viewer or runtime puts before a record (`headers`), container wrappers (Docker json-file, CRI, Fluent
Bit), collectors' envelopes (`envelopes`), several records on one line, text among JSON, broken UTF-8.
Invariant: any bytes give exactly one result and never an exception; a line costs work in proportion to its length.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import islice
from typing import Any

import orjson
from jmespath.exceptions import JMESPathError

from vllm_vitals.logs import envelopes, headers, values
from vllm_vitals.logs.envelopes import Carrier, Content
from vllm_vitals.logs.events import Decoded, together
from vllm_vitals.logs.framer import Line, TooLong
from vllm_vitals.logs.paths import Getter
from vllm_vitals.logs.schema import Schema
from vllm_vitals.logs.split_lines import Pieces
from vllm_vitals.logs.vllm_lines import VllmLines

MAX_NESTING = 12
# Records in one envelope: one answer of Loki holds 5,000 lines; and on one line: two or three, where a newline is lost.
MAX_RECORDS, MAX_GLUED = 5_000, 500
MAX_SHAPES, MAX_SHAPE_KEYS, MAX_SHAPE_LETTERS = 512, 64, 2048
_BLANK, _TEXT, _IGNORED, _TOO_LONG = Decoded("blank"), Decoded("text"), Decoded("ignored"), Decoded("too_long")
_HELD, _NO_SCHEMA, _INVALID, _MALFORMED = Decoded(None), Decoded("no_schema"), Decoded("invalid"), Decoded("malformed")

_PREFIX = re.compile(rb"(?:\x1b\[[0-9;]{0,32}m)*\([A-Za-z_][\w ={}-]{0,60}? pid=\d+\)(?:\x1b\[[0-9;]{0,32}m)* ?")
_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]{1,32}(?:Z|[+-]\d\d:?\d\d) (stdout|stderr) ([PF])(?::\S*)? ?")
_STARTED = "Application startup complete"  # uvicorn's, without a header of vLLM's
# vLLM's messages that quote what a client sent: nothing inside them is a record.
_QUOTING = ("Request ", "Received request ", "Generated response ", "Added request ")
_DOCKER_KEYS = frozenset({"log", "stream", "time", "attrs"})
_JSON = json.JSONDecoder()
_NO_ENVELOPE: tuple[Getter, ...] = (lambda _: None,) * 4


@dataclass(frozen=True, slots=True)
class _Shape:
    """What records with the same keys have in common: the mapping that knows them, and where they may carry others."""

    schema: Schema | None
    sure: tuple[Carrier, ...]
    unsure: tuple[Carrier, ...]


class LineDecoder:
    """Decodes the lines of one log, in order; holds pieces of split lines and the requests that are open.

    ``zone`` is that of times without one. ``schemas`` are tried in order.
    """

    def __init__(self, schemas: Iterable[Schema], zone: tzinfo = UTC, max_line_bytes: int = 1 << 20) -> None:
        schemas = list(schemas)
        self._responses = [schema for schema in schemas if schema.kind == "response"]
        self._envelope = next((one.envelope for one in schemas if one.envelope is not None), _NO_ENVELOPE)
        self._zone = zone
        self._vllm = VllmLines(zone)
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._pieces = Pieces(max_line_bytes)
        self._room = MAX_RECORDS

    @property
    def holding(self) -> bool:
        """Whether pieces of a split line wait for the rest: a restart must then read them again."""
        return bool(self._pieces.streams)

    def drain(self, read_at: float) -> list[Decoded]:
        """Decode, at the end of the input, what there is of lines whose last piece never came."""
        return [self._piece(stream, b"", False, read_at, 0) for stream in self._pieces.streams]

    def decode(self, line: Line | dict[str, Any], read_at: float) -> Decoded:
        """Say what became of a line, or of a record that came without one."""
        if isinstance(line, TooLong):
            return _TOO_LONG
        self._room = MAX_RECORDS
        try:
            return self._record(line, read_at, 0) if isinstance(line, dict) else self._line(line, read_at, 0)
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
        if depth > MAX_NESTING:
            return _TEXT
        if first.isdigit() and (match := _CRI.match(line)):
            return self._piece(match[1].decode(), line[match.end() :], match[2] == b"P", read_at, depth)
        if first in (b"(", b"\x1b") and (match := _PREFIX.match(line)):
            line = line[match.end() :]
            if line[:1] == b"{":
                return self._json(line, read_at, depth)
        elif first == b"[" and line[:12].replace(b" ", b"")[:2] == b"[{":
            return self._array(line, read_at, depth)
        return self._text(line.decode("utf-8", "replace"), read_at, depth)

    def _json(self, line: bytes, read_at: float, depth: int) -> Decoded:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return self._broken(line.decode("utf-8", "replace").rstrip("\r"), read_at, depth)
        return self._record(record, read_at, depth)

    def _array(self, line: bytes, read_at: float, depth: int) -> Decoded:
        try:
            records = orjson.loads(line)
        except orjson.JSONDecodeError:
            return self._text(line.decode("utf-8", "replace"), read_at, depth)
        return self._all((one for one in records if isinstance(one, dict)), read_at, depth)

    def _broken(self, line: str, read_at: float, depth: int) -> Decoded:
        """Read a line that is not one clean JSON value: several records, broken UTF-8, or not JSON at all."""
        parts: list[Decoded] = []
        at = 0
        while at < len(line):
            if self._room <= 0 or len(parts) >= MAX_GLUED:
                parts.append(_TOO_LONG)
                break
            try:
                record, at = _JSON.raw_decode(line, at)
            except (ValueError, RecursionError):
                parts.append(self._not_json(line[at:], read_at, depth))
                break
            parts.append(self._record(record, read_at, depth + 1) if isinstance(record, dict) else _NO_SCHEMA)
            self._room -= 1
            while line[at : at + 1].isspace():
                at += 1
        return together(parts)

    def _not_json(self, rest: str, read_at: float, depth: int) -> Decoded:
        """Read what JSON does not explain: text after a record, logcli's labels before one, or a torn record."""
        if rest[:1] != "{":
            return self._line(rest.encode("utf-8", "replace"), read_at, depth + 1)
        if rest[1:8].lstrip().startswith('"'):
            return _MALFORMED
        decoded = self._text(rest, read_at, depth)
        return _MALFORMED if decoded.result == "text" else decoded

    def _record(self, record: dict[str, Any], read_at: float, depth: int) -> Decoded:
        if depth > MAX_NESTING:
            return _NO_SCHEMA
        inner = record.get("log")
        if isinstance(inner, str):
            return self._wrapped(record, inner, read_at, depth)
        shape = self._shapes.get(tuple(record)) or self._shape(record)
        if shape.schema is not None:
            return self._response(shape.schema, record, read_at)
        if shape.sure and (opened := self._opened(record, shape.sure, read_at, depth)):
            return opened
        if isinstance(message := self._envelope[0](record), str):
            return self._message(record, message, read_at, depth)
        return (shape.unsure and self._opened(record, shape.unsure, read_at, depth)) or _NO_SCHEMA

    def _shape(self, record: dict[str, Any]) -> _Shape:
        """Look at the keys of a record of a new shape."""
        keys = tuple(record)
        shape = _Shape(
            next((one for one in self._responses if one.keys and one.keys <= record.keys()), None),
            envelopes.carriers(record.keys(), envelopes.SURE),
            envelopes.carriers(record.keys(), envelopes.UNSURE),
        )
        if len(keys) <= MAX_SHAPE_KEYS and sum(map(len, keys)) <= MAX_SHAPE_LETTERS:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[keys] = shape
        return shape

    def _opened(
        self, record: dict[str, Any], carriers: tuple[Carrier, ...], read_at: float, depth: int
    ) -> Decoded | None:
        """Read what the first carrier that fits holds; None where none fits."""
        for carrier in carriers:
            inner = envelopes.contents(record, carrier)
            if inner is not None:
                decoded = self._all(inner, read_at, depth)
                foreign = not carrier.sure and decoded.result in ("text", "blank")
                return _NO_SCHEMA if foreign else decoded
        return None

    def _all(self, inner: Iterable[Content], read_at: float, depth: int) -> Decoded:
        """Read several lines and records as parts of one line."""
        parts: list[Decoded] = []
        for one in inner:
            if self._room <= 0:
                parts.append(_TOO_LONG)
                break
            self._room -= 1
            parts.append(
                self._record(one, read_at, depth + 1)
                if isinstance(one, dict)
                else self._line(one.strip("\n").encode("utf-8", "replace"), read_at, depth + 1)
            )
        return together(parts) if parts else _NO_SCHEMA

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

    def _message(self, record: dict[str, Any], message: str, read_at: float, depth: int) -> Decoded:
        """Read a message: vLLM's own, or a whole line that a collector put there, whatever the line begins with."""
        said_at = self._envelope[1](record)
        decoded = self._vllm.says(message, said_at, read_at)
        if decoded is not None:
            return decoded
        if not message.startswith(_QUOTING):
            if message[:1] in "{([\x1b" or message[10:11] == "T":  # what more than text may begin with
                decoded = self._line(message.strip("\n").encode("utf-8", "replace"), read_at, depth + 1)
                strange = decoded.result in ("text", "blank")
            else:
                decoded = self._text(message, read_at, depth + 1)
                strange = decoded.result in ("text", "blank", "no_schema")  # an object that a message shows
            if not strange:
                return decoded
        level, logger = self._envelope[2](record), self._envelope[3](record)
        level = level if type(level) is str else ""
        decoded = self._vllm.complains(message, level, said_at, read_at)
        if decoded is not None:
            return decoded
        # Neither level nor logger, and yet more than a message: a collector's, about a line of anything.
        own = level or len(record) == 1 or isinstance(logger, str)
        return _IGNORED if own else _TEXT

    def _text(self, line: str, read_at: float, depth: int) -> Decoded:
        if "]" not in line and "{" not in line:  # neither a header nor an object can be in it
            return self._started(line, read_at)
        if "\x1b" in line:
            line = headers.without_colour(line)
            if line[:1] == "{":
                return self._json(line.encode("utf-8", "replace"), read_at, depth + 1)
        header = headers.find(line)
        if header is None and (plain := headers.without_shown_colour(line)) is not None:
            line, header = plain, headers.find(plain)
        if header is None or header.start > 0:
            at = headers.object_in(line)
            if at > 0 and (header is None or at < header.start) and depth <= MAX_NESTING:
                decoded = self._json(line[at:].encode("utf-8", "replace"), read_at, depth + 1)
                if decoded.result not in ("malformed", "text"):
                    return decoded
        if header is None:
            return self._started(line, read_at)
        quotes = line.startswith(_QUOTING, header.end)
        starts = [] if quotes else headers.glued(line, header.end, min(self._room, MAX_GLUED))
        return together([self._headed(part, read_at) for part in _parts(line, [header.start, *starts])])

    def _started(self, line: str, read_at: float) -> Decoded:
        """Read uvicorn's line that start-up is over; anything else without a header is text."""
        at = line.find(_STARTED, 0, headers.WINDOW)
        started = at >= 0 and line[:at].rstrip().endswith("INFO:")
        return (started and self._vllm.says(line[at:], None, read_at)) or _TEXT

    def _headed(self, line: str, read_at: float) -> Decoded:
        header = headers.find(line, 0)
        if header is None:
            return _TEXT
        self._room -= 1
        return self._vllm.read(line[header.end :], header.level, header.stamp, read_at, (header.stamp, header.place))

    def _wrapped(self, record: dict[str, Any], inner: str, read_at: float, depth: int) -> Decoded:
        """Read Docker's json-file, which ends a whole line with a newline; shippers tell a split one by CRI's tag."""
        docker = "stream" in record and "time" in record and record.keys() <= _DOCKER_KEYS
        partial = record.get("logtag") == "P" or (docker and not inner.endswith("\n"))
        stream = "stderr" if record.get("stream") == "stderr" else "stdout"
        return self._piece(stream, inner.removesuffix("\n").encode("utf-8", "replace"), partial, read_at, depth)

    def _piece(self, stream: str, piece: bytes, partial: bool, read_at: float, depth: int) -> Decoded:
        if depth > 0:  # inside another wrapper it is all that will come
            return self._line(piece, read_at, depth + 1)
        if partial:
            self._pieces.hold(stream, piece)
            return _HELD
        line, held = self._pieces.whole(stream, piece)
        decoded = _TOO_LONG if line is None else self._line(line, read_at, depth + 1)
        return Decoded(decoded.result, decoded.events, held) if held else decoded


def _parts(line: str, starts: list[int]) -> Iterator[str]:
    for start, end in zip(starts, [*islice(starts, 1, None), len(line)], strict=True):
        yield line[start:end]
