"""``vllm-vitals logs``: what the reader understands of a file, for setting up a mapping.

Inputs: log files, gzip'd or not, or ``-`` for stdin. Output: a table or one JSON object. Exit 2 for a file that cannot
be read to its end or of which no line was understood, and for a mapping that is wrong. Invariant: memory does not grow
with the files, what could be read of them counts, whatever comes after, and nothing is claimed of lines that were not
understood.
"""

import contextlib
import gzip
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import click
import orjson

from vllm_vitals.config import section
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.config import load_schemas
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import NOT_UNDERSTOOD, RESULTS, Decoded
from vllm_vitals.logs.framer import LineFramer
from vllm_vitals.logs.schema import Schema
from vllm_vitals.logs.snapshot import LogSnapshot

_CHUNK, _HEAD = 256 * 1024, 4096
_SHOWN_LETTERS, _MAX_SHOWN = 200, 1000
_NO_RESPONSES = (
    "no response in it, so truncated at cap: not known (vLLM logs them with --enable-log-requests "
    "--enable-log-outputs; completions from 0.33 on)"
)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--schema", "mappings", multiple=True, metavar="FILE", help="Custom mapping (YAML), tried first.")
@click.option("--config", "config", metavar="FILE", help="Config file whose logs section has custom mappings.")
@click.option("--show", type=int, default=0, metavar="N", help="Print the first N lines that no mapping matched.")
def logs(files: tuple[str, ...], as_json: bool, mappings: tuple[str, ...], config: str | None, show: int) -> None:
    """Summarise log files as the log reader understands them (also gzip; - is stdin).

    Give a server's own log before its gateway's: which cap cut a response depends on the server's settings.
    """
    try:
        section_of = None if config is None else section.logs(Path(config))
        schemas = load_schemas([Path(name) for name in mappings], section_of)
    except ConfigError as error:
        raise click.ClickException(_one_line(error)) from None
    judge = LogAggregator({"file": SourceInfo()})
    strangers: list[str] = []
    problems: list[str] = []
    for name in files:
        seen = _Seen(name)
        try:
            for line, decoded in _read(name, schemas):
                judge.observe("file", decoded, time.time())
                seen.take(line, decoded)
        except UnreadableError as error:
            problems.append(str(error))
        strangers += seen.strangers(show)
        problems += seen.hint()
    report = summary(judge.snapshot(time.time()))
    if report["lines"] or not problems:
        click.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if as_json else _table(report))
    for text in strangers[:show]:
        click.echo(text, err=True)
    for text in problems:
        click.echo(f"vllm-vitals: {text}", err=True)
    if problems:
        click.get_current_context().exit(2)


class _Seen:
    """What became of one file's lines, and the first of those that nobody understood."""

    def __init__(self, name: str) -> None:
        self._name = "stdin" if name == "-" else name
        self._results: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}

    def take(self, line: bytes, decoded: Decoded) -> None:
        """Count one line."""
        if decoded.result is None:
            return
        self._results[decoded.result] += 1
        if decoded.result in NOT_UNDERSTOOD and line.strip():
            first = self._first.setdefault(decoded.result, [])
            if len(first) < _MAX_SHOWN:
                first.append(line[:_SHOWN_LETTERS].decode("utf-8", "replace").strip())

    @property
    def understood(self) -> bool:
        """Whether any line was."""
        return any(result not in NOT_UNDERSTOOD for result in self._results)

    def strangers(self, count: int) -> list[str]:
        """Show the first lines that no mapping understood; lines of plain text only where there is nothing else."""
        kinds = (
            ("no_schema", "invalid", "malformed") if self.understood else ("no_schema", "invalid", "malformed", "text")
        )
        return [f"{self._name}: {kind}: {line}" for kind in kinds for line in self._first.get(kind, ())][:count]

    def hint(self) -> list[str]:
        """Say the mend where no line was understood."""
        if self.understood or not self._results:
            return []
        if self._results["too_long"] and not self._results["no_schema"]:
            mend = "it has lines longer than 1 MiB; of a JSON array `jq -c '.[]' FILE` makes a line of each record"
        elif self._results["no_schema"] or self._results["invalid"] or self._results["malformed"]:
            mend = "--show 5 prints the first records among them, --schema FILE maps a log of your own"
        elif "text" not in self._first:
            mend = "it holds nothing but blank lines"
        else:
            mend = (
                "vLLM's lines hold a header such as 'INFO 04-28 22:50:00 [loggers.py:257]' in their first 200 "
                f"characters, or are JSON; the first line here is {self._first['text'][0][:80]!r}"
            )
        return [f"{self._name}: no line was understood: {mend}"]


