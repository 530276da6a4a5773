"""What several commands share: durations, how to get into a server, and a config made of a file and of arguments.

Input: a command line. Output: seconds, keys of a target's entry, a checked `Config`. Invariant: an option means what
the key of the same name means in the file, and a secret is only ever read from a file. What reads a config is loaded
when there is something to read: help comes at once.
"""

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vllm_vitals.config.durations import DurationError, duration_text, parse_duration
from vllm_vitals.scrape.shards import Shard, parse_shard

if TYPE_CHECKING:
    from vllm_vitals.config.loader import Config
    from vllm_vitals.scrape.target import Address

FILE = click.Path(dir_okay=False, path_type=Path)
Access = dict[str, Any]  # keys of an entry of ``targets``


class Duration(click.ParamType[float]):
    """``5s``, ``1m30s``, ``1w``, as in the config file: seconds, at least ``least`` and at most ``most``."""

    name = "duration"

    def __init__(self, least: float = 0.001, most: float = float("inf")) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or a usage error."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except DurationError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            most = "" if self._most == float("inf") else f" and at most {duration_text(self._most)}"
            self.fail(f"expected at least {duration_text(self._least)}{most}, got {value}", param, ctx)
        return seconds


DURATION = Duration()


def as_typed(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check a duration and return it as typed, for the config to read; errors name the option here."""
    if value is not None:
        DURATION.convert(value, param, context)
    return value


class _Shard(click.ParamType[Shard]):
    """``2/5``: the second of five."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        """Return the shard, or a usage error."""
        try:
            return value if isinstance(value, Shard) else parse_shard(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SHARD = _Shard()

# ---------------------------------------------------------------- how to get in

_HEADER = re.compile(r"([A-Za-z0-9-]{1,64}):[ \t]*([^\r\n]{1,512})")
ca_file_option = click.option("--ca-file", default="", metavar="FILE", help="CA bundle for https.")
# The same names and meanings wherever a command asks a server: a vLLM server, a Prometheus.
ACCESS_OPTIONS = (
    click.option("--bearer-token-file", default="", metavar="FILE", help="File that holds a bearer token."),
    click.option("--user", default="", metavar="NAME", help="User name for basic auth, with --password-file."),
    click.option("--password-file", default="", metavar="FILE", help="File that holds the password."),
    ca_file_option,
    click.option(
        "--header", "headers", multiple=True, metavar="'NAME: VALUE'",
        help="HTTP header, such as X-Scope-OrgID: team (repeatable).",
    ),
)  # fmt: skip


def decorated(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """Add options to a command, in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def headers(lines: tuple[str, ...]) -> dict[str, str]:
    """Read ``--header`` lines. Raises a usage error."""
    found = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise click.UsageError(f"--header: expected 'Name: value', got {line[:40]!r}")
        found[match[1]] = match[2]
    return found


def ways_in(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add how to get into the servers that URLs name; the command gets ``access``."""

    @wraps(command)
    def run(**given: Any) -> Any:
        token, user, password, ca, lines = (
            given.pop(name) for name in ("bearer_token_file", "user", "password_file", "ca_file", "headers")
        )
        if bool(user) != bool(password):
            raise click.UsageError("--user and --password-file belong together: give both")
        if token and user:
            raise click.UsageError("give either --bearer-token-file or --user, not both")
        access: Access = {
            "bearer_token_file": token,
            "basic_auth": {"username": user, "password_file": password} if user else None,
            "tls": {"ca_file": ca} if ca else None,
            "headers": headers(lines),
        }
        return command(access={key: value for key, value in access.items() if value}, **given)

    return decorated(run, ACCESS_OPTIONS)


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--config`` and how to get into the servers that URLs name; the command gets ``file`` and ``access``."""
    config = click.option("--config", "file", type=FILE, help="Config file with targets, credentials and thresholds.")
    return config(ways_in(command))


# ---------------------------------------------------------------- a config of a file and of arguments


def configured(
    file: Path | None, urls: tuple[str, ...], overrides: dict[str, Any], access: Access | None = None
) -> "Config":
    """Make the config of ``file`` with ``urls`` added to its targets and the given keys replaced.

    ``access`` is how to get into those URLs. One that the file has already is that target, with the file's keys.
    """
    from vllm_vitals.config import loader, section

    name, document = (str(file), section.document(file)) if file is not None else ("command line", {})
    if access and not urls:
        raise click.UsageError("options such as --bearer-token-file are for URLs on the command line: give a URL")
    if urls:
        listed = document.get("targets") or []
        document["targets"] = _with(listed if isinstance(listed, list) else [listed], urls, access or {})
    given = {key: value for key, value in overrides.items() if value is not None}
    return loader.build(name, {**document, **given}, file.parent if file is not None else None)


def say_notes(config: "Config") -> None:
    """Tell a person on standard error what was understood otherwise than it was written."""
    for note in config.notes:
        click.echo(f"vllm-vitals: {note}", err=True)


def _with(listed: list[Any], urls: tuple[str, ...], access: Access) -> list[Any]:
    """Return the targets with those of the command line among them, each server once."""
    entries = list(listed)
    places = {where.url: index for index, entry in enumerate(entries) if (where := _address(entry)) is not None}
    for url in urls:
        where = _address(url)
        index = None if where is None else places.get(where.url)
        if index is None:
            if where is not None:
                places[where.url] = len(entries)
            entries.append({"url": url, **access})
        elif access:
            old = entries[index] if isinstance(entries[index], dict) else {"url": entries[index]}
            ways_in = {"bearer_token_file", "basic_auth"}
            kept = {k: v for k, v in old.items() if k not in ways_in or not ways_in & access.keys()}
            entries[index] = {**kept, **access}
    return entries


def _address(entry: object) -> "Address | None":
    """Return the address of an entry of ``targets``, where it has one that can be read."""
    from vllm_vitals.scrape.target import parse_address

    text = entry.get("url") if isinstance(entry, dict) else entry
    try:
        return parse_address(text) if isinstance(text, str) else None
    except ValueError:
        return None
