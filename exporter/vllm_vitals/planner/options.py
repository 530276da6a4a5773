"""Options that the commands share: where the Prometheus API is, how to get in, and times as people write them.

Input: a click command. Output: the same, with ``access`` and ``matchers``, or a ``source``, as arguments. Invariant: a
secret is only ever read from a file, and an option that the chosen source would ignore is refused.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from vllm_vitals.cli.options import ACCESS_OPTIONS, DURATION, Duration, decorated, headers
from vllm_vitals.config import section
from vllm_vitals.config.durations import DurationError, parse_duration
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner.telemetry.telemetry import Telemetry
from vllm_vitals.prometheus.promapi import Access, access

_LATEST = 1e11  # the year 5138: beyond it a time is a mistake
SPAN = Duration(least=1.0, most=3650 * 86400.0)
_API_ONLY = ("since", "until", "user", "password_file", "bearer_token_file", "ca_file", "headers", "timeout")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which models and servers: regular expressions that must match the whole name; empty takes all."""

    model: str
    target: str
    server: str = "target"  # the label that names a server: ours, or Prometheus' own on raw series

    @property
    def matchers(self) -> str:
        """The same as PromQL label matchers."""
        found = []
        for label, pattern in (("model_name", self.model), (self.server, self.target)):
            if pattern:
                escaped = pattern.replace("\\", "\\\\").replace('"', '\\"')
                found.append(f'{label}=~"{escaped}"')
        return ",".join(found)

    def keep(self, telemetry: Telemetry) -> None:
        """Leave only what was chosen of a recording's engines."""
        for what, pattern in (("model", self.model), ("target", self.target)):
            names = sorted({engine.model_name if what == "model" else engine.target for engine in telemetry.engines})
            try:
                kept = {name for name in names if not pattern or re.fullmatch(pattern, name)}
            except re.error as error:
                raise click.UsageError(f"--{what}: not a regular expression: {error}") from None
            if not kept:
                raise click.UsageError(f"--{what}: nothing matches {pattern!r}; there is {', '.join(names)}")
            for engine in list(telemetry.engines):
                if (engine.model_name if what == "model" else engine.target) not in kept:
                    del telemetry.engines[engine]


@dataclass(frozen=True, slots=True)
class Source:
    """Where telemetry comes from: one of the two."""

    access: Access | None
    recording: Path | None
    choice: Choice


def parse_when(text: str) -> float:
    """Epoch seconds of a number, or of a date or time in ISO 8601 (UTC unless it says otherwise)."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise click.UsageError(f"expected a time such as 2026-11-02T06:00Z, got {text!r}") from None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not abs(seconds) < _LATEST:
        raise click.UsageError(f"expected a time such as 2026-11-02T06:00Z, got {text!r}")
    return seconds


def parse_between(text: str, recorded: bool) -> tuple[float, float] | None:
    """Read ``FROM,TO``, the first before the second: of a recording durations from its start, else two times.

    None where nothing was given.
    """
    if not text:
        return None
    parts = re.split(r"\s*,\s*", text)
    if len(parts) != 2:
        raise click.UsageError("--between: expected two times, FROM,TO")
    first, last = (_from_start(part) if recorded else parse_when(part) for part in parts)
    if first >= last:
        raise click.UsageError(f"--between: FROM must come before TO, got {text!r}")
    return first, last


def _from_start(text: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        raise click.UsageError(f"--between: {error}") from None


def review_section(config: Path | None) -> ReviewSettings:
    """Return the config file's section ``review:``; the defaults where no file is given."""
    return ReviewSettings() if config is None else section.review(config)


def prometheus_options(command: Callable[..., Any], server: str = "target") -> Callable[..., Any]:
    """Add the options; the command gets ``access`` (`promapi.Access`) and ``matchers`` (label matchers, or "").

    ``server`` is the label that names a server.
    """

    @wraps(command)
    def run(**given: Any) -> Any:
        if not given["prometheus"]:
            raise click.UsageError("give --prometheus URL")
        return command(
            access=_access(given), matchers=Choice(given.pop("model"), given.pop("target"), server).matchers, **given
        )

    return decorated(run, _OPTIONS)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options, or a recording: the command gets a ``source``."""

    @wraps(command)
    def run(**given: Any) -> Any:
        recording = given.pop("recording")
        if bool(given["prometheus"]) == (recording is not None):
            raise click.UsageError("give either --prometheus URL or --recording FILE")
        if recording is not None:
            _refuse_ignored()
        how = _access(given)
        choice = Choice(given.pop("model"), given.pop("target"))
        return command(source=Source(None if recording else how, recording, choice), **given)

    recording = click.option(
        "--recording", type=click.Path(path_type=Path), help="Recording (vllm-vitals record) to read instead of an API."
    )
    return decorated(run, (*_OPTIONS, recording))


def _refuse_ignored() -> None:
    """Refuse options that a recording does not take: it has its own times and no API."""
    context = click.get_current_context()
    for name in _API_ONLY:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            mend = "; choose a part of a recording with --between" if name in ("since", "until") else ""
            option = {"headers": "header"}.get(name, name.replace("_", "-"))
            raise click.UsageError(f"--{option} is for --prometheus{mend}")


def _access(given: dict[str, Any]) -> Access:
    """Take the connection's options out of ``given``."""
    names = ("prometheus", "user", "password_file", "bearer_token_file", "ca_file", "headers", "timeout")
    url, user, password, token, ca, lines, timeout = (given.pop(name) for name in names)
    return access(url or "http://localhost:9090", user, password, token, ca, headers(lines), timeout)


def progress_line(word: str = "reading") -> Callable[[int, int, str], None]:
    """Print a line on a terminal, nothing elsewhere."""
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
    click.option("--prometheus", default="", metavar="URL", help="Prometheus-compatible API."),
    click.option("--model", default="", metavar="REGEX", help="Only models whose name matches (whole name)."),
    click.option("--target", default="", metavar="REGEX", help="Only servers whose target matches (whole name)."),
    *ACCESS_OPTIONS,
    click.option("--timeout", type=DURATION, default="60s", show_default=True, help="Per-query timeout."),
)  # fmt: skip