def summary(snapshot: LogSnapshot) -> dict[str, Any]:
    """Build the object that ``--json`` prints: all sources of a snapshot as one, every result in every line's count.

    ``truncated`` is None where no response was read: then nobody knows whether any was cut. ``errors`` is None where no
    line was understood.
    """
    results: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    truncated: Counter[str] = Counter()
    for by_result in snapshot.records.values():
        results.update(by_result)
    for by_kind in snapshot.errors.values():
        errors.update(by_kind)
    for view in snapshot.series:
        truncated.update({cap: count for cap, count in view.counts.truncated.items() if count})
    servers, responses = snapshot.servers.values(), sum(view.counts.responses for view in snapshot.series)
    return {
        "lines": results.total(),
        "results": {result: results[result] for result in RESULTS if results[result]},
        "settings": {name: value for server in servers for name, value in server.settings.items()},
        "overrides": {
            name: {"configured": override.configured, "confirmed": override.confirmed}
            for server in servers
            for name, override in server.overrides.items()
        },
        "responses": responses,
        "truncated": dict(truncated) if responses else None,
        "errors": dict(errors) if any(results[one] for one in results.keys() - NOT_UNDERSTOOD) else None,
        "stats_lines": sum(snapshot.stats_lines.values()),
    }


class UnreadableError(Exception):
    """A file, or the rest of it, cannot be read. One line."""


def _read(name: str, schemas: list[Schema]) -> Iterator[tuple[bytes, Decoded]]:
    """Give every line and what became of it. Raises `UnreadableError` after the last whole line that could be read."""
    framer, decoder, number, broken = LineFramer(), LineDecoder(schemas), 0, ""
    try:
        with _open(name) as stream:
            # read1: what was unpacked before a break is handed over, not lost with the rest of its block
            while chunk := stream.read1(_CHUNK):
                if not number and b"\0" in chunk[:_HEAD]:
                    raise UnreadableError(f"{name}: not text: it holds NUL bytes; give a log in UTF-8")
                for line in framer.feed(chunk):
                    number += 1
                    yield line if isinstance(line, bytes) else b"", decoder.decode(line, time.time())
    except (OSError, EOFError, zlib.error) as error:
        broken = _one_line(error)
        if not number:
            raise UnreadableError(broken if broken.startswith(name) else f"{name}: {broken}") from None
    for line in [] if broken else framer.flush():  # a torn last line is no record
        number += 1
        yield line if isinstance(line, bytes) else b"", decoder.decode(line, time.time())
    for decoded in decoder.drain(time.time()):
        yield b"", decoded
    if broken:
        raise UnreadableError(f"{name}: cut off or damaged after line {number} ({broken}); read up to there")
    if not number:
        raise UnreadableError(f"{'stdin' if name == '-' else name}: empty: there is nothing to read")


@contextlib.contextmanager
def _open(name: str) -> Iterator[BufferedIOBase]:
    if name == "-":
        yield sys.stdin.buffer  # type: ignore[misc]
        return
    with Path(name).open("rb") as stream:
        if stream.peek(2)[:2] != b"\x1f\x8b":
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield unpacked


def _one_line(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {said}"
    return " ".join(said.split())[:300]


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['lines']} lines: " + _pairs(report["results"])]
    lines += [f"  {name} = {value}" for name, value in report["settings"].items()]
    for name, override in report["overrides"].items():
        verdict = {True: "confirmed by the start-up log", False: "silently dropped", None: "not confirmed yet"}
        lines.append(f"  default {name} = {override['configured']}: {verdict[override['confirmed']]}")
    if report["truncated"] is None:
        lines.append(_NO_RESPONSES)
    else:
        lines.append(f"{report['responses']} responses, truncated at cap: {_pairs(report['truncated']) or 'none'}")
    return "\n".join([*lines, _errors(report)])


def _errors(report: dict[str, Any]) -> str:
    """Say what errors there are, and of how much of the log that can be said."""
    if report["errors"] is None:
        return "engine errors: not known, no line was understood"
    read = sum(count for result, count in report["results"].items() if result not in NOT_UNDERSTOOD)
    rest = report["lines"] - read - report["results"].get("blank", 0) - report["results"].get("partial", 0)
    among = f" in the {read} lines that were understood ({rest} were not)" if rest and not report["errors"] else ""
    return f"engine errors: {_pairs(report['errors']) or 'none'}{among}; stats lines: {report['stats_lines']}"


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
