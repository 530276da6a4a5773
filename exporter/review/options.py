"""Options that the commands share: where the Prometheus API is, how to get in, and times as people write them.

Input: a click command. Output: the same, with ``access`` and ``matchers`` as arguments. Invariant: a secret is only
ever read from a file.
"""

import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click

from exporter.review.promapi import Access, access

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "s": 1.0}
_HEADER = re.compile(r"^([A-Za-z0-9-]{1,64}):\s*([^\r\n]{1,512})$")


def parse_span(text: str) -> float:
    """Seconds of ``90m``, ``12h``, ``7d``, ``4w``."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.UsageError(f"expected a span such as 7d or 12h, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_when(text: str) -> float:
    """Epoch seconds of a number, or of a date or time in ISO 8601 (UTC unless it says otherwise)."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"expected a time such as 2026-11-02T06:00Z, got {text!r}") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def prometheus_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets ``access`` (`promapi.Access`) and ``matchers`` (label matchers, or "")."""

    @wraps(command)
    def run(**given: Any) -> Any:
        if not given["prometheus"]:
            raise click.UsageError("give --prometheus URL")
        return command(access=_access(given), matchers=_matchers(given.pop("model"), given.pop("target")), **given)

    return _decorated(run, _OPTIONS)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same, or a recording: the command gets ``access`` or ``recording`` (the other is None), and ``matchers``."""

    @wraps(command)
    def run(**given: Any) -> Any:
        if bool(given["prometheus"]) == bool(given["recording"]):
            raise click.UsageError("give either --prometheus URL or --recording FILE")
        how = _access(given)
        return command(
            access=None if given["recording"] else how,
            matchers=_matchers(given.pop("model"), given.pop("target")),
            **given,
        )

    recording = click.option(
        "--recording", type=click.Path(path_type=Path), help="A recording (vllm-vitals record) in place of an API."
    )
    return _decorated(run, (*_OPTIONS, recording))


def _access(given: dict[str, Any]) -> Access:
    """Take the connection's options out of ``given``."""
    names = ("prometheus", "user", "password_file", "bearer_token_file", "ca_file", "header", "timeout")
    url, user, password, token, ca, header, timeout = (given.pop(name) for name in names)
    return access(url or "http://localhost:9090", user, password, token, ca, _headers(header), timeout)


def _decorated(run: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    for option in reversed(options):
        run = option(run)
    return run


def parse_set(given: Sequence[str]) -> dict[str, str]:
    """``--set NAME=VALUE`` as a mapping."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise click.UsageError(f"--set: expected NAME=VALUE such as max_num_seqs=64, got {text!r}")
        found[name] = value
    return found


def progress_line(word: str = "reading") -> Callable[[int, int, str], None]:
    """A line on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        return lambda done, total, what: None

    def show(done: int, total: int, what: str) -> None:
        click.echo(f"\r\x1b[K{word} {done} of {total}: {what}", nl=False, err=True)

    return show


def clear() -> None:
    """Take the progress line away."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)


_OPTIONS = (
    click.option("--prometheus", default="", metavar="URL", help="Prometheus, Thanos, Mimir, VictoriaMetrics."),
    click.option("--model", default="", metavar="REGEX", help="Only models whose name matches."),
    click.option("--target", default="", metavar="REGEX", help="Only servers whose target matches."),
    click.option("--user", default="", metavar="NAME", help="Basic authentication, with --password-file."),
    click.option("--password-file", default="", metavar="FILE"),
    click.option("--bearer-token-file", default="", metavar="FILE"),
    click.option("--ca-file", default="", metavar="FILE", help="Whom to trust, for https."),
    click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="As X-Scope-OrgID: team."),
    click.option("--timeout", default=60.0, show_default=True, metavar="SECONDS", help="For one question."),
)  # fmt: skip


def _matchers(model: str, target: str) -> str:
    found = []
    for label, pattern in (("model_name", model), ("target", target)):
        if pattern:
            escaped = pattern.replace("\\", "\\\\").replace('"', '\\"')
            found.append(f'{label}=~"{escaped}"')
    return ",".join(found)


def _headers(lines: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for line in lines:
        match = _HEADER.match(line)
        if match is None:
            raise click.UsageError(f"--header: expected 'Name: value', got {line[:40]!r}")
        found[match[1]] = match[2]
    return found
