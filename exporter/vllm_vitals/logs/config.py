"""What config says about logs. Input: the ``logs`` section as plain data. Output: `LogsConfig`, checked.

Invariant: an unknown key, a mapping that does not compile, or a source that reads nothing is an error with its path.
"""

from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.errors import ConfigError, explain
from vllm_vitals.config.values import SECTION, Duration, FilePath, PlainPath, Size, Strict, matching
from vllm_vitals.logs.schema import SHIPPED, LogMapping, Schema, compile_schema, shipped


def zone_of(name: str) -> tzinfo:
    """Find the zone by that name; UTC needs no zone database, which small images lack. Raises as ZoneInfo does."""
    return UTC if name == "UTC" else ZoneInfo(name)


def _zone(name: str) -> str:
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone such as UTC or Europe/Berlin") from None
    return name


class LogSource(Strict):
    """One log. Exactly one of ``paths`` (files by glob), ``stdin`` and ``push`` says where its lines come from.

    ``target`` is the name of the server that it belongs to. ``mapping`` is auto, or the one mapping to use.
    ``start`` is where an unknown file is read from: its beginning holds the server's settings.
    """

    name: Annotated[str, matching("[A-Za-z0-9_.-]{1,64}", "up to 64 letters, digits and _.-")]
    target: str = ""
    paths: list[FilePath] = Field(default_factory=list)
    stdin: bool = False
    push: Annotated[bool, Field(validate_default=True)] = False
    mapping: str = "auto"
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    start: Literal["beginning", "end"] = "beginning"
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    default_max_tokens: Annotated[int, Field(gt=0)] | None = None

    @field_validator("push")
    @classmethod
    def _one_origin(cls, push: bool, info: ValidationInfo) -> bool:
        others = [bool(info.data.get(name, True)) for name in ("paths", "stdin")]  # a wrong one counts too
        if sum(others) + push != 1:
            raise PydanticCustomError("pair", "give exactly one of paths, stdin and push")
        return push


Count = Annotated[int, Field(ge=1, strict=True)]
Bytes = Annotated[Size, Field(ge=1024)]


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds: bytes, series of a source, lines of one push, seconds."""

    __pydantic_config__ = SECTION

    max_line_bytes: Annotated[Bytes, Field(alias="max_line")] = 1 << 20
    max_series: Annotated[Count, Field(ge=3)] = 200
    max_files: Count = 1000
    max_push_bytes: Annotated[Bytes, Field(alias="max_push")] = 8 << 20
    max_push_lines: Count = 100_000
    max_push_pending_bytes: Annotated[Bytes, Field(alias="max_push_pending")] = 32 << 20
    window_s: Annotated[Duration, Field(alias="window")] = 600.0
    poll_s: Annotated[Duration, Field(alias="poll")] = 0.5
    checkpoint_s: Annotated[Duration, Field(alias="checkpoint")] = 1.0


class LogsConfig(Strict):
    """The whole section. ``mappings`` are the user's own, tried before the shipped ones."""

    sources: list[LogSource] = Field(default_factory=list)
    mappings: list[LogMapping] = Field(default_factory=list)
    checkpoint: PlainPath | None = None
    limits: LogLimits = LogLimits()

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError("two sources have the same name")
        known = {"auto", *SHIPPED, *(mapping.name for mapping in self.mappings)}
        for source in self.sources:
            if source.mapping not in known:
                raise ValueError(
                    f"source {source.name}: unknown mapping {source.mapping!r}; there are {', '.join(sorted(known))}"
                )
        if sum(source.stdin for source in self.sources) > 1:
            raise ValueError("only one source can read stdin")
        return self

    def schemas_of(self, source: LogSource) -> list[Schema]:
        """Choose the mappings that a source's lines are tried against, in order."""
        own = [compile_schema(mapping) for mapping in self.mappings]
        everything = own + shipped()
        return everything if source.mapping == "auto" else [one for one in everything if one.name == source.mapping][:1]


def load_schemas(files: list[Path], config: LogsConfig | None = None) -> list[Schema]:
    """Read the mappings in ``files``; return them, those of a config, and the shipped ones. Raises `ConfigError`."""
    own = [_mapping(file) for file in files]
    own += config.mappings if config is not None else []
    return [compile_schema(mapping) for mapping in own] + shipped()


def _mapping(file: Path) -> LogMapping:
    try:
        return LogMapping.model_validate(strict_yaml.read(file))
    except strict_yaml.YamlError as error:
        raise ConfigError(str(error)) from None
    except ValidationError as error:
        raise ConfigError("\n".join(explain(str(file), error, LogMapping))) from None
