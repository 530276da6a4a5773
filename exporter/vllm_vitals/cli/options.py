"""What several commands share: durations on the command line, and a config made of a file and of arguments."""

from pathlib import Path
from typing import Any

import click
from pydantic_core import PydanticCustomError

from vllm_vitals.config import loader
from vllm_vitals.config.loader import Config
from vllm_vitals.config.schema import parse_duration
from vllm_vitals.scrape.shards import Shard, parse_shard

FILE = click.Path(dir_okay=False, path_type=Path)


class _Duration(click.ParamType[float]):
    """``5s``, ``1m30s``: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or a usage error."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except PydanticCustomError as error:
            self.fail(error.message(), param, ctx)
        if not seconds:
            self.fail("expected a duration above 0", param, ctx)
        return seconds


DURATION = _Duration()


def duration_text(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a duration as it was typed, for the config to read; refused here, where the option has its name."""
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


def configured(file: Path | None, urls: tuple[str, ...], overrides: dict[str, Any]) -> Config:
    """Return the config of ``file``, with ``urls`` added to its targets and the given keys replaced."""
    name, document = (str(file), loader.read(file)) if file is not None else ("command line", {})
    if urls:
        listed = document.get("targets") or []
        document["targets"] = [*(listed if isinstance(listed, list) else [listed]), *urls]
    return loader.build(name, {**document, **{key: value for key, value in overrides.items() if value is not None}})
