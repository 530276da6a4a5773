"""What config says about logs. Input: the ``logs`` section as plain data. Output: `LogsConfig`, checked.

Invariant: an unknown key, a mapping that does not compile, or a source that reads nothing is an error with its path.
"""

from datetime import UTC, tzinfo
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from vllm_vitals.config import strict_yaml
from vllm_vitals.logs.schema import SHIPPED, LogMapping, Schema, compile_schema, shipped


class MappingError(Exception):
    """A mapping that cannot be used; one line that names the place and the mend."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def zone_of(name: str) -> tzinfo:
    """The zone by that name; UTC needs no zone database, which small container images lack. Raises as ZoneInfo does."""
    return UTC if name == "UTC" else ZoneInfo(name)


def _zone(name: str) -> str:
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone such as UTC or Europe/Berlin") from None
    return name


class LogSource(_Model):
    """One log. Exactly one of ``paths`` (files by glob), ``stdin`` and ``push`` says where its lines come from.

    ``target`` is the name of the server that it belongs to. ``mapping`` is auto, or the one mapping to use.
    ``start`` is where an unknown file is read from: its beginning holds the server's settings.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    target: str = ""
    paths: list[str] = Field(default_factory=list)
    stdin: bool = False
    push: bool = False
    mapping: str = "auto"
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    start: Literal["beginning", "end"] = "beginning"
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    default_max_tokens: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if sum((bool(self.paths), self.stdin, self.push)) != 1:
            raise ValueError("give exactly one of paths, stdin and push")
        return self


class LogLimits(_Model):
    """Bounds: bytes, series of a source, seconds."""

    max_line_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    max_series: Annotated[int, Field(ge=3)] = 200
    max_files: Annotated[int, Field(ge=1)] = 1000
    max_push_bytes: Annotated[int, Field(ge=1024)] = 8 << 20
    max_push_pending_bytes: Annotated[int, Field(ge=1024)] = 32 << 20
    window_s: Annotated[float, Field(gt=0)] = 600.0
    poll_s: Annotated[float, Field(gt=0)] = 0.5
    checkpoint_s: Annotated[float, Field(gt=0)] = 1.0


class LogsConfig(_Model):
    """The whole section. ``mappings`` are the user's own, tried before the shipped ones."""

    sources: list[LogSource] = Field(default_factory=list)
    mappings: list[LogMapping] = Field(default_factory=list)
    checkpoint: Path | None = None
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
        """The mappings that a source's lines are tried against, in order."""
        own = [compile_schema(mapping) for mapping in self.mappings]
        everything = own + shipped()
        return everything if source.mapping == "auto" else [one for one in everything if one.name == source.mapping][:1]


def load_schemas(files: list[Path], config: LogsConfig | None = None) -> list[Schema]:
    """The mappings in ``files`` and those of a config, then the shipped ones. Raises MappingError."""
    own = [_mapping(file, _yaml(file)) for file in files]
    own += config.mappings if config is not None else []
    return [compile_schema(mapping) for mapping in own] + shipped()


def _yaml(file: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises MappingError."""
    try:
        return strict_yaml.read(file)
    except strict_yaml.YamlError as error:
        raise MappingError(str(error)) from None


def _mapping(file: Path, plain: Any) -> LogMapping:
    try:
        return LogMapping.model_validate(plain)
    except ValidationError as error:
        raise MappingError(f"{file}: {_first_problem(error.errors()[0])}") from None


def _first_problem(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "mapping"
    return f"{place}: {problem['msg'].removeprefix('Value error, ')}"
