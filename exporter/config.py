"""The config file: strict, with exact errors.

Input: YAML. Output: a frozen `Config` whose targets are ready to be read. Invariant: an unknown key, a key given
twice, a wrong type or a number where a duration belongs is an error that names the key's path; nothing is guessed.
"""

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError

from exporter import strict_yaml
from exporter.catalog import METRICS
from exporter.core.snapshot import Role
from exporter.core.thresholds import Thresholds
from exporter.explain import explain, show
from exporter.logs.config import LogsConfig
from exporter.target import Address, Credentials, Target, Tls, parse_address

MAX_CONFIG_BYTES = 8 * 1024 * 1024
MAX_TARGETS = 10_000
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_RESERVED_LABELS = frozenset(label for metric in METRICS for label in metric.all_labels) | {"le", "job", "instance"}

# Thresholds that are times: in the file they are durations, as everywhere else.
TIMES = frozenset({
    "fast_window", "slow_window", "min_span", "hold", "release", "stall_after", "stall_after_start", "blind_hold",
    "spiral_silence",
})  # fmt: skip


class ConfigError(Exception):
    """The config cannot be used. The text is one line per problem, each naming the key's path."""


def parse_duration(value: object) -> float:
    """Seconds of ``"500ms"``, ``"5s"``, ``"1m30s"``, ``"2h"``, ``"7d"``. Only text: YAML reads 1:30 as 90."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h|d)", value))
    raise PydanticCustomError(
        "duration", 'expected a duration such as "5s" or "1m30s", got {got}', {"got": show(value)}
    )


def parse_size(value: object) -> int:
    """Bytes of ``"16MiB"``."""
    match = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)", value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("size", 'expected a size such as "16MiB", got {got}', {"got": show(value)})
    return int(match[1]) * _SIZES[match[2]]


def _parse_address(value: object) -> Address:
    if not isinstance(value, str):
        raise PydanticCustomError(
            "address", "expected an address such as http://localhost:8000, got {got}", {"got": show(value)}
        )
    try:
        return parse_address(value)
    except ValueError as error:
        raise PydanticCustomError("address", "{why}", {"why": str(error)}) from None


Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=64)]
Text = Annotated[str, Field(max_length=256)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class BasicAuth(_Model):
    """Basic authentication; the password lives in a file."""

    username: Text
    password_file: Text


class TlsConfig(_Model):
    """TLS towards a target."""

    ca_file: Text = ""
    cert_file: Text = ""
    key_file: Text = ""
    server_name: Text = ""
    insecure_skip_verify: bool = False

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise PydanticCustomError("pair", "cert_file and key_file belong together: give both")
        return self


ThresholdsConfig: type[BaseModel] = create_model(
    "ThresholdsConfig",
    __base__=_Model,
    **{f.name: (Duration if f.name in TIMES else f.type, f.default) for f in fields(Thresholds)},  # type: ignore[call-overload]
)


class TargetConfig(_Model):
    """One entry of ``targets``. Only ``url`` is needed."""

    url: Annotated[Address, BeforeValidator(_parse_address)]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    model_name: Text = ""
    role: Literal["serve", "prefill", "decode", "pooling"] | None = None
    service_class: Literal["interactive", "batch"] = "interactive"
    interval: Duration | None = None
    timeout: Duration | None = None
    bearer_token_file: Text = ""
    basic_auth: BasicAuth | None = None
    tls: TlsConfig = TlsConfig()
    labels: dict[LabelName, Text] = {}
    settings: dict[LabelName, int | float | str] = {}
    thresholds: dict[str, Any] = {}

    @model_validator(mode="after")
    def _checks(self) -> Self:
        if self.bearer_token_file and (self.basic_auth or self.url.username):
            raise PydanticCustomError("auth", "give either bearer_token_file or basic_auth, not both")
        taken = sorted(_RESERVED_LABELS & set(self.labels))
        if taken:
            raise PydanticCustomError(
                "label", "labels.{name} would hide a label that vllm-vitals sets itself", {"name": taken[0]}
            )
        return self


class Limits(_Model):
    """What one target may cost."""

    body: Size = 16 * 1024**2
    targets: Annotated[int, Field(gt=0, le=MAX_TARGETS)] = 5_000


def _bare_addresses(value: object) -> object:
    """An address alone stands for a target with nothing else to say."""
    return [{"url": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


class _File(_Model):
    listen: Text = "127.0.0.1:9840"
    interval: Duration = 5.0
    timeout: Duration | None = None
    histograms: Literal["all", "latency", "none"] = "all"
    targets: Annotated[list[TargetConfig], BeforeValidator(_bare_addresses)] = []
    thresholds: dict[str, Any] = {}
    limits: Limits = Limits()
    logs: LogsConfig = LogsConfig()


FILE_KEYS = tuple(_File.model_fields)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that the daemon needs to know; equal configs behave equally."""

    listen_host: str
    listen_port: int
    targets: tuple[Target, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)
    histograms: Literal["all", "latency", "none"] = "all"
    limits: Limits = field(default_factory=Limits)
    logs: LogsConfig = field(default_factory=LogsConfig)


