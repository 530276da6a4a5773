"""Options of ``vllm-vitals simulate`` that stand for one thing: a file of requests, and a server's settings.

Input: what a user typed. Output: traffic from a file, and a `Scenario` with other settings. Invariant: an option that
would have no effect is refused, with the option that it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from math import inf, isfinite
from pathlib import Path
from typing import Any, get_type_hints

import click
from click.core import ParameterSource

from vllm_vitals.cli.options import DURATION, FILE
from vllm_vitals.simulator.file_traffic import FileTraffic, Selection, select
from vllm_vitals.simulator.request_file import MOST_TOKENS, PREFIX_BLOCK_TOKENS, RequestFile, RequestFileError
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.steptime import StepTime

_OF_A_FILE = ("speed_up", "loop", "sample", "begin", "end", "prefix_block_tokens")
_STEP = "step_time."
_TRUTH = {"true": True, "false": False}


class Number(click.FloatRange):
    """A number in a range; "nan" lies in every range, and is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises a usage error."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class Requests:
    """A file of requests and what of it is sent."""

    path: Path
    selection: Selection
    block_tokens: int

    def traffic(self, scenario: Scenario, seed: int, on_bad: Callable[[str], object]) -> FileTraffic:
        """Open the file. Raises `click.ClickException` where it holds no requests."""
        file = RequestFile(self.path, on_bad, self.block_tokens)
        try:
            return FileTraffic(scenario.settings, seed, select(file, self.selection, seed), self.block_tokens)
        except RequestFileError as error:
            raise click.ClickException(str(error)) from None


def request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a file of requests to a command, which gets them as ``requests``: `Requests` or None."""

    @click.option(
        "--requests",
        "path",
        type=FILE,
        metavar="FILE",
        help="Send the requests of a CSV or JSON Lines file (also .gz): an Azure or Mooncake trace, or your own.",
    )
    @click.option(
        "--speed-up",
        type=Number(min=0.001, max=1000.0),
        default=1.0,
        show_default=True,
        help="With --requests: replay this many times as fast.",
    )
    @click.option("--loop", is_flag=True, help="With --requests: restart at the end of the file, or of the window.")
    @click.option(
        "--sample",
        type=Number(min=0.0, max=1.0, min_open=True),
        default=1.0,
        show_default=True,
        help="With --requests: fraction of requests to send, chosen by --seed.",
    )
    @click.option(
        "--from",
        "begin",
        type=DURATION,
        metavar="DURATION",
        help="With --requests: start of the window, after the first request.",
    )
    @click.option(
        "--until",
        "end",
        type=DURATION,
        metavar="DURATION",
        help="With --requests: end of the window, after the first request.",
    )
    @click.option(
        "--prefix-block-tokens",
        type=click.IntRange(1, MOST_TOKENS),
        default=PREFIX_BLOCK_TOKENS,
        show_default=True,
        help="With --requests: tokens per block of hash_ids or prefix_blocks.",
    )
    @wraps(command)
    def collected(*args: Any, path: Path | None, **options: Any) -> None:
        given = {name: options.pop(name) for name in _OF_A_FILE}
        if path is None:
            _refuse_without_a_file()
        command(*args, requests=_requests(path, given) if path is not None else None, **options)

    return collected  # fmt: skip


def _refuse_without_a_file() -> None:
    context = click.get_current_context()
    for param in context.command.params:
        typed = param.name is not None and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        if typed and param.name in _OF_A_FILE:
            raise click.UsageError(f"{param.opts[0]} is about a file of requests: give it with --requests FILE")


def _requests(path: Path, given: dict[str, Any]) -> Requests:
    begin, end = given["begin"] or 0.0, given["end"] or inf
    if begin >= end:
        raise click.UsageError("--from must lie before --until")
    selection = Selection(given["speed_up"], given["loop"], given["sample"], begin, end)
    return Requests(path, selection, given["prefix_block_tokens"])


# ---------------------------------------------------------------------- settings


def _settable() -> dict[str, Any]:
    own = {name: kind for name, kind in get_type_hints(ServerSettings).items() if name in _names(ServerSettings)}
    return own | {f"{_STEP}{name}": float for name in _names(StepTime)}


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def with_settings(scenario: Scenario, pairs: tuple[str, ...]) -> Scenario:
    """Return the scenario on a server with these settings (NAME=VALUE). Raises a usage error that names the setting."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        kind = _settable().get(name)
        if not sign or kind is None:
            raise click.UsageError(f"--set {pair}: write NAME=VALUE with one of {', '.join(_settable())}")
        try:
            changes[name] = _value(kind, text)
        except (ValueError, KeyError):
            raise click.UsageError(f"--set {name}: {text!r} is no {_kind(kind)}") from None
    step = {name.removeprefix(_STEP): value for name, value in changes.items() if name.startswith(_STEP)}
    own = {name: value for name, value in changes.items() if not name.startswith(_STEP)}
    try:
        settings = replace(scenario.settings, **own)
    except SettingsError as error:
        raise click.UsageError(f"--set: {error}") from None
    return replace(scenario, settings=settings, step_time=replace(scenario.step_time, **step))


def _value(kind: Any, text: str) -> Any:
    if kind is bool:
        return _TRUTH[text.lower()]
    if kind is str:
        return text
    if kind is float:
        number = float(text)
        if not isfinite(number) or number < 0:
            raise ValueError
        return number
    return int(text)


def _kind(kind: Any) -> str:
    return {bool: "true or false", float: "number from 0 on"}.get(kind, "whole number")
