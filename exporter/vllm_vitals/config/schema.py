"""What the config file may say: its keys, their types, and the words for what is wrong with a value.

Input: plain values. Output: checked pydantic models. Invariant: nothing is converted silently: a number where a
duration belongs, a text where a number belongs, or an unknown key is an error.
"""

import re
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from vllm_vitals.catalog import METRICS
from vllm_vitals.config.errors import show
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.scrape.target import Address, parse_address

MAX_TARGETS = 10_000
MAX_DURATION_S = 10_000 * 86_400.0  # longer is a slip of the keyboard, and more digits are an infinity
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
RESERVED_LABELS = frozenset(label for metric in METRICS for label in metric.all_labels) | {"le", "job", "instance"}

# Thresholds that are times: in the file they are durations, as everywhere else.
TIMES = frozenset({
    "fast_window", "slow_window", "min_span", "hold", "release", "stall_after", "stall_after_start", "blind_hold",
    "spiral_silence",
})  # fmt: skip
SHARES = frozenset({
    "thrash_repeat_ratio", "spiral_recompute_tax", "spiral_generation_share", "saturated_share", "kv_pressure_ratio",
    "prefill_share", "lost_share", "lost_share_prefix_caching",
})  # fmt: skip


def parse_duration(value: object) -> float:
    """Seconds of ``"500ms"``, ``"5s"``, ``"1m30s"``, ``"2h"``, ``"7d"``. Only text: YAML reads 1:30 as 90."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h|d)", value))
        if seconds <= MAX_DURATION_S:
            return seconds
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


def _service_url(value: object) -> str:
    """A URL without credentials, which have keys of their own; whatever is wrong, it is not shown."""
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s@]{1,2000}", value):
        raise PydanticCustomError("address", "expected http:// or https:// and an address, without user or password")
    return value


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class BasicAuthConfig(_Model):
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


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise PydanticCustomError(
            "share", "expected a share from 0 to 1 (0.9 for 90 %), got {got}", {"got": f"{value:g}"}
        )
    return value


Share = Annotated[float, AfterValidator(_share)]
Positive = Annotated[float, Field(gt=0)]
Failures = Annotated[int, Field(ge=1, le=100)]


def _threshold(name: str) -> object:
    """What a threshold may be: a duration, a share, a count of failures, or any number above 0."""
    if name in TIMES:
        return Duration
    if name == "failures":
        return Failures
    return Share if name in SHARES else Positive


ThresholdsConfig: type[BaseModel] = create_model(
    "ThresholdsConfig",
    __base__=_Model,
    **{f.name: (_threshold(f.name), f.default) for f in fields(Thresholds)},  # type: ignore[call-overload]
)


class CanaryConfig(_Model):
    """One tiny request at a time, to find hangs that metrics cannot show."""

    interval: Duration = 60.0
    deadline: Duration = 20.0
    task: Literal["auto", "completions", "chat", "embeddings"] = "auto"
    model: Text = ""

    @model_validator(mode="after")
    def _one_at_a_time(self) -> Self:
        if self.deadline > self.interval:
            raise PydanticCustomError("pair", "deadline is longer than interval: canaries never overlap")
        return self


class Watched(_Model):
    """How targets are watched, wherever their addresses come from."""

    model_name: Text = ""
    role: Literal["serve", "prefill", "decode", "pooling"] | None = None
    service_class: Literal["interactive", "batch"] = "interactive"
    interval: Duration | None = None
    timeout: Duration | None = None
    bearer_token_file: Text = ""
    basic_auth: BasicAuthConfig | None = None
    tls: TlsConfig = TlsConfig()
    labels: dict[LabelName, Text] = {}
    settings: dict[LabelName, int | float | str] = {}
    thresholds: dict[str, Any] = {}
    canary: CanaryConfig | None = None

    @model_validator(mode="after")
    def _checks(self) -> Self:
        if self.bearer_token_file and self.basic_auth:
            raise PydanticCustomError("auth", "give either bearer_token_file or basic_auth, not both")
        taken = sorted(RESERVED_LABELS & set(self.labels))
        if taken:
            raise PydanticCustomError(
                "label", "labels.{name} would hide a label that vllm-vitals sets itself", {"name": taken[0]}
            )
        return self


class TargetConfig(Watched):
    """One entry of ``targets``. Only ``url`` is needed."""

    url: Annotated[Address, BeforeValidator(_parse_address)]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.bearer_token_file and self.url.username:
            raise PydanticCustomError("auth", "give either bearer_token_file or basic_auth, not both")
        return self


class FileSd(_Model):
    """Prometheus' file_sd: files of target groups; the last part of a path may hold ``*``."""

    files: Annotated[list[Text], Field(min_length=1)]
    refresh_interval: Duration = 5.0


class HttpSd(_Model):
    """Prometheus' http_sd: a URL that answers target groups, and how to prove who asks."""

    url: Annotated[str, BeforeValidator(_service_url)]
    refresh_interval: Duration = 60.0
    bearer_token_file: Text = ""
    basic_auth: BasicAuthConfig | None = None
    tls: TlsConfig = TlsConfig()


class DnsSd(_Model):
    """Names whose A, AAAA or SRV records are targets."""

    names: Annotated[list[Annotated[str, Field(min_length=1, max_length=253)]], Field(min_length=1)]
    type: Literal["A", "AAAA", "SRV"] = "SRV"
    port: Annotated[int, Field(gt=0, le=65535)] = 8000
    refresh_interval: Duration = 30.0


class DiscoveryConfig(Watched):
    """One entry of ``discovery``: where targets come from, and how those are watched."""

    file_sd: FileSd | None = None
    http_sd: HttpSd | None = None
    dns_sd: DnsSd | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.file_sd, self.http_sd, self.dns_sd)) != 1:
            raise PydanticCustomError("pair", "give exactly one of file_sd, http_sd and dns_sd")
        return self


class FlightConfig(_Model):
    """What is kept of the minutes before and after an engine got into trouble."""

    directory: Annotated[str, Field(min_length=1, max_length=1024)]
    before: Duration = 300.0
    after: Duration = 300.0
    memory_per_target: Size = 384 * 1024
    max_bytes: Size = 1024**3
    max_files: Annotated[int, Field(gt=0, le=100_000)] = 200


class Limits(_Model):
    """What one target may cost."""

    body: Size = 16 * 1024**2
    targets: Annotated[int, Field(gt=0, le=MAX_TARGETS)] = 5_000


def _bare_addresses(value: object) -> object:
    """An address alone stands for a target with nothing else to say."""
    return [{"url": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


class File(_Model):
    """The whole file. Every key has a default."""

    listen: Text = "127.0.0.1:9840"
    interval: Duration = 5.0
    timeout: Duration | None = None
    histograms: Literal["all", "latency", "none"] = "all"
    targets: Annotated[list[TargetConfig], BeforeValidator(_bare_addresses)] = []
    discovery: list[DiscoveryConfig] = []
    thresholds: dict[str, Any] = {}
    canary: CanaryConfig | None = None
    flight_recorder: FlightConfig | None = None
    limits: Limits = Limits()
    logs: LogsConfig = LogsConfig()
    review: ReviewSettings = ReviewSettings()  # read by the review alone; checked with the rest