def load(path: Path) -> Config:
    """Read and check a config file; raise `ConfigError`."""
    return build(str(path), read(path))


def read(path: Path) -> dict[str, Any]:
    """The plain values of a config file, unchecked but for YAML's own traps."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return strict_yaml.load(str(path), content)
    except strict_yaml.YamlError as error:
        raise ConfigError(str(error)) from None


def build(name: str, document: dict[str, Any]) -> Config:
    """A `Config` from the plain values of a file (or of the command line) called ``name`` in messages."""
    try:
        file = _File.model_validate(document)
        base = ThresholdsConfig.model_validate(file.thresholds).model_dump(exclude_unset=True)
    except ValidationError as error:
        inner = error.title == "ThresholdsConfig"
        where, model = ("thresholds.", ThresholdsConfig) if inner else ("", _File)
        raise ConfigError(explain(name, where, error, model)) from None
    targets = tuple(_target(name, index, file, base) for index in range(len(file.targets)))
    if len(targets) > file.limits.targets:
        raise ConfigError(f"{name}: {len(targets)} targets are more than limits.targets allows ({file.limits.targets})")
    _unique(name, targets)
    host, port = listen_address(name, file.listen)
    return Config(host, port, targets, Thresholds(**base), file.histograms, file.limits, file.logs)


def warnings(config: Config) -> list[str]:
    """What is allowed and probably not meant: files that cannot be read now, and nothing to watch."""
    notes = [] if config.targets else ["no targets: there is nothing to watch"]
    for target in config.targets:
        files = (target.credentials.bearer_token_file, target.credentials.password_file)
        for file in (*files, target.tls.ca_file, target.tls.cert_file, target.tls.key_file):
            if file and not os.access(file, os.R_OK):
                notes.append(f"target {target.name}: {file} cannot be read by this user now")
    return notes


def listen_address(name: str, text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9840``, ``[::]:9840`` or ``:9840`` (all addresses)."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f'{name}: listen: expected host:port such as "127.0.0.1:9840", got {show(text)}')
    return host.strip("[]"), int(port)


def _target(name: str, index: int, file: _File, base: dict[str, float]) -> Target:
    entry = file.targets[index]
    try:
        own = ThresholdsConfig.model_validate(entry.thresholds).model_dump(exclude_unset=True)
    except ValidationError as error:
        where = f"targets[{index}].thresholds."
        raise ConfigError(explain(name, where, error, ThresholdsConfig)) from None
    interval = entry.interval or file.interval
    timeout = entry.timeout or file.timeout or min(10.0, 0.9 * interval)
    if timeout > interval:
        raise ConfigError(
            f"{name}: targets[{index}].timeout: {timeout:g} s is longer than the interval of {interval:g} s"
        )
    auth = entry.basic_auth
    return Target(
        name=entry.name or entry.url.name,
        url=entry.url.url,
        interval=interval,
        timeout=timeout,
        model_name=entry.model_name,
        role=Role(entry.role) if entry.role else None,
        service_class=entry.service_class,
        credentials=Credentials(
            entry.bearer_token_file,
            auth.username if auth else entry.url.username,
            "" if auth else entry.url.password,
            auth.password_file if auth else "",
        ),
        tls=Tls(**entry.tls.model_dump()),
        labels=entry.labels,
        settings={key: str(value) for key, value in entry.settings.items()},
        thresholds=Thresholds(**{**base, **own}),
    )


def _unique(name: str, targets: tuple[Target, ...]) -> None:
    first: dict[str, int] = {}
    for index, target in enumerate(targets):
        other = first.setdefault(target.name, index)
        if other != index:
            both = f"targets[{other}] and targets[{index}] are both called {show(target.name)}"
            raise ConfigError(f"{name}: {both}: remove one or give it a name")
