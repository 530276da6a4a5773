"""``vllm-vitals logs``: what the reader understands of a file, for setting up a mapping.

Inputs: log files, gzip'd or not, or ``-`` for stdin. Output: a table or one JSON object. Exit 1 for a file that cannot
be read or a mapping that is wrong. Invariant: memory does not grow with the files.
"""

import contextlib
import gzip
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
import orjson

from exporter.logs.config import MappingError, load_schemas
from exporter.logs.decode import LineDecoder
from exporter.logs.events import RESULTS, Decoded
from exporter.logs.framer import LineFramer
from exporter.logs.judge import LogJudge, SourceInfo
from exporter.logs.schema import Schema
from exporter.logs.snapshot import LogSnapshot

_CHUNK = 256 * 1024


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--schema", "mappings", multiple=True, metavar="FILE", help="A mapping of your own (YAML), tried first.")
@click.option("--config", "config", metavar="FILE", help="Take the mappings of this config file's logs section.")
@click.option("--show", type=int, default=0, metavar="N", help="Print the first N lines that no mapping understood.")
def logs(files: tuple[str, ...], as_json: bool, mappings: tuple[str, ...], config: str | None, show: int) -> None:
    """Print what the reader understands of log files (gz files too; - is stdin).

    Give a server's own log before its gateway's: which cap cut a response depends on the server's settings.
    """
    try:
        schemas = load_schemas([Path(name) for name in mappings], None if config is None else Path(config))
    except (OSError, MappingError) as error:
        raise click.ClickException(_one_line(error)) from None
    judge = LogJudge({"file": SourceInfo()})
    strangers: list[str] = []
    for name in files:
        for line, decoded in _read(name, schemas):
            judge.observe("file", decoded, time.time())
            if len(strangers) < show and decoded.result in ("no_schema", "invalid", "malformed"):
                strangers.append(f"{name}: {decoded.result}: {line[:200].decode('utf-8', 'replace')}")
    report = summary(judge.snapshot(time.time()))
    click.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if as_json else _table(report))
    for text in strangers:
        click.echo(text, err=True)


def summary(snapshot: LogSnapshot) -> dict[str, Any]:
    """The object that ``--json`` prints: all sources of a snapshot as one, every result in every line's count."""
    results: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    truncated: Counter[str] = Counter()
    for by_result in snapshot.records.values():
        results.update(by_result)
    for by_kind in snapshot.errors.values():
        errors.update(by_kind)
    for view in snapshot.series:
        truncated.update({cap: count for cap, count in view.counts.truncated.items() if count})
    servers = snapshot.servers.values()
    return {
        "lines": results.total(),
        "results": {result: results[result] for result in RESULTS if results[result]},
        "settings": {name: value for server in servers for name, value in server.settings.items()},
        "overrides": {
            name: {"configured": override.configured, "confirmed": override.confirmed}
            for server in servers
            for name, override in server.overrides.items()
        },
        "responses": sum(view.counts.responses for view in snapshot.series),
        "truncated": dict(truncated),
        "errors": dict(errors),
        "stats_lines": sum(snapshot.stats_lines.values()),
    }


def _read(name: str, schemas: list[Schema]) -> Iterator[tuple[bytes, Decoded]]:
    framer, decoder = LineFramer(), LineDecoder(schemas)
    try:
        with _open(name) as stream:
            while chunk := stream.read(_CHUNK):
                for line in framer.feed(chunk):
                    yield line if isinstance(line, bytes) else b"", decoder.decode(line, time.time())
    except (OSError, EOFError, zlib.error) as error:
        said = _one_line(error)
        raise click.ClickException(said if said.startswith(name) else f"{name}: {said}") from None
    for line in framer.flush():
        yield line if isinstance(line, bytes) else b"", decoder.decode(line, time.time())
    for decoded in decoder.drain(time.time()):
        yield b"", decoded


@contextlib.contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as stream:
        if stream.peek(2)[:2] != b"\x1f\x8b":
            yield stream
            return
        with gzip.open(stream) as unpacked:
            yield unpacked  # type: ignore[misc]


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
    lines.append(f"{report['responses']} responses, cut at a cap: {_pairs(report['truncated']) or 'none'}")
    lines.append(f"engine errors: {_pairs(report['errors']) or 'none'}; stats lines: {report['stats_lines']}")
    return "\n".join(lines)


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
